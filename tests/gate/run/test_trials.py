"""Runs that follow each other, over stored rows: drift alarms, new fingerprints, and what the endpoint shows."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from sqlalchemy import create_engine, text

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.gate.run.recompute import explain
from shadowspec.gate.run.traffic_counts import TrafficCounts
from shadowspec.gate.verdict.trial_levels import Seen, current_configs, restart_level
from shadowspec.store import Store
from shadowspec.store.admin import schema
from shadowspec.types import Block, BlockResult, Decision, FingerprintedConfig, FunnelCounter, Run, Verdict, codec
from shadowspec.types.decision_documents import shown_details
from tests.builders.changing_configs import OTHER, changing, with_fingerprint
from tests.gate.feeding import Feed
from tests.gate.oracle import EndpointEvidence, current_traffic, decide_endpoint, endpoint_sequences, seen_fingerprints
from tests.gate.worlds import CONFIG, ENDPOINT, MEMORY, START, World, noisy_run
from tests.store.saving import save_block, save_records

POLICY = GatePolicy(window_s=0.0, max_hypotheses=3, min_span_s=0.0, drift_run_length=1_000)
SLICES = ("prompt_class=code", "prompt_class=sql")


def after_a_pause(rows: EndpointEvidence, sequence: int) -> EndpointEvidence:
    """The rows with two hours before this block, by the worker's clock and by event time."""
    pause = timedelta(hours=2)
    late = [replace(b, started_at=b.started_at + pause) if b.sequence >= sequence else b for b in rows.blocks]
    names = {block.block_id for block in late if block.sequence >= sequence}
    first = min(run.key.offset for run in rows.runs if run.block_id in names)
    places = {r.key: r.key.offset if r.key.partition == 0 else r.key.offset // 10 + 1 for r in rows.records}
    records = [
        structs.replace(r, event_time=r.event_time + pause) if r.event_time and places[r.key] >= first else r
        for r in rows.records
    ]
    return replace(rows, blocks=late, records=records)


class Gate:
    """The gate over a growing world, its latest decisions kept as a store keeps them."""

    def __init__(self, world: World, policy: GatePolicy = POLICY) -> None:
        rows, memory = world.evidence(), {CONFIG.fingerprint: MEMORY, OTHER.fingerprint: MEMORY}
        self.whole = replace(rows, blocks=[replace(block, memory=memory) for block in rows.blocks])
        self.policy = policy
        self.configs: dict[str, FingerprintedConfig] = {CONFIG.fingerprint: CONFIG, OTHER.fingerprint: OTHER}
        self.latest: dict[tuple[str, str], Decision] = {}
        self.load, self.num_looks = world.n_max, 0

    def rows(self, num_blocks: int) -> EndpointEvidence:
        blocks = self.whole.blocks[:num_blocks]
        kept = {block.block_id for block in blocks}
        runs = [run for run in self.whole.runs if run.block_id in kept]
        last = max(run.key.offset for run in runs)
        records = [
            r for r in self.whole.records if (r.key.offset if r.key.partition == 0 else r.key.offset // 10 + 1) <= last
        ]
        newest = max(record.event_time for record in records if record.event_time is not None)
        return EndpointEvidence(self.whole.endpoint, records, blocks, runs, newest)

    def look(self, num_blocks: int) -> dict[tuple[str, str], Decision]:
        """Decisions after so many blocks, by slice and fingerprint; every session is closed."""
        rows = self.rows(num_blocks)
        measured = {run.fingerprint for run in rows.runs}
        configs = {fingerprint: config for fingerprint, config in self.configs.items() if fingerprint in measured}
        now = START + timedelta(hours=self.num_looks)
        self.num_looks += 1
        decided = decide_endpoint(
            rows, self.policy, configs, [self.load], list(self.latest.values()), input_ended=True, now=now
        )
        found = {(decision.slice_key, decision.fingerprint): decision for decision in decided}
        assert len(found) == len(decided)
        self.latest |= found
        return found

    def decision_at(self, num_blocks: int, slice_key: str = "", fingerprint: str = CONFIG.fingerprint) -> Decision:
        return self.look(num_blocks)[slice_key, fingerprint]


@pytest.mark.all
def test_a_slowdown_after_enable_is_found_over_rows_and_a_new_run_begins() -> None:
    gate = Gate(World(900, make_run=changing((120, noisy_run()), (520, noisy_run(speedup=1.0)), (900, noisy_run()))))
    assert gate.decision_at(120).verdict is Verdict.ENABLE
    watched = gate.decision_at(140)
    assert (watched.verdict, watched.drift.detectors["speedup"].num_units) == (Verdict.ENABLE, 20)
    alarmed = gate.decision_at(520)
    assert (alarmed.verdict, alarmed.reason_code, alarmed.num_blocks) == (Verdict.DISABLE, "drift", 520)
    fresh = gate.decision_at(540)
    assert (fresh.verdict, fresh.reason_code, fresh.num_blocks, fresh.num_clusters) == (
        Verdict.DISABLE,
        "drift",
        20,
        80,
    )
    assert fresh.level == pytest.approx(restart_level(0.025, 1)), "the endpoint's reserve"
    recovered = gate.decision_at(900)
    assert (recovered.verdict, recovered.num_blocks) == (Verdict.ENABLE, 380)


@pytest.mark.all
def test_how_often_one_looks_does_not_change_what_the_detectors_say() -> None:
    world = World(220, make_run=changing((120, noisy_run()), (220, noisy_run(speedup=1.04))))
    often, seldom = Gate(world), Gate(world)
    often.decision_at(120), seldom.decision_at(120)
    for num_blocks in range(130, 220, 10):
        often.decision_at(num_blocks)
    one, other = often.decision_at(220).drift.detectors, seldom.decision_at(220).drift.detectors
    assert one["speedup"].num_units == other["speedup"].num_units == 100
    assert one["speedup"].log10 == pytest.approx(other["speedup"].log10)
    assert one["acceptance"].log10 == pytest.approx(other["acceptance"].log10)


def test_detectors_live_on_after_the_last_cluster_that_may_enter() -> None:
    policy = replace(POLICY, max_clusters=480)
    gate = Gate(World(300, make_run=changing((120, noisy_run()), (300, noisy_run(acceptance=0.2)))), policy)
    assert gate.decision_at(120).verdict is Verdict.ENABLE
    assert gate.decision_at(300).reason.find("accepted no longer stays above") > 0


def test_the_sequences_of_an_alarm_end_at_its_figures() -> None:
    gate = Gate(World(400, make_run=changing((120, noisy_run()), (400, noisy_run(speedup=1.0)))))
    gate.look(120)
    decisions = list(gate.look(400).values())
    drawn = endpoint_sequences(gate.rows(400), gate.policy, decisions, input_ended=True)
    for decision in decisions:
        assert decision.reason_code == "drift"
        points = drawn[decision.slice_key, 4, CONFIG.fingerprint]["speedup"]
        speedup = next(test for test in decision.tests if test.name == "speedup")
        assert points[-1].num_units == speedup.num_units
        assert points[-1].lower == pytest.approx(speedup.lower)


def test_a_new_fingerprint_supersedes_the_old_verdict_within_the_same_share() -> None:
    new = with_fingerprint(noisy_run(), OTHER.fingerprint)
    gate = Gate(World(300, slices=SLICES, make_run=changing((160, noisy_run()), (300, new))))
    first = gate.look(160)
    assert {decision.verdict for decision in first.values()} == {Verdict.ENABLE}
    second = gate.look(180)
    for name in ("", *SLICES):
        old, fresh = second[name, CONFIG.fingerprint], second[name, OTHER.fingerprint]
        assert (old.verdict, old.reason_code) == (Verdict.HOLD, "changed_fingerprint")
        assert (old.supersession.verdict, old.supersession.by) == ("ENABLE", OTHER.fingerprint)
        assert (fresh.verdict, fresh.reason_code) == (Verdict.HOLD, "changed_fingerprint")
        share = 0.0125 if name else 0.025
        assert fresh.level == pytest.approx(restart_level(share, 1, 0.05 if name else 0.1)), (
            "max_hypotheses is 3: there is no other share"
        )
    third = gate.look(300)
    assert set(third) == {(name, OTHER.fingerprint) for name in ("", *SLICES)}, "a superseded row is written once"
    assert third["", OTHER.fingerprint].verdict is Verdict.ENABLE


def test_a_rollback_is_a_run_of_its_own() -> None:
    """Blocks start a second apart: the old fingerprint is current again after an hour without the new one."""
    new = with_fingerprint(noisy_run(), OTHER.fingerprint)
    world = World(240, make_run=changing((120, noisy_run()), (140, new), (240, noisy_run())))
    gate = Gate(world)
    gate.whole = after_a_pause(gate.whole, 140)
    assert gate.decision_at(120).verdict is Verdict.ENABLE
    gate.look(140)
    back = gate.look(150)["", CONFIG.fingerprint]
    assert (back.verdict, back.reason_code, back.num_blocks) == (Verdict.HOLD, "changed_fingerprint", 10)
    assert back.run.start_blocks == 120
    assert back.level == pytest.approx(restart_level(0.025, 2))
    assert gate.look(240)["", CONFIG.fingerprint].verdict is Verdict.ENABLE


def test_candidates_of_other_names_do_not_supersede_each_other() -> None:
    deeper = replace(OTHER, config=replace(CONFIG.config, name="draft-k8", num_speculative_tokens=8))
    world = World(120, make_run=noisy_run())
    gate = Gate(world, replace(POLICY, max_hypotheses=4))
    gate.configs[OTHER.fingerprint] = deeper
    rng, slower = np.random.default_rng(5), noisy_run(speedup=1.25)
    twins = [
        replace(slower(rng, at, run.block_id), key=run.key, fingerprint=OTHER.fingerprint)
        for at, run in enumerate(gate.whole.runs)
    ]
    gate.whole = replace(gate.whole, runs=[*gate.whole.runs, *twins])
    found = gate.look(120)
    assert {decision.verdict for decision in found.values()} == {Verdict.ENABLE}
    assert [key for key, decision in found.items() if decision.composition.is_named] == [
        ("", CONFIG.fingerprint),
        (SLICES[0], CONFIG.fingerprint),
    ]


def test_the_endpoint_shows_bounds_under_the_current_mix() -> None:
    gate = Gate(World(160, slices=SLICES, make_run=noisy_run()))
    found = {name: decision for (name, _), decision in gate.look(160).items()}
    assert [found[name].traffic_share for name in SLICES] == [0.5, 0.5]
    lows = [next(t for t in found[name].tests if t.name == "speedup").lower or 0.0 for name in SLICES]
    assert found[""].composition.bounds["speedup"].lower == pytest.approx((lows[0] * lows[1]) ** 0.5)
    assert found[""].composition.bounds["speedup"].known_share == 1.0


def test_a_moved_mix_is_told_from_decay() -> None:
    """Code is accepted at .8 and SQL at .5; after ENABLE three of four sessions are SQL."""
    code, sql = noisy_run(acceptance=0.8), noisy_run(acceptance=0.5)

    def slice_of(sequence: int) -> str:
        return SLICES[0] if sequence % (2 if sequence < 300 else 4) == 0 else SLICES[1]

    def draw(rng: np.random.Generator, index: int, block_id: str) -> Run:
        return (code if slice_of(int(block_id[1:])) == SLICES[0] else sql)(rng, index, block_id)

    gate = Gate(World(900, slices=SLICES, block_size=1, n_max=1, make_run=draw))
    of_block = {block.block_id: slice_of(block.sequence) for block in gate.whole.blocks}
    of_index = {run.key.offset: of_block[run.block_id] for run in gate.whole.runs}
    gate.whole = replace(
        gate.whole,
        blocks=[replace(block, slice_key=of_block[block.block_id]) for block in gate.whole.blocks],
        records=[
            structs.replace(r, slice_key=of_index[r.key.offset if r.key.partition == 0 else r.key.offset // 10 + 1])
            for r in gate.whole.records
        ],
    )
    assert gate.decision_at(300).verdict is Verdict.ENABLE
    change = gate.decision_at(900).composition.mix_change
    assert change.has_shifted
    assert change.rates["acceptance"].mix_part == pytest.approx(-0.25 * 0.3, abs=0.01)
    assert change.rates["acceptance"].within_part == pytest.approx(0.0, abs=0.02)


# Over a database, folding what is new at each look.


def save_new(store: Store, rows: EndpointEvidence, earlier: EndpointEvidence | None) -> None:
    """Store what `rows` hold beyond `earlier`, as a worker would have."""
    known = {record.key for record in earlier.records} if earlier else set()
    old = {block.block_id for block in earlier.blocks} if earlier else set()
    records, run_keys = {record.key: record for record in rows.records}, {run.key for run in rows.runs}
    save_records(store, [record for key, record in records.items() if key not in known | run_keys])
    for block in rows.blocks:
        if block.block_id not in old:
            runs = tuple(run for run in rows.runs if run.block_id == block.block_id)
            formed = Block(
                block.block_id,
                block.sequence,
                block.endpoint,
                block.slice_key,
                block.concurrency,
                (),
                (),
                block.first_arm,
            )
            result = BlockResult(formed, block.started_at, runs, dict(block.memory))
            save_block(store, result, [records[run.key] for run in runs])


@pytest.mark.all
@pytest.mark.parametrize("kind", ["drift", "fingerprint", "rollback"])
def test_folding_what_is_new_decides_what_all_rows_decide(tmp_path: Path, kind: str) -> None:
    """Through an alarm and the run after it, a new fingerprint, and the old one's return: every figure the same."""
    new = with_fingerprint(noisy_run(), OTHER.fingerprint)
    phases = {
        "drift": ((140, noisy_run()), (260, noisy_run(speedup=0.8))),
        "fingerprint": ((140, noisy_run()), (260, new)),
        "rollback": ((140, noisy_run()), (240, new), (260, noisy_run())),
    }
    gate = Gate(World(260, slices=SLICES, make_run=changing(*phases[kind])))
    if kind == "rollback":
        gate.whole = after_a_pause(gate.whole, 240)
    url = f"sqlite:///{tmp_path / 'gate.db'}"
    schema.upgrade(url)
    codes, earlier = [], None
    with Store.open(url) as store:
        store.save_fingerprints([CONFIG, OTHER])
        for num_blocks in (60, 140, 150, 240, 250, 260):
            rows = gate.rows(num_blocks)
            save_new(store, rows, earlier)
            earlier = rows
            wanted = gate.look(num_blocks)
            now = next(iter(wanted.values())).decided_at
            found = run_endpoint_gate(store, gate.whole.endpoint, POLICY, input_ended=True, now=now).decisions
            assert {(decision.slice_key, decision.fingerprint) for decision in found} == set(wanted)
            for decision in found:
                same = wanted[decision.slice_key, decision.fingerprint]
                assert (decision.verdict, decision.reason_code) == (same.verdict, same.reason_code)
                assert (decision.num_blocks, decision.num_clusters) == (same.num_blocks, same.num_clusters)
                details, others = shown_details(decision), shown_details(same)
                assert details.keys() == others.keys()
                for name, value in others.items():
                    if isinstance(value, float):
                        assert details[name] == pytest.approx(value, abs=1e-9), name
                    elif name not in {"watch", "mix_reference"}:  # sums whose last digits depend on the order
                        assert details[name] == value, name
                codes.append(decision.reason_code)
    assert {"all_tests_pass", "drift" if kind == "drift" else "changed_fingerprint"} <= set(codes)


# Parts.


def test_traffic_counts_what_was_not_measured_and_forgets_what_is_old() -> None:
    evidence = World(80, slices=SLICES, make_run=noisy_run(), gap_s=1_500.0).evidence()  # over 5.5 days
    week = current_traffic(evidence.records, evidence.runs, POLICY, None)[CONFIG.fingerprint]
    assert {name: traffic.num_requests for name, traffic in week.items()} == dict.fromkeys(SLICES, 480.0)
    assert week[SLICES[0]].num_draft_tokens == 480 * 30
    hour = current_traffic(evidence.records, evidence.runs, replace(POLICY, mix_window_s=3_600.0), None)
    assert 0 < sum(traffic.num_requests for traffic in hour[CONFIG.fingerprint].values()) < 130
    assert current_traffic([], [], POLICY, None) == {}


def test_a_slice_without_a_measured_request_weighs_what_the_others_weigh() -> None:
    evidence = World(8, slices=SLICES, make_run=noisy_run()).evidence()
    known = [run for run in evidence.runs if int(run.block_id[1:]) % 2 == 0]
    traffic = current_traffic(evidence.records, known, POLICY, None)[CONFIG.fingerprint]
    assert traffic[SLICES[1]].num_draft_tokens == 30 * traffic[SLICES[1]].num_requests


def test_malformed_records_are_no_traffic() -> None:
    evidence = World(8, make_run=noisy_run()).evidence()
    broken = [structs.replace(record, counter=FunnelCounter.UNSUPPORTED) for record in evidence.records]
    assert current_traffic(broken, evidence.runs, POLICY, None) == {}


def test_a_name_stands_for_the_fingerprint_measured_last() -> None:
    configs = {CONFIG.fingerprint: CONFIG, OTHER.fingerprint: OTHER}
    seen = seen_fingerprints(
        [
            (fingerprint, Seen(at, at))
            for fingerprint, minutes in (
                (CONFIG.fingerprint, 0), (OTHER.fingerprint, 9), (CONFIG.fingerprint, 10), (OTHER.fingerprint, 2)
            )
            for at in [START + timedelta(minutes=minutes)]
        ]
    )  # fmt: skip
    assert seen[OTHER.fingerprint].first == START + timedelta(minutes=2)
    assert seen[OTHER.fingerprint].last == START + timedelta(minutes=9)
    assert current_configs(configs, seen) == {OTHER.fingerprint: OTHER}
    assert current_configs(configs, {}) == configs


def test_traffic_in_pieces_is_the_traffic_of_all_and_old_traffic_is_not_kept() -> None:
    evidence = World(300, slices=SLICES, make_run=noisy_run(), gap_s=1_500.0).evidence()  # over 20 days
    pieces, span_s = TrafficCounts(), POLICY.mix_window_s
    for start in range(0, 1_200, 100):
        offsets = {run.key.offset for run in evidence.runs[start : start + 100]}
        records = [r for r in evidence.records if r.key.partition == 0 and r.key.offset in offsets]
        pieces = codec.decode(codec.encode(pieces), TrafficCounts)
        before = codec.encode(pieces)
        after = pieces.fold(records, evidence.runs[start : start + 100], span_s)
        assert codec.encode(pieces) == before, "a fold leaves the counts before it as they are"
        pieces = after
    at_once = TrafficCounts().fold([r for r in evidence.records if r.key.partition == 0], evidence.runs, span_s)
    assert pieces == at_once
    assert len(pieces.buckets) == 33
    assert sum(pieces.window(None, span_s).requests.values()) == sum(at_once.window(None, span_s).measured.values()) > 0


@pytest.mark.representative("sqlite")
def test_a_worker_whose_clock_is_ahead_restarts_nothing(store: Store) -> None:
    """Two workers measure side by side, one with a clock two hours ahead; of each the traffic pauses by turns."""
    new = with_fingerprint(noisy_run(), OTHER.fingerprint)
    turns = [(20 + 10 * number, new if number % 2 else noisy_run()) for number in range(9)]
    rows = World(100, make_run=changing(*turns)).evidence()
    is_ahead = {block.block_id: (block.sequence - 10) // 10 % 2 == 0 for block in rows.blocks}
    skewed = [
        replace(b, started_at=b.started_at + timedelta(hours=2)) if is_ahead[b.block_id] else b for b in rows.blocks
    ]
    feed = Feed(store, replace(rows, blocks=skewed), (CONFIG, OTHER))
    found = []
    for start in range(0, 100, 10):
        feed.write_blocks(start, start + 10)
        decisions = run_endpoint_gate(store, ENDPOINT, POLICY, input_ended=True).decisions
        found.append({d.fingerprint for d in decisions if d.slice_key == "" and d.supersession is None})
    changes = [after for before, after in itertools.pairwise(found) if before != after]
    assert changes == [{OTHER.fingerprint}], "the new one is current once, and stays"


@pytest.mark.representative("sqlite")
def test_clusters_beyond_the_cap_count_in_no_later_run(store: Store) -> None:
    """A rollback's run begins after all that the first one has passed, also where everything is folded anew."""
    new = with_fingerprint(noisy_run(), OTHER.fingerprint)
    world = World(100, make_run=changing((40, noisy_run()), (60, new), (100, noisy_run())))
    rows = after_a_pause(world.evidence(), 60)
    policy = replace(POLICY, max_clusters=100)
    feed = Feed(store, rows, (CONFIG, OTHER))

    def look(start: int, stop: int, own_policy: GatePolicy = policy) -> Decision:
        if stop > start:
            feed.write_blocks(start, stop)
        found = run_endpoint_gate(store, ENDPOINT, own_policy, input_ended=True).decisions
        return next(d for d in found if d.fingerprint == CONFIG.fingerprint and d.slice_key == "")

    first = look(0, 40)
    assert (first.num_clusters, first.evidence.num_capped_clusters) == (100, 60)
    assert look(40, 60).supersession.by == OTHER.fingerprint
    back = look(60, 90)
    assert (back.run.start_clusters, back.num_clusters) == (160, 100)
    assert back.evidence.num_capped_clusters == 20
    assert explain(store, back.decision_id or 0).differences == ()
    engine = create_engine(store.engine.url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE evidence SET content = :content"), {"content": codec.pack({}, 1)})
    engine.dispose()
    again = look(0, 0)
    assert [test.estimate for test in again.tests] == [test.estimate for test in back.tests]
    assert (again.num_clusters, again.num_blocks) == (100, 30)
    assert again.evidence.num_capped_clusters == 20
