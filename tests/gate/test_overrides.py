"""An override takes away, covers what it names, and ends when it is cleared or over."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.gate.verdict.current_verdict import (
    active,
    covering,
    current_decisions,
    current_verdict,
    overridden,
)
from shadowspec.types import Clearing, Decision, Override, OverrideRecord, Verdict
from tests.store import examples

NOON = examples.NOON
CODE = "prompt_class=code,sampling_regime=greedy"
SAFER = (Verdict.ENABLE, Verdict.HOLD, Verdict.DISABLE)


def decided(verdict: Verdict = Verdict.ENABLE, slice_key: str = CODE, concurrency: int = 4) -> Decision:
    return replace(examples.decision(verdict), slice_key=slice_key, concurrency=concurrency)


def override(override_id: int, verdict: Verdict = Verdict.DISABLE, slice_key: str = "") -> Override:
    return replace(examples.override(verdict, slice_key=slice_key), override_id=override_id)


@pytest.mark.parametrize("verdict", [Verdict.DISABLE, Verdict.HOLD])
@pytest.mark.parametrize("before", list(Verdict))
def test_the_forced_verdict_replaces_the_gates_and_says_who_and_why(before: Verdict, verdict: Verdict) -> None:
    forced = overridden(decided(before), [override(7, verdict)], NOON)
    if (before, verdict) == (Verdict.DISABLE, Verdict.HOLD):
        assert forced == decided(before), "an order that would weaken has no effect"
        return
    assert (forced.verdict, forced.reason_code) == (verdict, "override")
    assert forced.reason.startswith("Override 7 by ada")
    assert "it answers nonsense" in forced.reason
    assert forced.override.verdict == before
    assert forced.override.reason == "not yet"
    assert forced.override.override_id == 7
    assert forced.tests == decided(before).tests


@pytest.mark.parametrize(
    ("slice_key", "concurrency", "endpoint", "is_covered"),
    [
        ("", None, "chat", True),
        ("prompt_class=code", None, "chat", True),
        ("sampling_regime=greedy,prompt_class=code", 4, "chat", True),
        ("prompt_class=chat", None, "chat", False),
        ("prompt_class=code,tier=pro", None, "chat", False),
        ("", 8, "chat", False),
        ("", None, "code", False),
    ],
)
def test_what_an_override_covers(slice_key: str, concurrency: int | None, endpoint: str, is_covered: bool) -> None:
    order = replace(override(1, slice_key=slice_key), concurrency=concurrency, endpoint=endpoint)
    assert (overridden(decided(), [order], NOON).verdict is Verdict.DISABLE) == is_covered


def test_an_override_of_a_slice_leaves_the_endpoint_alone() -> None:
    whole = decided(slice_key="")
    assert overridden(whole, [override(1, slice_key="prompt_class=code")], NOON) == whole


def test_of_several_disable_counts_and_then_the_newest() -> None:
    hold, disable = override(3, Verdict.HOLD), override(2)
    newer = replace(override(1), created_at=NOON + timedelta(hours=1))
    for order in ([hold, disable, newer], [newer, disable, hold]):
        assert overridden(decided(), order, NOON).override.override_id == 1
        assert (
            overridden(decided(), [override for override in order if override != newer], NOON).verdict
            is Verdict.DISABLE
        )


def test_it_ends_when_it_is_cleared_or_over() -> None:
    until = replace(override(1), expires_at=NOON + timedelta(hours=1))
    record = OverrideRecord(until, None)
    assert current_decisions([decided()], [record], NOON)[0].verdict is Verdict.DISABLE
    assert current_decisions([decided()], [record], NOON + timedelta(hours=1)) == [decided()]
    assert overridden(decided(), [until], NOON + timedelta(hours=1)) == decided()
    cleared = OverrideRecord(override(1), Clearing(1, "mended", "grace", NOON))
    assert current_decisions([decided()], [cleared], NOON) == [decided()]


def test_it_is_in_force_at_once_whatever_the_clocks_say() -> None:
    ahead = OverrideRecord(replace(override(1), created_at=NOON + timedelta(minutes=10)), None)
    assert active([ahead], NOON) == [ahead.override]


def test_what_was_not_decided_yet_is_covered_too() -> None:
    assert covering([override(1)], "chat", "prompt_class=new", 64, NOON) == override(1)
    assert covering([], "chat", "", 4, NOON) is None


@given(
    st.sampled_from(list(Verdict)),
    st.lists(st.tuples(st.sampled_from([Verdict.DISABLE, Verdict.HOLD]), st.booleans()), max_size=5),
)
def test_no_override_enables(before: Verdict, orders: list[tuple[Verdict, bool]]) -> None:
    overrides = [
        replace(override(number, verdict), concurrency=4 if is_own else 8)
        for number, (verdict, is_own) in enumerate(orders)
    ]
    after = overridden(decided(before), overrides, NOON).verdict
    assert SAFER.index(after) >= SAFER.index(before)
    if any(is_own for _, is_own in orders):
        assert after is not Verdict.ENABLE


@pytest.mark.parametrize(
    ("measured", "ordered", "verdict"),
    [
        (None, None, None),
        (Verdict.ENABLE, None, Verdict.ENABLE),
        (Verdict.ENABLE, Verdict.HOLD, Verdict.HOLD),
        (Verdict.HOLD, Verdict.DISABLE, Verdict.DISABLE),
        (None, Verdict.DISABLE, Verdict.DISABLE),
    ],
)
def test_what_stands_is_the_order_before_the_gates_word(
    measured: Verdict | None, ordered: Verdict | None, verdict: Verdict | None
) -> None:
    decision = None if measured is None else decided(measured)
    orders = [] if ordered is None else [override(3, ordered)]
    current = current_verdict("chat", CODE, 4, decision, orders, NOON)
    assert (current.verdict, current.measured) == (verdict, decision)
    assert current.override == (orders[0] if orders else None)
    assert (current.decision and current.decision.verdict) == (verdict if measured else None)
