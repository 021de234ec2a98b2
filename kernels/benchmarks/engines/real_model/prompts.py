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
MEASURED, TRAINING = "measured", "training"
LABEL: Final = "class"
ENDPOINT: Final = "smollm2"
START: Final = datetime(2026, 1, 1, tzinfo=UTC)


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


def read_prompts(path: Path, part: str, number: int) -> list[Prompt]:
    """So many prompts of every class at most, the classes in turn, so that a part of them has all classes.

    Raises:
        SystemExit: a class has none.
    """
    rows = [Prompt(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    by_class = {
        name: [row for row in rows if (row.part, row.prompt_class) == (part, name)][:number] for name in CLASSES
    }
    if missing := [name for name, entries in by_class.items() if not entries]:
        raise SystemExit(f"{path} holds no {part} prompt of the class {missing[0]}")
    longest = max(len(entries) for entries in by_class.values())
    return [entries[place] for place in range(longest) for entries in by_class.values() if place < len(entries)]


def tokenised(path: Path, number: int, target: Path) -> list[tuple[str, tuple[int, ...]]]:
    """Class and token ids of measured prompts, as chats, as many of each class, so that there are `number` at least."""
    from shadowspec.engine.tokenizer import load_tokenizer  # which loads transformers

    tokenizer = load_tokenizer(str(target))
    prompts = read_prompts(path, MEASURED, -(-number // len(CLASSES)))
    return [
        (prompt.prompt_class, tuple(tokenizer.render_chat([{"role": "user", "content": prompt.text}], None)))
        for prompt in prompts
    ]


def record(
    prompt: Prompt, number: int, max_tokens: int, output: Sequence[int] | None = None, text: str = ""
) -> dict[str, Any]:
    """A mirrored chat request at temperature 0, a session of its own; with an output, its answer too."""
    body: dict[str, Any] = {
        "timestamp": (START + timedelta(seconds=number)).isoformat(),
        "path": "/v1/chat/completions",
        "session_id": prompt.source,
        "request_id": prompt.source,
        "metadata": {LABEL: prompt.prompt_class},
        "request": {
            "model": ENDPOINT, "messages": [{"role": "user", "content": prompt.text}],
            "temperature": 0.0, "max_tokens": max_tokens,
        },
    }  # fmt: skip
    if output is None:
        return body
    finish = "length" if len(output) == max_tokens else "stop"
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": finish, "token_ids": list(output)}
    return body | {"response": {"model": ENDPOINT, "choices": [choice], "usage": {"completion_tokens": len(output)}}}


def write_records(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """One line each."""
    path.write_text("".join(json.dumps(row) + "\n" for row in records), encoding="utf-8")
