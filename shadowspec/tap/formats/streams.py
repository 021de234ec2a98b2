"""An answer that was mirrored as it was streamed: server-sent events, put together into one body."""

from __future__ import annotations

from typing import Any, Final

from shadowspec.errors import RecordError
from shadowspec.tap.documents import parse_document
from shadowspec.tap.parameters import malformed

DATA: Final = "data:"
DONE: Final = "[DONE]"
MAX_CHOICES = 128  # OpenAI's limit on n
_ONCE: Final = ("id", "model", "created", "usage", "prompt_token_ids", "error")  # the last that is not null counts


def assemble_answer(text: str) -> dict[str, Any] | None:
    """The answer that the stream's chunks make, or None if the text is no stream.

    Of the choices, text, token ids, log probabilities and the reason for the end are put together.

    Raises:
        RecordError: malformed ("invalid:stream"); a chunk is no JSON object, or the stream has no chunk.
    """
    if not text.lstrip().startswith((DATA, "event:", ":")):
        return None
    answer: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    chunks = [line[len(DATA) :].strip() for line in text.splitlines() if line.startswith(DATA)]
    if not chunks:
        raise malformed("invalid:stream")
    for data in chunks:
        if data and data != DONE:
            _add_chunk(answer, choices, _chunk(data))
    answer["choices"] = [choices[index] for index in sorted(choices)]
    return answer


def _chunk(data: str) -> dict[str, Any]:
    try:
        chunk = parse_document(data)
    except RecordError:
        chunk = None
    if not isinstance(chunk, dict):
        raise malformed("invalid:stream")
    return chunk


def _add_chunk(answer: dict[str, Any], choices: dict[int, dict[str, Any]], chunk: dict[str, Any]) -> None:
    answer |= {name: chunk[name] for name in _ONCE if chunk.get(name) is not None}
    parts = chunk.get("choices")
    for part in parts if isinstance(parts, list) else ():
        index = part.get("index", 0) if isinstance(part, dict) else None
        if not isinstance(index, int) or not 0 <= index < MAX_CHOICES:
            raise malformed("invalid:stream")
        _add_part(choices.setdefault(index, {"index": index}), part)


def _add_part(choice: dict[str, Any], part: dict[str, Any]) -> None:
    if part.get("finish_reason") is not None:
        choice["finish_reason"] = part["finish_reason"]
    for name in ("token_ids", "prompt_token_ids"):
        if isinstance(part.get(name), list):
            choice[name] = [*choice.get(name, ()), *part[name]]
    logprobs = part.get("logprobs")
    for name in ("content", "token_logprobs"):
        if isinstance(logprobs, dict) and isinstance(logprobs.get(name), list):
            joined = choice.setdefault("logprobs", {})
            joined[name] = [*joined.get(name, ()), *logprobs[name]]
    delta = part.get("delta")
    text = delta.get("content") if isinstance(delta, dict) else part.get("text")
    if isinstance(text, str):
        choice["text"] = choice.get("text", "") + text
