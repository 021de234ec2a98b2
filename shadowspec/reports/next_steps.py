"""The next step of an endpoint: the command to run, or the evidence to wait for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from shadowspec.planning.still_needed import still_needed
from shadowspec.reports.definitions import find_test
from shadowspec.text import plain_text
from shadowspec.types import Decision, Verdict

GATE_AGAIN: Final = "then run `shadowspec gate` again"
# By the reason code of a HOLD whose end no number of sessions brings, or brings for certain.
STEPS: Final = {
    "min_span": f"every test passes; measure traffic over the missing time, {GATE_AGAIN}",
    "too_few_units": f"send traffic, {GATE_AGAIN}",
    "too_few_clusters": f"send traffic, {GATE_AGAIN}",
    "dependent": f"send traffic, {GATE_AGAIN}",
    "stale_data": f"measure newer traffic, {GATE_AGAIN}",
    "missing_data": f"see the failures in `shadowspec report`, fix their cause and measure again, {GATE_AGAIN}",
    "late_data": f"keep each session in one partition of the mirror and in order, {GATE_AGAIN}",
    "unknown_parity": f"let the baseline's server return log probabilities (score_logprobs), {GATE_AGAIN}",
    "near_ties": "use the same dtype and kernels in both arms, or review parity_margin in the policy",
    "guardrail": "fix the figure that the reason names, or review its limit in the policy",
    "mix_bound": f"send traffic of the slices with wide bounds, {GATE_AGAIN}",
    "drift": "look for the cause under Changes in the dashboard, then send traffic and run `shadowspec gate` again",
    "changed_fingerprint": f"send traffic, or undo the change of model or engine, {GATE_AGAIN}",
    "changed_rules": "run `shadowspec gate` again: it begins a run under the current rules",
    "other_engine": "measure through servers of the serving engine (docs/servers.md)",
    "no_level_left": "raise max_hypotheses in the policy, or configure fewer candidates or loads",
    "undecidable": "try another candidate, or change the limit in the policy: the effect is too close to it",
    "unprovable": "change the limit in the policy: no evidence can prove it",
    "low_acceptance": "try another draft or fewer speculative tokens",
    "costlier": "try another draft or fewer speculative tokens",
    "unknown_memory": "remove the memory budget from the policy, or measure on an engine that reports memory",
}


# By the reason code of a DISABLE.
AFTER_DISABLE: Final = {
    "parity_fault": "keep speculation off, and report the difference as an error of the engine or the server",
    "parity_biased": "keep speculation off, and report the difference as an error of the engine or the server",
    "memory_over_budget": "keep speculation off; use a smaller draft, or review the memory budget in the policy",
    "drift": "keep speculation off, and look for the cause under Changes in the dashboard; the next run decides again",
}


def best_decision(decisions: Iterable[Decision]) -> Decision | None:
    """The decision on the whole endpoint with the best verdict, then with the best lower bound of speedup."""

    def merit(decision: Decision) -> tuple[bool, float]:
        speedup = find_test(decision, "speedup")
        lower = None if speedup is None else speedup.lower
        return decision.verdict is Verdict.ENABLE, -math.inf if lower is None else lower

    return max((each for each in decisions if not each.slice_key), key=merit, default=None)


def keep_off(override_id: int) -> str:
    """What to do while an override is in force."""
    return f"keep speculation off while the override is in force; `shadowspec override clear {override_id}` ends it"


def next_action(decision: Decision) -> str:
    """What to do after a decision, as an order: `send traffic, then run `shadowspec gate` again`."""
    if decision.override is not None:
        return keep_off(decision.override.override_id)
    if decision.verdict is Verdict.DISABLE:
        otherwise = "keep speculation off; to try again, configure another draft or fewer speculative tokens"
        return AFTER_DISABLE.get(decision.reason_code, otherwise)
    if decision.verdict is Verdict.ENABLE and decision.recording_only:
        return "measure mirrored traffic with a production policy: this verdict is valid for the recording only"
    if decision.verdict is Verdict.ENABLE:
        name, config = plain_text(decision.endpoint), plain_text(decision.config.name)
        return f"promote {config}: `shadowspec check --endpoint {name}`, then `shadowspec export`"
    return STEPS.get(decision.reason_code, f"send traffic, {GATE_AGAIN}")


def next_step(decision: Decision) -> str:
    """What to do after the decision that speaks for its endpoint, such as
    `chat HOLD: about 40 more sessions (5 minutes of this traffic); send traffic, then run `shadowspec gate` again`.
    """
    needed, action = still_needed(decision), next_action(decision)
    step = action if needed is None or decision.verdict is not Verdict.HOLD else f"{needed.text}; {action}"
    return f"{plain_text(decision.endpoint)} {decision.verdict}: {step}"
