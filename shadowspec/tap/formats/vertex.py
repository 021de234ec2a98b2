"""Vertex AI's table of requests and responses in BigQuery.

In: a row, by its columns; JSON in a column is an object, or its text.
Out: our envelope.

`full_request` may be a body of OpenAI's or Anthropic's API, which stays as it is, or one of Gemini's (`gemini`).  Rows
of endpoints with models of one's own have the body in `request_payload`.  The time of a row is that of logging.

Written from Google's page on request-response logging.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shadowspec.tap.documents import assemble_answer
from shadowspec.tap.formats import gemini
from shadowspec.tap.formats.field_map import NOT_LOGGED as EMPTY
from shadowspec.tap.formats.genai_attributes import parsed_attribute
from shadowspec.tap.formats.opened import object_in
from shadowspec.tap.parameters import unsupported_error

_REQUESTS: Final = ("full_request", "request_payload")
_RESPONSES: Final = ("full_response", "response_payload")
_MARKS: Final = ("api_method", "deployed_model_id", "model_version", "request_id", "endpoint")
_FORMAT: Final = "@requestFormat"  # tells a server of one's own which API the body is of


def is_row(document: Mapping[str, Any]) -> bool:
    """Whether an object is a row of the table."""
    holds_request = any(name in document for name in _REQUESTS)
    return "logging_time" in document and holds_request and any(name in document for name in _MARKS)


def envelope(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row as our envelope.

    Raises:
        RecordError: malformed, or unsupported: Gemini's body says something that no chat can say.
    """
    sent, response = _request(row), _response(row)
    is_gemini = "contents" in sent
    request = gemini.chat_body(sent) if is_gemini else {name: sent[name] for name in sent if name != _FORMAT}
    if is_gemini or not request.get("model"):
        names = (row.get("model"), sent.get("model"), row.get("deployed_model_id"))
        request["model"] = next((model for name in names if (model := _last_part(name))), None)
    return {
        "request": request if sent else {},
        "response": gemini.answer(response) if "candidates" in response else response or None,
        "timestamp": row["logging_time"],
        "request_id": row.get("request_id"),
        "endpoint": row.get("endpoint") or None,
        "metadata": {"no_payload": not sent},
    }


def _request(row: Mapping[str, Any]) -> dict[str, Any]:
    for name in _REQUESTS:
        payloads = _payloads(row.get(name))
        if len(payloads) > 1:
            raise unsupported_error("several_prompts")
        for each in payloads:
            return object_in(parsed_attribute(each, name) if isinstance(each, str) else each)
    return {}


def _response(row: Mapping[str, Any]) -> dict[str, Any]:
    for name in _RESPONSES:
        if payloads := _payloads(row.get(name)):
            read = [_read_response(each, name) for each in payloads]
            return read[0] if len(read) == 1 else gemini.joined_chunks(read)
    return {}


def _payloads(value: Any) -> list[Any]:
    given = value if isinstance(value, list) else [value]
    return [each for each in given if each not in EMPTY]


def _read_response(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, str):
        return object_in(value)
    answer = assemble_answer(value)
    return object_in(parsed_attribute(value, name)) if answer is None else answer


def _last_part(name: Any) -> str | None:
    """A model's name, without the path to it."""
    return name.rsplit("/", 1)[-1] if isinstance(name, str) and name else None
