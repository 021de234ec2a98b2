"""The synthetic store: its rollups are the sums the store would have made, its decisions the gate's, its mark shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import func, select

from kernels.benchmarks.large_store import DATA_NOTE
from kernels.benchmarks.large_store.config import config_text
from kernels.benchmarks.large_store.filling import Filled, Size, fill
from kernels.benchmarks.large_store.production import BOUNDS, SPAN, SWITCHED_AFTER
from kernels.benchmarks.large_store.traffic import bins_of
from kernels.benchmarks.large_store.world import make_world
from shadowspec.config import load_config
from shadowspec.errors import UsageError
from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.metrics import mean_acceptance_length, speedup
from shadowspec.reports.pages.before_after import enablings
from shadowspec.reports.pages.live_production import around
from shadowspec.store import Store, session
from shadowspec.store import table_definitions as tables
from shadowspec.store.histograms import bin_of
from shadowspec.store.rollups import METRICS, additions
from shadowspec.types import END_TO_END, Block, BlockResult, Verdict
from tests.store.strategies import FAILURE_NAMES

NOW = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)
SIZE = Size(num_slices=30, num_days=30, num_runs=8_000, num_looks=10, live_interval_s=900.0)


# `make test-all` alone fills it; `make test` fills a much smaller one (tests/gate/run/test_one_gate.py).
SQLITE = pytest.param("sqlite", marks=pytest.mark.all)
POSTGRES = pytest.param("postgres", marks=[pytest.mark.integration, pytest.mark.all])


@pytest.fixture(scope="module", params=[SQLITE, POSTGRES])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Filled]]:
    """A small store of each dialect, and what was said to be in it."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('large') / 'store.db'}"
        yield url, fill(url, SIZE, NOW)
        return
    from tests.builders.databases import temporary_database

    with temporary_database(request.getfixturevalue("postgres_url")) as url:
        yield url, fill(url, SIZE, NOW)


def test_failures_are_never_more_than_runs(filled: tuple[str, Filled]) -> None:
    url, _ = filled
    with Store.open(url) as store:
        for endpoint in store.endpoints():
            answered = {
                (each.slice_key, each.fingerprint, each.concurrency): each.sums.num_runs - each.sums.num_failed
                for each in store.group_sums(endpoint)
            }
            for key, counts in store.failure_counts(endpoint).items():
                assert set(counts) <= set(FAILURE_NAMES)
                assert counts["looked_at"] == answered[key]
                assert counts["early_rejections"] <= counts["early_known"] <= counts["looked_at"]
                assert counts["filtered"] + counts["rewritten"] + counts["rejected"] <= counts["looked_at"]


def test_rows_are_what_was_said(filled: tuple[str, Filled]) -> None:
    url, said = filled
    engine = session.create_engine(session.parse_url(url))
    with session.read(engine) as connection:
        rollups, rollup_bins = tables.rollups.c, tables.rollup_bins
        num_runs, timed = connection.execute(select(func.sum(rollups.num_runs), func.sum(rollups.num_timed))).one()
        binned = dict(
            connection.execute(
                select(rollup_bins.c.metric, func.sum(rollup_bins.c.num_runs)).group_by(rollup_bins.c.metric)
            ).all()
        )
        decisions = connection.scalar(select(func.count()).select_from(tables.decisions))
    engine.dispose()
    assert num_runs == said.num_runs + said.num_raw_runs
    assert abs(said.num_runs - SIZE.num_runs) < 0.25 * SIZE.num_runs
    assert set(binned) == set(METRICS)
    assert set(binned.values()) == {timed}
    assert decisions == said.num_decisions > 0


