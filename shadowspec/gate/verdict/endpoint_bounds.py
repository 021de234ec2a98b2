"""An endpoint as the sum of its slices: bounds under the current traffic, the named candidate, what covers what.

Invariant: an endpoint's verdict never enables a slice that is DISABLEd.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from shadowspec.metrics import ratio
from shadowspec.types import Decision, TestResult, Verdict, WeightedBounds

# Reasons for which a slice's bounds are not used: its units have not shown to be independent.
UNTRUSTED_CODES = frozenset({"dependent"})

# The share of the traffic from which on a slice that is off keeps its whole endpoint from being enabled.
MIN_SLICE_SHARE: Final = 0.05
ANY_SHARE: Final = 0.0  # where slices cannot be distinguished: what enables the endpoint would enable each of them
SHARE_TOLERANCE: Final = 1e-9  # shares are sums of floating-point numbers


@dataclass(frozen=True, slots=True)
class SliceBounds:
    """A slice's simultaneous bounds of one mean, with its weight in the current traffic (any scale, 0 or more).

    A bound is None where nothing is known: it enters at the end of the range.
    """

    slice_key: str
    weight: float
    lower: float | None
    upper: float | None


@dataclass(frozen=True, slots=True)
class SliceTraffic:
    """Current traffic of a slice: its requests, and the draft tokens (the acceptance rate's denominator) of them."""

    num_requests: float
    num_draft_tokens: float


def weighted_bounds(slices: Iterable[SliceBounds], lowest: float, highest: float) -> WeightedBounds | None:
    """sum of w_s * lower_s and sum of w_s * upper_s, w_s the shares of the weight; None where there is no weight.

    The slices' bounds of one kind hold at once with probability 1 - alpha or more, so their sum does too, for any
    weights, however the weights were chosen and at no level of its own.  `lowest` and `highest` are the ends of
    the mean's range.
    """
    present = [bounds for bounds in slices if bounds.weight > 0.0]
    total = sum(bounds.weight for bounds in present)
    lower = ratio(sum(bounds.weight * (lowest if bounds.lower is None else bounds.lower) for bounds in present), total)
    upper = ratio(sum(bounds.weight * (highest if bounds.upper is None else bounds.upper) for bounds in present), total)
    known = ratio(sum(bounds.weight for bounds in present if bounds.lower is not None), total)
    if lower is None or upper is None or known is None:
        return None
    return WeightedBounds(lower, upper, known)


def endpoint_bounds(
    slices: Sequence[Decision], traffic: Mapping[str, SliceTraffic], log_speedup_clip: float
) -> dict[str, WeightedBounds]:
    """The endpoint's bounds of speedup and acceptance at one load and with one config, by test, as they are shown.

    `slices` are its slices' decisions, `traffic` the current traffic by slice, those without a decision
    included.  Speedup is weighted by requests on the log scale, acceptance by draft tokens.
    """
    by_slice = {decision.slice_key: decision for decision in slices}
    found = {}
    speedup = weighted_bounds(
        [_bounds(name, share.num_requests, by_slice.get(name), "speedup") for name, share in traffic.items()],
        -log_speedup_clip,
        log_speedup_clip,
    )
    acceptance = weighted_bounds(
        [_bounds(name, share.num_draft_tokens, by_slice.get(name), "acceptance") for name, share in traffic.items()],
        0.0,
        1.0,
    )
    if speedup is not None:
        found["speedup"] = replace(speedup, lower=math.exp(speedup.lower), upper=math.exp(speedup.upper))
    if acceptance is not None:
        found["acceptance"] = acceptance
    return found


def named_candidates(decisions: Iterable[Decision]) -> dict[tuple[str, int], str]:
    """By slice and load, the fingerprint of the ENABLEd candidate with the best lower bound of speedup.

    Every one of them is proven; the bounds hold at once, so the choice among them costs no level.  Equal bounds:
    fewer speculative tokens, then the fingerprint.
    """
    enabled: dict[tuple[str, int], list[Decision]] = defaultdict(list)
    for decision in decisions:
        if decision.verdict is Verdict.ENABLE:
            enabled[decision.slice_key, decision.concurrency].append(decision)
    return {key: min(found, key=_rank).fingerprint for key, found in enabled.items()}


def is_shown_under_parent(decision: Decision) -> bool:
    """Whether a slice has too little traffic, or came too late, to have a level: its endpoint speaks for it."""
    return decision.slice_key != "" and decision.level is None


def covering_decision(decision: Decision | None, endpoint: Decision | None) -> Decision | None:
    """The decision that speaks for a slice: its own if it has a level or is DISABLEd, else its endpoint's.

    None where there is neither.
    """
    if decision is None or (is_shown_under_parent(decision) and decision.verdict is not Verdict.DISABLE):
        return endpoint or decision
    return decision


def bears_on_endpoint(share: float | None, min_share: float = MIN_SLICE_SHARE) -> bool:
    """Whether a slice with this share of the traffic, if it is off, keeps its whole endpoint from being enabled.

    The one rule for every surface; they differ in `min_share` alone.  `check` takes MIN_SLICE_SHARE, a rollout the
    policy's `max_disabled_share`, and an export to a server that cannot tell slices apart ANY_SHARE.  A share that
    is not known (None) counts as a large one.
    """
    return share is None or share >= min_share - SHARE_TOLERANCE


def forbidding_slices(
    whole: Decision, decisions: Iterable[Decision], min_share: float = MIN_SLICE_SHARE
) -> list[Decision]:
    """Of the effective `decisions`, the DISABLEd slices that bear on the endpoint's own decision `whole`; by traffic.

    They are those at its load and with its fingerprint, by the share that the gate wrote down.
    """
    found = [
        decision
        for decision in decisions
        if decision.slice_key
        and (decision.endpoint, decision.concurrency, decision.fingerprint)
        == (whole.endpoint, whole.concurrency, whole.fingerprint)
        and decision.verdict is Verdict.DISABLE
        and bears_on_endpoint(decision.traffic_share, min_share)
    ]
    return sorted(found, key=lambda decision: (-_known(decision.traffic_share), decision.slice_key))


def _known(share: float | None) -> float:
    return 1.0 if share is None else share


def _bounds(slice_key: str, weight: float, decision: Decision | None, name: str) -> SliceBounds:
    nothing = SliceBounds(slice_key, weight, None, None)
    if decision is None or decision.level is None or decision.reason_code in UNTRUSTED_CODES:
        return nothing
    result = next((test for test in decision.tests if test.name == name), None)
    if result is None or not result.num_units:
        return nothing
    return SliceBounds(slice_key, weight, _unshown(result, result.lower), _unshown(result, result.upper))


def _unshown(result: TestResult, bound: float | None) -> float | None:
    """A bound on the scale of the unit values: speedup's are shown exponentiated."""
    return math.log(bound) if bound is not None and result.name == "speedup" else bound


def _rank(decision: Decision) -> tuple[float, int, str]:
    speedup = next(test for test in decision.tests if test.name == "speedup")
    return -(speedup.lower or 0.0), decision.config.num_speculative_tokens, decision.fingerprint
