"""`shadowspec check`: whether speculation may be on, for CI to act on."""

from __future__ import annotations

import secrets
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from shadowspec.app.progress_bar import notes
from shadowspec.app.stored_evidence import load_check_input, read_unwatched
from shadowspec.cli.console import despite_closed_output, is_verbose, print_json, results, write_file
from shadowspec.cli.options import (
    DEFAULT_MAX_AGE,
    ConfigOption,
    ExpectEngineOption,
    JsonOption,
    LoadOption,
    MaxAgeOption,
    OneEndpointOption,
    SliceOption,
)
from shadowspec.cli.screen_view import screen_lines
from shadowspec.config import find_config, load_config
from shadowspec.errors import ShadowSpecError
from shadowspec.live.promise import UNWATCHED
from shadowspec.reports.content.screen_rows import check_screen
from shadowspec.rollout.check.answer import Answer, Question, answer_document, refusal
from shadowspec.rollout.check.github import append_summary, step_annotations, summary_file, without_commands
from shadowspec.rollout.check.judge import judge
from shadowspec.rollout.check.junit import junit_xml
from shadowspec.rollout.check.outcome import OnHold, Outcome, exit_code
from shadowspec.rollout.check.plain_text import answer_lines
from shadowspec.text import parse_duration, parse_labels


def check(
    endpoint: OneEndpointOption,
    slices: SliceOption = None,
    load: LoadOption = None,
    on_hold: Annotated[
        OnHold, typer.Option("--on-hold", help="Exit code of HOLD: 3 (fail), 0 (pass), or 0 with a warning (warn).")
    ] = OnHold.FAIL,
    max_age: MaxAgeOption = DEFAULT_MAX_AGE,
    accept_schedule: Annotated[
        bool,
        typer.Option("--accept-schedule", help="Also pass if it is ENABLE up to a load and DISABLE above."),
    ] = False,
    upgrade: Annotated[
        bool,
        typer.Option("--upgrade", help="Ask instead whether the second deployment may replace the first one."),
    ] = False,
    expect_fingerprint: Annotated[
        str | None, typer.Option("--expect-fingerprint", metavar="SHA256", help="Accept only this speculation config.")
    ] = None,
    model_revision: Annotated[
        str | None,
        typer.Option("--model-revision", metavar="REVISION", help="Accept only this revision of the target's weights."),
    ] = None,
    expect_engine: ExpectEngineOption = None,
    junit: Annotated[
        Path | None,
        typer.Option("--junit", metavar="FILE", help="Also write JUnit XML to this file; its folder is created."),
    ] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Also write GitHub's step summary and at most 10 annotations.")
    ] = False,
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Exit with 0 if speculation is on here (ENABLE), 1 if it is harmful (DISABLE), 3 if neither (HOLD).

    Exports switch on by the same rule: ENABLE is proven, for an engine that serves clients, and rolled out. Without
    --slice the whole endpoint must be ENABLE. No slice with 5% of its traffic may be DISABLE, and no override may
    cover 5% of it. An override counts as its verdict. With --upgrade 0 says that the deployment may be replaced, and
    1 that it must not. Exit code 4: the evidence is too old, or of another config.
    """
    summary = summary_file() if github else None
    question = Question(
        endpoint=endpoint,
        slice_labels=parse_labels(slices or []),
        concurrency=load,
        max_age=parse_duration(max_age),
        expected_fingerprint=expect_fingerprint,
        model_revision=model_revision,
        expected_engine=expect_engine,
        accepts_schedule=accept_schedule,
        is_upgrade=upgrade,
    )
    now = datetime.now(UTC)
    try:
        config = load_config(find_config(config_path))
        answer = judge(question, load_check_input(config, question, now), now)
        if answer.outcome is Outcome.ENABLE and not upgrade:
            answer = replace(answer, unwatched=read_unwatched(config, endpoint))
    except ShadowSpecError as error:  # readers of the reports must see that there is no answer
        with despite_closed_output():
            _write_reports(refusal(question, str(error), now), on_hold, junit, summary, as_json=as_json)
        raise
    with despite_closed_output():
        _print(answer, on_hold, is_github=github, as_json=as_json)
        for replica, why in answer.unwatched.items():
            notes.print(f"warning: {replica}: {UNWATCHED}: {why}", markup=False, highlight=False, soft_wrap=True)
    with despite_closed_output():
        _write_reports(answer, on_hold, junit, summary, as_json=as_json)
    raise typer.Exit(exit_code(answer.outcome, on_hold))


def _print(answer: Answer, on_hold: OnHold, *, is_github: bool, as_json: bool) -> None:
    """The answer on standard output; in a step of GitHub Actions so that no text in it can act as a command."""
    if as_json:
        print_json(answer_document(answer, on_hold))
    else:
        lines = screen_lines(check_screen(answer))
        if is_verbose():
            lines += ["", *answer_lines(answer)[1:]]
        if is_github:
            lines = without_commands(lines, secrets.token_hex(16))
        results.out("\n".join(lines), highlight=False)
    if answer.outcome is Outcome.HOLD and on_hold is OnHold.WARN:
        notes.print("warning: HOLD, accepted by --on-hold warn", markup=False, highlight=False)


def _write_reports(answer: Answer, on_hold: OnHold, junit: Path | None, summary: Path | None, *, as_json: bool) -> None:
    """The files that were asked for; for GitHub the step's summary, its output `outcome`, and annotations.

    Annotations go to stderr where stdout holds a document; GitHub reads both.
    """
    if junit is not None:
        write_file(junit, junit_xml(answer), makes_folder=True)
    if summary is not None:
        append_summary(summary, answer)
        stream = sys.stderr if as_json else sys.stdout
        stream.write("".join(f"{line}\n" for line in step_annotations(answer, on_hold)))