def test_rollups_keep_the_identities_of_measured_ones(filled: tuple[str, Filled]) -> None:
    with Store.open(filled[0]) as store:
        for endpoint in store.endpoints():
            for rollup in store.rollups(endpoint):
                sums, per_pos, steps = rollup.sums, rollup.num_accepted_tokens_per_pos, rollup.acceptance_histogram
                assert sum(steps) == sums.num_drafts
                assert sum(per_pos) == sums.num_accepted_tokens == sum(j * number for j, number in enumerate(steps))
                assert all(per_pos[i] == sum(steps[i + 1 :]) for i in range(len(per_pos)))
                assert sums.num_timed == sums.num_runs - sums.num_failed
                emitted = sums.num_timed + sums.num_drafts + sums.num_accepted_tokens - sums.num_cut_steps
                assert sums.num_output_tokens == emitted
                length = mean_acceptance_length(rollup.counts)
                assert length is None or math.isclose(length, 1.0 + sum(per_pos) / sum(steps))


def test_the_last_days_runs_add_up_as_the_store_adds_them(filled: tuple[str, Filled]) -> None:
    with Store.open(filled[0]) as store:
        endpoint = store.endpoints()[0]
        blocks = {block.block_id: block for block in store.blocks(endpoint)}
        records = {record.key: record for record in store.records(endpoint)}
        runs = store.runs(endpoint)
        assert runs
        assert all(
            run.baseline and run.speculative and (speedup(run.baseline, run.speculative) or 0) > 0 for run in runs
        )
        collected = []
        for run in runs:
            block = blocks[run.block_id]
            shape = Block(block.block_id, 0, endpoint, block.slice_key, block.concurrency, (), (), block.first_arm)
            collected.append((run, BlockResult(shape, block.started_at, (run,), {}), records[run.key]))
        stored = {rollup.key: rollup for rollup in store.rollups(endpoint)}
        for key, added in additions(collected).items():
            assert stored[key].sums.num_runs >= added.sums[0]


def test_the_gate_goes_on_where_the_history_ends(filled: tuple[str, Filled]) -> None:
    world = make_world(SIZE.num_slices, SIZE.seed)
    name = world.endpoints[1].name
    with Store.open(filled[0]) as store:
        before = store.latest_decisions(name)
        verdicts = {
            (decision.slice_key, decision.concurrency, decision.fingerprint): decision.verdict for decision in before
        }
        after = run_endpoint_gate(store, name, world.policy, now=NOW).decisions
    assert {decision.verdict for decision in before} >= {Verdict.ENABLE, Verdict.HOLD}
    assert {
        (decision.slice_key, decision.concurrency, decision.fingerprint): decision.verdict for decision in after
    } == verdicts
    for old in before:
        new = next(
            decision
            for decision in after
            if (decision.slice_key, decision.concurrency, decision.fingerprint)
            == (old.slice_key, old.concurrency, old.fingerprint)
        )
        assert [(test.name, test.lower, test.upper, test.num_units) for test in new.tests] == [
            (test.name, test.lower, test.upper, test.num_units) for test in old.tests
        ]


def test_bounds_hold_the_truth_that_was_drawn_from(filled: tuple[str, Filled]) -> None:
    """A bound misses with probability below alpha over the whole endpoint; the seed is fixed."""
    from kernels.benchmarks.large_store.world import acceptance_at, log_speedup

    world = make_world(SIZE.num_slices, SIZE.seed)
    checked = 0
    with Store.open(filled[0]) as store:
        for endpoint in world.endpoints:
            slices = {
                synthetic_slice.key: synthetic_slice
                for synthetic_slice in endpoint.slices
                if not synthetic_slice.drifts
            }
            for decision in store.latest_decisions(endpoint.name):
                synthetic, depth = slices.get(decision.slice_key), decision.config.num_speculative_tokens
                if synthetic is None or len(endpoint.configs[0]) > 1:
                    continue
                chance = acceptance_at(synthetic, 1, 0.0)
                truth = {
                    "acceptance": chance,
                    # Clipping at log 2 pulls the mean in by little; the bound is of the clipped mean.
                    "speedup": math.exp(min(log_speedup(chance, depth, decision.concurrency), math.log(2.0))),
                }
                for test in decision.tests:
                    if test.name in truth and test.lower is not None and test.upper is not None:
                        checked += 1
                        assert test.lower <= truth[test.name] + 0.01
                        assert test.upper >= truth[test.name] - 0.1
    assert checked > 20


