"""The columns of the board: what they are called, what they mean, and by what they sort."""

from __future__ import annotations

from dataclasses import dataclass

from . import formats


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its heading, what it means, and by which key the board sorts when the heading is pressed."""

    title: str
    meaning: str
    sort: str | None = None


COLUMNS = (
    Column("Endpoint", "The endpoint with its config and load; below it other loads, configs, and its slices.", "name"),
    Column("Verdict", formats.definition("verdict") + " An operator's override takes precedence.", "verdict"),
    Column("Speedup", f"{formats.definition('speedup')} {formats.definition('bounds')}", "speedup"),
    Column("Accepted", f"{formats.definition('acceptance')} {formats.definition('bounds')}", "acceptance"),
    Column(
        "Slowed",
        "Share of requests that speculation slows by more than the policy's tail margin (20% unless set), with its "
        "upper bound, which must lie below the policy's share (10% unless set).",
        "tail",
    ),
    Column("Parity", "Whether the speculative output is the target's own: the worst of the parity tests."),
    Column(
        "Memory",
        "Extra peak memory of the speculative arm, as a share of the baseline's, or in KV tokens; through servers, the "
        "share of the baseline's KV cache that the speculative server's lacks.",
    ),
    Column(
        "Saved",
        "Device time per output token that speculation saves against the baseline, pooled over the measured requests "
        "of the last 7 days of traffic; negative where it costs more. Also in money where a price is set.",
        "saving",
    ),
    Column(
        "Evidence",
        "Sessions in evidence, and how long ago the newest of it happened (of a file: was measured).",
        "evidence",
    ),
    Column(
        "Still needed",
        "Sessions that the slowest test still wants, and when they will have come at the pace so far: an estimate, no "
        "promise.",
        "needed",
    ),
    Column("Trend", "Geometric mean of the requests' speedups per day (UTC) over the last 14 days; the line is at 1."),
)
