"""The frame of every document that a command prints with `--json`.

A document is a value: its fields are the keys of the JSON text, by `shadowspec.types.codec`, and its JSON Schema is
made from it.  It differs from the values inside ShadowSpec where readers rely on other names (`slice` by labels, `load`
by its concurrency), and it leaves out what only ShadowSpec needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

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
