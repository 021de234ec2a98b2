"""The columns of the board: what they are called, what they mean, and by what they sort."""

from __future__ import annotations

from dataclasses import dataclass

from . import formats


@dataclass(frozen=True, slots=True)
class BoardColumn:
    """One column: its heading, what it means, and by which key the board sorts when the heading is pressed."""

    title: str
    meaning: str
    sort: str | None = None


COLUMNS = (
    BoardColumn(
        "Endpoint",
        "The endpoint with its config and load. The arrow shows its other loads and configs, and its slices.",
        "name",
    ),
    BoardColumn("Verdict", formats.definition("verdict") + " An operator's override takes precedence.", "verdict"),
    BoardColumn("Speedup", f"{formats.definition('speedup')} {formats.definition('bounds')}", "speedup"),
    BoardColumn("Accepted", f"{formats.definition('acceptance')} {formats.definition('bounds')}", "acceptance"),
    BoardColumn(
        "Slowed",
        "Share of requests that speculation slows by more than the policy's tail_margin (default 20%), with its upper "
        "bound. The bound must lie below tail_share (default 10%).",
        "tail",
    ),
    BoardColumn("Parity", "Whether both arms give the same output: the worst outcome of the parity tests."),
    BoardColumn(
        "Memory",
        "Extra peak memory of the speculative arm, as a share of the baseline's or in KV tokens. Through servers it is "
        "the part of the baseline's KV cache that the speculative server does not have.",
    ),
    BoardColumn(
        "Saved",
        "Device time per output token that speculation saves compared with the baseline, over the last 7 days of "
        "traffic. A negative figure costs more. In money too if a price is set.",
        "saving",
    ),
    BoardColumn(
        "Evidence",
        "Sessions in evidence, and the age of the newest. The age of a file counts from its measurement.",
        "evidence",
    ),
    BoardColumn(
        "Still needed",
        "Sessions that the slowest test still needs, and the expected date at the present rate: an estimate.",
        "needed",
    ),
    BoardColumn(
        "Trend", "Geometric mean of the requests' speedups per day (UTC) over 14 days of traffic. The line is at 1."
    ),
)
