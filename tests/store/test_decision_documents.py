"""Decisions as documents: they are read to equal values, and another version is refused."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shadowspec.errors import InputError
from shadowspec.gate.run.recompute import compare
from shadowspec.store import Store
from shadowspec.types import Composition, Decision, DriftFigures, Figure, MixChange, RateChange, TestResult, Verdict
from shadowspec.types.decision_documents import (
    DECISION_FIELDS,
    TEST_FIELDS,
    VERSION,
    read_decision,
    read_evidence,
    read_mix_change,
    read_supersession,
    read_test,
    shown_details,
    stored_details,
    stored_test_details,
)
from tests.store import examples, strategies

DECISIONS = strategies.decisions(examples.config())


def columns(value: Decision | TestResult, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(DECISIONS)
def test_a_document_is_read_to_the_same_decision(decision: Decision) -> None:
    document = json.loads(json.dumps(stored_details(decision)))
    assert document["version"] == VERSION
    assert read_decision(columns(decision, DECISION_FIELDS), document) == decision


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(strategies.TESTS)
def test_a_document_of_a_test_is_read_to_the_same_result(result: TestResult) -> None:
    document = json.loads(json.dumps(stored_test_details(result)))
    assert read_test(columns(result, TEST_FIELDS), document) == result


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(DECISIONS, st.data())
def test_an_explanation_compares_every_part_of_a_decision(decision: Decision, data: st.DataObject) -> None:
    beside = data.draw(st.sampled_from(sorted(strategies.BESIDE_COLUMNS)))
    other = replace(decision, **{beside: data.draw(strategies.BESIDE_COLUMNS[beside])})
    differences, num_figures = compare(decision, other)
    assert num_figures > len(TEST_FIELDS) * len(decision.tests)
    if decision == other:
        assert not differences
    if _present(decision) != _present(other) and not _is_near(decision, other):
        assert differences


def _present(decision: Decision) -> dict[str, Figure]:
    """The figures that have a value: to an explanation, an absent figure and one that is None are the same."""
    return {name: value for name, value in shown_details(decision).items() if value is not None}


def _is_near(one: Decision, other: Decision) -> bool:
    """Whether numbers alone differ, which may be by less than the tolerance of an explanation."""
    first, second = _present(one), _present(other)
    return first.keys() == second.keys() and all(
        first[name] == second[name] or not isinstance(first[name], str) for name in first
    )


def test_every_field_is_a_column_or_in_the_document() -> None:
    names = {field.name for field in fields(Decision)}
    assert names == {*DECISION_FIELDS, *strategies.BESIDE_COLUMNS, "override", "reservations"}


def test_what_sql_reads_of_documents_is_in_them(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    plain = replace(
        examples.decision(Verdict.ENABLE), watch=examples.watched(drift_speedup=0.1), frozen_parameters={"z_clip": 0.2}
    )
    said = [(None, False), ("speedup", False), ("speedup", True), ("acceptance", False)]
    for number, (advice, has_shifted) in enumerate(said):
        rates = {"speedup": RateChange(0.1, 0.2, f"change {number}")}
        decision = replace(
            plain,
            decided_at=examples.NOON + timedelta(minutes=number),
            drift=DriftFigures(4.6, advice),
            composition=Composition(is_named=True, mix_change=MixChange(0.5, has_shifted, rates)),
        )
        store.append_decisions([decision])
        assert store.latest_decisions() == [decision]
    found = store.advice_changes("chat", limit=10)
    reported = [(change.advice, change.is_new_advice, change.is_new_shift) for change in reversed(found)]
    assert reported == [("speedup", True, False), ("speedup", False, True), ("acceptance", True, False)]
    assert [change.mix_change.rates["speedup"].text for change in found if change.mix_change] == [
        "change 3", "change 2", "change 1",
    ]  # fmt: skip


@pytest.mark.parametrize("version", [VERSION + 1, "2", 0])
def test_a_document_of_another_version_is_refused(version: object) -> None:
    decision = examples.decision()
    with pytest.raises(InputError, match="another version of ShadowSpec wrote it"):
        read_decision(columns(decision, DECISION_FIELDS), stored_details(decision) | {"version": version})
    with pytest.raises(InputError, match="version"):
        read_test(columns(decision.tests[0], TEST_FIELDS), {"version": version})
    for read in (read_evidence, read_supersession, read_mix_change):
        with pytest.raises(InputError, match="version"):
            read({"version": version})
