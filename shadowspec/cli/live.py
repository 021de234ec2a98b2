"""`shadowspec live`: read production's counters once, and compare them with the shadow's promise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from shadowspec.app.live_documents import live_document, scrape_outcome
from shadowspec.cli.console import print_json, results
from shadowspec.cli.options import ConfigOption, EndpointOption, JsonOption
from shadowspec.config import find_config, load_config
from shadowspec.errors import ConfigError, ServiceUnavailableError
from shadowspec.live.guard import Guarded
from shadowspec.live.pressure import Pressed
from shadowspec.live.promise import UNWATCHED
from shadowspec.live.watch import alarm_words
from shadowspec.reports.pages.live_production import live_period
from shadowspec.rollout.control import Control
from shadowspec.rollout.endpoint_run import read_endpoint_controls
from shadowspec.scheduler.jobs import LiveRun, run_live
from shadowspec.store import Store
from shadowspec.store.evidence.live_rows import hour_of_window
from shadowspec.text import DASH, percent
from shadowspec.types import FailedScrape, LiveWindow, Pool


def live(
    endpoint: EndpointOption = None,
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read the counters of production's engines once, store the difference, and compare it with the shadow's promise.

    If a replica accepts less than promised at ENABLE, or runs short of memory, the command sets an override DISABLE.
    `check` fails and exported flags are off until it is cleared. While a rollout is partial, the command also shows the
    comparison with the replicas of plain_metrics_urls, by which the gate moves the stage. `shadowspec schedule` does
    the same every interval_s seconds. Exit code 5: no replica could be read.
    """
    config = load_config(find_config(config_path))
    jobs = config.live_jobs(endpoint)
    if not jobs:
        where = f"endpoints.{endpoint}.live" if endpoint else "endpoints.NAME.live"
        raise ConfigError(f"{config.path}: {where}: is missing; add metrics_urls of the serving engines (docs/live.md)")
    with Store.open(config.database_url) as store:
        runs = [run_live(store, name, config.endpoints[name].policy, live_) for name, live_ in jobs.items()]
        controls = {
            name: read_endpoint_controls(store, name, config.endpoints[name].policy, config.endpoints[name].rollout)
            for name in jobs
        }
    if as_json:
        print_json(live_document(runs, controls))
    else:
        _print(runs, controls)
    failed = [failure.message for run in runs for failure in run.failed]
    if len(failed) == sum(len(run.taken) for run in runs):
        raise ServiceUnavailableError("; ".join(failed))


def _print(runs: list[LiveRun], controls: Mapping[str, Mapping[int, Control]]) -> None:
    table = Table("endpoint", "replica", "read", "seconds", "drafts", "accepted", "promised", "since ENABLE", box=None)
    for run in runs:
        guards = {replica.replica: replica for replica in run.watched.replicas}
        promise = run.watched.promise
        for taken in run.taken:
            window, guarded = taken.window, guards.get(taken.replica.replica)
            accepted = None if window is None else live_period([hour_of_window(window)]).first_position_acceptance_rate
            drafts = None if window is None else window.counts.num_drafts
            cells = (
                run.endpoint,
                taken.replica.replica + (", plain" if taken.pool is Pool.PLAIN else ""),
                scrape_outcome(taken),
                DASH if window is None else f"{window.seconds:.0f}",
                DASH if drafts is None else f"{drafts:,}",
                percent(accepted),
                DASH if promise is None else percent(promise.rate),
                DASH
                if guarded is None
                else f"{percent(guarded.rate)} in {guarded.detector.num_units}{_nearness(guarded)}",
            )
            table.add_row(*map(escape, cells))
    results.print(table)
    for run in runs:
        for taken in run.taken:
            if isinstance(taken.scraped, FailedScrape):
                results.print(f"{run.endpoint}: {taken.scraped.message}", **_PLAIN)
        pressures = {pressed.replica: pressed for pressed in run.watched.pressures}
        for taken in run.taken:
            if taken.window is not None and (
                words := _pressure_words(taken.window, pressures.get(taken.window.replica))
            ):
                results.print(f"{run.endpoint}: {taken.window.replica}: {words}", **_PLAIN)
        for replica, why in run.unwatched.items():
            results.print(f"{run.endpoint}: {replica}: {UNWATCHED}: {why}", **_PLAIN)
        if run.watched.ordered is not None:
            words = f"{run.endpoint}: override {run.watched.ordered} sets DISABLE: {alarm_words(run.watched)}"
            results.print(words, **_PLAIN)
        for concurrency, control in controls[run.endpoint].items():
            words = f"{run.endpoint} at load {concurrency}: control {control.verdict.value}: {control.reason}"
            results.print(words, **_PLAIN)


def _pressure_words(window: LiveWindow, pressed: Pressed | None) -> str:
    """A window's memory pressure, and that since ENABLE; empty where the engine reports none of it."""
    parts = []
    if window.kv_use is not None:
        parts.append(f"{percent(window.kv_use)} of the KV cache in use")
    if window.num_waiting is not None:
        parts.append(f"{window.num_waiting:,} waiting")
    if window.counts.num_preemptions is not None:
        parts.append(f"{window.counts.num_preemptions:,} preempted")
    since = [] if pressed is None else [f"since ENABLE {pressed.words}{_nearness(pressed)}"]
    return "; ".join([", ".join(parts), *since]) if parts else ""


def _nearness(guarded: Guarded | Pressed) -> str:
    """How near the detector is to its alert."""
    if guarded.alarmed_at is not None:
        return ", ALARM"
    peak = guarded.detector.log10_peak
    return "" if peak is None else f", 10^{peak:.1f} of 10^{math.log10(guarded.threshold):.1f}"


_PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
