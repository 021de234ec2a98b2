"""`shadowspec try`: a first verdict on a model and a recording, without a configuration file."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from shadowspec.app.progress_bar import notes, progress_bar
from shadowspec.app.try_out.configuration import DEFAULT_LOAD
from shadowspec.app.try_out.preparation import prepare
from shadowspec.app.try_out.sample import UnknownFormatError, read_sample
from shadowspec.app.try_out.started_servers import STARTABLE, StartPlan, plan_start, start_servers
from shadowspec.app.try_out.trial_servers import TrialUrls
from shadowspec.cli.console import write_file
from shadowspec.cli.measuring_view import MeasuringView
from shadowspec.cli.options import (
    ArrivalsOption,
    BaselineOption,
    JsonOption,
    MapOption,
    ServedNamesOption,
    SpeculativeOption,
    chosen_map,
    chosen_trace,
)
from shadowspec.cli.serving_engine import choose_serving_engine, chosen_servers
from shadowspec.cli.trial_view import print_estimate, print_outcome, print_plan
from shadowspec.errors import ExitCode, NoDataError, UsageError
from shadowspec.reports.report import render_html
from shadowspec.servers.engines import ENGINES
from shadowspec.tap.formats import FieldMap, MessageFormat
from shadowspec.tap.load_trace import LoadTrace
from shadowspec.text import span_text

DEFAULT_OUT = Path("shadowspec-try")


def try_out(
    traffic: Annotated[
        str, typer.Option("--traffic", metavar="FILE", help="A recording: JSON lines of requests (gzip or not).")
    ],
    target: Annotated[
        Path | None,
        typer.Option(
            "--target",
            metavar="DIR",
            help="Folder of the served model, for llama.cpp its file; with servers of its tokenizer, if at all.",
        ),
    ] = None,
    baseline: BaselineOption = None,
    speculative: SpeculativeOption = None,
    draft: Annotated[
        Path | None,
        typer.Option("--draft", metavar="DIR", help="Folder of a draft model; n-gram and suffix need none."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--start",
            metavar="ENGINE",
            help=f"Start both servers of the model, and stop them again: {' or '.join(STARTABLE)}.",
        ),
    ] = None,
    engine_command: Annotated[
        str | None,
        typer.Option(
            "--engine-command",
            metavar="COMMAND",
            help="What --start runs, with options of both servers; default: the engine's program.",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes",
            metavar="N",
            help="Upper limit of the whole command, loading included. No block begins that would end later, but one is "
            "always measured. Default: the whole recording.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for configuration, database and report.")
    ] = DEFAULT_OUT,
    models: ServedNamesOption = None,
    load: Annotated[
        int | None,
        typer.Option("--load", min=1, help=f"Requests at once, as in production. Default: {DEFAULT_LOAD}."),
    ] = None,
    serving_engine: Annotated[
        str | None,
        typer.Option(
            metavar="ENGINE",
            help=f"The serving engine: {', '.join(ENGINES)}, ... Default: try asks on a terminal, else "
            "shadowspec-torch.",
        ),
    ] = None,
    field_map: MapOption = None,
    arrivals: ArrivalsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a recording on a model or on its servers without a configuration file: does speculation pay?

    Endpoint, slices and candidates are inferred. Through servers the verdict is one of their engine. Else it is one of
    the engine in this process, where n-gram and suffix are always candidates. Ctrl-C ends with the verdict so far; run
    the same command again to resume. The policy is a trial policy: its verdicts are valid for this recording only, and
    `export` and `check` refuse them.
    """
    started = time.monotonic()

    if minutes is not None and not (math.isfinite(minutes) and minutes > 0.0):
        raise UsageError(f"--minutes {minutes:g}: must be above 0; leave it out to measure the whole recording")
    ends_at = started + (math.inf if minutes is None else minutes * 60.0)
    trace = chosen_trace(arrivals)
    measuring = partial(_try_out, traffic, out, models or (), load, trace, minutes, ends_at, as_json=as_json)
    if start is None:
        if engine_command is not None:
            raise UsageError("--engine-command is what --start runs; give --start ENGINE too")
        given = chosen_servers(baseline, speculative, draft)
        if given is None and target is None:
            raise UsageError(
                "try measures a model or its servers; give --target DIR, or --baseline URL and --speculative URL"
            )
        engine = serving_engine if given is not None else choose_serving_engine(serving_engine, None)
        measuring(target, draft, None if given is None else TrialUrls(*given), engine, chosen_map(field_map))
        return
    if baseline is not None or speculative:
        raise UsageError("--start starts both servers; leave --baseline and --speculative out")
    plan = plan_start(start, engine_command, target, draft, load or DEFAULT_LOAD)
    known_map = _checked_map(traffic, chosen_map(field_map))
    with _started(plan) as urls:
        measuring(plan.folder, None, urls, serving_engine, known_map)


