"""What clients may write into a mirror: records that once stopped, steered or filled a worker, among healthy ones.

Each kind stands for public reports; none of its sessions is a healthy one's.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tests.kafka_topics import Message

SHARE: Final = 0.01  # of every kind, of the healthy messages
MODELS: Final = ("chat-model", "code-model")


def _record(number: int, timestamp_ms: int, request: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    model = MODELS[number // len(KINDS) % len(MODELS)]
    return {
        "timestamp": timestamp_ms / 1000,
        "session_id": f"poison-{number}",
        "request_id": f"poison-request-{number}",
        "path": "/v1/completions",
        "request": {
            "model": model,
            "prompt": f"poison {number}",
            "max_tokens": 5,
            **request,
        },
        **fields,
    }


def _schema(key: str, levels: int) -> dict[str, Any]:
    """A schema whose check takes 2 to the power of its levels."""
    steps = {f"d{place}": {"allOf": [{key: f"#/$defs/d{place + 1}"}] * 2} for place in range(levels)}
    return {"$defs": {**steps, f"d{levels}": {"type": "object"}}, key: "#/$defs/d0"}


def _asked(key: str) -> dict[str, Any]:
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": _schema(key, 40)}}
    return {"response_format": schema, "metadata": {"response_format_enforced": False}}


STREAM: Final = 'id: 7\r\n\ufeffdata: {"id": "c",\rdata: "choices": []}\u2028\n\n: nothing\n\ndata: [DONE]\n\n'
FLAGS: Final = dict.fromkeys(("cache_hit", "truncated", "redacted", "is_silent_experiment", "no_payload"), "true")
DEEP: Final = 100_000

# By kind: the bytes of a message, from a number that no other has and the time of its neighbours.
KINDS: Final[Mapping[str, Callable[[int, int], Any]]] = {
    "dated 2099": lambda n, ms: _record(n, 4_070_908_800_000, {}),
    "dated 2099 in the body": lambda n, ms: _record(n, ms, {}, timestamp=None, response={"created": 4_070_908_800}),
    "no time at all": lambda n, ms: _record(n, ms, {}, timestamp="1e999"),
    "session -": lambda n, ms: _record(n, ms, {}, session_id="-"),
    "ids of null": lambda n, ms: _record(n, ms, {}, session_id="undefined", request_id="null", user="None"),
    "a healthy id": lambda n, ms: _record(n, ms, {}, request_id=f"request-{n // len(KINDS)}"),
    "ids of a small space": lambda n, ms: _record(n, ms, {}, request_id=None, response={"id": str(n % 3)}),
    "unknown parameter": lambda n, ms: _record(n, ms, {f"ssn-078-05-{n}": 1}),
    "own labels": lambda n, ms: _record(n, ms, {"metadata": {"tier": f"t{n}", "prompt_class": "sql", **FLAGS}}),
    "schema of references": lambda n, ms: _record(n, ms, _asked("$ref")),
    "schema of dynamic references": lambda n, ms: _record(n, ms, _asked("$dynamicRef")),
    "negative seed": lambda n, ms: _record(n, ms, {"seed": -1, "temperature": 0.8}),
    "null contents": lambda n, ms: _record(
        n, ms, {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": None}}]}]}
    ),
    "odd roles and parts": lambda n, ms: _record(
        n, ms, {"messages": [{"role": "developer", "content": ["a", {"type": "text", "text": None}]}]}
    ),
    "odd stream": lambda n, ms: _record(n, ms, {}, response=STREAM),
    "half a character": lambda n, ms: _value(_record(n, ms, {})).replace(b"poison ", b"poison \\ud800 "),
    "a record of nothing, often": lambda n, ms: b"[" + b",".join([b"{}"] * 2_000) + b"]",
    "lines of nothing": lambda n, ms: b"{}\n" * 2_000,
    "no end of levels": lambda n, ms: b'{"request":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "long numbers": lambda n, ms: b'{"timestamp": ' + b"9" * 10_000 + b', "request": {"prompt": 1e999}}',
    "a long text": lambda n, ms: _record(n, ms, {"prompt": "the quick brown fox " * 20_000}),
    "a long broken text": lambda n, ms: _value(_record(n, ms, {"prompt": "fox " * 100_000}))[:-1],
}
WITHOUT_SESSION: Final = ("session -", "ids of null")


def _value(made: Any) -> bytes:
    return made if isinstance(made, bytes) else json.dumps(made).encode()


def poisoned(healthy: Sequence[Message], seed: int) -> tuple[list[Message], frozenset[int]]:
    """The messages with poison of every kind among them, and the places of those that are poison."""
    draw = random.Random(f"poison {seed}")
    mixed: list[Message] = []
    places: set[int] = set()
    for number, message in enumerate(healthy):
        assert message.timestamp_ms is not None
        for place, (kind, make) in enumerate(KINDS.items()):
            if draw.random() < SHARE or number == len(healthy) // 2:  # every kind at least once
                # Records without a session share units, which are known where their partition is read.
                key = b"no session" if kind in WITHOUT_SESSION else f"{kind} {number}".encode()
                places.add(len(mixed))
                # Kinds beside the same message must not share ids: they may lie in different partitions, and one id
                # with one body is a duplicate where one worker reads both.
                value = _value(make(number * len(KINDS) + place, message.timestamp_ms))
                mixed.append(Message(value, key, timestamp_ms=message.timestamp_ms))
        mixed.append(message)
    return mixed, frozenset(places)
