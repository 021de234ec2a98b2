"""From stored rows to decisions: an endpoint with its slices, look after look, over a real database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from sqlalchemy import Engine, event

from shadowspec.errors import InputError, ServiceUnavailableError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.gate_run import EndpointGateRun, run_endpoint_gate
from shadowspec.gate.run.recompute import explain
from shadowspec.rollout import endpoint_run
from shadowspec.rollout.endpoint_run import run_endpoint
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.store import Store, locks
from shadowspec.store.admin import schema
from shadowspec.types import Block, BlockResult, Decision, Evaluation, PairedScore, RecordKey, Stage, Verdict
from tests.builders.cut_runs import cut
from tests.gate.feeding import assert_same_value
from tests.gate.oracle import EndpointEvidence, decide_endpoint, endpoint_sequences
from tests.gate.worlds import CONFIG, ENDPOINT, MEMORY, START, World, noisy_run, run_of
from tests.store.failing import lose_locks
from tests.store.saving import save_block, save_records

POLICY = GatePolicy(window_s=0.0, max_hypotheses=3, min_span_s=0.0)
CONFIGS = {CONFIG.fingerprint: CONFIG}
SLICES = ("prompt_class=code", "prompt_class=sql")


def decided(
    evidence: EndpointEvidence,
    current: list[Decision] | None = None,
    policy: GatePolicy = POLICY,
    *,
    input_ended: bool = True,
) -> dict[str, Decision]:
    decisions = decide_endpoint(evidence, policy, CONFIGS, [4], current or [], input_ended=input_ended, now=START)
    return {decision.slice_key: decision for decision in decisions}


def test_the_endpoint_folds_its_slices_blocks_and_is_one_of_its_hypotheses() -> None:
    decisions = decided(World(160, slices=SLICES, make_run=noisy_run()).evidence())
    assert list(decisions) == ["", *SLICES]
    assert decisions[""].num_blocks == sum(decisions[name].num_blocks for name in SLICES)
    assert decisions[""].num_clusters == sum(decisions[name].num_clusters for name in SLICES)
    # Half of alpha for the endpoint, half for two slots; the endpoint passes its part on, and each slice to the other.
    levels = [decision.level for decision in decisions.values()]
    assert levels == pytest.approx([0.9 * 0.025, 0.9 * (0.0125 + 0.0375), 0.9 * (0.0125 + 0.0375)])
    assert all(decision.verdict is Verdict.ENABLE for decision in decisions.values())


def test_levels_run_out_in_the_order_of_entry() -> None:
    world = World(160, slices=SLICES, make_run=noisy_run())
    decisions = decided(world.evidence(), policy=replace(POLICY, max_hypotheses=2))
    assert decisions[""].level == pytest.approx(0.9 * 0.025)
    assert decisions[SLICES[0]].level == pytest.approx(0.9 * (0.025 + 0.025)), "the endpoint has passed its part on"
    assert decisions[SLICES[1]].reason_code == "no_level_left"


def test_a_level_once_given_is_kept_whatever_the_policy_and_the_order_say_later() -> None:
    evidence = World(60, slices=SLICES, make_run=noisy_run()).evidence()
    first = decided(evidence, policy=replace(POLICY, max_hypotheses=2))
    swapped = replace(evidence, records=[structs.replace(r, event_time=START) for r in evidence.records])
    second = decided(swapped, list(first.values()), replace(POLICY, max_hypotheses=50))
    for name in ("", SLICES[0]):
        assert second[name].level == first[name].level
    assert second[SLICES[1]].reason_code == "no_level_left"


def test_clips_stay_as_they_were_at_entry() -> None:
    evidence = World(60, make_run=noisy_run()).evidence()
    first = decided(evidence, policy=replace(POLICY, log_speedup_clip=0.5))
    second = decided(evidence, list(first.values()), replace(POLICY, log_speedup_clip=0.9))
    assert next(t for t in second[""].tests if t.name == "speedup").figures["log_speedup_clip"] == 0.5


def test_a_second_gate_over_the_same_rows_sees_the_same_evidence() -> None:
    evidence = World(70, make_run=noisy_run()).evidence()
    first = decided(evidence)
    second = decided(evidence, list(first.values()))
    assert {name: d.tests for name, d in first.items()} == {name: d.tests for name, d in second.items()}


def test_few_clusters_have_not_entered() -> None:
    decision = decided(World(4, make_run=noisy_run()).evidence())[""]
    assert (decision.verdict, decision.reason_code, decision.clusters_needed) == (Verdict.HOLD, "too_few_clusters", 4)
    assert decision.level is None


def test_open_clusters_wait_until_the_input_ends() -> None:
    evidence = World(100, make_run=noisy_run()).evidence()
    waiting, ended = decided(evidence, input_ended=False)[""], decided(evidence)[""]
    assert waiting.num_clusters == 400 - 91, "30 minutes idle at a session every 20 s"
    assert ended.num_clusters == 400


def test_each_load_is_a_hypothesis_of_its_own() -> None:
    evidence = World(40, make_run=noisy_run()).evidence()
    decisions = decide_endpoint(evidence, POLICY, CONFIGS, [4, 16], [], input_ended=True, now=START)
    assert [(d.slice_key, d.concurrency, d.num_blocks) for d in decisions] == [
        ("", 4, 40),
        ("", 16, 0),
        (SLICES[0], 4, 40),
        (SLICES[0], 16, 0),
    ]


def test_a_current_verdict_outlives_a_change_of_the_traffic() -> None:
    slow = World(120, make_run=noisy_run(speedup=0.85)).evidence()
    first = decided(slow)
    assert first[""].verdict is Verdict.DISABLE
    fast = World(240, make_run=noisy_run(speedup=1.5)).evidence()
    assert decided(fast)[""].verdict is Verdict.ENABLE
    assert decided(fast, list(first.values()))[""].verdict is Verdict.DISABLE


def test_looks_as_evidence_grows_agree_with_one_look_at_the_end() -> None:
    whole = World(120, slices=SLICES, make_run=noisy_run(speedup=1.1)).evidence()
    current: list[Decision] = []
    for num_blocks in (10, 40, 80, 120):
        looked = decided(cut(whole, num_blocks), current, input_ended=num_blocks == 120)
        current = list(looked.values())
    at_once = decided(whole)
    for name in ("", *SLICES):
        assert looked[name].level == at_once[name].level
        for test, other in zip(looked[name].tests, at_once[name].tests, strict=True):
            assert_same_value(asdict(test), asdict(other), f"{name} {test.name}")


def test_rows_that_contradict_each_other_are_an_error() -> None:
    evidence = World(10).evidence()
    stray = replace(run_of(0, "b00000"), key=RecordKey("other", 0, 1))
    with pytest.raises(InputError, match=r"other\[0\]@1/0 .* has no block, no record"):
        decided(replace(evidence, runs=[*evidence.runs, stray]))


def test_sequences_end_at_the_figures_of_the_decision() -> None:
    evidence = World(120, slices=SLICES, make_run=noisy_run(slowed_share=0.02)).evidence()
    decisions = decided(evidence)
    sequences = endpoint_sequences(evidence, POLICY, list(decisions.values()), input_ended=True)
    for name, decision in decisions.items():
        points = sequences[name, 4, CONFIG.fingerprint]
        for test in decision.tests:
            if test.name in points:
                last = points[test.name][-1]
                assert last.num_units == test.num_units
                assert last.estimate == pytest.approx(test.estimate)
                assert last.lower == pytest.approx(test.lower)
                assert last.upper == (None if test.upper is None else pytest.approx(test.upper))


# Over a database.


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    url = f"sqlite:///{tmp_path / 'gate.db'}"
    schema.upgrade(url)
    with Store.open(url) as opened:
        yield opened


def save(store: Store, evidence: EndpointEvidence) -> None:
    store.save_fingerprints([CONFIG])
    records = {record.key: record for record in evidence.records}
    run_keys = {run.key for run in evidence.runs}
    save_records(store, [record for key, record in records.items() if key not in run_keys])
    for stored in evidence.blocks:
        runs = tuple(run for run in evidence.runs if run.block_id == stored.block_id)
        block = Block(
            stored.block_id, stored.sequence, ENDPOINT, stored.slice_key, stored.concurrency, (), (), stored.first_arm
        )
        result = BlockResult(block, stored.started_at, runs, {CONFIG.fingerprint: MEMORY})
        save_block(store, result, [records[run.key] for run in runs])


def test_the_gate_over_a_store_decides_what_it_decides_over_rows(store: Store) -> None:
    evidence = World(80, slices=SLICES, make_run=noisy_run()).evidence()
    save(store, evidence)
    gate = run_endpoint_gate(store, ENDPOINT, POLICY, input_ended=True, now=START)
    decisions = gate.decisions
    evidence = replace(evidence, watermark=store.watermark(ENDPOINT).time)
    assert decisions == list(decided(evidence).values())
    assert store.latest_decisions(ENDPOINT) == gate.latest == sorted(decisions, key=lambda d: d.slice_key)
    again = run_endpoint_gate(store, ENDPOINT, POLICY, input_ended=True, now=START + timedelta(hours=1)).decisions
    assert [(d.verdict, d.verdict_since) for d in again] == [(d.verdict, d.verdict_since) for d in decisions]
    assert [d.tests for d in again] == [d.tests for d in decisions]


def test_an_endpoints_gate_run_holds_its_lock_throughout_and_reads_its_decisions_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, World(80, slices=SLICES, make_run=noisy_run()).evidence())
    locked, reads, lock = [], [], locks.endpoint_lock

    def counted_lock(engine: Engine, endpoint: str, timeout_s: float) -> AbstractContextManager[None]:
        locked.append(endpoint)
        return lock(engine, endpoint, timeout_s)

    @event.listens_for(store.engine, "before_cursor_execute")
    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "FROM test_snapshots" in statement:
            reads.append(statement)

    monkeypatch.setattr(locks, "endpoint_lock", counted_lock)
    for day in range(2):
        at = START + timedelta(days=day, hours=3)  # when all of it has happened
        policy = RolloutPolicy(require_confirmed=False, shadow_soak_s=0.0, min_soak_blocks=0)
        run = run_endpoint(store, ENDPOINT, POLICY, policy, input_ended=True, now=at)
        assert locked == [ENDPOINT] * (day + 1)
        assert len(reads) == day + 1
        assert [step.rollout.stage for step in run.steps] == [Stage.PARTIAL]
    assert store.rollouts(ENDPOINT) == [run.steps[0].rollout]


def test_no_rollout_moves_after_the_endpoints_lock_was_lost(
    new_database: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another gate may have decided since."""

    def gate_and_lose_lock(*arguments: Any, **options: Any) -> EndpointGateRun:
        gate = run_endpoint_gate(*arguments, **options)
        lose_locks(store)
        return gate

    monkeypatch.setattr(endpoint_run, "run_endpoint_gate", gate_and_lose_lock)
    policy = RolloutPolicy(require_confirmed=False, shadow_soak_s=0.0, min_soak_blocks=0)
    with Store.open(new_database("postgres")) as store:
        save(store, World(80, make_run=noisy_run()).evidence())
        with pytest.raises(ServiceUnavailableError):
            run_endpoint(store, ENDPOINT, POLICY, policy, input_ended=True, now=START)
        assert {each.verdict for each in store.latest_decisions(ENDPOINT)} == {Verdict.ENABLE}
        assert store.rollouts(ENDPOINT) == []


