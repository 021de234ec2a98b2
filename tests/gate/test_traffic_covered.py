"""How much of the traffic a verdict speaks for: days with evidence, turns that are never timed, the current mix."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from msgspec import structs

from shadowspec.gate.evidence.hypothesis import HypothesisEvidence
from shadowspec.gate.evidence.units import ClusterUnit
from shadowspec.gate.policy import DAY_S, GatePolicy
from shadowspec.gate.run.recompute import explain
from shadowspec.store import Store
from shadowspec.types import CachedPrompts, FunnelCounter, ServedRun, Verdict
from shadowspec.types.codec import pack, unpack
from tests.builders.folding import POLICY as STORED
from tests.builders.folding import gate
from tests.builders.hypothesis_evidence import Seen, draw_runs, evidence_of, look, result
from tests.gate.feeding import Feed
from tests.gate.worlds import START, World, noisy_run, record_of

POLICY = GatePolicy(window_s=0.0, max_hypotheses=2)
SLICES = ("prompt_class=code", "prompt_class=sql")
SEEN = evidence_of(draw_runs(400))


def at_days(days: Sequence[float]) -> Seen:
    """The clusters spread evenly over moments, in days from a midnight on."""
    midnight = START.replace(hour=0, minute=0, second=0, microsecond=0)
    clusters: list[ClusterUnit] = []
    for index, unit in enumerate(SEEN.clusters):
        at = midnight + timedelta(days=days[index * len(days) // len(SEEN.clusters)])
        clusters.append(replace(unit, cluster=replace(unit.cluster, first_event=at, last_event=at)))
    return replace(SEEN, clusters=tuple(clusters))


@pytest.mark.parametrize(
    ("days", "min_span_days", "reason"),
    [
        ((0.1, 7.2), 7.0, "evidence from 2 of the 7 days needed"),
        ((0.1, 1.2, 2.2, 3.2, 4.2, 5.2, 6.2), 7.0, "evidence over 6.1 days of the 7 days needed"),
        ((0.1, 1.2, 2.2, 3.2, 4.2, 5.2, 7.2), 7.0, None),
        ((0.1, 1.2), 1.5, "evidence over 26.4 hours of the 36 hours needed"),
        ((0.1, 2.2), 1.5, None),
        ((0.1, 0.2), 0.1, None),
        ((0.1, 0.15), 0.1, "evidence over 72 minutes of the 2.4 hours needed"),
        ((0.1,), 0.0, None),
    ],
)
def test_enable_needs_the_span_and_as_many_days_with_evidence(
    days: tuple[float, ...], min_span_days: float, reason: str | None
) -> None:
    decision = look(at_days(days), replace(POLICY, min_span_s=min_span_days * DAY_S))
    assert decision.evidence.num_days == len({math.floor(day) for day in days})
    assert (decision.reason_code, decision.reason if reason else None) == (
        ("min_span", f"Every required test passes, but there is {reason}. Send traffic for longer.")
        if reason
        else ("all_tests_pass", None)
    )


def test_a_trial_policy_needs_no_span_and_its_verdict_speaks_of_the_recording() -> None:
    policy = replace(POLICY, min_span_s=7 * DAY_S)
    trial = replace(policy, recording_only=True)
    found = look(at_days((0.1, 2.2)), trial)
    assert (found.verdict, found.recording_only) == (Verdict.ENABLE, True)
    assert found.reason.endswith(
        "This trial speaks of its recording only, with evidence from 2 of the 7 days needed for production."
    )
    assert not look(at_days((0.1, 2.2)), policy).recording_only
    # Neither policy inherits the other's verdict: the trial's ENABLE is HOLD in production.
    assert look(at_days((0.1, 2.2)), policy, previous=found).reason_code == "min_span"
    assert look(at_days((0.1, 2.2)), trial, previous=found).reason == found.reason


def test_days_count_once_however_the_clusters_are_folded_and_stored() -> None:
    clusters, whole = at_days((0.1, 0.9, 1.5, 1.6, 4.0)).clusters, HypothesisEvidence()
    for start in range(0, 400, 70):
        whole = whole.fold(clusters[start : start + 70], (), POLICY)
        whole = unpack(pack(whole, 1), HypothesisEvidence, 1)
    assert (whole.num_days, HypothesisEvidence().fold(clusters, (), POLICY).num_days) == (3, 3)


@pytest.mark.representative("sqlite")
def test_requests_beyond_the_timed_positions_are_counted_and_recomputed(store: Store) -> None:
    world = World(60, make_run=noisy_run()).evidence()
    feed = Feed(store, world)
    feed.write_blocks(0, 60)
    late = [
        structs.replace(
            record_of(600 + n, at_s=1_300.0 + n, session=f"s{n % 5:06d}", counter=FunnelCounter.SAMPLED_OUT),
            session_position=position,
        )
        for n, position in enumerate((4, 5, 9))
    ]
    feed.write(late, set(), is_last=True)
    decisions = gate(store, STORED)
    for decision in decisions:
        assert decision.evidence.counts.num_arrived == len(world.records) + 3
        assert decision.evidence.counts.num_beyond == 2
        assert explain(store, decision.decision_id or 0).differences == ()


@pytest.mark.representative("sqlite")
def test_prompts_of_another_length_are_counted_by_fingerprint_and_recomputed(store: Store) -> None:
    world = World(40, make_run=noisy_run()).evidence()
    lengths = itertools.cycle([(10, None), (10, 10), (10, 12), (10, 10)])
    counted = [
        structs.replace(record, num_prompt_tokens=own, num_served_tokens=served)
        for record, (own, served) in zip(world.records, lengths, strict=False)
    ]
    world = replace(world, records=counted)
    feed = Feed(store, world)
    feed.write_blocks(0, 40)
    measured = {run.key for run in world.runs}
    compared = [record for record in counted if record.key in measured and record.num_served_tokens is not None]
    num_other = sum(record.num_served_tokens == 12 for record in compared)
    assert num_other
    for decision in gate(store, STORED):
        counts = decision.evidence.counts
        assert (counts.num_compared_prompts, counts.num_other_prompts) == (len(compared), num_other)
        assert explain(store, decision.decision_id or 0).differences == ()


@pytest.mark.representative("sqlite")
def test_prompt_tokens_in_caches_are_counted_by_fingerprint_and_recomputed(store: Store) -> None:
    world = World(40, make_run=noisy_run()).evidence()
    told = itertools.cycle([None, 0, 3, 10_000])
    records = [
        structs.replace(record, num_cached_tokens=found) for record, found in zip(world.records, told, strict=False)
    ]
    known = itertools.cycle([ServedRun("response", 4, 2, 0), ServedRun("response", None, 2, 0), None])
    runs = [replace(run, served=served) for run, served in zip(world.runs, known, strict=False)]
    world = replace(world, records=records, runs=runs)
    Feed(store, world).write_blocks(0, 40)
    found = {record.key: record.num_cached_tokens for record in records}
    both = [
        run for run in runs if found[run.key] is not None and run.served and run.served.cached_tokens and run.counts
    ]
    tokens = [run.counts.num_prompt_tokens for run in both if run.counts]
    production = [min(found[run.key] or 0, number) for run, number in zip(both, tokens, strict=True)]
    expected = CachedPrompts(len(both), sum(tokens), sum(production), 4 * len(both), 2 * len(both))
    assert expected.production_cached_tokens
    for decision in gate(store, STORED):
        assert decision.evidence.counts.cached == expected
        assert explain(store, decision.decision_id or 0).differences == ()


@pytest.mark.representative("postgres-1.1-True-mix_bound", "sqlite-1.1-False-all_tests_pass")
@pytest.mark.parametrize(
    ("speedup", "wanted", "code"),
    [(1.1, True, "mix_bound"), (1.1, False, "all_tests_pass"), (1.3, True, "all_tests_pass")],
)
def test_the_mix_bound_holds_the_whole_endpoint_where_it_is_required(
    store: Store, speedup: float, wanted: bool, code: str
) -> None:
    policy = replace(STORED, max_hypotheses=3, require_mix_bound=wanted)
    Feed(store, World(160, slices=SLICES, make_run=noisy_run(speedup=speedup)).evidence()).write_blocks(
        0, 160, is_last=True
    )
    whole, *slices = gate(store, policy)
    assert whole.composition.bounds["speedup"].lower < result(whole, "speedup").lower
    assert whole.reason_code == code
    assert all(each.reason_code != "mix_bound" for each in slices)
    assert (whole.watch is None) == (code == "mix_bound"), "no detector begins"
    assert explain(store, whole.decision_id or 0).differences == ()


@pytest.mark.representative("postgres")
def test_of_one_slice_the_mix_bound_is_its_own(store: Store) -> None:
    Feed(store, World(300, make_run=noisy_run()).evidence()).write_blocks(0, 300, is_last=True)
    whole = gate(store, replace(STORED, require_mix_bound=True, max_hypotheses=1))[0]  # none is left for the slice
    assert whole.reason_code == "all_tests_pass"


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("first_position_acceptance_rate", "The share of first tokens accepted is 65.3%"),
        ("draft_acceptance_rate", "The share of drafted tokens accepted is 65.3%"),
    ],
)
def test_reasons_name_the_acceptance_that_is_judged(metric: str, words: str) -> None:
    policy = replace(POLICY, min_span_s=0.0, floor=0.8, acceptance_metric=metric)
    assert look(SEEN, policy).reason.startswith(words)
