"""An endpoint's decision from its slices' decisions: weighted bounds, the named candidate, changes since ENABLE.

Pure over the decisions of one look; every finding becomes part of the `composition` of those decisions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.mix import Decomposition, SliceWeight, decompose, mix_shift, mix_words
from shadowspec.gate.verdict.required_tests import waits_for_independence
from shadowspec.gate.verdict.slice_rules import covering_decision, is_shown_under_parent, named_candidates
from shadowspec.gate.verdict.trial_levels import is_superseded
from shadowspec.metrics import ratio
from shadowspec.types import (
    Composition,
    Decision,
    MixChange,
    RateChange,
    SliceCover,
    SliceState,
    TestResult,
    Verdict,
    WeightedBounds,
)

_NAMES = ("speedup", "acceptance")


@dataclass(frozen=True, slots=True)
class SliceBounds:
    """A slice's simultaneous bounds of one mean, with its weight in the current traffic (any scale, 0 or more).

    A bound is None where nothing was measured: the end of the range then takes its place.
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


def compose_endpoint(
    decisions: Sequence[Decision],
    previous: Mapping[str, Decision],
    traffic: Mapping[str, Mapping[str, SliceTraffic]],
    policy: GatePolicy,
) -> list[Decision]:
    """The decisions of one endpoint's look, in their order, with the findings across all of them.

    `previous` are the endpoint's latest decisions (of the whole endpoint) by fingerprint and load, as `group_key`
    writes them; `traffic` is the current traffic by fingerprint and slice.
    """
    named = named_candidates(decision for decision in decisions if not is_superseded(decision))
    wholes = {
        group_key(decision): decision
        for decision in decisions
        if not decision.slice_key and not is_superseded(decision)
    }
    totals = {
        fingerprint: sum(share.num_requests for share in shares.values()) for fingerprint, shares in traffic.items()
    }
    composed = []
    for decision in decisions:
        if is_superseded(decision):
            composed.append(decision)
            continue
        key = decision.slice_key, decision.concurrency
        shares = traffic.get(decision.fingerprint, {})
        composition = Composition(named.get(key) == decision.fingerprint)
        if decision.slice_key:
            share = shares.get(decision.slice_key)
            covering = covering_decision(decision, wholes.get(group_key(decision)))
            cover = SliceCover(
                traffic_share=ratio(share.num_requests if share else 0.0, totals.get(decision.fingerprint, 0.0)),
                is_shown_under_parent=is_shown_under_parent(decision),
                covering_verdict=covering.verdict if covering else None,
            )
            composition = replace(composition, cover=cover)
        else:
            slices = [other for other in decisions if other.slice_key and group_key(other) == group_key(decision)]
            composition = replace(composition, bounds=endpoint_bounds(slices, shares, policy.log_speedup_clip))
            if decision.verdict is Verdict.ENABLE:
                composition = _since_enable(composition, previous.get(group_key(decision)), slices, policy)
        composed.append(replace(decision, composition=composition))
    return composed


def weighted_bounds(slices: Iterable[SliceBounds], lowest: float, highest: float) -> WeightedBounds | None:
    """sum of w_s * lower_s and sum of w_s * upper_s, w_s the shares of the weight; None where the weight is 0.

    The slices' bounds of one kind hold at once with probability 1 - alpha or more.  Their sum therefore does too, for
    any weights, however chosen, without using further alpha.  `lowest` and `highest` are the ends of the mean's range.
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
    bounds = {}
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
        bounds["speedup"] = replace(speedup, lower=math.exp(speedup.lower), upper=math.exp(speedup.upper))
    if acceptance is not None:
        bounds["acceptance"] = acceptance
    return bounds


def group_key(decision: Decision) -> str:
    """The load and fingerprint that the decisions of an endpoint and of its slices share."""
    return f"{decision.fingerprint}@{decision.concurrency}"


def slice_state(decision: Decision) -> SliceState:
    """A slice's sums as its decision shows them."""
    by_name = {result.name: result for result in decision.tests}
    weights = {name: _weight(by_name.get(name)) for name in _NAMES}
    return SliceState(
        num_closed=float(decision.evidence.counts.num_closed_clusters),
        num_measured=float(decision.num_clusters),
        speedup_total=weights["speedup"].total,
        speedup_weight=weights["speedup"].weight,
        acceptance_total=weights["acceptance"].total,
        acceptance_weight=weights["acceptance"].weight,
    )