@pytest.mark.representative("-0.3-HOLD")
@pytest.mark.parametrize(("change", "verdict"), [(0.0, Verdict.ENABLE), (-0.3, Verdict.HOLD)])
def test_scores_of_both_arms_go_through_the_store_to_their_guardrail(
    store: Store, change: float, verdict: Verdict
) -> None:
    world = World(100, make_run=noisy_run()).evidence()
    runs = [replace(run, scores={"score": PairedScore(0.5, 0.5 + change)}) for run in world.runs]
    save(store, replace(world, runs=runs))
    policy = replace(POLICY, score_margin=0.1)
    whole = run_endpoint_gate(store, ENDPOINT, policy, input_ended=True, now=START).decisions[0]
    assert (whole.verdict, whole.reason_code == "guardrail") == (verdict, verdict is Verdict.HOLD)
    score = next(test for test in whole.tests if test.name == "score")
    assert score.estimate == pytest.approx(change)
    assert score.betting.num_missing == 0


def evaluation(number: int, spec: float, *, fingerprint: str = CONFIG.fingerprint, first: int = 0) -> Evaluation:
    documents = {f"{each:06}": PairedScore(1.0, spec) for each in range(first, first + number)}
    return Evaluation(ENDPOINT, fingerprint, "sums", "exact_match,none", START, documents)


