"""Where objects of a foreign layout hold the parts of a record: a table of paths, given by us or by an operator.

A path is a name, a dotted path or a JSON pointer; a name that an object has is never taken apart.  JSON in a text on
the way is read.  A part may also be a parameter of the request (`temperature=temp`), or `parameters`, an object of
these.

A request that is only a list of messages lacks the sampling parameters that the model got, unless paths name some.  Its
record says so (`no_sampling`), because measuring it at the server's defaults may measure another request.  A parameter
beside it that no path names is a refusal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from shadowspec.errors import RecordError, UsageError
from shadowspec.tap.documents import assemble_answer, parse_document
from shadowspec.tap.parameters import PASSED, READ, malformed_error, unsupported_error
from shadowspec.tap.records import is_failure

# The parts of a record by the name that an operator gives them, and as our envelope names them.
PARTS: Final[Mapping[str, str]] = {
    "request": "request", "response": "response", "time": "timestamp", "session": "session_id", "user": "user",
    "tenant": "tenant", "id": "request_id", "endpoint": "endpoint", "path": "path", "status": "status",
    "cache_hit": "cache_hit", "headers": "headers", "parameters": "parameters",
}  # fmt: skip
BODY_FIELDS: Final = frozenset({"messages", "prompt", "prompt_token_ids", "input"})
NOT_LOGGED: Final[tuple[Any, ...]] = (None, "", "-", {}, [])  # how writers write that there was none
MAX_PATHS: Final = 40  # of a map
SAMPLING: Final = READ - {"model", "messages", "prompt", "prompt_token_ids"}
_BODIES: Final = ("request", "response", "parameters")
_ANSWER_FIELDS: Final = ("choices", "output", "content", "error", "usage", "model")  # one of them is in every answer


class FieldMap(Struct, frozen=True):
    """For each part the paths at which it may be, in their order: the first that holds anything counts.

    `takes_bodies`: an object at the request's path is the body that the model got, sampling parameters included.
    """

    places: Mapping[str, tuple[str, ...]]
    takes_bodies: bool = True

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> FieldMap:
        """The map of an operator: a path for each part.

        Raises:
            UsageError: a part is unknown, a path is empty, or there is neither request nor prompt.
        """
        for name, path in given.items():
            if name not in PARTS and name not in PASSED:
                known = ", ".join((*PARTS, "model", "temperature"))
                raise UsageError(f"map: {name!r} is not a part of a record; give {known} or another request parameter")
            if not path.strip():
                raise UsageError(f"map: {name} has no path; give a column, a dotted path or a JSON pointer")
        if not {"request", *BODY_FIELDS} & given.keys():
            raise UsageError("map: no path names the request; give request=PATH, or messages=PATH")
        if len(given) > MAX_PATHS:
            raise UsageError(f"map: has more than {MAX_PATHS} parts")
        return cls({name: (path.strip(),) for name, path in given.items()})

    @classmethod
    def parse_option(cls, text: str) -> FieldMap:
        """The map in `request=body,time=ts`.

        Raises:
            UsageError: as `parse`; or a part has no path.
        """
        pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
        if bad := next((name for name, equals, _ in pairs if not equals), None):
            raise UsageError(
                f"map: {bad.strip()!r} has no path; write PART=PATH,PART=PATH, such as request=body,time=ts"
            )
        return cls.parse({name.strip(): path for name, _, path in pairs})

    def __str__(self) -> str:
        return ",".join(f"{name}={paths[0]}" for name, paths in self.places.items())

    def envelope(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """The object as our envelope.

        Raises:
            RecordError: malformed: what a path names is no request, or no answer.
        """
        found = {name: value_at(document, paths) for name, paths in self.places.items()}
        body = _body(found["request"], "request") if found.get("request") not in NOT_LOGGED else {}
        request: dict[str, Any] = {"messages": body} if isinstance(body, list) else dict(body)
        is_sampling_known = self.takes_bodies and isinstance(body, dict) and bool(body)
        if found.get("parameters") not in NOT_LOGGED:
            given = _body(found["parameters"], "parameters")
            if not isinstance(given, dict):
                raise malformed_error("invalid:parameters")
            request |= {name: value for name, text in given.items() if (value := _parameter(text)) is not None}
            is_sampling_known = is_sampling_known or bool(given)
        for name, value in found.items():
            if name not in PARTS and value is not None:
                request[name] = value if name in BODY_FIELDS else _parameter(value)
                is_sampling_known = is_sampling_known or name not in {*BODY_FIELDS, "model", "tools"}
        if self.takes_bodies and not (isinstance(body, dict) and body):
            _refuse_unmapped(document, self.places)
        for name in BODY_FIELDS & request.keys():
            request[name] = parsed(request[name])
        metadata = {}
        if BODY_FIELDS.isdisjoint(request):
            metadata["no_payload"] = True
        elif not is_sampling_known:
            metadata["no_sampling"] = True
        rest = {PARTS[name]: value for name, value in found.items() if name in PARTS and name not in _BODIES}
        status = rest.get("status")
        return {
            **{name: value for name, value in rest.items() if value is not None},
            "request": request,
            "response": answer_of(found.get("response"), request, is_failed=_is_failed(status)),
            "metadata": metadata,
        }


def value_at(document: Mapping[str, Any], paths: Iterable[str]) -> Any:
    """What is at the first of the paths that holds anything; None: nothing is at any."""
    for path in paths:
        if (value := _at(document, path)) not in NOT_LOGGED:
            return value
    return None


def _at(document: Any, path: str) -> Any:
    if path in document:
        return document[path]
    if path.startswith("/"):
        names = [name.replace("~1", "/").replace("~0", "~") for name in path[1:].split("/")]
    else:
        names = path.split(".")
    node = document
    for name in names:
        node = parsed(node)
        if isinstance(node, dict):
            node = node.get(name)
        elif isinstance(node, list) and name.isascii() and name.isdigit() and int(name[:9]) < len(node):
            node = node[int(name[:9])]
        else:
            return None
    return node


def _refuse_unmapped(document: Mapping[str, Any], places: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse an object with a parameter beside its messages that no path names: it would be lost in silence."""
    mapped = {path for paths in places.values() for path in paths}
    for name in document.keys() & SAMPLING - mapped:
        if document[name] is not None:
            raise unsupported_error(f"unmapped:{name}")