def since(now: SliceState, then: SliceState) -> SliceState:
    """The sums added after `then`; sums that were restarted in between count from their beginning."""
    added = [new - old for new, old in zip(astuple(now), astuple(then), strict=True)]
    if min(added[3], added[5], added[1]) < 0.0:
        return replace(now, num_closed=max(added[0], 0.0))
    return SliceState(*added)


def split(name: str, before: Mapping[str, SliceState], after: Mapping[str, SliceState]) -> Decomposition | None:
    """The change of the endpoint's mean `name` ("speedup" in logarithms, or "acceptance") between two windows.

    Slices weigh by their traffic, measured or not: closed clusters, for acceptance times the mean weight of a measured
    one.  A slice without measurements in one window keeps its rate of the other window.
    """
    rates = [{key: _rate(name, state) for key, state in window.items()} for window in (before, after)]
    windows: list[dict[str, SliceWeight]] = []
    for window, entry, other in ((before, rates[0], rates[1]), (after, rates[1], rates[0])):
        typical = _mean_weight(name, window.values()) or 1.0
        weights = {}
        for key, state in window.items():
            rate = entry[key] if entry[key] is not None else other.get(key)
            if rate is not None:
                weight = state.num_closed * (_mean_weight(name, [state]) or typical)
                weights[key] = SliceWeight(rate * weight, weight)
        windows.append(weights)
    return decompose(*windows)


def _bounds(slice_key: str, weight: float, decision: Decision | None, name: str) -> SliceBounds:
    nothing = SliceBounds(slice_key, weight, None, None)
    if decision is None or decision.level is None or waits_for_independence(decision):
        return nothing
    result = next((test for test in decision.tests if test.name == name), None)
    if result is None or not result.num_units:
        return nothing
    return SliceBounds(slice_key, weight, _unshown(result, result.lower), _unshown(result, result.upper))


def _unshown(result: TestResult, bound: float | None) -> float | None:
    """A bound on the scale of the unit values: speedup's are shown exponentiated."""
    return math.log(bound) if bound is not None and result.name == "speedup" else bound


def _since_enable(
    composition: Composition, previous: Decision | None, slices: Sequence[Decision], policy: GatePolicy
) -> Composition:
    """With mix and within-slice parts of the change since the endpoint's ENABLE, where the reference is taken."""
    now = {other.slice_key: slice_state(other) for other in slices}
    before = previous.composition if previous is not None and previous.verdict is Verdict.ENABLE else None
    then = before.mix_reference if before is not None else None
    if then is None:
        return replace(composition, mix_reference=now)
    nothing = SliceState(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    after = {key: since(state, then.get(key, nothing)) for key, state in now.items()}
    shift = mix_shift(_count_closed(then), _count_closed(after))
    rates = {}
    for name in _NAMES:
        change = split(name, then, after)
        if change is not None:
            text = mix_words(change, shift, policy.alpha, is_log=name == "speedup")
            rates[name] = RateChange(change.mix_part, change.within_part, text)
    mix_change = MixChange(shift.log10_evidence, shift.has_shifted(policy.alpha), rates)
    return replace(composition, mix_reference=then, mix_change=mix_change)


def _count_closed(window: Mapping[str, SliceState]) -> dict[str, int]:
    return {key: int(state.num_closed) for key, state in window.items()}


def _weight(result: TestResult | None) -> SliceWeight:
    """Sum and weight of a test's observed values."""
    if result is None or result.betting is None or result.betting.mean is None:
        return SliceWeight(0.0, 0.0)
    weight = result.betting.observed_weight
    return SliceWeight(result.betting.mean * weight, weight)


def _rate(name: str, state: SliceState) -> float | None:
    if name == "speedup":
        return ratio(state.speedup_total, state.speedup_weight)
    return ratio(state.acceptance_total, state.acceptance_weight)


def _mean_weight(name: str, states: Iterable[SliceState]) -> float | None:
    """Mean weight of a measured cluster in the mean `name`."""
    if name == "speedup":
        return 1.0
    slice_states = list(states)
    return ratio(
        sum(state.acceptance_weight for state in slice_states), sum(state.num_measured for state in slice_states)
    )
