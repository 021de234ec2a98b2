"""Where the records of an endpoint ended: counters that add up to the records read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shadowspec.metrics import cached_shares, ratio
from shadowspec.types import Decision, FunnelCounter

UNMATCHED = "unmatched"  # records that belong to no endpoint
FunnelCounts = Mapping[tuple[str | None, FunnelCounter, str | None], int]


@dataclass(frozen=True, slots=True)
class PromptRow:
    """Measured prompts of a config at an endpoint that production's server counted; `num_other` have another length."""

    endpoint: str
    config_name: str
    num_compared: int
    num_other: int

    @property
    def share(self) -> float | None:
        """Of those of another length."""
        return ratio(self.num_other, self.num_compared)


@dataclass(frozen=True, slots=True)
class CacheRow:
    """The share of the prompt tokens of a config at an endpoint that production and each arm found in prefix caches."""

    endpoint: str
    config_name: str
    num_requests: int  # of which all three say so
    num_prompt_tokens: int
    production_share: float | None
    baseline_share: float | None
    speculative_share: float | None


@dataclass(frozen=True, slots=True)
class FunnelRow:
    """One counter of one endpoint with its reasons, most frequent first."""

    counter: FunnelCounter
    num_records: int
    reasons: tuple[tuple[str, int], ...]

    @property
    def title(self) -> str:
        """The counter in plain words."""
        return self.counter.value.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Funnel:
    """Where the records of one endpoint ended; all eight counters, adding up to `num_records`."""

    endpoint: str | None  # None: of records that match no endpoint
    num_records: int
    rows: tuple[FunnelRow, ...]


def prompt_rows(decisions: Iterable[Decision]) -> tuple[PromptRow, ...]:
    """The prompts of each endpoint and config, of the decisions on whole endpoints; without those that count none."""
    counts = {
        (decision.endpoint, decision.config.name): decision.evidence.counts
        for decision in decisions
        if not decision.slice_key and decision.evidence.counts.num_compared_prompts
    }
    return tuple(
        PromptRow(*place, found.num_compared_prompts, found.num_other_prompts)
        for place, found in sorted(counts.items())
    )


def cache_rows(decisions: Iterable[Decision]) -> tuple[CacheRow, ...]:
    """What caches held for each endpoint and config, of the decisions on whole endpoints that know any of it."""
    found = {
        (decision.endpoint, decision.config.name): decision.evidence.counts.cached
        for decision in decisions
        if not decision.slice_key and decision.evidence.counts.cached.num_requests
    }
    return tuple(
        CacheRow(*place, cached.num_requests, cached.num_prompt_tokens, *cached_shares(cached))
        for place, cached in sorted(found.items())
    )


def funnel_of(endpoint: str | None, counts: FunnelCounts, names: set[str | None]) -> Funnel:
    """Where the records of these endpoints ended; None among them: those that match no endpoint."""
    reasons: dict[FunnelCounter, Counter[str]] = {counter: Counter() for counter in FunnelCounter}
    totals: Counter[FunnelCounter] = Counter()
    for (name, counter, reason), number in counts.items():
        if name in names:
            totals[counter] += number
            if reason is not None:
                reasons[counter][reason] += number
    return Funnel(
        endpoint=endpoint,
        num_records=sum(totals.values()),
        rows=tuple(
            FunnelRow(
                counter, totals[counter], tuple(sorted(reasons[counter].items(), key=lambda pair: (-pair[1], pair[0])))
            )
            for counter in FunnelCounter
        ),
    )
