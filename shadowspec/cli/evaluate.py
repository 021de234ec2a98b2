"""`shadowspec evaluate`: a task set of lm-evaluation-harness with and without speculation, as evidence for the gate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from shadowspec.app.evaluate_tasks import Evaluated, TaskSet, evaluate_tasks
from shadowspec.app.progress_bar import notes
from shadowspec.cli.console import print_json, results
from shadowspec.cli.options import ConfigOption, JsonOption, OneEndpointOption
from shadowspec.config import find_config, load_config
from shadowspec.metrics import ratio
from shadowspec.text import figure, format_signed, plural
from shadowspec.types import Evaluation
from shadowspec.types.public_documents import PublicDocument, PublicValue, public


class EvaluatedTask(PublicValue, frozen=True, kw_only=True):
    """A task's mean scores over the documents that both arms have one of; `num_different` of these differ."""

    config: str
    fingerprint: str
    task: str
    metric: str
    num_documents: int
    baseline: float | None
    speculative: float | None
    num_different: int


class EvaluateDocument(PublicDocument, frozen=True, kw_only=True):
    """The scores of `evaluate --json`."""

    endpoint: str
    num_documents: int
    num_new_documents: Annotated[int, "num_new"]
    tasks: Sequence[EvaluatedTask]


def evaluate(
    endpoint: OneEndpointOption,
    tasks: Annotated[str, typer.Option("--tasks", metavar="TASK[,TASK]", help="The harness's names of the tasks.")],
    config_path: ConfigOption = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", min=1, help="Only the first N documents of each task; default: all."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option("--metric", metavar="NAME[,FILTER]", help="The score of a document; default: each task's first."),
    ] = None,
    is_chat: Annotated[
        bool, typer.Option("--chat", help="Ask for chat completions, under the servers' chat template.")
    ] = False,
    program: Annotated[
        Path | None,
        typer.Option("--lm-eval", metavar="FILE", help="The harness's executable; default: lm_eval on PATH."),
    ] = None,
    as_json: JsonOption = False,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGUMENT]...", help="Further arguments of lm_eval, such as --include_path DIR."),
    ] = None,
) -> None:
    """Run your task set of lm-evaluation-harness through the servers of an endpoint, and store the paired scores.

    The endpoint needs engine = "openai". With task_margin in its policy, `shadowspec gate` requires that the mean score
    with speculation is not lower by more than this. Only hashes of documents and scores are stored, no text.
    """
    config = load_config(find_config(config_path))
    names = tuple(dict.fromkeys(name.strip() for name in tasks.split(",") if name.strip()))
    task_set = TaskSet(names, limit, metric, is_chat, program, tuple(arguments or ()))
    done = evaluate_tasks(
        config,
        endpoint,
        task_set,
        lambda label: notes.print(f"{endpoint}: the task set through the {label} server", markup=False),
    )
    if as_json:
        print_json(public(EvaluateDocument, done, endpoint=endpoint, tasks=_tasks(done)))
        return
    _print(done)
    margin = config.endpoints[endpoint].policy.task_margin
    if margin is None:
        notes.print("no verdict depends on it: set task_margin in the endpoint's policy (docs/evaluate.md)")


def _tasks(done: Evaluated) -> list[EvaluatedTask]:
    return [_task(evaluation, done.candidates[evaluation.fingerprint]) for evaluation in done.evaluations]


def _task(evaluation: Evaluation, config: str) -> EvaluatedTask:
    """Means over the documents that both arms have a score of, and how many of these differ."""
    pairs = [(pair.baseline, pair.speculative) for pair in evaluation.documents.values()]
    known = [(base, spec) for base, spec in pairs if base is not None and spec is not None]
    return public(
        EvaluatedTask,
        evaluation,
        config=config,
        num_documents=len(evaluation.documents),
        baseline=ratio(sum(base for base, _ in known), len(known)),
        speculative=ratio(sum(spec for _, spec in known), len(known)),
        num_different=sum(base != spec for base, spec in known),
    )


def _print(done: Evaluated) -> None:
    table = Table()
    for name in ("config", "task", "metric"):
        table.add_column(name)
    for name in ("documents", "baseline", "speculative", "difference", "documents that differ"):
        table.add_column(name, justify="right")
    for task in _tasks(done):
        base, spec = task.baseline, task.speculative
        difference = None if base is None or spec is None else spec - base
        figures = (figure(base), figure(spec), format_signed(difference), str(task.num_different))
        table.add_row(*map(escape, (task.config, task.task, task.metric)), str(task.num_documents), *figures)
    results.print(table)
    results.print(f"{plural(done.num_new, 'new document')} of {done.num_documents} for the gate", style="dim")
