"""Draws prompts.jsonl, the prompts of this benchmark, from public texts: what is measured and what a draft learns from.

    python -m kernels.benchmarks.engines.real_model.selection FOLDER   (with prompts/ and corpora/, see NOTICE)

Nobody needs to run it: its result is committed.  The two parts share no document.  Measured prompts are of evaluation
sets or of one book; training prompts are of training sets, of other books, of Python's standard library, or made up.
"""

from __future__ import annotations

import ast
import gzip
import json
import random
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kernels.benchmarks.engines.real_model.prompts import CLASSES, MEASURED, PROMPTS, TRAINING, Prompt

NUMBER: Final = {MEASURED: 40, TRAINING: 150}  # of each class
SEED: Final = 23
CODE: Final = "Complete this Python function. Answer with the code only.\n\n```python\n{}```"
EDIT: Final = "Rewrite this passage in the present tense and change nothing else:\n\n{}"
PASSAGE: Final = (250, 450)  # characters
FUNCTION: Final = (120, 600)
READ_FROM: Final = {MEASURED: ("A_Study_in_Scarlet",), TRAINING: ("Little_Men", "The_Time_Machine", "Roughing_It")}
CHAT_SKIPS: Final = frozenset({"math", "coding"})
TOPICS: Final = (
    "rainbows", "bread", "chess", "the tides", "vaccines", "the printing press", "bees", "earthquakes", "jazz",
    "photosynthesis", "the Silk Road", "glaciers", "elections", "batteries", "coral reefs", "the violin", "inflation",
    "volcanoes", "tea", "the moon", "bicycles", "antibiotics", "the Roman Empire", "clouds", "public libraries",
    "the stock market", "whales", "steam engines", "dreams", "desert plants", "the Olympic Games", "black holes",
    "recycling", "poetry", "the human heart", "maps", "football", "the internet", "migration of birds", "bridges",
)  # fmt: skip
ASKED: Final = (
    "Explain {} to a ten-year-old.", "Write a short story in which {} matter to a shy student.",
    "What are three common misunderstandings about {}?", "Give me a plan for a one-hour lesson about {}.",
)  # fmt: skip


def _code(folder: Path, part: str) -> Iterator[tuple[str, str]]:
    if part == MEASURED:
        with gzip.open(folder / "prompts/human_eval/HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                yield row["task_id"], CODE.format(row["prompt"].strip() + "\n")
        return
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-z]*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and node.col_offset == 0 and ast.get_docstring(node):
                text = "\n".join(source.splitlines()[node.lineno - 1 : node.body[0].end_lineno]) + "\n"
                if FUNCTION[0] <= len(text) <= FUNCTION[1]:
                    yield f"{path.stem}.{node.name}", CODE.format(text)


def _maths(folder: Path, part: str) -> Iterator[tuple[str, str]]:
    name = "test" if part == MEASURED else "train"
    for number, line in enumerate((folder / f"corpora/gsm8k/{name}.jsonl").read_text(encoding="utf-8").splitlines()):
        yield f"gsm8k/{name}/{number}", json.loads(line)["question"].strip()


def _chat(folder: Path, part: str) -> Iterator[tuple[str, str]]:
    if part == TRAINING:
        yield from (
            (f"made-up/{topic}/{number}", asked.format(topic)) for topic in TOPICS for number, asked in enumerate(ASKED)
        )
        return
    for line in (folder / "prompts/mt_bench/question.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["category"] not in CHAT_SKIPS and len(row["turns"][0]) <= 600:
            yield f"mt_bench/{row['question_id']}", row["turns"][0].strip()


def _edit(folder: Path, part: str) -> Iterator[tuple[str, str]]:
    for book in READ_FROM[part]:
        text = (folder / f"corpora/gutenberg_prose/{book}.md").read_text(encoding="utf-8")
        for number, piece in enumerate(text.split("\n\n")):
            passage = " ".join(piece.split())
            if PASSAGE[0] <= len(passage) <= PASSAGE[1] and not passage.startswith("#"):
                yield f"{book}/{number}", EDIT.format(passage)


FOUND: Final = {"code": _code, "maths": _maths, "chat": _chat, "edit": _edit}


def main() -> None:
    """Draw, and write prompts.jsonl."""
    folder = Path(sys.argv[1])
    prompts = []
    for part, number in NUMBER.items():
        for name in CLASSES:
            found = sorted(FOUND[name](folder, part))
            if len(found) < number:
                raise SystemExit(f"{name}, {part}: {len(found)} prompts, fewer than {number}")
            prompts += [Prompt(part, name, *each) for each in random.Random(SEED).sample(found, number)]  # noqa: S311 texts
    PROMPTS.write_text("".join(each.line() for each in prompts), encoding="utf-8")


if __name__ == "__main__":
    main()
