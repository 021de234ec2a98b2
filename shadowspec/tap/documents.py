"""JSON as it comes off a topic: one document, several in one message, or an answer in the chunks of a stream.

No bytes raise any error but `RecordError`, and no message of an error quotes them.  NaN and Infinity, invalid Unicode
(half of a surrogate pair), bytes that are not UTF-8 and nesting beyond 200 levels are refused.  Of a repeated key the
last value counts; a byte order mark is skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from pydantic_core import from_json

from shadowspec.errors import RecordError
from shadowspec.tap import anthropic_messages, openai_responses
from shadowspec.tap.parameters import malformed_error
from shadowspec.types.server_sent_events import DONE, NotEventsError, events_of

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
MAX_RECORDS_PER_MESSAGE = 10_000  # a hundred times a logger's batch; bounds the number of records in 10 MB of "{}"
MAX_CHOICES = 128  # OpenAI's limit on n
MAX_TOOL_CALLS = 1_024  # of one answer; bounds what an index can make of a stream
CUT_OFF: Final = "is_cut_off"  # the field of a streamed message that says so
_JOINED: Final = frozenset({"tool_calls", "reasoning_content", "reasoning"})
# Fields of a message that are its text, or say something of it.
_NO_OTHER_CONTENT: Final = frozenset({"role", "content", "name", "id", "annotations", "citations", "token_ids"})
_ONCE: Final = ("id", "model", "created", "usage", "prompt_token_ids", "error")  # the last that is not null counts


def parse_document(value: bytes | str) -> Any:
    """The one JSON document that the bytes hold.

    Raises:
        RecordError: malformed; "not_json" or "invalid_unicode".
    """
    value = value.removeprefix(BYTE_ORDER_MARK) if isinstance(value, bytes) else value.removeprefix("\ufeff")
    try:
        return from_json(value, allow_inf_nan=False)
    except ValueError:
        raise malformed_error(_why_refused(value)) from None  # its message would quote the record


def split_message(value: bytes) -> list[Any]:
    """The documents of one message: a JSON array's items, the lines of ndjson, else the one document.

    A line that cannot be read is a `RecordError` in its place and does not affect others.  A message whose first
    line is no document by itself is not ndjson, and fails as a whole.

    Raises:
        RecordError: malformed; as `parse_document`, or "empty" or "too_many_records".
    """
    try:
        document = parse_document(value)
    except RecordError as error:
        return _split_lines(value, error)
    if not isinstance(document, list):
        return [document]
    if not document:
        raise malformed_error("empty")
    if len(document) > MAX_RECORDS_PER_MESSAGE:
        raise malformed_error("too_many_records")
    return document


def _split_lines(value: bytes, error: RecordError) -> list[Any]:
    stripped = value.strip()
    if b"\n" not in stripped:
        raise error
    first = _parse_line(stripped.split(b"\n", 1)[0])
    if isinstance(first, RecordError):
        raise error
    if stripped.count(b"\n") >= MAX_RECORDS_PER_MESSAGE:
        raise malformed_error("too_many_records")
    return [_parse_line(line) for line in stripped.split(b"\n") if line.strip()]


def _parse_line(line: bytes) -> Any:
    try:
        return parse_document(line)
    except RecordError as error:
        return error.without_traceback()


def _why_refused(value: bytes | str) -> str:
    """Reason code for bytes that the fast parser refused, by the standard library's, which accepts more."""
    try:
        document = json.loads(value.decode("utf-8") if isinstance(value, bytes) else value)
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "invalid_unicode"
    except (ValueError, RecursionError):
        return "not_json"
    return "not_json"  # it holds NaN or Infinity, or is nested too deeply