def test_a_task_set_is_a_guardrail_of_the_endpoint_and_of_every_slice(store: Store) -> None:
    save(store, World(160, slices=SLICES, make_run=noisy_run()).evidence())
    policy = replace(POLICY, task_margin=0.05)

    def gate(day: int) -> list[Decision]:
        return run_endpoint_gate(store, ENDPOINT, policy, input_ended=True, now=START + timedelta(days=day)).decisions

    # 1. Without a task set nothing passes, and another config's says nothing.
    store.save_fingerprints([other := replace(CONFIG, fingerprint="another")])
    store.append_evaluations([evaluation(300, 1.0, fingerprint=other.fingerprint)])
    first = gate(0)
    assert {each.verdict for each in first} == {Verdict.HOLD}
    assert all("No task set was evaluated" in each.reason and "`shadowspec evaluate`" in each.reason for each in first)
    assert [each.clusters_needed for each in first] == [None] * 3, "no session brings a document"

    # 2. Each document counts once, however often it is evaluated.
    store.append_evaluations([replace(evaluation(20, 1.0), measured_at=START + timedelta(days=1))] * 50)
    second = gate(1)
    assert {each.verdict for each in second} == {Verdict.HOLD}
    assert [each.clusters_needed for each in second] == [None] * 3
    for each in second:
        (test,) = (test for test in each.tests if test.name == "task_score")
        assert (test.num_units, test.outcome, test.unit) == (20, "open", "document")
        assert f"about {test.units_needed} more documents" in each.reason

    # 3. Enough of them are the last proof that was missing.
    store.append_evaluations([replace(evaluation(300, 1.0, first=20), measured_at=START + timedelta(days=2))])
    third = gate(2)
    assert {each.verdict for each in third} == {Verdict.ENABLE}
    for each in (*first, *second, *third):
        assert explain(store, each.decision_id or 0).differences == (), "with the task sets that there were at the look"