def parsed(value: Any) -> Any:
    """An object or a list that is written as text; any other value as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return parse_document(value)
        except RecordError:
            return value
    return value


def _body(value: Any, name: str) -> Any:
    """An object, or a list of objects."""
    body = parsed(value)
    if isinstance(body, dict) or (isinstance(body, list) and all(isinstance(part, dict) for part in body)):
        return body
    raise malformed_error(f"invalid:{name}")


def _parameter(value: Any) -> Any:
    """A parameter's value: some logs write numbers as texts, and no limit as infinity."""
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return parsed(value)
        if number in (float("inf"), float("-inf")) or number != number:
            return None
        return int(number) if number.is_integer() and "." not in value else number
    return value


def _is_failed(status: Any) -> bool:
    return isinstance(status, int | str) and not isinstance(status, bool) and is_failure(status)


def answer_of(value: Any, request: Mapping[str, Any], *, is_failed: bool) -> dict[str, Any] | None:
    """The answer: a body, the stream of one, a message, or a plain text.

    Raises:
        RecordError: malformed; it is none of them, and the call did not fail.
    """
    if value in NOT_LOGGED or is_failed:
        return None
    body = assemble_answer(value) if isinstance(value, str) else None
    body = parsed(value) if body is None else body
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    if isinstance(body, dict) and "role" not in body and any(name in body for name in _ANSWER_FIELDS):
        return body
    if isinstance(body, dict) and "role" in body and body.get("type") != "message":
        return {"choices": [{"index": 0, "message": body}]}
    if isinstance(body, str):
        answer = {"text": body} if "prompt" in request else {"message": {"role": "assistant", "content": body}}
        return {"choices": [{"index": 0, **answer}]}
    if isinstance(body, dict) and body.get("type") == "message":
        return body
    raise malformed_error("invalid:response")


def is_chat(messages: Any) -> bool:
    """Whether a value is a list of messages."""
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(isinstance(message, dict) and isinstance(message.get("role"), str) for message in messages)
    )
