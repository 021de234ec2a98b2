"""The effect of a slice's decision on its endpoint's: the named candidate, which decision covers it, which forbids.

Invariant: an endpoint's verdict never enables a slice that is DISABLEd, or that its own bounds show to be slower.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from shadowspec.gate.verdict.current_verdict import DISABLE_CODES
from shadowspec.types import Decision, ReasonCode, Verdict

# The share of the traffic from which on a slice that is off keeps its whole endpoint from being enabled.
MIN_SLICE_SHARE: Final = 0.05
ANY_SHARE: Final = 0.0  # where slices cannot be distinguished: an ENABLE of the endpoint would enable each of them
SHARE_TOLERANCE: Final = 1e-9  # shares are sums of floating-point numbers


def named_candidates(decisions: Iterable[Decision]) -> dict[tuple[str, int], str]:
    """By slice and load, the fingerprint of the ENABLEd candidate with the best lower bound of speedup.

    Every one of them is proven; the bounds hold at once, so the choice among them costs no level.  Equal bounds:
    fewer speculative tokens, then the fingerprint.
    """
    enabled: dict[tuple[str, int], list[Decision]] = defaultdict(list)
    for decision in decisions:
        if decision.verdict is Verdict.ENABLE:
            enabled[decision.slice_key, decision.concurrency].append(decision)
    return {key: min(candidates, key=_rank).fingerprint for key, candidates in enabled.items()}


def is_shown_under_parent(decision: Decision) -> bool:
    """Whether a slice has too little traffic, or came too late, to have a level: its endpoint's decision covers it."""
    return decision.slice_key != "" and decision.level is None


def covering_decision(decision: Decision | None, endpoint: Decision | None) -> Decision | None:
    """The decision that covers a slice: the slice's if it has a level or `keeps_off`, else its endpoint's.

    None where neither exists.
    """
    if decision is None or (is_shown_under_parent(decision) and not keeps_off(decision)):
        return endpoint or decision
    return decision


def keeps_off(decision: Decision) -> bool:
    """Whether a slice is DISABLEd, or HOLD with a bound that shows harm: nobody's ENABLE may cover it.

    Such a HOLD waits for its units to show independent, or for data that can be judged.  Another engine's latency shows
    no harm.
    """
    if decision.verdict is Verdict.HOLD and decision.reason_code != ReasonCode.OTHER_ENGINE:
        return any(test.outcome == "fail" and test.name in DISABLE_CODES for test in decision.tests)
    return decision.verdict is Verdict.DISABLE


def bears_on_endpoint(share: float | None, min_share: float = MIN_SLICE_SHARE) -> bool:
    """Whether a slice with this share of the traffic, if it is off, keeps its whole endpoint from being enabled.

    The one rule for every caller; callers differ only in `min_share`.  `check` takes MIN_SLICE_SHARE, a rollout the
    policy's `max_disabled_share`, and an export to a server that cannot distinguish slices ANY_SHARE.  An unknown share
    (None) counts as a large one.
    """
    return share is None or share >= min_share - SHARE_TOLERANCE


def forbidding_slices(
    whole: Decision, decisions: Iterable[Decision], min_share: float = MIN_SLICE_SHARE
) -> list[Decision]:
    """Of the current `decisions`, the slices that keep off and bear on the endpoint's decision `whole`; by traffic.

    They are those at its load and with its fingerprint, by the share stored with the decision.
    """
    disabled = [
        decision
        for decision in decisions
        if decision.slice_key
        and (decision.endpoint, decision.concurrency, decision.fingerprint)
        == (whole.endpoint, whole.concurrency, whole.fingerprint)
        and keeps_off(decision)
        and bears_on_endpoint(decision.traffic_share, min_share)
    ]
    return sorted(disabled, key=lambda decision: (-_known(decision.traffic_share), decision.slice_key))


def _known(share: float | None) -> float:
    return 1.0 if share is None else share


def _rank(decision: Decision) -> tuple[float, int, str]:
    speedup = next(test for test in decision.tests if test.name == "speedup")
    return -(speedup.lower or 0.0), decision.config.num_speculative_tokens, decision.fingerprint
