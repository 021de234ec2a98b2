"""An envelope with bodies as they went over the wire: `request_body` and `response_body`, JSON in a string.

Proxies write them so, because they copy bodies without reading them.  A streamed answer may be the stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shadowspec.errors import RecordError
from shadowspec.tap.documents import assemble_answer, parse_document
from shadowspec.tap.parameters import malformed_error
from shadowspec.tap.records import is_failure

REQUEST, RESPONSE = "request_body", "response_body"
_NOTHING: Final = (None, "", "-")  # how nginx and Envoy write that there was no body


def is_envelope(document: Mapping[str, Any]) -> bool:
    """Whether an object is such an envelope."""
    return REQUEST in document and "request" not in document


def envelope(document: Mapping[str, Any]) -> dict[str, Any]:
    """The envelope with bodies that are objects.

    Raises:
        RecordError: malformed; a body is no JSON object.
    """
    rest = {name: value for name, value in document.items() if name not in (REQUEST, RESPONSE)}
    status, sent = document.get("status"), document[REQUEST]
    request = {} if sent in _NOTHING else _object(sent, REQUEST)
    metadata = document.get("metadata")
    if not request and (metadata is None or isinstance(metadata, dict)):
        rest["metadata"] = {**(metadata or {}), "no_payload": True}
    try:
        response = _answer(document.get(RESPONSE))
    except RecordError:
        if not isinstance(status, (int, str)) or not is_failure(status):
            raise
        response = None  # a proxy's own words
    return {**rest, "request": request, "response": response}


def _answer(body: Any) -> dict[str, Any] | None:
    if body in _NOTHING:
        return None
    streamed = assemble_answer(body) if isinstance(body, str) else None
    return streamed if streamed is not None else _object(body, RESPONSE)


def _object(body: Any, name: str) -> dict[str, Any]:
    if isinstance(body, str):
        try:
            body = parse_document(body)
        except RecordError:
            body = None
    if not isinstance(body, dict):
        raise malformed_error(f"invalid:{name}")
    return body
