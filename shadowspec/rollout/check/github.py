"""The answer for a step of GitHub Actions: a summary in Markdown, and annotations as workflow commands.

A workflow command is a line on standard output that begins with `::`.  Text that comes from traffic could hold one,
so that everything else that a step prints goes between `stop_commands` lines.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from shadowspec.errors import InputError, UsageError
from shadowspec.rollout.check.answer import Answer, Finding
from shadowspec.rollout.check.outcome import OnHold, Outcome
from shadowspec.rollout.check.plain_text import (
    decisions_text,
    engines_text,
    finding_title,
    headline,
    speedup_text,
    subject_lines,
    verdict_engine_words,
)
from shadowspec.text import age, markdown_text, moment, percent, plain_text

SUMMARY_VARIABLE: Final = "GITHUB_STEP_SUMMARY"
OUTPUT_VARIABLE: Final = "GITHUB_OUTPUT"
MAX_ANNOTATIONS: Final = 10  # of one kind GitHub shows no more per step
MAX_SUMMARY_ROWS: Final = 500  # GitHub takes 1 MiB per step; a row has about 500 bytes

_LEVEL: Final = {Outcome.DISABLE: "error", Outcome.UNUSABLE: "error"}


def summary_file() -> Path:
    """Where GitHub wants the step's summary.

    Raises:
        UsageError: this is no step of GitHub Actions.
    """
    named = os.environ.get(SUMMARY_VARIABLE)
    if not named:
        raise UsageError(f"--github works only in a step of GitHub Actions: {SUMMARY_VARIABLE} is not set")
    return Path(named)


def append_summary(summary: Path, answer: Answer) -> None:
    """Append the step's summary, and its output `outcome` where GitHub wants outputs.

    Raises:
        InputError: a file cannot be written.
    """
    appended = [(summary, step_summary(answer))]
    if outputs := os.environ.get(OUTPUT_VARIABLE):
        appended.append((Path(outputs), f"outcome={answer.shown_outcome}\n"))
    for path, text in appended:
        try:
            with path.open("a", encoding="utf-8") as opened:
                opened.write(text)
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror})") from error


def step_summary(answer: Answer) -> str:
    """GitHub-flavoured Markdown; names from traffic can neither link nor mark up."""
    parts = [f"## shadowspec check: {answer.shown_outcome}", markdown_text(headline(answer))]
    if answer.findings:
        rows = [_row(answer, finding) for finding in answer.findings[:MAX_SUMMARY_ROWS]]
        head = (
            "Slice",
            "Verdict",
            "Blocks",
            "Speedup [bounds]",
            "Since",
            "Evidence age",
            "Traffic",
            "Decisions",
            "Why",
        )
        parts.append(_table(head, rows))
    if (left := len(answer.findings) - MAX_SUMMARY_ROWS) > 0:
        parts.append(f"{left} more slices with less traffic are in the command's output.")
    parts += [markdown_text(line) for line in subject_lines(answer)]
    parts.append(f"Checked at {moment(answer.checked_at)}. Bounds hold at every look at once.")
    return "\n\n".join(parts) + "\n"


def step_annotations(answer: Answer, on_hold: OnHold) -> list[str]:
    """Workflow commands, worst first and at most `MAX_ANNOTATIONS`; where there are more, the last one says so."""
    if answer.problem is not None:
        return [_command("error", f"shadowspec: {answer.question.endpoint}", plain_text(answer.problem))]
    if answer.outcome is Outcome.ENABLE:
        said = f"{headline(answer)} (measured with {engines_text(answer)}; for {verdict_engine_words(answer)})"
        level = "warning" if not answer.is_for_serving else "notice"
        return [_command(level, f"shadowspec: {answer.question.endpoint} {answer.shown_outcome}", said)]
    hold = {OnHold.FAIL: "error", OnHold.WARN: "warning", OnHold.PASS: "notice"}[on_hold]
    blocking = answer.blocking
    shown = blocking if len(blocking) <= MAX_ANNOTATIONS else blocking[: MAX_ANNOTATIONS - 1]
    lines = [
        _command(
            _LEVEL.get(finding.outcome, hold),
            f"shadowspec: {answer.question.endpoint}, {finding_title(finding)} {answer.shown(finding.outcome)}",
            f"{finding.reason} (speedup {speedup_text(finding.speedup)}, since {moment(finding.since)}, "
            f"{decisions_text(finding)}, measured with {engines_text(answer)}, for {verdict_engine_words(answer)})",
        )
        for finding in shown
    ]
    if len(shown) < len(blocking):
        rest = f"{len(blocking) - len(shown)} more slices; the step's summary lists all"
        lines.append(_command(_LEVEL.get(answer.outcome, hold), f"shadowspec: {answer.question.endpoint}", rest))
    return lines


def without_commands(lines: Iterable[str], token: str) -> list[str]:
    """The lines between commands that switch commands off and on again; nobody may be able to guess the token."""
    return [f"::stop-commands::{token}", *lines, f"::{token}::"]


def _row(answer: Answer, finding: Finding) -> tuple[str, ...]:
    return (
        markdown_text(finding_title(finding)),
        f"**{answer.shown(finding.outcome)}**",
        "yes" if finding.is_blocking else "no",
        speedup_text(finding.speedup).replace("[", "\\[").replace("]", "\\]"),
        moment(finding.since),
        age(finding.age),
        percent(finding.traffic_share),
        decisions_text(finding),
        markdown_text(finding.reason),
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines: list[Sequence[str]] = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _command(name: str, title: str, message: str) -> str:
    """A workflow command, escaped as GitHub's toolkit does."""
    return f"::{name} title={_data(title).replace(':', '%3A').replace(',', '%2C')}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
