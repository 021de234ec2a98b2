"""JSON as it comes off a topic: one document, or several in one message.

Nothing that bytes hold raises anything but `RecordError`, and no message of an error quotes them.  Numbers
that are none (NaN, Infinity), text that is no Unicode (half of a surrogate pair), bytes that are not UTF-8
and nesting beyond 200 levels are refused; of a key that stands twice the last value counts; a byte order
mark is skipped.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pydantic_core import from_json

from shadowspec.errors import RecordError
from shadowspec.tap.parameters import malformed

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
MAX_RECORDS_PER_MESSAGE = 10_000  # a hundred times a logger's batch; bounds what 10 MB of "{}" turn into


def parse_document(value: bytes | str) -> Any:
    """The one JSON document that the bytes hold.

    Raises:
        RecordError: malformed; "not_json" or "invalid_unicode".
    """
    if isinstance(value, bytes) and value.startswith(BYTE_ORDER_MARK):
        value = value[len(BYTE_ORDER_MARK) :]
    try:
        return from_json(value, allow_inf_nan=False)
    except ValueError:
        raise malformed(_why_refused(value)) from None  # its message would quote the record


def parse_object(value: bytes | str) -> dict[str, Any]:
    """The one JSON object that the bytes hold.

    Raises:
        RecordError: malformed; as `parse_document`, or "not_an_object".
    """
    document = parse_document(value)
    if not isinstance(document, dict):
        raise malformed("not_an_object")
    return document


def split_message(value: bytes) -> list[Any]:
    """The documents of one message: a JSON array's items, the lines of ndjson, else the one document.

    A line that cannot be read is a `RecordError` in its place and spoils no other.  A message whose first
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
        raise malformed("empty")
    if len(document) > MAX_RECORDS_PER_MESSAGE:
        raise malformed("too_many_records")
    return document


def _split_lines(value: bytes, error: RecordError) -> list[Any]:
    stripped = value.strip()
    if b"\n" not in stripped:
        raise error
    first = _parse_line(stripped.split(b"\n", 1)[0])
    if isinstance(first, RecordError):
        raise error
    if stripped.count(b"\n") >= MAX_RECORDS_PER_MESSAGE:
        raise malformed("too_many_records")
    return [_parse_line(line) for line in stripped.split(b"\n") if line.strip()]


def _parse_line(line: bytes) -> Any:
    try:
        return parse_document(line)
    except RecordError as error:
        return error.kept()


def _why_refused(value: bytes | str) -> str:
    """Reason code for what the fast parser refused, by the standard library's, which reads more."""
    try:
        document = json.loads(value.decode("utf-8") if isinstance(value, bytes) else value)
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "invalid_unicode"
    except (ValueError, RecursionError):
        return "not_json"
    return "not_json"  # it holds NaN or Infinity, or is nested too deeply
