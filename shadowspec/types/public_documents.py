"""The frame of every document that a command prints with `--json`.

A document is a value: its fields are the keys of the JSON text, by `shadowspec.types.codec`, and its JSON Schema is
made from it.  It differs from the values inside ShadowSpec where readers rely on other names (`slice` by labels, `load`
by its concurrency), and it leaves out what only ShadowSpec needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, Final, Literal, Self, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from shadowspec.types.requests import parse_slice_key

Labels = Mapping[str, str]  # of a slice; empty: the whole endpoint
Value = TypeVar("Value", bound="PublicValue")

_ABSENT: Final = object()
_OTHERWISE: Final = {"slice": ("slice", "slice_labels", "slice_key"), "load": ("load", "concurrency")}


class PublicValue(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a document."""

    @classmethod
    def of(cls, value: Any) -> Self:
        """The part that shows a value."""
        return public(cls, value)


class PublicDocument(PublicValue, frozen=True, kw_only=True):
    """A document; a change of what its fields mean raises the version."""

    schema_version: Literal[1] = 1


class AtLoad(PublicValue, frozen=True, kw_only=True):
    """The load at which something holds."""

    concurrency: int

    @classmethod
    def of(cls, value: Any) -> Self:
        return cls(concurrency=value)


def public(kind: type[Value], *values: object, **given: Any) -> Value:
    """A part of a document: fields that are given, else those of the first value (but None) that has them.

    A text beside the type of a field (`Annotated`) is where values have it: a name, or names with dots between them,
    of which one that is None makes the field None.  `slice` is made from a value's labels or its slice key, `load` from
    its concurrency; where a field is of a part, or holds several, they are made by the part's `of`.
    """
    for name, paths, make in _fields(kind):
        known = (_read(value, path) for value in values if value is not None for path in paths)
        part = given[name] if name in given else next((part for part in known if part is not _ABSENT), _ABSENT)
        if part is not _ABSENT:
            given[name] = make(part)
    return kind(**given)


def shows(value: type[Any], *left_out: str) -> Callable[[type[Value]], type[Value]]:
    """Give a part the fields of a dataclass of ShadowSpec as well: all but those left out and those that it has itself.

    A slice is named by its labels, a load by its concurrency.
    """

    def complete(kind: type[Value]) -> type[Value]:
        own = {path.split(".")[0] for name, paths, _ in _fields(kind) for path in (name, *paths)}
        hints = get_type_hints(value, include_extras=True)
        parts = [_public_type(field.name, hints[field.name]) for field in fields(value) if field.name not in left_out]
        completed = msgspec.defstruct(
            kind.__name__,
            [part for part in parts if part[0] not in own],
            bases=(kind,),
            module=kind.__module__,
            namespace={"__doc__": kind.__doc__},
            frozen=True,
            kw_only=True,
        )
        return cast("type[Value]", completed)

    return complete


def _public_type(name: str, hint: Any) -> tuple[str, Any]:
    public_name, kind = {"slice_key": ("slice", Labels), "concurrency": ("load", AtLoad)}.get(name, (name, hint))
    is_optional = kind is not hint and type(None) in get_args(hint)
    return public_name, kind | None if is_optional else kind


@cache
def _fields(kind: type[PublicValue]) -> list[tuple[str, Sequence[str], Callable[[Any], Any]]]:
    """Each field's name, where values have it, and how its parts are made."""
    hints = get_type_hints(kind, include_extras=True)
    return [
        (name, getattr(hint, "__metadata__", None) or _OTHERWISE.get(name, (name,)), _maker(name, hint))
        for name in kind.__struct_fields__
        for hint in (hints[name],)
    ]


def _read(value: Any, path: str) -> Any:
    first, *others = path.split(".")
    value = getattr(value, first, _ABSENT)
    for name in others:
        value = None if value is None else getattr(value, name, _ABSENT)
    return value


def _maker(name: str, hint: Any) -> Callable[[Any], Any]:
    make = _part_maker(hint)
    if name == "slice":
        return lambda value: parse_slice_key(value) if isinstance(value, str) else value
    return (lambda value: value) if make is None else make


def _part_maker(hint: Any) -> Callable[[Any], Any] | None:
    """How a value of this annotation is made of those inside ShadowSpec; None where it is as there."""
    if isinstance(hint, type) and issubclass(hint, PublicValue):
        return lambda value: value if value is None or isinstance(value, (hint, msgspec.UnsetType)) else hint.of(value)
    origin, parts = get_origin(hint), get_args(hint)
    make = next(filter(None, map(_part_maker, parts)), None)
    if make is None or not isinstance(origin, type) or not issubclass(origin, (Mapping, Sequence)):
        return make
    if issubclass(origin, Mapping):
        return lambda value: value if not isinstance(value, Mapping) else {key: make(value[key]) for key in value}
    return lambda value: value if value is None or value is msgspec.UNSET else list(map(make, value))
