"""At which rate each slice is sampled: the endpoint's own until everything that it feeds is decided.

A slice feeds its own hypotheses and the whole endpoint's, at every load and for every candidate.  Its rate
never falls while one of them is open; then it drops to `min_rate`, which keeps the detectors alive and
frees the rest of the capacity for slices that are still open.  It rises again as soon as one is open again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from shadowspec.gate.verdict.lifecycle import Standing, decided_slices
from shadowspec.tap.endpoints import EndpointRule


@dataclass(frozen=True, slots=True)
class Scope:
    """The configs and loads that an endpoint is measured with now: hypotheses of any other no longer count."""

    fingerprints: Collection[str]
    loads: Collection[int]


class SliceRates:
    """The rates as of the last decisions that were read; until the engines say what they measure, the full ones."""

    def __init__(self, loads: Mapping[str, Collection[int]]) -> None:
        self._scopes = {endpoint: Scope((), item) for endpoint, item in loads.items()}
        self._decided: frozenset[tuple[str, str]] = frozenset()

    def measure_with(self, fingerprints: Mapping[str, Collection[str]]) -> None:
        """The engines are built: what each endpoint is measured with."""
        for endpoint, fingerprint in fingerprints.items():
            self._scopes[endpoint] = replace(self._scopes[endpoint], fingerprints=tuple(fingerprint))

    def __call__(self, rule: EndpointRule, slice_key: str) -> float:
        """The rate of a slice that begins now; of the whole endpoint (""), the smallest of its slices'."""
        is_decided = (rule.name, slice_key) in self._decided
        return min(rule.min_rate, rule.sample_rate) if is_decided else rule.sample_rate

    def refresh(self, standing: Mapping[str, Standing]) -> None:
        """Take up the current verdicts of each endpoint."""
        self._decided = frozenset(
            (endpoint, slice_key)
            for endpoint, verdicts in standing.items()
            for slice_key in decided_slices(verdicts, self._scopes[endpoint].loads, self._scopes[endpoint].fingerprints)
        )
