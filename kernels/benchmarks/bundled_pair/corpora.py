"""The texts the bundled pair is made from: one reader per domain, split into training and held-out text.

What is held out is decided by a hash of the text's own group (file, API entry, message, book), never by
position, so that adding a corpus moves nothing across the line.  Bundled traffic is built from held-out
text alone.
"""

from __future__ import annotations

import hashlib
import json
import random
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kernels.benchmarks.bundled_pair import text_to_sql
from shadowspec.errors import InputError

HELD_OUT_BOOKS = frozenset({"The_Time_Machine.md", "The_Valley_of_Fear.md", "Erewhon.md"})
# Tables of numbers and generated data teach a small model nothing that a prompt would ask for.
SKIPPED_CODE_FOLDERS = frozenset(
    {"site-packages", "test", "tests", "__pycache__", "lib2to3", "pydoc_data", "encodings", "idlelib", "turtledemo"}
)
TRANSLATION_LANGUAGES = {
    "fr": "French",
    "es": "Spanish",
    "it": "Italian",
    "de": "German",
    "sv": "Swedish",
    "pt_BR": "Portuguese",
}
MAX_API_DOCUMENT_CHARACTERS = 2_400
STORY_PROMPT = "Continue the story:"
API_PROMPT = "Return the API document as a JSON object."


@dataclass(frozen=True, slots=True)
class Turn:
    """One chat turn: what the user says and what the assistant answers."""

    user: str
    assistant: str


@dataclass(frozen=True, slots=True)
class Document:
    """A text of one domain.  Either `text` (a completion) or `turns` (a conversation) is set."""

    domain: str
    group: str
    held_out: bool
    text: str = ""
    turns: tuple[Turn, ...] = ()


def is_held_out(group: str, percent: int) -> bool:
    """Whether a group of texts is held out; the same for ever for the same group."""
    digest = hashlib.blake2b(group.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 100 < percent


def read_code(_corpora: Path) -> Iterator[Document]:
    """Python's standard library: whole files; 8 % of the files are held out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED_CODE_FOLDERS & set(relative.parts):
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        if len(text) > 500:
            yield Document("code", str(relative), is_held_out(str(relative), 8), text=text)


def read_sql(corpora: Path) -> Iterator[Document]:
    """PostgreSQL's own scripts and templated text-to-SQL conversations over unseen schemas."""
    for line in (corpora / "pg_sql" / "pg15_sql.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        text = next(value for key, value in row.items() if key in {"text", "sql", "content"})
        yield Document("sql", "pg_sql", False, text=text)
    for held_out, count in ((False, 9_000), (True, 1_500)):
        for index, document in enumerate(text_to_sql.schema_documents(0, count, held_out=held_out)):
            turns = tuple(
                Turn(text_to_sql.question_message(document.schema, question), query)
                for question, query in document.questions
            )
            for turn in turns:
                yield Document("sql", f"schema-{held_out}-{index}", held_out, turns=(turn,))


def read_json(corpora: Path) -> Iterator[Document]:
    """API documents as JSON: asked for by name and purpose, answered by the object; 10 % held out."""
    for path in sorted((corpora / "apizoo_json" / "apizoo").glob("*.json")):
        try:
            entries = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError:
            continue  # two community files are not JSON; they are no training text for a JSON slice
        for index, entry in enumerate(entries):
            entry.pop("user_name", None)
            purpose = str(entry.get("functionality", "")).split("\n")[0][:160]
            answer = json.dumps(entry, indent=1, ensure_ascii=False)
            if len(answer) > MAX_API_DOCUMENT_CHARACTERS:
                continue
            group = f"{path.name}:{index}"
            question = f"{API_PROMPT}\nName: {entry.get('api_name', '')}\nPurpose: {purpose}"
            yield Document("json", group, is_held_out(group, 10), turns=(Turn(question, answer),))


def read_maths(corpora: Path) -> Iterator[Document]:
    """Worked answers to school problems; the benchmark's own test split is held out."""
    for name, held_out in (("train.jsonl", False), ("test.jsonl", True)):
        lines = (corpora / "gsm8k" / name).read_text(encoding="utf-8").splitlines()
        for index, line in enumerate(lines):
            row = json.loads(line)
            yield Document("maths", f"{name}:{index}", held_out, turns=(Turn(row["question"], row["answer"]),))


def read_prose(corpora: Path) -> Iterator[Document]:
    """Novels: long runs of plain text, and passages asked to be continued; three books are held out."""
    rng = random.Random("prose")
    paths = [*sorted((corpora / "gutenberg_prose").glob("*.md")), corpora / "tinyshakespeare" / "input.txt"]
    for path in paths:
        if path.name == "SOURCE.md":
            continue
        held_out = path.name in HELD_OUT_BOOKS
        paragraphs = [part.strip() for part in path.read_text(encoding="utf-8").split("\n\n") if part.strip()]
        position = 0
        while position < len(paragraphs):
            length = 60 if rng.random() < 0.4 and not held_out else 6
            piece = paragraphs[position : position + length]
            position += length
            text = "\n\n".join(piece)
            if length == 60:
                yield Document("prose", path.name, held_out, text=text)
                continue
            words = text.split(" ")
            if len(words) < 60:
                continue
            cut = rng.randint(30, min(120, len(words) - 25))
            question = f"{STORY_PROMPT}\n\n{' '.join(words[:cut])}"
            yield Document("prose", path.name, held_out, turns=(Turn(question, " ".join(words[cut : cut + 200])),))


def read_translation(corpora: Path) -> Iterator[Document]:
    """PostgreSQL's message catalogues: conversations of one to four translations; 8 % of messages held out."""
    rng = random.Random("translation")
    pools: dict[tuple[str, bool], list[Turn]] = {}
    for line in (corpora / "pg_gettext" / "pg15_messages.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        language = TRANSLATION_LANGUAGES.get(row["lang"])
        english, text = row["en"].strip(), row["text"].strip()
        if language is None or len(english) < 12 or len(english) > 400:
            continue
        turn = Turn(f"Translate to {language}:\n{english}", text)
        pools.setdefault((row["lang"], is_held_out(english, 8)), []).append(turn)
    for (language, held_out), turns in sorted(pools.items()):
        position = 0
        while position < len(turns):
            length = rng.randint(1, 4)
            yield Document(
                "translation", f"{language}:{position}", held_out, turns=tuple(turns[position : position + length])
            )
            position += length


READERS: dict[str, Callable[[Path], Iterator[Document]]] = {
    "code": read_code,
    "sql": read_sql,
    "json": read_json,
    "maths": read_maths,
    "prose": read_prose,
    "translation": read_translation,
}


def read_documents(corpora: Path) -> list[Document]:
    """Every document of every domain.

    Raises:
        InputError: the folder lacks one of the corpora.
    """
    try:
        return [document for reader in READERS.values() for document in reader(corpora)]
    except OSError as error:
        raise InputError(f"the corpora folder {corpora} is incomplete: {error}") from error
