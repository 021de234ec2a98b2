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
    "other_engine": "measure through servers of the serving engine (docs/servers.md)",
    "no_level_left": "raise max_hypotheses in the policy, or configure fewer candidates or loads",
    "undecidable": "the effect is too close to the limit; try another candidate, or change the limit in the policy",
    "unprovable": "change the limit in the policy: no evidence can prove it",
    "low_acceptance": "try another draft or fewer speculative tokens",
    "costlier": "try another draft or fewer speculative tokens",
    "unknown_memory": "remove the memory budget from the policy, or measure on an engine that reports memory",
}


def best_decision(decisions: Iterable[Decision]) -> Decision | None:
    """The decision on the whole endpoint with the best verdict, then with the best lower bound of speedup."""

    def merit(decision: Decision) -> tuple[bool, float]:
        speedup = find_test(decision, "speedup")
        lower = None if speedup is None else speedup.lower
        return decision.verdict is Verdict.ENABLE, -math.inf if lower is None else lower

    return max((each for each in decisions if not each.slice_key), key=merit, default=None)


def next_step(decision: Decision) -> str:
    """What to do after the decision that speaks for its endpoint, such as
    `chat HOLD: about 40 more sessions (5 minutes of this traffic); send traffic, then run `shadowspec gate` again`.
    """
    name = plain_text(decision.endpoint)
    if decision.override is not None:
        step = f"an override is in force; end it with `shadowspec override clear {decision.override.override_id}`"
    elif decision.verdict is Verdict.DISABLE:
        step = "keep speculation off; to try again, configure another draft or fewer speculative tokens"
    elif decision.recording_only and decision.verdict is Verdict.ENABLE:
        step = "valid for this recording only; for production measure mirrored traffic with a production policy"
    elif decision.verdict is Verdict.ENABLE:
        config = plain_text(decision.config.name)
        step = f"promote {config}: `shadowspec check --endpoint {name}`, then `shadowspec export`"
    else:
        needed = still_needed(decision)
        step = STEPS.get(decision.reason_code, f"send traffic, {GATE_AGAIN}")
        step = step if needed is None else f"{needed.text}; {step}"
    return f"{name} {decision.verdict}: {step}"
