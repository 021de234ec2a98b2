"""The next step of an endpoint: the command to run, or the evidence to wait for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from shadowspec.gate.verdict.hold_reasons import still_needed
from shadowspec.reports.content.definitions import find_test
from shadowspec.text import plain_text
from shadowspec.types import Decision, ReasonCode, Verdict
from shadowspec.types.reason_codes import SEND_TRAFFIC

RECORD_MORE: Final = "record more sessions and try them with another --out"
STEPS: Final = {code.value: code.step for code in ReasonCode}


def best_decision(decisions: Iterable[Decision]) -> Decision | None:
    """The decision on the whole endpoint with the best verdict, then with the best lower bound of speedup."""

    def merit(decision: Decision) -> tuple[bool, float]:
        speedup = find_test(decision, "speedup")
        lower = None if speedup is None else speedup.lower
        return decision.verdict is Verdict.ENABLE, -math.inf if lower is None else lower

    return max((decision for decision in decisions if not decision.slice_key), key=merit, default=None)


def keep_off(override_id: int) -> str:
    """What to do while an override is in force."""
    return f"keep speculation off while the override is in force; `shadowspec override clear {override_id}` ends it"


def next_action(decision: Decision) -> str:
    """What to do after a decision, as an order: `send traffic, then run `shadowspec gate` again`."""
    if decision.override is not None:
        return keep_off(decision.override.override_id)
    if decision.verdict is Verdict.ENABLE and decision.recording_only:
        return "measure mirrored traffic with a production policy: this verdict is valid for the recording only"
    if decision.verdict is Verdict.ENABLE:
        name, config = plain_text(decision.endpoint), plain_text(decision.config.name)
        return f"promote {config}: `shadowspec check --endpoint {name}`, then `shadowspec export`"
    step = STEPS.get(decision.reason_code, SEND_TRAFFIC)  # the latter of a later version's decision
    return RECORD_MORE if decision.recording_only and step == SEND_TRAFFIC else step


def next_step(decision: Decision) -> str:
    """What to do after the decision that speaks for its endpoint, such as
    `chat HOLD: about 40 more sessions (5 minutes of this traffic); send traffic, then run `shadowspec gate` again`.
    """
    needed, action = still_needed(decision), next_action(decision)
    step = action if needed is None or decision.verdict is not Verdict.HOLD else f"{needed.text}; {action}"
    return f"{plain_text(decision.endpoint)} {decision.verdict}: {step}"
