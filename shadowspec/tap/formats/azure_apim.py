"""Azure API Management's logs of calls of models, as rows of Log Analytics.

In: a row of `ApiManagementGatewayLlmLog` or of `ApiManagementGatewayLogs`, by its columns.
Out: a piece of a call, or the call in our envelope.

`ApiManagementGatewayLlmLog` writes a call as several rows with one `CorrelationId`, in the order of `SequenceNumber`:
one with the model and the counts of tokens, then the messages of the request and of the answer.  What is longer than
32 KB fills several rows.  It has neither sampling parameters nor tools.  `ApiManagementGatewayLogs` has whole bodies of
at most 8,192 bytes, where they are logged.

Written from Microsoft's reference of the tables and of the limits; nothing says where a long text is cut.  So texts of
rows are joined where only that gives JSON, and rows that are whole lists where no message can have been cut between
them.  All else is `truncated`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shadowspec.errors import RecordError
from shadowspec.tap.documents import parse_document
from shadowspec.tap.formats.field_map import FieldMap, is_chat
from shadowspec.tap.formats.genai_attributes import lacks_tools
from shadowspec.tap.formats.opened import EventHalf
from shadowspec.tap.parameters import malformed_error
from shadowspec.tap.records import EPOCH, NO_SAMPLING, NOT_LOGGED, parse_time, usable_id

MAX_BODY_BYTES: Final = 8_192  # of a body in `ApiManagementGatewayLogs`; a longer one is cut
_SCOPE: Final = ("azure-apim",)
_ID, _NUMBER, _TIME = "CorrelationId", "SequenceNumber", "TimeGenerated"
_ASKED, _ANSWERED = "RequestMessages", "ResponseMessages"
_EMPTY: Final[tuple[Any, ...]] = (None, "", [], "[]", "null")
_BODIES: Final = ("RequestBody", "BackendRequestBody", "ResponseBody", "BackendResponseBody")
_GATEWAY_MARKS: Final = ("ResponseCode", "BackendResponseCode", *_BODIES)
_GATEWAY_FIELDS: Final = FieldMap(
    {
        "request": ("RequestBody", "BackendRequestBody"),
        "response": ("ResponseBody", "BackendResponseBody"),
        "time": (_TIME,),
        "status": ("ResponseCode",),
        "id": (_ID,),
        "path": ("Url", "BackendUrl"),
        "tenant": ("ApimSubscriptionId",),
        "headers": ("RequestHeaders",),
    }
)


def is_row(document: Mapping[str, Any]) -> bool:
    """Whether an object is a row of one of the two tables."""
    return _ID in document and (is_piece(document) or any(name in document for name in _GATEWAY_MARKS))


def is_piece(document: Mapping[str, Any]) -> bool:
    """Whether a row is one of several of a call."""
    return _ID in document and _NUMBER in document


def piece(document: Mapping[str, Any], size: int) -> EventHalf:
    """A row of `ApiManagementGatewayLlmLog`.

    Raises:
        RecordError: malformed; it has no usable id, number or time.
    """
    if (join_id := usable_id(document[_ID])) is None:
        raise malformed_error(f"invalid:{_ID}")
    number = usable_id(document[_NUMBER])
    if number is None or not (number.isascii() and number.isdigit() and len(number) < 7):
        raise malformed_error(f"invalid:{_NUMBER}")
    time = EPOCH if document.get(_TIME) is None else parse_time(document[_TIME])
    if time is None:
        raise malformed_error(f"invalid:{_TIME}")
    kind = next((name for name in (_ASKED, _ANSWERED) if document.get(name) not in _EMPTY), "")
    return EventHalf(
        join_id, _SCOPE, kind != _ANSWERED, document, time, size=size, part=(int(number), kind), assemble=assemble
    )


def assemble(rows: Mapping[tuple[int, str], Mapping[str, Any]]) -> dict[str, Any]:
    """The call that its rows describe, by number and kind, as our envelope."""
    ordered = [rows[part] for part in sorted(rows)]
    numbers = {number for number, _ in rows}
    is_whole = numbers == set(range(min(numbers), max(numbers) + 1))
    asked = [row[_ASKED] for row in ordered if row.get(_ASKED) not in _EMPTY]
    messages = _joined(asked) if is_whole else None
    model, served = (_first(ordered, name) for name in ("DeploymentName", "ModelName"))
    return {
        "request": {"model": model or served, "messages": messages or []},
        "response": _answer(ordered, served) if is_whole else None,
        "metadata": {
            "no_payload": not asked,
            "truncated": bool(asked) and messages is None,
            "no_tool_definitions": lacks_tools(None, messages),
            NO_SAMPLING: True,
            NOT_LOGGED: "tools",
        },
    }


def _first(rows: Sequence[Mapping[str, Any]], name: str) -> Any:
    return next((row[name] for row in rows if row.get(name) not in (None, "")), None)


def _joined(values: Sequence[Any]) -> list[dict[str, Any]] | None:
    """The messages in the values of some rows; None: something of them is missing, or may be."""
    lists = [_read(value) for value in values]
    messages: list[dict[str, Any]] = []
    for part in lists:
        if not is_chat(part):
            text = _read("".join(value for value in values if isinstance(value, str)))
            return text if is_chat(text) else None
        if messages and messages[-1]["role"] == part[0]["role"]:
            return None  # two messages, or the halves of one
        messages += part
    return messages


def _read(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return parse_document(value)
    except RecordError:
        return None


def _answer(rows: Sequence[Mapping[str, Any]], model: Any) -> dict[str, Any] | None:
    values = [row[_ANSWERED] for row in rows if row.get(_ANSWERED) not in _EMPTY]
    messages = _joined(values)
    if not messages:
        return None
    return {
        "model": model,
        "choices": [{"index": index, "message": message} for index, message in enumerate(messages)],
        "usage": {
            "prompt_tokens": _first(rows, "PromptTokens"),
            "completion_tokens": _first(rows, "CompletionTokens") or None,
        },
    }


def gateway_envelope(document: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `ApiManagementGatewayLogs` as our envelope.

    Raises:
        RecordError: malformed; a body is no JSON, and is shorter than the limit at which it would be cut.
    """
    cut = [name for name in _BODIES if _is_cut(document.get(name))]
    whole = {name: value for name, value in document.items() if name not in cut}
    if isinstance(document.get("RequestHeaders"), str):
        whole["RequestHeaders"] = _read(document["RequestHeaders"])
    envelope = _GATEWAY_FIELDS.envelope(whole)
    is_request_cut = bool(cut) and not envelope["request"]
    envelope["metadata"]["truncated"] = is_request_cut
    return envelope


def _is_cut(body: Any) -> bool:
    return (
        isinstance(body, str) and len(body.encode("utf-8", "surrogatepass")) >= MAX_BODY_BYTES and _read(body) is None
    )
