"""Chats as servers streamed them: the faults of their streams, and their reasoning beside their answer.

Sums are plain, not weighted by sampling rates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from shadowspec.metrics import ratio
from shadowspec.text import percent, plural, times
from shadowspec.types import WHOLE_STREAM, Run

PART_HEAD: Final = (
    "Part",
    "Tokens, baseline",
    "Tokens, speculative",
    "Time, baseline",
    "Time, speculative",
    "Ratio of total times",
    "Drafted tokens accepted",
)


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """Chats that both arms streamed, with the faults of each arm by code."""

    num_chats: int
    num_proven: int  # faults that are the speculative server's
    baseline_faults: dict[str, int]
    speculative_faults: dict[str, int]

    @property
    def text(self) -> str:
        """The counts, in a sentence."""
        codes = sorted({*self.baseline_faults, *self.speculative_faults})
        kinds = (f"{c}: {self.baseline_faults.get(c, 0)} and {self.speculative_faults.get(c, 0)}" for c in codes)
        found = "no fault in either arm" if not codes else f"faults of baseline and speculation: {', '.join(kinds)}"
        proven = f". {plural(self.num_proven, 'fault')} proven to be speculation's" if self.num_proven else ""
        return f"{plural(self.num_chats, 'chat')} streamed, {found}{proven}."


@dataclass(frozen=True, slots=True)
class PartRow:
    """Reasoning or answer of the chats whose parts are known."""

    part: str
    baseline_tokens: int
    speculative_tokens: int
    baseline_ms: float
    speculative_ms: float
    draft_acceptance_rate: float | None

    @property
    def ratio_of_total_times(self) -> float | None:
        """Baseline's time over speculation's."""
        return ratio(self.baseline_ms, self.speculative_ms)

    @property
    def cells(self) -> list[str]:
        """As a table with `PART_HEAD` has them."""
        return [
            self.part,
            f"{self.baseline_tokens:,}",
            f"{self.speculative_tokens:,}",
            f"{self.baseline_ms / 1e3:,.1f} s",
            f"{self.speculative_ms / 1e3:,.1f} s",
            times(self.ratio_of_total_times),
            percent(self.draft_acceptance_rate),
        ]


def stream_figures(runs: Iterable[Run]) -> StreamFigures | None:
    """The faults of the streams; None where no chat was streamed."""
    streams = [run.stream for run in runs if run.stream is not None]
    if not streams:
        return None
    return StreamFigures(
        len(streams),
        sum(stream.is_stream_fault for stream in streams),
        _faults(stream.baseline_stream for stream in streams),
        _faults(stream.speculative_stream for stream in streams),
    )


def _faults(codes: Iterable[str]) -> dict[str, int]:
    return {code: number for code, number in sorted(Counter(codes).items()) if code != WHOLE_STREAM}


def part_rows(runs: Iterable[Run]) -> tuple[PartRow, ...]:
    """Reasoning and answer of the chats of which both arms say where the answer begins; () without any."""
    known = [run for run in runs if _is_known(run)]
    return () if not known else (_row("reasoning", known, is_thinking=True), _row("answer", known, is_thinking=False))


def _is_known(run: Run) -> bool:
    part = run.thinking
    if part is None or run.counts is None or run.baseline is None or run.speculative is None:
        return False
    return None not in (
        *(part.baseline_thinking_tokens, part.speculative_thinking_tokens),
        *(part.baseline_thinking_ms, part.speculative_thinking_ms),
    )


def _row(part: str, runs: Sequence[Run], *, is_thinking: bool) -> PartRow:
    tokens, spent, drafted, accepted = [0, 0], [0.0, 0.0], 0, 0
    for run in runs:
        thinking, counts = run.thinking, run.counts
        assert thinking is not None
        assert counts is not None
        thought = thinking.baseline_thinking_tokens or 0, thinking.speculative_thinking_tokens or 0
        lasted = thinking.baseline_thinking_ms or 0.0, thinking.speculative_thinking_ms or 0.0
        for arm, timing in enumerate((run.baseline, run.speculative)):
            assert timing is not None
            tokens[arm] += thought[arm] if is_thinking else timing.num_output_tokens - thought[arm]
            spent[arm] += lasted[arm] if is_thinking else timing.decode_ms - lasted[arm]
        if thinking.num_thinking_draft_tokens is not None and thinking.num_thinking_accepted_tokens is not None:
            within = thinking.num_thinking_draft_tokens, thinking.num_thinking_accepted_tokens
            drafted += within[0] if is_thinking else counts.num_draft_tokens - within[0]
            accepted += within[1] if is_thinking else counts.num_accepted_tokens - within[1]
    return PartRow(part, tokens[0], tokens[1], spent[0], spent[1], ratio(accepted, drafted))
