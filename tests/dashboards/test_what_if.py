"""The what-if reads other thresholds off the evidence that the gate decided on, and changes nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from shadowspec.errors import ConfigError, NoDataError
from shadowspec.gate.policy import GatePolicy
from shadowspec.reports.pages.what_if import WhatIf, what_if
from shadowspec.store import Store
from shadowspec.types import Decision, TestResult, Verdict


@pytest.fixture(scope="module")
def store(filled_url: str) -> Iterator[Store]:
    with Store.open(filled_url) as opened:
        yield opened


@pytest.fixture(scope="module")
def decisions(store: Store) -> list[Decision]:
    """The latest decisions that rest on folded evidence."""
    found = [
        decision
        for decision in store.latest_decisions()
        if any(
            (each.concurrency, each.fingerprint) == (decision.concurrency, decision.fingerprint)
            for each in store.slice_evidence(decision.endpoint, decision.slice_key)
        )
        and decision.reason_code != "drift"  # its evidence restarted
    ]
    assert len(found) > 5
    return found


def judged(store: Store, decision: Decision, **changed: float) -> WhatIf:
    evidence = store.slice_evidence(decision.endpoint, decision.slice_key)
    config = store.fingerprints()[decision.fingerprint]
    return what_if(decision, evidence, config, GatePolicy(window_s=0.0, max_hypotheses=24), changed)


def by_name(decision: Decision) -> dict[str, TestResult]:
    return {test.name: test for test in decision.tests}


def test_nothing_moved_is_what_was_decided(store: Store, decisions: list[Decision]) -> None:
    for decision in decisions:
        what_if = judged(store, decision)
        assert what_if.tried == what_if.today
        if decision.reason_code in ("too_few_units", "min_span"):
            assert (what_if.today.verdict, what_if.today.reason_code) == (decision.verdict, decision.reason_code)
        stored = by_name(decision)
        for name, test in by_name(what_if.today).items():
            assert (test.lower, test.upper, test.num_units) == pytest.approx(
                (stored[name].lower, stored[name].upper, stored[name].num_units)
            ), f"{decision.slice_key} {name}"


def test_a_threshold_moves_and_bounds_stay(store: Store, decisions: list[Decision]) -> None:
    decision = max(decisions, key=lambda decision: decision.num_blocks)
    before, after = judged(store, decision), judged(store, decision, margin=0.3, floor=0.7, tail_share=0.02)
    today, tried = by_name(before.today), by_name(after.tried)
    assert tried["speedup"].threshold == pytest.approx(1.3)
    assert tried["acceptance"].threshold == pytest.approx(0.7)
    assert tried["tail"].threshold == pytest.approx(0.02)
    for name in ("speedup", "acceptance"):
        assert (tried[name].estimate, tried[name].lower) == (today[name].estimate, today[name].lower)


@pytest.mark.all
def test_more_to_prove_never_enables(store: Store, decisions: list[Decision]) -> None:
    margins = (0.0, 0.05, 0.2, 0.4, 0.7)
    enabled = []
    for decision in decisions:
        tried = [judged(store, decision, margin=margin).tried for margin in margins]
        verdicts = [each.verdict is Verdict.ENABLE for each in tried]
        assert verdicts == sorted(verdicts, reverse=True), decision.slice_key
        outcomes = [by_name(each)["speedup"].outcome for each in tried]
        passed = [outcome == "pass" for outcome in outcomes]
        assert passed == sorted(passed, reverse=True)
        enabled += passed
    assert any(enabled)
    assert not all(enabled)


def test_what_nothing_could_prove_is_refused(store: Store, decisions: list[Decision]) -> None:
    decision = decisions[0]
    with pytest.raises(ConfigError, match="'margin' must be below"):
        judged(store, decision, margin=1.5)
    with pytest.raises(NoDataError, match="nothing is folded"):
        what_if(decision, [], store.fingerprints()[decision.fingerprint], GatePolicy(window_s=0.0), {})
    with pytest.raises(NoDataError, match="evidence restarted"):  # as after an alarm
        judged(store, replace(decision, num_clusters=decision.num_clusters + 1))
