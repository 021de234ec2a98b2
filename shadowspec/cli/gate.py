"""`shadowspec gate`: fold new evidence and decide, or recompute a past decision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from shadowspec.app.gate_runs import GateResults, decide, explain_decision, rehearse
from shadowspec.app.progress_bar import notes
from shadowspec.app.public_decisions import explain_document, gate_document
from shadowspec.cli.console import is_verbose, print_json, results
from shadowspec.cli.options import ConfigOption, EndpointOption, JsonOption
from shadowspec.cli.screen_view import print_screen
from shadowspec.config import Config, find_config, load_config
from shadowspec.errors import NoDataError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.recompute import Explanation, LostRowsError
from shadowspec.gate.run.run_units import Crossings
from shadowspec.reports.content.endpoint_rows import basis_notes, endpoint_rows, unjudged_row
from shadowspec.reports.content.next_steps import NOT_MEASURED
from shadowspec.reports.content.notes import REHEARSAL_NOTE, with_forbidding
from shadowspec.reports.content.screen_rows import FirstScreen
from shadowspec.reports.report import explanation_tables, tables_of_tests, verdict_tables
from shadowspec.rollout.stages import RolloutStep
from shadowspec.text import plural, sentence, slice_title
from shadowspec.types import Decision

MAX_SHOWN = 20  # figures that differ; --json has all of them


def gate(
    endpoint: EndpointOption = None,
    input_continues: Annotated[
        bool,
        typer.Option(
            "--input-continues", help="More records of the same sessions follow: keep the newest sessions open."
        ),
    ] = False,
    explain: Annotated[
        int | None,
        typer.Option(
            "--explain", metavar="ID", min=1, help="Recompute this past decision from the stored rows instead."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Decide and print, but store nothing: to try a policy.")
    ] = False,
    tests: Annotated[
        bool, typer.Option("--tests", help="Also print every test, and every drift detector since ENABLE.")
    ] = False,
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Process new measurements, decide ENABLE, DISABLE or HOLD per endpoint and slice, and store the decisions.

    Prints current verdicts, operators' overrides included, and the next step of each endpoint. The gate also audits
    replayed outputs and moves rollouts; an audit's alert sets an override HOLD, which an operator clears.

    With --explain it stores nothing: it shows the evidence of a past decision, recomputes it from its rows and compares
    every number. Exit code 4 means that rows are gone or a number differs.
    """
    config = load_config(find_config(config_path))
    if explain is not None:
        _explain(config, explain, as_json=as_json)
        return
    input_ended = False if input_continues else None
    run = (rehearse if dry_run else decide)(config, endpoint, input_ended=input_ended)
    if as_json:
        print_json(gate_document(run, dry_run=dry_run))
        return
    print_screen(_screen(config, run, endpoint, dry_run=dry_run), lambda: _details(run))
    if tests:
        for table in tables_of_tests(run.current):
            results.print(table)
        if not is_verbose():
            for line in _audit_lines(run, alarmed=False):
                results.print(line, markup=False, highlight=False, soft_wrap=True)
    if dry_run:
        notes.print("dry run: nothing was stored")


def _screen(config: Config, run: GateResults, endpoint: str | None, *, dry_run: bool) -> FirstScreen:
    """Every endpoint's row, what to do next, and what nobody should have to look for."""
    current = with_forbidding(run.current)
    trial = [config.dashboard.data_note or ""] if any(decision.recording_only for decision in current) else []
    rehearsed = REHEARSAL_NOTE if run.is_rehearsal else ""
    asked = " --dry-run" * dry_run + (f" --endpoint {endpoint}" if endpoint else "")
    return FirstScreen(
        endpoint_rows(
            current,
            answers=run.answers,
            spans_s={name: settings.policy.min_span_s for name, settings in config.endpoints.items()},
            unjudged=[
                unjudged_row(name, sentence(NOT_MEASURED))
                for name in config.chosen(endpoint)
                if name not in {decision.endpoint for decision in current}
            ],
        ),
        notes=tuple(filter(None, (*_audit_lines(run, alarmed=True), *basis_notes(current), *trial, rehearsed))),
        more=f"More: `shadowspec gate{asked} --verbose` shows slices, loads and rollouts, --tests every test.",
    )


def _details(run: GateResults) -> Iterator[RenderableType]:
    """Slices, loads, rollouts and audits."""
    yield from verdict_tables(run.current)
    if run.steps:
        yield rollout_table(run.steps)
    yield from _audit_lines(run, alarmed=False)
    yield from (f"loads of {loads.endpoint}: {line}" for loads in run.loads for line in loads.lines())


def _audit_lines(run: GateResults, *, alarmed: bool) -> list[str]:
    """The audits that alarm, or the others."""
    return [
        f"audit of {name}, {slice_title(row.slice_key)}, {row.config_name}: {row.words}, capital {row.capital_text}"
        for name, rows in run.audits.items()
        for row in rows
        if row.state.has_alarmed is alarmed
    ]


def _explain(config: Config, decision_id: int, *, as_json: bool) -> None:
    try:
        explanation = explain_decision(config, decision_id)
    except LostRowsError as error:
        if not as_json:
            _print_tables(error.decision, None, {})
        raise
    if as_json:
        print_json(explain_document(explanation))
    else:
        _print_explanation(explanation)
    if explanation.differences:
        raise NoDataError(
            f"decision {decision_id} cannot be trusted: {len(explanation.differences)} of "
            f"{explanation.num_figures} figures differ from the recomputed ones"
        )


def _print_tables(decision: Decision, policy: GatePolicy | None, crossings: Crossings) -> None:
    for table in explanation_tables(decision, policy, crossings, has_all_figures=is_verbose()):
        results.print(table)


def _print_explanation(explanation: Explanation) -> None:
    _print_tables(explanation.stored, explanation.policy, explanation.crossings)
    results.print(
        f"Recomputed: {explanation.num_records:,} records with {explanation.num_runs:,} runs, "
        f"in {plural(explanation.num_folds, 'gate run')}.",
        markup=False,
    )
    if not explanation.differences:
        results.print(f"All {explanation.num_figures} figures are the same.", markup=False)
        return
    for difference in explanation.differences[:MAX_SHOWN]:
        words = f"{difference.name}: stored {difference.stored}, recomputed {difference.recomputed}"
        results.print(words, markup=False)


def rollout_table(steps: Sequence[RolloutStep]) -> Table:
    """Every endpoint and load: stage, depth, and what the next stage waits for."""
    table = Table("endpoint", "load", "stage", "share", "depth", "since", "waits for", title="rollout", box=None)
    for step in steps:
        rollout = step.rollout
        depths = ", ".join(
            f"{name or 'any context'}: {cap or 'no depth proven'}" for name, cap in sorted(rollout.depth_caps.items())
        )
        cells = (rollout.endpoint, str(rollout.concurrency), rollout.stage.value, f"{rollout.share:.0%}", depths)
        table.add_row(*map(escape, (*cells, f"{rollout.since:%Y-%m-%d %H:%M}", step.waits_for or "")))
    return table
