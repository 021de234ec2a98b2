"""Messages in each format, and what tests say of what they are opened into."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from cloudevents.core.bindings import kafka as core_binding
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent as CoreEvent
from cloudevents.v1.http import CloudEvent
from cloudevents.v1.kafka import to_binary, to_structured

from shadowspec.errors import RecordError
from shadowspec.tap.formats import EventHalf, MessageFormat, Opened, open_message
from shadowspec.tap.records import MirroredRecord
from shadowspec.tap.sources import RawRecord
from shadowspec.types import RecordKey
from tests.tap.mirror import START, chat

TIME = datetime.fromtimestamp(START, UTC)
REQUEST: dict[str, Any] = chat()["request"]
ANSWER: dict[str, Any] = chat()["response"]
Headers = tuple[tuple[str, bytes | None], ...]
KSERVE_TYPE = "org.kubeflow.serving.inference."
KSERVE_SOURCE = "http://localhost:8080/"


def message(
    value: Any, headers: Headers = (), *, offset: int = 1, partition: int = 0, timestamp_ms: int = 0
) -> RawRecord:
    """A message of JSON, or of the bytes as they are."""
    content = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    return RawRecord(RecordKey("0" * 64, partition, offset, timestamp_ms), content, headers=headers)


def opened(value: Any, headers: Headers = (), format: MessageFormat = MessageFormat.AUTO) -> Opened:
    """The one record of a message."""
    (only,) = open_message(message(value, headers), format)
    return only


def record_of(value: Any, headers: Headers = (), format: MessageFormat = MessageFormat.AUTO) -> MirroredRecord:
    found = opened(value, headers, format)
    assert found.record is not None, found.error
    return found.record


def half_of(value: Any, headers: Headers = (), format: MessageFormat = MessageFormat.AUTO) -> EventHalf:
    found = opened(value, headers, format)
    assert found.half is not None, found.error
    return found.half


def refusal(value: Any, headers: Headers = (), format: MessageFormat = MessageFormat.AUTO) -> tuple[str, str]:
    """Counter and reason of a message that holds no record."""
    found = opened(value, headers, format)
    assert found.error is not None, found
    return found.error.counter, found.error.reason


def refused_later(record: MirroredRecord) -> tuple[str, str]:
    """Counter and reason of a record that says of itself that it was not served in the ordinary way."""
    try:
        record.check_served()
    except RecordError as error:
        return error.counter, error.reason
    raise AssertionError("it was not refused")


def kong_entry(**changes: Any) -> dict[str, Any]:
    """An entry of kafka-log with ai-proxy's payloads, as Kong 3.10 and later write it; None removes a key."""
    entry = {
        "started_at": START * 1_000,
        "client_ip": "192.168.65.1",
        "latencies": {"kong": 1, "proxy": 171, "request": 173, "receive": 1},
        "tries": [{"ip": "10.0.0.1", "port": 8000, "balancer_latency": 0}],
        "route": {"name": "chat-route", "id": "0f1a4101-3327-4274-b1e4-484a4ab0c030"},
        "service": {"name": "llm-service", "id": "fb4eecf8-dec2-40ef-b779-16de7e2384c7"},
        "consumer": {"id": "c-1", "username": "team-blue"},
        "request": {
            "id": "2f6946328ffc4946b8c9120704a4a155",
            "uri": "/chat?x=1",
            "url": "http://localhost:8000/chat",
            "method": "POST",
            "size": 323,
            "headers": {"x-session-id": "s-9", "x-user-id": "u-9", "authorization": "REDACTED"},
        },
        "response": {"status": 200, "size": 512, "headers": {"content-type": "application/json"}},
        "upstream_uri": "/v1/chat/completions",
        "upstream_status": "200",
        "source": "upstream",
        "ai": {
            "proxy": {
                "meta": {
                    "provider_name": "openai",
                    "request_model": "model-a",
                    "response_model": "model-a",
                    "llm_latency": 170,
                    "plugin_id": "546c3856-24b3-469a-bd6c-f6083babd2cd",
                },
                "usage": {"prompt_tokens": 8, "completion_tokens": 3, "total_tokens": 11, "cost": 0},
                "payload": {"request": json.dumps(REQUEST), "response": json.dumps(ANSWER)},
            }
        },
    }
    for name, value in changes.items():
        if value is None:
            del entry[name]
        else:
            entry[name] = value
    return entry


def attributes(kind: str, **changes: Any) -> dict[str, Any]:
    """The attributes of one of KServe's events ("request" or "response")."""
    return {
        "type": KSERVE_TYPE + kind,
        "source": KSERVE_SOURCE,
        "id": "call-1",
        "time": TIME.isoformat(),
        "datacontenttype": "application/json",
        "inferenceservicename": "chat",
        "namespace": "models",
        "component": "predictor",
        "metadata": json.dumps({"X-Session-Id": ["s-1", "s-2"]}),
        **changes,
    }


def _sent(made: Any) -> tuple[bytes, Headers]:
    return made.value, tuple(made.headers.items())


def binary(kind: str, data: Any, **changes: Any) -> tuple[bytes, Headers]:
    """Value and headers that the SDK's first API makes of an event in the binary mode."""
    return _sent(to_binary(CloudEvent(attributes(kind, **changes), data)))


def structured(kind: str, data: Any, **changes: Any) -> tuple[bytes, Headers]:
    """Value and headers that the SDK's first API makes of an event in the structured mode."""
    return _sent(to_structured(CloudEvent(attributes(kind, **changes), data)))


def core_event(kind: str, data: Any, **changes: Any) -> CoreEvent:
    """An event of the SDK's second API."""
    return CoreEvent({"specversion": "1.0", **attributes(kind, **changes), "time": TIME}, data)


def core_binary(kind: str, data: Any, **changes: Any) -> tuple[bytes, Headers]:
    return _sent(core_binding.to_binary(core_event(kind, data, **changes), JSONFormat()))


def core_structured(kind: str, data: Any, **changes: Any) -> tuple[bytes, Headers]:
    return _sent(core_binding.to_structured(core_event(kind, data, **changes), JSONFormat()))
