"""There is one gate: where production cannot decide or fold, no surface has a verdict, a bound or a curve.

`DECIDE` is the function that judges one hypothesis, in the one place that calls it.  `COMPLETE`
is the fold that makes units of stored rows.  Each surface is shown to work, and to fail without the one that its
figures come from; a surface that reads what a gate run stored fails because that run stored nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from kernels.benchmarks.large_store.looks import history
from kernels.benchmarks.large_store.world import make_world
from shadowspec import demo
from shadowspec.app import gate_runs
from shadowspec.app import measure_files as pipeline
from shadowspec.cli.demonstrate import demo as run_demo
from shadowspec.config import CONFIG_VARIABLE, DATABASE_VARIABLE, Config, load_config
from shadowspec.errors import NoDataError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.recompute import explain
from shadowspec.planning.plans import plan_stored
from shadowspec.reports.pages.board import build_board
from shadowspec.reports.pages.board_values import board_values
from shadowspec.reports.pages.evidence_page import TestPath
from shadowspec.reports.pages.what_if import what_if
from shadowspec.reports.report import build_report
from shadowspec.rollout.check.answer import EndpointTerms
from shadowspec.rollout.endpoint_run import run_endpoint
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.scheduler.leader import LeaderTerm
from shadowspec.simulate.repetition import repeat, seed_of
from shadowspec.simulate.worlds import WORLDS
from shadowspec.store import Store, upgrade
from shadowspec.worker.files import Progress
from tests.gate.feeding import Feed
from tests.gate.worlds import CONFIG, ENDPOINT, START, World, noisy_run
from tests.scheduler.worlds import make_due, scheduler_of

DECIDE = ("shadowspec.gate.verdict.lifecycle.decide",)
COMPLETE = ("shadowspec.gate.run.folding.Folding.complete",)

POLICY = GatePolicy(window_s=0.0, max_hypotheses=3, min_span_s=0.0)
NOW = START + timedelta(hours=2)


class BrokenError(Exception):
    """What a function of production raises that was replaced."""


@dataclass
class Measured:
    """A store with an endpoint's rows, and the configuration that finds it."""

    store: Store
    config: Config
    folder: Path

    def try_gate(self) -> None:
        """A gate run; where the gate is broken, what it left behind."""
        with suppress(BrokenError):
            self.run_gate()

    def run_gate(self) -> None:
        run_endpoint(self.store, ENDPOINT, POLICY, RolloutPolicy(), input_ended=True, now=NOW)


def write(store: Store) -> None:
    Feed(store, World(20, make_run=noisy_run()).evidence()).write_blocks(0, 20, is_last=True)


# Surfaces.  Each asserts that it has something to show.


def command(measured: Measured) -> None:
    assert gate_runs.decide(measured.config, ENDPOINT, input_ended=True).decisions


def dry_run(measured: Measured) -> None:
    assert gate_runs.rehearse(measured.config, ENDPOINT, input_ended=True).decisions


def explanation(measured: Measured) -> None:
    assert explain(measured.store, 1).differences == ()


def scheduled_job(measured: Measured) -> None:
    make_due(measured.store)
    scheduler = scheduler_of(measured.config, measured.store, {ENDPOINT: RolloutPolicy()})
    assert scheduler._prepare_due(measured.config.schedule.jobs["often"], LeaderTerm({}))
    assert measured.store.latest_decisions(ENDPOINT)


def demonstration(measured: Measured) -> None:
    run_demo(measured.folder / "demo", max_requests=None, seed=0, as_json=True)


def plan(measured: Measured) -> None:
    measured.try_gate()
    assert plan_stored(measured.store, ENDPOINT, POLICY, sample_rate=1.0, capacity_per_s=None).hypotheses


def stored_plan(measured: Measured) -> None:
    """Where a gate run has left decisions."""
    assert plan_stored(measured.store, ENDPOINT, POLICY, sample_rate=1.0, capacity_per_s=None).hypotheses


def board(measured: Measured) -> None:
    measured.try_gate()
    found = build_board(board_values(measured.store, {}, {ENDPOINT: EndpointTerms(POLICY)}, NOW), [], NOW)
    assert any(row.current.measured is not None for row in found.endpoints[0].all_rows)


def report(measured: Measured) -> None:
    measured.try_gate()
    found = build_report(measured.store, {ENDPOINT: POLICY}, NOW, data_note="Made up.").hypotheses
    assert all(hypothesis.decision is not None and hypothesis.speedup is not None for hypothesis in found)


def report_curves(measured: Measured) -> None:
    found = build_report(measured.store, {ENDPOINT: POLICY}, NOW, data_note="Made up.").hypotheses
    assert all(hypothesis.sequences["speedup"] for hypothesis in found)


