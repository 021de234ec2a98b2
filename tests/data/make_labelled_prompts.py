"""Draw the labelled prompts on which the classifier is measured.

    python tests/data/make_labelled_prompts.py PROMPTS CORPORA > tests/data/labelled_prompts.jsonl

PROMPTS holds human_eval, mbpp, bfcl, sql_eval and mt_bench, CORPORA gsm8k, pg_gettext and gutenberg_prose.
Rows are drawn by a hash of their own id; the rules were written against rows that are not drawn.
`--rest` prints those instead.  Prompts of our own stand in `own_prompts.jsonl` beside this file.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

MT_BENCH_CLASSES = {
    "writing": "creative",
    "roleplay": "creative",
    "coding": "code",
    "math": "maths",
    "humanities": "chat",
    "stem": "chat",
    "reasoning": "chat",
}
# MT-bench's `extraction` by what the question asks for: a stated output format, or a plain answer.
EXTRACTION_CLASSES = dict.fromkeys((133, 135, 136, 137, 139, 140), "structured") | dict.fromkeys(
    (131, 132, 134, 138), "chat"
)
SAMPLE_SIZES = {
    "human_eval": 20, "mbpp": 20, "bfcl": 40, "sql_eval": 30, "gsm8k": 30, "pg_gettext": 20, "gutenberg": 10,
}  # fmt: skip


def rows(prompts: Path, corpora: Path) -> Iterator[tuple[str, str, str, list[str]]]:
    """(source, id, class, texts) of every labelled prompt there is."""
    with gzip.open(prompts / "human_eval" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as stream:
        for line in stream:
            row = json.loads(line)
            yield "human_eval", row["task_id"], "code", [row["prompt"]]
    for line in (prompts / "mbpp" / "mbpp.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        yield "mbpp", f"mbpp/{row['task_id']}", "code", [row["text"]]
    for name in ("BFCL_v4_simple_python.json", "BFCL_v4_multiple.json", "BFCL_v4_live_simple.json"):
        for line in (prompts / "bfcl" / name).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            functions = json.dumps(row["function"])
            system = f"You are given a list of functions that you may call. Answer with a call.\n{functions}"
            texts = [message["content"] for message in row["question"][0] if message["role"] == "user"]
            if len(functions) < 1_500:
                yield "bfcl", row["id"], "tool_calling", [system, *texts]
    with (prompts / "sql_eval" / "instruct_basic_postgres.csv").open(encoding="utf-8", newline="") as stream:
        questions = [*csv.DictReader(stream)]
    with (prompts / "sql_eval" / "questions_gen_postgres.csv").open(encoding="utf-8", newline="") as stream:
        questions += [*csv.DictReader(stream)]
    for index, row in enumerate(questions):
        text = f"Generate a SQL query that answers the question `{row['question']}` on the database {row['db_name']}."
        yield "sql_eval", f"sql_eval/{index}", "structured", [text]
    for line in (prompts / "mt_bench" / "question.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        label = MT_BENCH_CLASSES.get(row["category"]) or EXTRACTION_CLASSES[row["question_id"]]
        yield "mt_bench", f"mt_bench/{row['question_id']}", label, [row["turns"][0]]
    for index, line in enumerate((corpora / "gsm8k" / "test.jsonl").read_text(encoding="utf-8").splitlines()):
        yield "gsm8k", f"gsm8k-test/{index}", "maths", [json.loads(line)["question"]]
    seen = set()
    for line in (corpora / "pg_gettext" / "pg15_messages.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["lang"] == "de" and len(row["en"]) > 20 and row["en"] not in seen:
            seen.add(row["en"])
            yield "pg_gettext", row["en"], "translation", [f"Translate to German:\n{row['en'].strip()}"]
    book = (corpora / "gutenberg_prose" / "The_Time_Machine.md").read_text(encoding="utf-8")
    for index, paragraph in enumerate(book.split("\n\n")):
        if len(paragraph) > 300:
            text = f"Continue the story:\n\n{paragraph.strip()[:600]}"
            yield "gutenberg", f"time_machine/{index}", "creative", [text]


def main() -> None:
    rest = "--rest" in sys.argv
    prompts, corpora = (Path(argument) for argument in sys.argv[1:3])
    by_source: dict[str, list[tuple[str, str, str, list[str]]]] = {}
    for row in rows(prompts, corpora):
        by_source.setdefault(row[0], []).append(row)
    for source, found in by_source.items():
        found.sort(key=lambda row: hashlib.sha256(row[1].encode()).digest())
        size = SAMPLE_SIZES.get(source, len(found))
        for _, identity, label, texts in found[size:] if rest else found[:size]:
            name = identity if source != "pg_gettext" else hashlib.sha256(identity.encode()).hexdigest()[:12]
            document = {"source": source, "id": name, "label": label, "texts": texts}
            sys.stdout.write(json.dumps(document, ensure_ascii=False) + "\n")
    if not rest:
        sys.stdout.write((Path(__file__).parent / "own_prompts.jsonl").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