def test_a_task_set_that_speculation_answers_worse_fails_its_guardrail(store: Store) -> None:
    save(store, World(100, make_run=noisy_run()).evidence())
    store.append_evaluations([evaluation(100, 0.5)])
    policy = replace(POLICY, task_margin=0.05)
    (whole,) = (
        each
        for each in run_endpoint_gate(store, ENDPOINT, policy, input_ended=True, now=START).decisions
        if not each.slice_key
    )
    assert (whole.verdict, whole.reason_code) == (Verdict.HOLD, "guardrail")
    assert whole.reason.startswith("The change in the score of the task sets is \N{MINUS SIGN}0.5000")
    assert (
        replaced := run_endpoint_gate(store, ENDPOINT, POLICY, input_ended=True, now=START).decisions[0]
    ).verdict is Verdict.ENABLE
    assert "task_score" not in {test.name for test in replaced.tests}


def test_two_gates_at_once_give_the_evidence_of_one(store: Store) -> None:
    save(store, World(40, make_run=noisy_run()).evidence())
    results: list[list[Decision]] = []

    def gate() -> None:
        results.append(run_endpoint_gate(store, ENDPOINT, POLICY, input_ended=True, now=START).decisions)

    threads = [threading.Thread(target=gate) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    assert [d.tests for d in results[0]] == [d.tests for d in results[1]]
    assert [d.level for d in results[0]] == [d.level for d in results[1]]
