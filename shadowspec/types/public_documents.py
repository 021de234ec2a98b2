"""The frame of every document that a command prints with `--json`.

A document is a value: its fields are the keys of the JSON text, by `shadowspec.types.codec`, and its JSON Schema is
made from it.  It differs from the values inside ShadowSpec where readers rely on other names (`slice` by labels, `load`
by its concurrency), and it leaves out what only ShadowSpec needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from shadowspec.types.requests import parse_slice_key

Labels = Mapping[str, str]  # of a slice; empty: the whole endpoint


class PublicValue(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a document."""


class PublicDocument(PublicValue, frozen=True, kw_only=True):
    """A document; a change of what its fields mean raises the version."""

    schema_version: Literal[1] = 1


class AtLoad(PublicValue, frozen=True, kw_only=True):
    """The load at which something holds."""

    concurrency: int


def at_load(concurrency: int | None) -> AtLoad | None:
    """The load; None is every load."""
    return None if concurrency is None else AtLoad(concurrency=concurrency)


Value = TypeVar("Value", bound=PublicValue)


def public(kind: type[Value], *values: object, **given: Any) -> Value:
    """A part of a document: fields that are given, else those of the first value that has them.

    `slice` is made from a value's labels or its slice key, `load` from its concurrency.
    """
    for name in kind.__struct_fields__:
        for value in values:
            if name in given:
                break
            if hasattr(value, name):
                given[name] = getattr(value, name)
            elif name == "slice" and hasattr(value, "slice_labels"):
                given[name] = value.slice_labels
            elif name == "slice" and hasattr(value, "slice_key"):
                given[name] = parse_slice_key(value.slice_key)
            elif name == "load" and hasattr(value, "concurrency"):
                given[name] = at_load(value.concurrency)
    return kind(**given)