def test_production_is_read_around_an_enabling(filled: tuple[str, Filled]) -> None:
    """Every enabled endpoint has a week on either side of one; drafts begin after it, and then it is faster."""
    url, said = filled
    total = 0
    with Store.open(url) as store:
        found = enablings(store.verdict_changes(limit=1_000), store.fingerprints())
        for endpoint in sorted({enabling.endpoint for enabling in found}):
            windows = store.live_windows(endpoint)
            total += len(windows)
            if not windows:
                assert all(
                    enabling.decided_at > NOW - SPAN - HOUR for enabling in found if enabling.endpoint == endpoint
                )
                continue
            enabled_at = windows[0].began_at + SPAN
            assert enabled_at in {enabling.decided_at for enabling in found if enabling.endpoint == endpoint}
            production = around(store, endpoint, enabled_at, SPAN)
            assert production is not None
            assert production.switched_on is not None
            assert production.switched_on >= enabled_at + SWITCHED_AFTER
            assert (production.before.first_position_acceptance_rate, production.before.num_resets) == (None, 0)
            assert 0.1 < (production.after.first_position_acceptance_rate or 0.0) < 0.9
            old, new = (side.latencies[END_TO_END][0.5] for side in (production.before, production.after))
            assert old is not None
            assert new is not None
            assert new.lower <= new.estimate < old.estimate
            requests = [sum(each.counts.latencies[name].total for each in windows) for name in BOUNDS]
            assert set(requests) == {sum(each.counts.num_requests or 0 for each in windows)}
    assert total == said.num_live_windows > 2_000


def test_a_store_that_holds_something_is_left_alone(filled: tuple[str, Filled]) -> None:
    with pytest.raises(UsageError, match="not empty"):
        fill(filled[0], SIZE, NOW)


def test_every_config_carries_the_note(filled: tuple[str, Filled]) -> None:
    with Store.open(filled[0]) as store:
        notes = {config.details["data_note"] for config in store.fingerprints().values()}
    assert notes == {DATA_NOTE}


def test_orders_rollouts_and_funnel_are_there(filled: tuple[str, Filled]) -> None:
    with Store.open(filled[0]) as store:
        assert {record.is_active(NOW) for record in store.overrides()} == {True, False}
        assert {rollout.stage.value for rollout in store.rollouts()} >= {"partial"}
        counted = store.funnel()
        entries = store.ledger("synthetic")
    assert sum(counted.values()) == sum(entry.num_records for entry in entries)


def test_the_configuration_opens_it(tmp_path: Path, filled: tuple[str, Filled]) -> None:
    world = make_world(SIZE.num_slices, SIZE.seed)
    path = tmp_path / "large.toml"
    path.write_text(config_text(world, filled[0]))
    config = load_config(path, environment={})
    assert config.database_url == filled[0]
    assert list(config.endpoints) == [endpoint.name for endpoint in world.endpoints]
    assert config.endpoints[world.endpoints[0].name].policy == world.policy
    assert config.dashboard.data_note == DATA_NOTE


def test_a_password_stays_out_of_the_configuration(tmp_path: Path) -> None:
    text = config_text(make_world(1, 1), "postgresql+psycopg://me:hush@localhost/x")
    assert "hush" not in text


def test_bins_are_the_stores(random_values: Callable[[], np.ndarray]) -> None:
    values = random_values()
    assert bins_of(values).tolist() == [bin_of(float(value)) for value in values]


@pytest.fixture
def random_values() -> Callable[[], np.ndarray]:
    """Values over the whole range that runs are drawn from."""
    return lambda: np.exp(np.random.default_rng(3).uniform(-6.0, 15.0, 2_000))


def test_a_seed_makes_one_world() -> None:
    assert make_world(30, 4) == make_world(30, 4)
    assert make_world(30, 4) != make_world(30, 5)
    assert make_world(47, 4).num_slices == 47
