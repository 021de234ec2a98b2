"""A map for objects of an unknown layout: request, answer and time by their values, session and user by their names.

Fields of objects within the object are looked at too, as JSON pointers.  Names that are no plain ones are passed over:
they may be a client's text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple

from shadowspec.errors import RecordError
from shadowspec.tap.documents import assemble_answer
from shadowspec.tap.formats.field_map import BODY_FIELDS, SAMPLING, FieldMap, answer_of, is_chat, parsed, value_at
from shadowspec.tap.records import parse_time, usable_id

MAX_FIELDS: Final = 200  # of an object that are looked at
MAX_DEPTH: Final = 3  # of a field
MAX_LINES: Final = 100  # whose times are compared
# A number outside of these is no time of a log: an epoch in s, ms, us or ns is recognised by its size.
EARLIEST_TIME: Final = datetime(2015, 1, 1, tzinfo=UTC)
LATEST_TIME: Final = datetime(2040, 1, 1, tzinfo=UTC)
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}")
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
# The likeliest first.
_TIMES: Final = (
    "timestamp", "ts", "time", "datetime", "date", "created_at", "created", "request_time", "start_time",
)  # fmt: skip
_BEGINNINGS: Final = frozenset(
    {"timestamp", "ts", "time", "date", "created", "recv", "received", "start", "started", "begin", "request"}
)
_ENDINGS: Final = frozenset(
    {"end", "ended", "finish", "finished", "completed", "response", "sent", "expires", "updated"}
)
_ANSWERS: Final = ("response", "response_body", "answer", "output", "completion", "result", "reply")
_ID: Final = r"(_?(id|key|uuid|hash))?"
# Well-known names, in lower case with underscores.
_NAMES: Final[Mapping[str, re.Pattern[str]]] = {
    "session": re.compile(rf"(x_)?((session|conversation|conv|dialog|thread){_ID}|chat_?(id|key|uuid|hash))"),
    "user": re.compile(rf"(x_)?((end_?)?user|account|acct|customer){_ID}"),
}


class _Field(NamedTuple):
    """A field of the first object: its path in a map, its name, and its value, which is read where it is JSON."""

    path: str
    name: str
    value: Any

    @property
    def words(self) -> list[str]:
        return [word.lower() for word in _WORD.findall(self.name)]


def propose(documents: Sequence[Any]) -> FieldMap | None:
    """A map for objects of an unknown layout, by the first and the names of all; None: no request is recognised."""
    first = documents[0] if documents else None
    if not isinstance(first, dict):
        return None
    fields = list(islice(_fields(first), MAX_FIELDS))
    chosen = _request(documents, first, fields)
    if chosen is None:
        return None
    # What is within a chosen part belongs to it.
    fields = [field for field in fields if not _is_within(field.path, chosen.values())]
    if (answer := _answer(fields)) is not None:
        fields = [field for field in fields if not _is_within(field.path, (answer,))]
    if (time := _time(documents[:MAX_LINES], fields)) is not None:
        chosen["time"] = time
    for part, pattern in _NAMES.items():
        named = (field for field in fields if pattern.fullmatch("_".join(field.words)))
        if (path := next((field.path for field in named if usable_id(field.value) is not None), None)) is not None:
            chosen[part] = path
    if answer is not None:
        chosen["response"] = answer
    return FieldMap.parse(chosen)


def _fields(document: Mapping[str, Any]) -> Iterator[_Field]:
    """The fields with plain names, the outer ones first."""
    level: list[tuple[str, Mapping[str, Any]]] = [("", document)]
    for _ in range(MAX_DEPTH):
        inner: list[tuple[str, Mapping[str, Any]]] = []
        for prefix, node in level:
            for name in filter(_PLAIN_NAME.fullmatch, node):
                path = f"{prefix}/{name}" if prefix else name
                value = parsed(node[name])
                yield _Field(path, name, value)
                if isinstance(value, dict):
                    inner.append((path if prefix else f"/{name}", value))
        level = inner


def _is_within(path: str, outer: Iterable[str]) -> bool:
    """Whether a path is one of the others, or leads into what is there."""
    return any(path == each or path.startswith(f"/{each.removeprefix('/')}/") for each in outer)


def _request(documents: Sequence[Any], first: Mapping[str, Any], fields: Sequence[_Field]) -> dict[str, str] | None:
    """The paths of the request: those of a body, of a list of messages, or of a prompt beside its parameters."""
    if (body := next((field for field in fields if _is_body(field.value)), None)) is not None:
        is_model_beside = "model" not in body.value and isinstance(first.get("model"), str)
        return {"request": body.path, **({"model": "model"} if is_model_beside else {})}
    if is_chat(first.get("messages")):
        chosen = {"messages": "messages"}
    elif (chat := next((field for field in fields if field.path in first and is_chat(field.value)), None)) is not None:
        chosen = {"messages": chat.path}
    elif isinstance(first.get("prompt"), str):
        chosen = {"prompt": "prompt"}
    else:
        return None
    seen = {name for document in documents if isinstance(document, dict) for name in document}
    return chosen | {name: name for name in sorted(seen & (SAMPLING | {"model"}))}


def _is_body(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return is_chat(value.get("messages")) or ("model" in value and not BODY_FIELDS.isdisjoint(value))


def _answer(fields: Sequence[_Field]) -> str | None:
    """The path of the answer: a body under any name, else whatever can be an answer under a likely name."""
    if (body := next((field.path for field in fields if _is_answer_body(field.value)), None)) is not None:
        return body
    named = {field.path: field.value for field in fields}
    return next((name for name in _ANSWERS if name in named and _is_answer(named[name])), None)


def _is_answer_body(value: Any) -> bool:
    """Whether a value is an answer of OpenAI's or Anthropic's API, whole or as its stream."""
    if isinstance(value, str):
        try:
            return bool(assemble_answer(value))
        except RecordError:
            return False
    if not isinstance(value, dict):
        return False
    is_message = value.get("type") == "message" and value.get("role") == "assistant"
    lists = (value.get("choices"), value.get("output"), value.get("content") if is_message else None)
    return any(isinstance(parts, list) and parts and all(isinstance(part, dict) for part in parts) for parts in lists)


def _is_answer(value: Any) -> bool:
    try:
        return answer_of(value, {}, is_failed=False) is not None
    except RecordError:
        return False


def _time(documents: Sequence[Any], fields: Sequence[_Field]) -> str | None:
    """The path of the likeliest time: of a usual name, of a beginning, then one that rises from line to line."""
    ranked: list[tuple[int, bool, bool, bool, int, str]] = []
    for field in fields:
        is_usual = field.path in _TIMES
        found = (value_at(document, (field.path,)) for document in documents if isinstance(document, dict))
        times = [_log_time(value, is_any_text=is_usual) for value in found if value is not None]
        known = [time for time in times if time is not None]
        if not known or len(known) < len(times):
            continue
        words = set(field.words)
        is_ending = not _ENDINGS.isdisjoint(words)
        is_beginning = not is_ending and not _BEGINNINGS.isdisjoint(words)
        is_constant = len(known) > 1 and len(set(known)) == 1
        if is_constant and not is_usual and not is_beginning:
            continue  # of the model or the build
        is_rising = not is_constant and all(before <= after for before, after in pairwise(known))
        place = _TIMES.index(field.path) if is_usual else len(_TIMES)
        ranked.append((place, not is_beginning, is_ending, not is_rising, len(ranked), field.path))
    return min(ranked)[-1] if ranked else None


def _log_time(value: Any, *, is_any_text: bool) -> datetime | None:
    """A time at which a log may have been written, from ISO 8601 or an epoch."""
    if isinstance(value, str) and not is_any_text and not _DATE.match(value):
        return None
    time = parse_time(value)
    return time if time is not None and EARLIEST_TIME <= time < LATEST_TIME else None
