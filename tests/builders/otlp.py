"""OTLP traces and logs."""

from __future__ import annotations

import json
from typing import Any

EVENT = "gen_ai.client.inference.operation.details"
QUESTION = {"role": "user", "parts": [{"type": "text", "content": "Why is the sky blue?"}]}
GIVEN = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "model-a", "gen_ai.input.messages": [QUESTION]}


def any_value(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [any_value(each) for each in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": [{"key": key, "value": any_value(each)} for key, each in value.items()]}}
    return {"stringValue": value}


def attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": any_value(value)} for key, value in values.items()]


def event(**changes: Any) -> dict[str, Any]:
    """A log record; a change named after the end of an attribute's name, with `__` for a dot, changes that one."""
    given = {**GIVEN, **{f"gen_ai.{name.replace('__', '.')}": value for name, value in changes.items()}}
    return {"eventName": EVENT, "timeUnixNano": "1700000400000000000", "attributes": attributes(given)}


def logs(*records: Any, resource: Any = None) -> dict[str, Any]:
    return {"resourceLogs": [{"resource": resource or {}, "scopeLogs": [{"logRecords": list(records)}]}]}


def traces(*spans: Any) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}


def span(**given: Any) -> dict[str, Any]:
    return {"name": "chat model-a", "kind": 3, "startTimeUnixNano": "1700000400000000000", "attributes": attributes(
        {**GIVEN, "gen_ai.input.messages": json.dumps([QUESTION])}), **given}  # fmt: skip
