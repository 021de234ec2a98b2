"""`shadowspec demo`: the whole pipeline on the bundled pair and traffic, without any service."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from shadowspec import demo as bundled
from shadowspec import store
from shadowspec.app.before_loading import name_loads, require_engine
from shadowspec.app.progress_bar import notes
from shadowspec.app.public_decisions import DemoDocument, public_decision
from shadowspec.app.rehearsals import Rehearsals
from shadowspec.cli.console import print_json, write_file
from shadowspec.cli.measuring_view import MeasuringView
from shadowspec.cli.options import JsonOption
from shadowspec.cli.screen_view import print_screen
from shadowspec.config import load_config
from shadowspec.errors import InputError
from shadowspec.reports.report import build_report, render_html, report_screen, terminal_tables
from shadowspec.rollout.endpoint_run import run_endpoint
from shadowspec.tap.sources import read_records
from shadowspec.text import span_text

DEFAULT_OUT = Path("shadowspec-demo")


def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for database, configuration and report.")
    ] = (DEFAULT_OUT),
    max_requests: Annotated[
        int | None, typer.Option("--requests", metavar="N", min=4, help="Stop after N requests; default: all.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of requests without one.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Measure bundled traffic with and without speculation, decide, and write report.html, in a few minutes.

    The traffic combines public text with a public trace; the models are small and trained for it.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"--out {out}: is a file; give a folder")
    require_engine()
    config_path, report_path = out / "shadowspec.toml", out / "report.html"
    write_file(config_path, bundled.demo_config(out.resolve(), seed), makes_folder=True)
    # The demo's traffic is public, so its secret protects nobody; a real one never has a default.
    write_file(out / "demo.secret", bundled.DEMO_SECRET)
    (out / "demo.secret").chmod(0o600)
    config = load_config(config_path, environment={})
    name_loads(config.endpoints)
    from shadowspec.app.measure_files import build_engines, measure_with

    started = time.monotonic()
    store.upgrade(config.database_url)
    policies = {name: settings.policy for name, settings in config.endpoints.items()}
    with store.Store.open(config.database_url) as opened:
        with notes.status("loading models"):
            engines = build_engines(config)
        traffic = str(bundled.TRAFFIC)
        with MeasuringView() as view:
            shown = Rehearsals(config, opened, sum(1 for _ in read_records(traffic)), view.show)
            measured = measure_with(
                config, engines, opened, [traffic], max_requests=max_requests, on_progress=shown.take_progress
            )
        progress = measured.progress[0]
        with notes.status("deciding"):
            runs = [
                run_endpoint(opened, name, settings.policy, settings.rollout, input_ended=True)
                for name, settings in config.endpoints.items()
            ]
            decisions = [decision for run in runs for decision in run.decisions]
            report = build_report(opened, policies, datetime.now(UTC), data_note=bundled.DATA_NOTE)
    write_file(report_path, render_html(report))
    seconds = time.monotonic() - started
    if as_json:
        print_json(
            DemoDocument(
                decisions=[public_decision(decision) for decision in decisions],
                requests_measured=progress.requests_measured,
                requests_found=progress.requests_found,
                report=str(report_path),
                seconds=round(seconds, 1),
            )
        )
        return
    before = f"{progress.requests_found} requests were measured before; delete {out} to measure them again."
    print_screen(
        report_screen(
            report,
            notes=(bundled.DATA_NOTE, *([before] if progress.requests_found else [])),
            more=f"Done in {span_text(seconds)}. More: open {report_path}, or `shadowspec gate --verbose --config "
            f"{config_path}`.",
        ),
        lambda: terminal_tables(report),
    )
