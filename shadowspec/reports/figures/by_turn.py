"""What prefix caches held of the prompts: turn by turn of measured conversations, and in production.

Sums are plain, not weighted by sampling rates.  A request counts only where both servers say what they had cached.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from shadowspec.metrics import ratio
from shadowspec.text import milliseconds, percent, plural, times
from shadowspec.types import Run, StoredRecord

TURN_HEAD: Final = (
    "Turn",
    "Requests",
    "Prompt tokens",
    "Cached, baseline",
    "Cached, speculative",
    "TTFT mean, baseline",
    "TTFT mean, speculative",
    "Ratio of total times",
)


@dataclass(frozen=True, slots=True)
class TurnRow:
    """The requests at one place of their sessions; `turn` is None of all of them together."""

    turn: int | None
    num_requests: int
    num_prompt_tokens: int
    baseline_cached_tokens: int
    speculative_cached_tokens: int
    baseline_ttft_ms: float | None  # mean
    speculative_ttft_ms: float | None
    ratio_of_total_times: float | None

    @property
    def cells(self) -> list[str]:
        """As a table with `TURN_HEAD` has them."""
        return [
            "all" if self.turn is None else str(self.turn),
            f"{self.num_requests:,}",
            f"{self.num_prompt_tokens:,}",
            percent(ratio(self.baseline_cached_tokens, self.num_prompt_tokens)),
            percent(ratio(self.speculative_cached_tokens, self.num_prompt_tokens)),
            milliseconds(self.baseline_ttft_ms),
            milliseconds(self.speculative_ttft_ms),
            times(self.ratio_of_total_times),
        ]


@dataclass(frozen=True, slots=True)
class ProductionCache:
    """Prompt tokens of the records whose production answers say how many of them were cached."""

    num_requests: int
    num_prompt_tokens: int
    num_cached_tokens: int

    @property
    def text(self) -> str:
        """The share, in a sentence."""
        share = percent(ratio(self.num_cached_tokens, self.num_prompt_tokens))
        return (
            f"Production's prefix cache held {share} of the prompt tokens of the "
            f"{plural(self.num_requests, 'request')} whose answers say so."
        )


def turn_rows(runs: Iterable[tuple[Run, int | None]], *, by_turn: bool) -> tuple[TurnRow, ...]:
    """A row for each turn, and one of all of them; none where no server says what it had cached.

    Args:
        runs: each with its request's place in its session, from 1.
        by_turn: whether conversations were measured; else there is one row, and only where anything was cached.
    """
    known = [(run, turn) for run, turn in runs if run.served is not None and run.served.cached_tokens is not None]
    if not known:
        return ()
    whole = _row(None, [run for run, _ in known])
    if not by_turn:
        return (whole,) if whole.baseline_cached_tokens or whole.speculative_cached_tokens else ()
    by_place: dict[int, list[Run]] = defaultdict(list)
    for run, turn in known:
        if turn is not None:
            by_place[turn].append(run)
    return (*(_row(turn, by_place[turn]) for turn in sorted(by_place)), whole)


def production_cache(records: Iterable[StoredRecord]) -> ProductionCache | None:
    """What production answers say of their prefix cache; None where none says anything."""
    known = [
        (record.num_prompt_tokens, min(record.num_cached_tokens, record.num_prompt_tokens))
        for record in records
        if record.num_cached_tokens is not None and record.num_prompt_tokens is not None
    ]
    if not known:
        return None
    return ProductionCache(len(known), sum(tokens for tokens, _ in known), sum(tokens for _, tokens in known))


def _row(turn: int | None, runs: Sequence[Run]) -> TurnRow:
    pairs = [run.served.cached_tokens for run in runs if run.served is not None]
    timed = [
        (run.baseline, run.speculative) for run in runs if run.baseline is not None and run.speculative is not None
    ]
    return TurnRow(
        turn=turn,
        num_requests=len(runs),
        num_prompt_tokens=sum(run.counts.num_prompt_tokens for run in runs if run.counts is not None),
        baseline_cached_tokens=sum(pair[0] for pair in pairs if pair is not None),
        speculative_cached_tokens=sum(pair[1] for pair in pairs if pair is not None),
        baseline_ttft_ms=ratio(sum(base.prefill_ms for base, _ in timed), len(timed)),
        speculative_ttft_ms=ratio(sum(spec.prefill_ms for _, spec in timed), len(timed)),
        ratio_of_total_times=ratio(
            sum(base.end_to_end_ms for base, _ in timed), sum(spec.end_to_end_ms for _, spec in timed)
        ),
    )