def dashboard_curves(measured: Measured) -> None:
    from dashboards.app import load_package

    load_package()
    from shadowspec._dashboards.parts import source

    source.forget()
    last = {"speedup": TestPath("speedup", 1.0, (), ())}
    assert source.unit_paths(source.pulse(), ENDPOINT, "", 4, CONFIG.fingerprint, last)["speedup"].points


def simulation(measured: Measured) -> None:
    world = WORLDS["slowdown"]
    small = replace(world, arrivals=replace(world.arrivals, num_sessions=240))
    assert repeat(small, seed_of(small, 7, 0)).hypotheses


def large_store(measured: Measured) -> None:
    endpoint = make_world(2, seed=1).endpoints[0]
    found = history(endpoint, 0, POLICY, START, days=4, num_looks=2, seed=1)
    assert any(look.decisions for look in found.looks)


def tried_thresholds(measured: Measured) -> None:
    (decision,) = (decision for decision in measured.store.latest_decisions(ENDPOINT) if not decision.slice_key)
    found = what_if(decision, measured.store.slice_evidence(ENDPOINT, ""), CONFIG, POLICY, {"margin": 0.2})
    assert found.tried.tests


Surface = Callable[[Measured], None]

# Surfaces that decide, or read what a gate run stored: how each fails without DECIDE, and without COMPLETE.
RUNS: dict[Surface, type[Exception]] = {
    Measured.run_gate: BrokenError,
    command: BrokenError,
    dry_run: BrokenError,
    scheduled_job: BrokenError,
    demonstration: BrokenError,
    plan: NoDataError,
    board: AssertionError,
    report: AssertionError,
    simulation: BrokenError,
    large_store: BrokenError,
}
# Surfaces that compute from a store that the gate has decided, and what each fails without.
READS: dict[Surface, tuple[str, ...]] = {
    explanation: DECIDE,
    tried_thresholds: DECIDE,
    stored_plan: DECIDE,
    report_curves: COMPLETE,
    dashboard_curves: COMPLETE,
}


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Measured]:
    """Rows that no gate has seen."""
    url, path = f"sqlite:///{tmp_path / 'store.db'}", tmp_path / "shadowspec.toml"
    job = '[schedule.jobs.often]\ncron = "0 * * * *"\ndoes = ["gate", "report"]\nreceivers = ["folder"]\n'
    job += f'[schedule.receivers.folder]\nkind = "folder"\nfolder = "{tmp_path / "reports"}"\nformats = ["json"]\n'
    monkeypatch.setattr(demo, "SERVED_MODELS", {ENDPOINT: "model"})
    text = demo.demo_config(tmp_path, 0).replace(f'url = "sqlite:///{tmp_path}/shadowspec.db"', f'url = "{url}"')
    path.write_text(text + job, encoding="utf-8")
    monkeypatch.setenv(CONFIG_VARIABLE, str(path))
    monkeypatch.delenv(DATABASE_VARIABLE, raising=False)

    def measure_with(config: Config, *_: object, **__: object) -> pipeline.FileMeasurement:
        with Store.open(config.database_url) as store:
            write(store)
        return pipeline.FileMeasurement((Progress(80, 20, 0, 80),), {})

    monkeypatch.setattr(pipeline, "build_engines", lambda _config: {})
    monkeypatch.setattr(pipeline, "measure_with", measure_with)
    upgrade(url)
    with Store.open(url) as store:
        write(store)
        yield Measured(store, load_config(path, {}), tmp_path)


def break_production(monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]) -> None:
    def broken(*_: object, **__: object) -> None:
        raise BrokenError

    for name in names:
        monkeypatch.setattr(name, broken)


@pytest.mark.parametrize("surface", RUNS, ids=lambda item: item.__name__)
@pytest.mark.parametrize("names", [DECIDE, COMPLETE], ids=["decide", "complete"])
def test_no_surface_has_a_verdict_without_the_production_gate(
    surface: Surface, names: tuple[str, ...], measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_production(monkeypatch, names)
    with pytest.raises(RUNS[surface]):
        surface(measured)
    assert measured.store.latest_decisions(ENDPOINT) == []


@pytest.mark.parametrize(("surface", "names"), READS.items(), ids=[item.__name__ for item in READS])
def test_no_surface_has_a_bound_or_a_curve_without_it(
    surface: Surface, names: tuple[str, ...], measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured.run_gate()
    surface(measured)
    break_production(monkeypatch, names)
    with pytest.raises(BrokenError):
        surface(measured)


@pytest.mark.parametrize("surface", RUNS, ids=lambda item: item.__name__)
def test_every_surface_works_with_it(surface: Surface, measured: Measured) -> None:
    surface(measured)
