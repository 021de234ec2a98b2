"""The benchmark's prompts, and the traffic that they are: lines as a mirror records them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

PROMPTS: Final = Path(__file__).parent / "prompts.jsonl"
CLASSES: Final = ("code", "maths", "chat", "edit")
MEASURED: Final = "measured"  # the part of the prompts that validations take
LABEL: Final = "class"
ENDPOINT: Final = "smollm2"
START: Final = datetime(2026, 1, 1, tzinfo=UTC)
SPAN: Final = timedelta(days=8)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A user's message, with where it is from."""

    part: str
    prompt_class: str
    source: str
    text: str

    def line(self) -> str:
        """As it is kept."""
        return json.dumps(asdict(self), ensure_ascii=False) + "\n"


def every_prompt(path: Path) -> list[Prompt]:
    """All prompts of a file, in its order."""
    return [Prompt(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def read_prompts(path: Path, part: str, number: int) -> list[Prompt]:
    """So many prompts of every class at most, the classes in turn, so that a part of them has all classes.

    Raises:
        SystemExit: a class has none.
    """
    rows = every_prompt(path)
    by_class = {
        name: [row for row in rows if (row.part, row.prompt_class) == (part, name)][:number] for name in CLASSES
    }
    if missing := [name for name, entries in by_class.items() if not entries]:
        raise SystemExit(f"{path} holds no {part} prompt of the class {missing[0]}")
    longest = max(len(entries) for entries in by_class.values())
    return [entries[place] for place in range(longest) for entries in by_class.values() if place < len(entries)]


def two_halves(path: Path, number: int, classes: Sequence[str] = CLASSES) -> tuple[list[Prompt], list[Prompt]]:
    """So many prompts of these classes for a first run, and as many others for a second; the classes in turn.

    Raises:
        SystemExit: a class has too few.
    """
    rows = every_prompt(path)
    halves: tuple[list[list[Prompt]], list[list[Prompt]]] = [], []
    for name in classes:
        of_class = [row for row in rows if row.prompt_class == name]
        if len(of_class) < 2 * number:
            raise SystemExit(
                f"{path} holds {len(of_class)} prompts of the class {name}, and two runs need {2 * number}"
            )
        for half, first in zip(halves, (0, 1), strict=True):
            half.append(of_class[first::2][:number])
    first_half, second_half = ([prompt for turn in zip(*half, strict=True) for prompt in turn] for half in halves)
    return first_half, second_half


def tokenised(path: Path, number: int, target: Path) -> list[tuple[str, tuple[int, ...]]]:
    """Class and token ids of measured prompts, as chats, as many of each class, so that there are `number` at least."""
    from shadowspec.engine.tokenizer import load_tokenizer  # which loads transformers

    tokenizer = load_tokenizer(str(target))
    prompts = read_prompts(path, MEASURED, -(-number // len(CLASSES)))
    return [
        (prompt.prompt_class, tuple(tokenizer.render_chat([{"role": "user", "content": prompt.text}], None)))
        for prompt in prompts
    ]


def records(prompts: Sequence[Prompt], max_tokens: int) -> list[dict[str, Any]]:
    """Mirrored chat requests, an hour apart or as far as SPAN needs, which the gate's span of seven days lies in."""
    apart = max(timedelta(hours=1), SPAN / len(prompts))
    return [record(prompt, START + place * apart, max_tokens) for place, prompt in enumerate(prompts)]


def record(prompt: Prompt, time: datetime, max_tokens: int) -> dict[str, Any]:
    """A mirrored chat request at temperature 0, a session of its own."""
    return {
        "timestamp": time.isoformat(),
        "path": "/v1/chat/completions",
        "session_id": prompt.source,
        "request_id": prompt.source,
        "metadata": {LABEL: prompt.prompt_class},
        "request": {
            "model": ENDPOINT, "messages": [{"role": "user", "content": prompt.text}],
            "temperature": 0.0, "max_tokens": max_tokens,
        },
    }  # fmt: skip


def write_records(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """One line each."""
    path.write_text("".join(json.dumps(row) + "\n" for row in records), encoding="utf-8")
