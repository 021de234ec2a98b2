"""An endpoint's decision as made of its slices': weighted bounds, the named candidate, and what changed since ENABLE.

Pure over the decisions of one look; everything that it finds becomes details of those decisions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace

from shadowspec.gate.endpoint import (
    SliceTraffic,
    covering_decision,
    endpoint_figures,
    is_shown_under_parent,
    named_candidates,
)
from shadowspec.gate.mix import Decomposition, SliceWeight, decompose, mix_shift, mix_words
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.restarts import is_superseded
from shadowspec.gate.series import Detail
from shadowspec.metrics import ratio
from shadowspec.types import Decision, TestResult, Verdict

_NAMES = ("speedup", "acceptance")


@dataclass(frozen=True, slots=True)
class SliceState:
    """What is known of a slice up to a look: all of its closed clusters, and what its measured units add up to."""

    num_closed: float
    num_measured: float  # clusters
    speedup_total: float  # of clipped log speedups
    speedup_weight: float
    acceptance_total: float
    acceptance_weight: float


def composed(
    decisions: Sequence[Decision],
    previous: Mapping[str, Decision],
    traffic: Mapping[str, Mapping[str, SliceTraffic]],
    policy: GatePolicy,
) -> list[Decision]:
    """The decisions of one endpoint's look, in their order, with what only all of them together can say.

    `previous` are the endpoint's own latest decisions (of the whole endpoint) by fingerprint and load, as
    `group_key` writes them; `traffic` is the current traffic by fingerprint and
    slice.
    """
    named = named_candidates(decision for decision in decisions if not is_superseded(decision))
    wholes = {group_key(each): each for each in decisions if not each.slice_key and not is_superseded(each)}
    found = []
    for decision in decisions:
        details: dict[str, Detail] = dict(decision.details)
        if is_superseded(decision):
            found.append(decision)
            continue
        key = decision.slice_key, decision.concurrency
        shares = traffic.get(decision.fingerprint, {})
        details["is_named"] = int(named.get(key) == decision.fingerprint)
        if decision.slice_key:
            own = shares.get(decision.slice_key)
            total = sum(each.num_requests for each in shares.values())
            details["traffic_share"] = ratio(own.num_requests if own else 0.0, total)
            details["is_shown_under_parent"] = int(is_shown_under_parent(decision))
            covering = covering_decision(decision, wholes.get(group_key(decision)))
            details["covering_verdict"] = str(covering.verdict) if covering else None
        else:
            slices = [other for other in decisions if other.slice_key and group_key(other) == group_key(decision)]
            details |= endpoint_figures(slices, shares, policy.log_speedup_clip)
            details |= _change(decision, previous.get(group_key(decision)), slices, policy)
        found.append(replace(decision, details=details))
    return found


def group_key(decision: Decision) -> str:
    """What the decisions of an endpoint and of its slices on one load and config have in common."""
    return f"{decision.fingerprint}@{decision.concurrency}"


def slice_state(decision: Decision) -> SliceState:
    """A slice's sums as its decision shows them."""
    by_name = {result.name: result for result in decision.tests}
    weights = {name: _weight(by_name.get(name)) for name in _NAMES}
    return SliceState(
        num_closed=float(decision.details.get("num_closed_clusters") or 0),
        num_measured=float(decision.num_clusters),
        speedup_total=weights["speedup"].total,
        speedup_weight=weights["speedup"].weight,
        acceptance_total=weights["acceptance"].total,
        acceptance_weight=weights["acceptance"].weight,
    )


def since(now: SliceState, then: SliceState) -> SliceState:
    """What was added after `then`; sums that were begun anew in between count from their beginning."""
    added = [new - old for new, old in zip(astuple(now), astuple(then), strict=True)]
    if min(added[3], added[5], added[1]) < 0.0:
        return replace(now, num_closed=max(added[0], 0.0))
    return SliceState(*added)


def split(name: str, before: Mapping[str, SliceState], after: Mapping[str, SliceState]) -> Decomposition | None:
    """The change of the endpoint's mean `name` ("speedup" in logarithms, or "acceptance") between two windows.

    Slices weigh what their traffic weighs, measured or not: closed clusters, for acceptance times the mean
    weight of a measured one.  A slice of which nothing was measured in one window keeps its other rate there.
    """
    rates = [{key: _rate(name, state) for key, state in window.items()} for window in (before, after)]
    windows: list[dict[str, SliceWeight]] = []
    for window, own, other in ((before, rates[0], rates[1]), (after, rates[1], rates[0])):
        typical = _mean_weight(name, window.values()) or 1.0
        weights = {}
        for key, state in window.items():
            rate = own[key] if own[key] is not None else other.get(key)
            if rate is not None:
                weight = state.num_closed * (_mean_weight(name, [state]) or typical)
                weights[key] = SliceWeight(rate * weight, weight)
        windows.append(weights)
    return decompose(*windows)


def _change(
    decision: Decision, previous: Decision | None, slices: Sequence[Decision], policy: GatePolicy
) -> dict[str, Detail]:
    """Mix and within-slice parts of what changed since the endpoint's ENABLE, which is where the reference is taken."""
    if decision.verdict is not Verdict.ENABLE:
        return {}
    now = {other.slice_key: slice_state(other) for other in slices}
    stored = previous.details.get("mix_reference") if previous and previous.verdict is Verdict.ENABLE else None
    if not isinstance(stored, str):
        states = {key: astuple(state) for key, state in now.items()}
        return {"mix_reference": json.dumps(states, sort_keys=True)}
    then = {key: SliceState(*values) for key, values in json.loads(stored).items()}
    nothing = SliceState(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    after = {key: since(state, then.get(key, nothing)) for key, state in now.items()}
    shift = mix_shift(_closed(then), _closed(after))
    details: dict[str, Detail] = {
        "mix_reference": stored,
        "mix_log10_evidence": shift.log10_evidence,
        "mix_has_shifted": int(shift.has_shifted(policy.alpha)),
    }
    for name in _NAMES:
        change = split(name, then, after)
        if change is not None:
            details[f"mix_part_{name}"] = change.mix_part
            details[f"within_part_{name}"] = change.within_part
            details[f"change_of_{name}"] = mix_words(change, shift, policy.alpha, is_log=name == "speedup")
    return details


def _closed(window: Mapping[str, SliceState]) -> dict[str, int]:
    return {key: int(state.num_closed) for key, state in window.items()}


def _weight(result: TestResult | None) -> SliceWeight:
    """Sum and weight of what a test observed."""
    if result is None:
        return SliceWeight(0.0, 0.0)
    mean, weight = result.details.get("mean"), result.details.get("observed_weight")
    if not isinstance(mean, float) or not isinstance(weight, float):
        return SliceWeight(0.0, 0.0)
    return SliceWeight(mean * weight, weight)


def _rate(name: str, state: SliceState) -> float | None:
    if name == "speedup":
        return ratio(state.speedup_total, state.speedup_weight)
    return ratio(state.acceptance_total, state.acceptance_weight)


def _mean_weight(name: str, states: Iterable[SliceState]) -> float | None:
    """What a measured cluster weighs in the mean `name`."""
    if name == "speedup":
        return 1.0
    found = list(states)
    return ratio(sum(own.acceptance_weight for own in found), sum(own.num_measured for own in found))