def assemble_answer(text: str) -> dict[str, Any] | None:
    """The answer that the stream's chunks make, or None if the text is not a stream.

    It joins each choice's text, token ids, log probabilities and finish reason.  A choice with anything beside its text
    (tool calls, reasoning, parts), or without an end, becomes a message that says so.  Streams of the Responses and the
    Messages API, recognised by the types of their events, become answers of these.

    Raises:
        RecordError: malformed ("invalid:stream"); a chunk is not a JSON object, or the stream has no chunk.
    """
    try:
        events = [data.strip() for data in events_of(text.lstrip())]
    except NotEventsError:
        return None
    if not events and not text.strip():
        return None
    if not events:
        raise malformed_error("invalid:stream")
    chunks = [chunk for data in events for chunk in _chunks(data)]
    if chunks and openai_responses.is_event(chunks[0]):
        return openai_responses.streamed_answer(chunks)
    if chunks and anthropic_messages.is_event(chunks[0]):
        return anthropic_messages.streamed_answer(chunks)
    answer: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        _add_chunk(answer, choices, chunk)
    for choice in choices.values():
        if "finish_reason" not in choice and not events[-1].endswith(DONE):
            choice.setdefault("message", {"role": "assistant"})[CUT_OFF] = True
        if (message := choice.get("message")) is not None:
            message["content"] = choice.pop("text", None)
    answer["choices"] = [choices[index] for index in sorted(choices)]
    return answer


def is_other_content(name: str, value: Any) -> bool:
    """Whether a field of a message, or of a delta, holds something that was generated beside the text."""
    if isinstance(value, dict):
        value = [part for part in value.values() if part is not None]
    return bool(value) and name not in _NO_OTHER_CONTENT


def _chunks(data: str) -> Iterator[dict[str, Any]]:
    """The chunk of an event; of one that lost the empty lines between events, as some logs lose them, its chunks."""
    try:
        chunk = parse_document(data) if data and data != DONE else None
    except RecordError:
        if "\n" not in data:
            raise malformed_error("invalid:stream") from None
        for line in data.split("\n"):
            yield from _chunks(line.strip())
        return
    if isinstance(chunk, dict):
        yield chunk
    elif data and data != DONE:
        raise malformed_error("invalid:stream")


def _add_chunk(answer: dict[str, Any], choices: dict[int, dict[str, Any]], chunk: dict[str, Any]) -> None:
    answer |= {name: chunk[name] for name in _ONCE if chunk.get(name) is not None}
    parts = chunk.get("choices")
    for part in parts if isinstance(parts, list) else ():
        index = part.get("index", 0) if isinstance(part, dict) else None
        if not isinstance(index, int) or not 0 <= index < MAX_CHOICES:
            raise malformed_error("invalid:stream")
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
    if isinstance(delta, dict):
        _add_to_message(choice, delta)


def _add_to_message(choice: dict[str, Any], delta: dict[str, Any]) -> None:
    """Add a delta's reasoning, parts of tool calls and whatever else is no text of the answer."""
    for name, value in delta.items():
        if name not in _JOINED and is_other_content(name, value):
            choice.setdefault("message", {"role": "assistant"})[name] = value
    if isinstance(delta.get("content"), list):
        choice.setdefault("message", {"role": "assistant"})["parts"] = delta["content"]
    reasoning = delta.get("reasoning_content") or delta.get("reasoning")
    if isinstance(reasoning, str):
        message = choice.setdefault("message", {"role": "assistant"})
        message["reasoning_content"] = message.get("reasoning_content", "") + reasoning
    given = delta.get("tool_calls")
    for call_part in given if isinstance(given, list) else ():
        index = call_part.get("index", 0) if isinstance(call_part, dict) else None
        if not isinstance(index, int) or not 0 <= index < MAX_TOOL_CALLS:
            raise malformed_error("invalid:stream")
        calls = choice.setdefault("message", {"role": "assistant"}).setdefault("tool_calls", [])
        calls += [{"type": "function", "function": {}} for _ in range(len(calls), index + 1)]
        function_part = call_part.get("function")
        if isinstance(call_part.get("id"), str):
            calls[index]["id"] = call_part["id"]
        for name in ("name", "arguments"):
            added = function_part.get(name) if isinstance(function_part, dict) else None
            if isinstance(added, str):
                calls[index]["function"][name] = calls[index]["function"].get(name, "") + added
