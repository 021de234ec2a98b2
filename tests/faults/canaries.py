"""Messages with a word of a client in every place of them: none may come into what a worker stores, says or shows.

Each word names its place, so that what leaks says where from.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from tests.faults.traffic import START_MS
from tests.kafka_topics import Message

MARK: Final = "qZcanaryX"
REPEATS: Final = 24  # of ordinary requests, each a session of its own: enough for verdicts on their slice


def word(place: str) -> str:
    """The word of a place: letters and digits alone, so that it passes wherever a name may stand."""
    return f"{MARK}{place}Zq"


def leaks(text: str) -> list[str]:
    """The places of the words that a text holds, as they were or in a common encoding; [] without one."""
    low = text.lower()
    found = [part.partition("zq")[0] for part in low.split(MARK.lower())[1:]]
    # Base64 of a word depends on what is before it: of each shift, the part that does not.
    encodings = {"hex": MARK.encode().hex()}
    for shift in range(3):
        encoded = base64.b64encode(b" " * shift + MARK.encode()).decode()
        encodings[f"base64 {shift}"] = encoded[4 if shift else 0 : -4].lower()
    return found + [name for name, encoded in encodings.items() if encoded in low]


def _record(number: int) -> dict[str, Any]:
    return {
        "timestamp": START_MS / 1000 + number,
        "session_id": f"{word('session')}{number}",
        "user": word("user"),
        "tenant": word("tenant"),
        "request_id": f"{word('requestid')}{number}",
        "path": f"/v1/chat/completions?key={word('query')}",
        "url": f"https://gateway/{word('url')}",
        "request": {
            "model": "chat-model",
            "messages": [
                {"role": "system", "content": f"You are {word('system')}"},
                {"role": "user", "content": f"Tell me of {word('prompt')}", "name": word("name")},
            ],
            "max_tokens": 12,
            "temperature": 0.0,
            "user": word("bodyuser"),
            "metadata": {"tier": word("clientlabel"), word("clientkey"): "a"},
        },
        "response": {
            "id": f"{word('responseid')}{number}",
            "model": "chat-model",
            "system_fingerprint": word("fingerprint"),
            "choices": [
                {
                    "message": {"role": "assistant", "content": word("answer"), "reasoning": word("reasoning")},
                    "finish_reason": "stop",
                }
            ],
        },
        "metadata": {"tier": word("label"), word("metadatakey"): word("metadata")},
        "headers": {"Authorization": f"Bearer {word('authorization')}", word("headername"): word("headervalue")},
    }


def _tool(**function: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": word("tool"), "description": word("description"), **function}}]


def _format(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": word("schema"), "schema": schema}}


_SCHEMA: Final = {"type": "object", "properties": {word("property"): {"enum": [word("enum")]}}}
_CALL: Final = {
    "id": word("callid"),
    "type": "function",
    "function": {"name": word("called"), "arguments": json.dumps({word("argument"): word("value")})},
}
_CALLED: Final = [
    {"role": "user", "content": word("asked")},
    {"role": "assistant", "content": None, "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": word("callid"), "content": word("result")},
]

# What another message has in its request, by the name of the place.
REQUESTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "tools": {"tools": _tool(parameters=_SCHEMA), "messages": _CALLED},
    "strict tools": {"tools": _tool(parameters=_SCHEMA, strict=True), "tool_choice": "required"},
    "odd tools": {"tools": [{"type": word("tooltype")}]},
    "chosen tool": {"tools": _tool(), "tool_choice": {"type": "function", "function": {"name": word("choice")}}},
    "parameter": {word("parameter"): 1},
    "parameter with spaces": {f"a b {word('spaced')}": 1},
    "nested parameter": {"extra_body": {word("nested"): word("nestedvalue")}},
    "format": {"response_format": _format(_SCHEMA)},
    "broken format": {"response_format": _format({"properties": {"a": {"pattern": f"({word('pattern')}"}}})},
    "other format": {"response_format": {"type": word("formattype")}},
    "regex": {"guided_regex": f"(a+)+${word('regex')}"},
    "choices": {"guided_choice": [word("guided")]},
    "template": {"chat_template": f"{{{{ raise_exception('{word('template')}') }}}}"},
    "stop": {"stop": [word("stop")]},
    "model": {"model": f"chat-{word('model')}"},
    "temperature": {"temperature": word("temperature")},
    "role": {"messages": [{"role": word("role"), "content": "a"}]},
    "part": {"messages": [{"role": "user", "content": [{"type": word("parttype"), "text": "a"}]}]},
    "image": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": word("image")}}]}]},
    "messages": {"messages": word("messages")},
    "logit bias": {"logit_bias": {word("bias"): 1}},
}
# What another message has beside its request.
FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "path": {"path": f"/v1/{word('path')}"},
    "broken path": {"path": f"http://[::1{word('brokenpath')}"},
    "time": {"timestamp": word("time")},
    "endpoint": {"endpoint": word("endpoint")},
    "status": {"status": word("status")},
    "class": {"metadata": {"prompt_class": word("class"), "language": word("language")}},
    "intervention": {"metadata": {"intervention": word("intervention"), "redacted": word("redacted")}},
    "finish": {"response": {"choices": [{"text": "a", "finish_reason": word("finish")}]}},
    "refusal": {"response": {"error": {"type": word("errortype"), "message": word("error"), "code": word("code")}}},
    "other model": {"response": {"model": word("answeredmodel"), "choices": [{"text": "a"}]}},
    "stream": {
        "response": f'data: {{"id": "{word("streamid")}", "{word("streamkey")}": 1}}\n\ndata: {word("stream")}\n'
    },
}
_CLOUD_EVENT: Final = {"specversion": "1.0", "id": word("eventid"), "source": word("source"), "type": word("eventtype")}
BROKEN: Final[tuple[bytes, ...]] = (
    f'{{"timestamp": "{word("cut")}'.encode(),
    f"no json at all {word('text')}".encode(),
    f'{{"request": "{word("requesttext")}"}}'.encode(),
    f'"{word("json")}"'.encode(),
    f'{{"{word("key")}": 1}}'.encode(),
    b"\xff\xfe" + word("binary").encode(),
    json.dumps({"call_type": word("calltype"), "messages": [], "id": word("litellm")}).encode(),
    json.dumps({"specversion": word("specversion"), "type": "x", "data": {}}).encode(),
    json.dumps({**_CLOUD_EVENT, "data": {word("data"): 1}}).encode(),
    json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{"name": word("span")}]}]}]}).encode(),
    json.dumps({"request": {"method": word("method")}, "ai": {"proxy": {"meta": word("kong")}}}).encode(),
)


def canaries() -> Iterator[Message]:
    """Ordinary requests, one message of each odd kind, and broken ones; headers and keys have words too."""
    headers = ((word("kafkaheader"), word("kafkavalue").encode()), ("traceparent", word("trace").encode()))

    def message(value: bytes, number: int) -> Message:
        return Message(value, f"{word('messagekey')}{number}".encode(), headers, 0, START_MS + 1_000 * number)

    changes: list[Callable[[dict[str, Any]], object]] = [lambda record: record] * REPEATS
    changes += [lambda record, more=more: record["request"].update(more) for more in REQUESTS.values()]
    changes += [lambda record, more=more: record.update(more) for more in FIELDS.values()]
    for number, change in enumerate(changes):
        record = _record(number)
        change(record)
        yield message(json.dumps(record).encode(), number)
    for number, value in enumerate(BROKEN, start=len(changes)):
        yield message(value, number)
