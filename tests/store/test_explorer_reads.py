"""The explorer's reads: sums equal the rollups', pages hold every run once, changes are told where they were made."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from msgspec import structs

from shadowspec.store import RunFilter, Store
from shadowspec.store.rollups import SUM_NAMES
from shadowspec.types import (
    ARRIVING,
    ArrivedRequest,
    Composition,
    Decision,
    DriftFigures,
    FunnelCounter,
    MixChange,
    RecordKey,
    StoredEvidence,
    Verdict,
)
from tests.store import examples
from tests.store.saving import save_block, save_records

NOON = examples.NOON


@pytest.fixture
def measured(store: Store) -> Store:
    """Blocks of two slices, two loads and two configs over two days, three runs each."""
    store.save_fingerprints([examples.config("fp"), examples.config("other-fingerprint")])
    for number, (slice_key, load, fingerprint, hours) in enumerate(
        [
            ("prompt_class=code", 4, "fp", 0),
            ("prompt_class=code", 4, "fp", 1),
            ("prompt_class=code", 8, "fp", 1),
            ("prompt_class=chat", 4, "fp", 20),
            ("prompt_class=chat", 4, "other-fingerprint", 20),
        ]
    ):
        lines = range(10 * number, 10 * number + 3)
        result = examples.block(f"block-{number}-0123456789", lines, fingerprint=fingerprint, sequence=number)
        block = structs.replace(result.block, slice_key=slice_key, concurrency=load)
        at = NOON + timedelta(hours=hours)
        records = [
            structs.replace(
                examples.record(line),
                slice_key=slice_key,
                event_time=at + timedelta(minutes=line),
                sampling_rate=0.5,
                labels={"prompt_class": slice_key.split("=")[1], "context_bucket": "<512"},
            )
            for line in lines
        ]
        save_block(store, replace(result, block=block), records)
    return store


@pytest.mark.parametrize("step", [None, "hour", "day"])
def test_group_sums_are_those_of_the_rollups(measured: Store, step: str | None) -> None:
    rollups = measured.rollups("chat")
    found = measured.group_sums("chat", step=step)  # type: ignore[arg-type]
    for name in SUM_NAMES:
        assert sum(getattr(groups.sums, name) for groups in found) == pytest.approx(
            sum(getattr(rollup.sums, name) for rollup in rollups)
        )
    starts = [groups.start for groups in found]
    if step is None:
        assert starts == [None] * 4
    elif step == "hour":
        assert {groups.start for groups in found} == {rollup.key.hour for rollup in rollups}
    else:
        assert set(starts) == {datetime.fromisoformat(f"{day}T00:00:00+00:00") for day in ("2026-01-02", "2026-01-03")}
    assert all(isinstance(groups.sums.num_runs, int) for groups in found)


def test_group_sums_of_a_time_and_a_slice(measured: Store) -> None:
    later = measured.group_sums("chat", since=NOON + timedelta(hours=1))
    assert sum(groups.sums.num_runs for groups in later) == 12
    assert sum(group.sums.num_runs for group in measured.group_sums("chat", until=NOON + timedelta(hours=1))) == 3
    assert {group.slice_key for group in measured.group_sums("chat", slice_key="prompt_class=chat")} == {
        "prompt_class=chat"
    }
    every = measured.group_sums("chat")
    for place in {(groups.fingerprint, groups.concurrency) for groups in every}:
        of_place = [groups for groups in every if (groups.fingerprint, groups.concurrency) == place]
        assert measured.group_sums("chat", place=place) == of_place
    assert measured.group_sums("chat", place=("fp", 99)) == measured.group_sums("nobody") == []
    assert measured.rollup_hours("chat") == (NOON, NOON + timedelta(hours=20))
    assert measured.rollup_hours("nobody") is None


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_pages_hold_every_run_once_newest_first(measured: Store, limit: int) -> None:
    place, rows = None, []
    while True:
        page = measured.run_page(RunFilter("chat"), place, limit=limit)
        assert len(page.rows) <= limit
        rows += page.rows
        place = page.next_place
        if place is None:
            break
    assert len(rows) == 15
    assert len({(row["source_offset"], row["fingerprint"]) for row in rows}) == 15
    assert [row["event_time"] for row in rows] == sorted((row["event_time"] for row in rows), reverse=True)


def test_a_page_is_filtered_and_shows_no_whole_hash(measured: Store) -> None:
    page = measured.run_page(RunFilter("chat", "prompt_class=chat", 4, "other-fingerprint"), limit=100)
    assert [row["source_offset"] for row in page.rows] == [42, 41, 40]
    assert {row["fingerprint"] for row in page.rows} == {"other-finger"}
    assert all(len(row["block_id"]) <= 12 for row in page.rows)
    assert page.num_walked == 15
    since = measured.run_page(RunFilter("chat", since=NOON + timedelta(hours=20)), limit=100)
    assert len(since.rows) == 6


def test_newest_runs_with_their_labels(measured: Store) -> None:
    found = measured.labelled_runs("chat", limit=4)
    assert len(found) == 4
    assert {labels["context_bucket"] for _, labels in found} == {"<512"}
    assert all(row["event_time"] >= NOON + timedelta(hours=20) for row, _ in found)


def decided(verdict: Verdict, minutes: int, **changes: object) -> Decision:
    base = replace(examples.decision(verdict), decided_at=NOON + timedelta(minutes=minutes))
    return replace(base, **changes)  # type: ignore[arg-type]


def test_only_changes_of_verdict_are_told(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    for minutes, verdict in enumerate([Verdict.HOLD, Verdict.HOLD, Verdict.ENABLE, Verdict.ENABLE, Verdict.DISABLE]):
        store.append_decisions([decided(verdict, minutes), decided(Verdict.HOLD, minutes, slice_key="a=b")])
    store.append_decisions([decided(Verdict.DISABLE, 9, reason_code="drift", reason="fell")])
    found = store.verdict_changes("chat", limit=10)
    reported = [
        (change.before, change.verdict, change.reason_code) for change in reversed(found) if not change.slice_key
    ]
    assert reported == [
        (None, Verdict.HOLD, "too_few_units"),
        (Verdict.HOLD, Verdict.ENABLE, "too_few_units"),
        (Verdict.ENABLE, Verdict.DISABLE, "too_few_units"),
        (Verdict.DISABLE, Verdict.DISABLE, "drift"),
    ]
    assert [change.before for change in found if change.slice_key] == [None]
    assert store.verdict_changes("chat", limit=1) == found[:1]
    assert store.verdict_changes(None, NOON + timedelta(minutes=9), limit=10) == found[:1]
    assert store.verdict_changes("nobody", limit=10) == []


def test_advice_and_shifts_are_told_once(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    said = [(None, False), ("speedup", False), ("speedup", True), (None, True), ("speedup, acceptance", False)]
    for minutes, (advice, has_shifted) in enumerate(said):
        beside = {
            "drift": DriftFigures(4.6, advice),
            "composition": Composition(is_named=True, mix_change=MixChange(0.1, has_shifted)),
        }
        store.append_decisions([decided(Verdict.ENABLE, minutes, **beside)])
    store.append_decisions([decided(Verdict.HOLD, 8, slice_key="a=b", drift=DriftFigures(4.6, "speedup"))])
    found = store.advice_changes("chat", limit=10)
    reported = [(change.advice, change.is_new_advice, change.is_new_shift) for change in reversed(found)]
    assert reported == [("speedup", True, False), ("speedup", False, True), ("speedup, acceptance", True, False)]
    for minutes, number in ((4, 1), (3, 1), (2, 2)):  # what was said before the time that is asked for is not new
        assert store.advice_changes("chat", NOON + timedelta(minutes=minutes), limit=10) == found[:number]


def test_evidence_of_one_slice(store: Store) -> None:
    rows = [StoredEvidence(key, load, "fp", b"1234") for key in ("", "a=b") for load in (8, 4)]
    with store.evidence_session("chat") as session:
        session.save_evidence(rows)
    found = store.slice_evidence("chat", "a=b")
    assert [(stored.slice_key, stored.concurrency) for stored in found] == [("a=b", 4), ("a=b", 8)]
    assert store.slice_evidence("nobody", "a=b") == []


def test_a_key_of_the_same_time_is_not_lost_between_pages(store: Store) -> None:
    """Runs of one event time are told apart by their keys."""
    store.save_fingerprints([examples.config()])
    result = examples.block("b", range(7))
    records = [structs.replace(examples.record(line), key=RecordKey("file", 0, line)) for line in range(7)]
    save_block(store, result, records)
    place, seen = None, []
    while True:
        page = store.run_page(RunFilter("chat"), place, limit=2)
        seen += [row["source_offset"] for row in page.rows]
        place = page.next_place
        if place is None:
            break
    assert seen == [6, 5, 4, 3, 2, 1, 0]


def test_arrivals_are_the_usable_records_with_the_weight_of_their_sessions(measured: Store) -> None:
    code, out = "prompt_class=code", FunnelCounter.SAMPLED_OUT
    idle = [
        structs.replace(examples.record(90, counter=out, reason="not_sampled"), slice_key=code, sampling_rate=0.25),
        structs.replace(examples.record(91, counter=out, reason="not_timed"), slice_key=code, sampling_rate=0.25),
        structs.replace(examples.record(92, counter=FunnelCounter.DUPLICATE), slice_key=code),
    ]
    save_records(measured, idle)
    usable = [each for each in measured.records("chat") if each.counter in ARRIVING and each.slice_key is not None]
    weights = {each.key: 0.0 if each.reason == "not_sampled" else 1.0 / (each.sampling_rate or 1.0) for each in usable}
    rows = sorted((each.event_time, each.key, each.slice_key) for each in usable if each.event_time is not None)
    expected = [ArrivedRequest(key, slice_key, at, weights[key]) for at, key, slice_key in rows]
    assert {item.weight for item in expected} == {0.0, 2.0, 4.0}
    assert measured.arrivals("chat", limit=1_000) == expected
    assert measured.arrivals("chat", limit=4) == expected[-4:]
    assert measured.arrivals("nobody", limit=10) == []
