"""The codec: values as JSON and back, without loss.  No other module writes or reads a document field by field.

In: dataclasses, `msgspec.Struct`s, enumerations, times, mappings, sequences and sets, with annotated fields.
Out: JSON text (`encode`, `decode`), or its tree of builtins (`to_builtins`, `from_builtins`), as a JSON column or a
`--json` document takes it.  `to_document` and `from_document` do the same with a stored document's version.
`pack` and `unpack` write and read the value with its version as MessagePack, for values that hold large arrays.

Invariant: `decode(encode(value), type(value)) == value`, for values whose floats are finite: JSON has no infinity and
no NaN, so a field that may be undefined is None.  Fields keep their names and their order.  A time is RFC 3339 text,
in UTC `2026-01-31T12:00:00Z`; a set is a list in any order; an array is nested lists, and is read as the dtype that
its annotation names.  Keys of mappings are text, integers or members of a `StrEnum`; a mapping by tuples has no JSON
form.  Unknown fields of an object are ignored, absent ones take the default of the field.  Packed, a float is any, and
an array is its shape and its little-endian doubles; one that stands in several fields is stored once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar, get_args, overload

import msgspec

from shadowspec.errors import InputError

Value = TypeVar("Value")

VERSION: Final = "version"  # the field of a stored document that holds its version
REMEDY: Final = "another version of ShadowSpec wrote it, or it was changed: read it with the version that wrote it"

_CONTENT = re.compile(r"['\"].*['\"]")  # a message of msgspec quotes the value that is no member of an enumeration


def encode(value: Any) -> bytes:
    """The value as JSON text, in UTF-8."""
    return msgspec.json.encode(value, enc_hook=_plain)


def to_builtins(value: Any) -> Any:
    """The value as the tree that JSON holds: dict (keys are text), list, str, int, float, bool and None."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_plain)


@overload
def decode(text: str | bytes, kind: type[Value], what: str = ..., remedy: str = ...) -> Value: ...
@overload
def decode(text: str | bytes, kind: Any, what: str = ..., remedy: str = ...) -> Any: ...
def decode(text: str | bytes, kind: Any, what: str = "a document", remedy: str = REMEDY) -> Any:
    """The value of this type (a class, or any annotation) that JSON text holds; `what` names the text in an error.

    Raises:
        InputError: it is no JSON, or no such value; the message has the place within it, and none of its content.
    """
    try:
        return msgspec.json.decode(text, type=kind, dec_hook=_array)
    except (msgspec.MsgspecError, UnicodeError) as exc:
        raise _unreadable(exc, what, remedy) from None


@overload
def from_builtins(tree: Any, kind: type[Value], what: str = ..., remedy: str = ...) -> Value: ...
@overload
def from_builtins(tree: Any, kind: Any, what: str = ..., remedy: str = ...) -> Any: ...
def from_builtins(tree: Any, kind: Any, what: str = "a document", remedy: str = REMEDY) -> Any:
    """The same of a tree, as `to_builtins` makes it and a JSON column holds it.

    Raises:
        InputError: it is no such value.
    """
    try:
        return msgspec.convert(tree, kind, str_keys=True, dec_hook=_array)
    except msgspec.ValidationError as exc:
        raise _unreadable(exc, what, remedy) from None


def to_document(value: Any, version: int) -> dict[str, Any]:
    """A stored document: the value's fields, after the version of their meaning."""
    return {VERSION: version, **to_builtins(value)}


def from_document(
    document: Mapping[str, Any], kind: type[Value], version: int, what: str = "a document", remedy: str = REMEDY
) -> Value:
    """The value that `to_document` wrote.

    Raises:
        InputError: the document is of another version or of none, or holds no such value.
    """
    require_version(document, version, what, remedy)
    return from_builtins(document, kind, what, remedy)


def require_version(document: Mapping[str, Any], version: int, what: str = "a document", remedy: str = REMEDY) -> None:
    """Raise InputError unless the document is of this version."""
    if (stored := document.get(VERSION)) != version:
        named = f"version {stored}" if isinstance(stored, int) else "no known version"
        raise InputError(f"{what} is of {named}, and this version of ShadowSpec reads version {version}: {remedy}")


def pack(value: Any, version: int) -> bytes:
    """A stored value as bytes: the version of its meaning, then the value; its arrays are of doubles."""
    places: dict[int, int] = {}  # of the arrays so far, by identity

    def plain(part: Any) -> Any:
        if not getattr(part, "ndim", 0):
            return _plain(part)
        if id(part) in places:
            return places[id(part)]
        places[id(part)] = len(places)
        return [*part.shape, part.astype("<f8").tobytes()]

    return msgspec.msgpack.encode((version, value), enc_hook=plain)


def unpack(
    content: bytes, kind: type[Value], version: int, what: str = "a stored value", remedy: str = REMEDY
) -> Value:
    """The value that `pack` wrote; its arrays are views of `content`, which cannot be written.

    Raises:
        InputError: the content is of another version or of none, or holds no such value.
    """
    import numpy as np  # only readers of arrays need it

    arrays: list[Any] = []

    def array(_: Any, tree: Any) -> Any:
        if isinstance(tree, int):
            if not 0 <= tree < len(arrays):
                raise ValueError("it refers to an array that it does not hold")
            return arrays[tree]
        *shape, doubles = tree
        arrays.append(np.frombuffer(doubles, "<f8").reshape(shape))
        return arrays[-1]

    stored, packed = _packed_parts(content)
    require_version({VERSION: stored}, version, what, remedy)
    try:
        return msgspec.msgpack.decode(packed, type=kind, dec_hook=array)
    except msgspec.MsgspecError as exc:
        raise _unreadable(exc, what, remedy) from None


def packed_version(content: bytes) -> int | None:
    """The version of a packed value; None where it has none."""
    return _packed_parts(content)[0]


def _packed_parts(content: bytes) -> tuple[int | None, msgspec.Raw]:
    try:
        return msgspec.msgpack.decode(content, type=tuple[int, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeError):
        return None, msgspec.Raw()


def _plain(value: Any) -> Any:
    """A NumPy array or number as lists and numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} has no JSON form")


def _array(kind: Any, tree: Any) -> Any:
    """The array of nested lists; `kind` is `NDArray[dtype]`."""
    import numpy as np  # only readers of arrays need it

    _, dtype = get_args(kind)
    return np.array(tree, dtype=get_args(dtype)[0])


def _unreadable(exc: Exception, what: str, remedy: str) -> InputError:
    why = "it is not UTF-8" if isinstance(exc, UnicodeError) else _CONTENT.sub("…", str(exc))
    return InputError(f"{what} cannot be read: {why}; {remedy}")