@contextmanager
def _started(plan: StartPlan) -> Iterator[TrialUrls]:
    """The servers of the plan, started with progress."""
    began = time.monotonic()
    with ExitStack() as stack:
        with progress_bar() as bar:
            task = bar.add_task(f"starting {plan.engine.title}", total=2, detail="")
            urls = stack.enter_context(
                start_servers(plan, lambda ready, wait: bar.update(task, completed=ready, detail=wait))
            )
        notes.print(
            f"both servers of {plan.engine.title} are ready after {span_text(time.monotonic() - began)}: "
            f"{urls.baseline}, and {urls.speculative[0]} with {plan.method}; their logs may hold prompts and are "
            "deleted at the end",
            highlight=False,
            soft_wrap=True,
        )
        yield urls


def _try_out(
    traffic: str,
    out: Path,
    models: Sequence[str],
    load: int | None,
    trace: LoadTrace | None,
    minutes: float | None,
    ends_at: float,
    target: Path | None,
    draft: Path | None,
    servers: TrialUrls | None,
    engine: str | None,
    field_map: FieldMap | None,
    *,
    as_json: bool,
) -> None:
    """Prepare the trial, measure it, and print what it came to."""
    notes.print(f"reading the traffic{' and the tokenizer' if target is not None else ''}", highlight=False)
    preparing = partial(
        prepare,
        target,
        traffic,
        draft,
        out,
        models=models,
        serving_engine=engine,
        concurrency=load or DEFAULT_LOAD,
        trace=trace,
        servers=servers,
    )
    try:
        trial = preparing(field_map=field_map)
    except UnknownFormatError as error:
        trial = preparing(field_map=_agreed_map(error))
    print_plan(trial, is_load_assumed=load is None)

    from shadowspec.app.try_out.measuring import load_trial

    with (
        notes.status("loading models" if servers is None else "looking at the servers") as status,
        load_trial(trial) as loaded,
    ):
        status.stop()
        trial = loaded.trial
        print_estimate(loaded, minutes)
        with MeasuringView() as view:
            outcome = loaded.measure(ends_at, view.show)
    report = out / "report.html"
    has_figures = outcome.progress.done.requests_measured + outcome.progress.done.requests_found > 0
    if has_figures:
        write_file(report, render_html(outcome.report))
        print_outcome(trial, outcome, report, is_load_assumed=load is None, as_json=as_json)
    if outcome.ended_by == "interrupt":
        raise typer.Exit(ExitCode.INTERRUPTED)
    if not has_figures:
        raise NoDataError(
            f"{traffic}: no request was measured, because no usable one was drawn for timing; record more sessions"
        )


def _checked_map(traffic: str, field_map: FieldMap | None) -> FieldMap | None:
    """The map with which the traffic is read, which is known before servers take minutes to start."""
    try:
        read_sample(traffic, field_map or MessageFormat.AUTO)
    except UnknownFormatError as error:
        return _agreed_map(error)
    return field_map


def _agreed_map(error: UnknownFormatError) -> FieldMap:
    """The proposed map, if who sits at the terminal agrees; else the error."""
    if error.proposal is None or not sys.stdin.isatty():
        raise error
    notes.print(str(error), markup=False, highlight=False, soft_wrap=True)
    try:
        is_agreed = typer.confirm(f"Read it with --map {error.proposal}?", default=True, err=True)
    except typer.Abort as abort:
        if isinstance(abort.__context__, EOFError):  # nobody is there to answer
            raise error from None
        raise
    if not is_agreed:
        raise error
    return error.proposal
