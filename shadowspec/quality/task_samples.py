"""Scores of the documents of task sets, from the files that lm-evaluation-harness writes with `--log_samples`.

The files hold prompts, answers and documents.  Only hashes, names and scores leave this module, and no message quotes
more of them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from shadowspec.errors import InputError
from shadowspec.types import PairedScore

GENERATES: Final = "generate_until"  # the only kind of task whose answers are decoded, so that speculation can err
_HASHES: Final = ("doc_hash", "prompt_hash", "target_hash")

Document = tuple[str, ...]  # the hashes of document, prompt and target


@dataclass(frozen=True, slots=True)
class TaskSamples:
    """A task's scores from 0 to 1, more is better, by document; None where a score is missing."""

    task: str
    metric: str
    scores: Mapping[Document, float | None]

    def paired_with(self, speculative: TaskSamples) -> dict[str, PairedScore]:
        """The scores of both arms by the document's hash.

        Raises:
            InputError: the arms did not answer the same prompts, so that no pairs can be formed.
        """
        if self.scores.keys() != speculative.scores.keys():
            raise InputError(
                f"task {self.task}: the servers were asked different prompts ({len(self.scores)} documents through the "
                f"baseline, {len(speculative.scores)} through speculation). A task that draws its prompts at random "
                "cannot be paired: fix its seeds"
            )
        pairs: dict[str, PairedScore] = {}
        for document, score in self.scores.items():
            pairs.setdefault(document[0], PairedScore(score, speculative.scores[document]))
        return pairs


def read_samples(folder: Path, metric: str | None = None) -> dict[str, TaskSamples]:
    """The samples of one run of lm-evaluation-harness, by task.

    Args:
        folder: its `--output_path`.
        metric: the name of the metric as its results call it, NAME or NAME,FILTER; None: each task's first.

    Raises:
        InputError: the folder holds no finished run, a task is not generated, or a metric is no score from 0 to 1.
    """
    result_files = sorted(folder.rglob("results_*.json"))
    if len(result_files) != 1:
        raise InputError(f"lm_eval wrote {len(result_files)} files of results instead of one: it did not finish")
    (results,) = result_files
    document = _parse(results.read_text(encoding="utf-8"))
    configs, directions = document.get("configs", {}), document.get("higher_is_better", {})
    # 1. Tasks that speculation cannot change would pass without a proof.
    if scored := sorted(name for name, config in configs.items() if config.get("output_type") != GENERATES):
        raise InputError(
            f"task {', '.join(scored)}: its answers are chosen by log probabilities and none is generated, so that "
            f"speculation cannot change them; take tasks of output_type {GENERATES}"
        )
    # 2. The samples of each.
    written = results.name.removeprefix("results_").removesuffix(".json")
    samples = {}
    for name in configs:
        file = results.with_name(f"samples_{name}_{written}.jsonl")
        if not file.is_file():
            raise InputError(f"task {name}: lm_eval wrote no samples; this needs a version with --log_samples")
        rows = [_parse(line) for line in file.read_text(encoding="utf-8").splitlines()]
        samples[name] = _task_samples(name, rows, metric, directions.get(name) or {})
    if not samples:
        raise InputError("lm_eval evaluated no task")
    return samples


def _task_samples(
    task: str, rows: Sequence[Mapping[str, Any]], metric: str | None, directions: Mapping[str, Any]
) -> TaskSamples:
    kinds = dict.fromkeys((name, str(row.get("filter", "none"))) for row in rows for name in row.get("metrics", ()))
    name, _, only = (metric or "").partition(",")
    chosen = next((kind for kind in kinds if name in ("", kind[0]) and only in ("", kind[1])), None)
    known = ", ".join(f"{metric_name},{kind}" for metric_name, kind in kinds) or "none"
    if chosen is None:
        raise InputError(f"task {task} has no metric {metric or 'for each document'} (it has: {known})")
    scores: dict[Document, float | None] = {}
    for row in rows:
        if row.get("filter", "none") != chosen[1] or chosen[0] not in row:
            continue
        value = row[chosen[0]]
        is_number = isinstance(value, int | float)
        if not is_number or value < 0.0 or value > 1.0:
            raise InputError(
                f"task {task}: its metric {','.join(chosen)} is not a number from 0 to 1 for each document; choose "
                f"another one with --metric (it has: {known})"
            )
        more = float(value) if directions.get(chosen[0]) is not False else 1.0 - value
        scores[tuple(str(row.get(name, "")) for name in _HASHES)] = None if math.isnan(more) else more
    return TaskSamples(task, ",".join(chosen), scores)


def _parse(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InputError("lm_eval wrote a file that is not JSON") from error
    return document if isinstance(document, dict) else {}
