"""Types of settings: the allowed values of the configuration file, for the dataclasses that hold the values.

A field whose alias is in parentheses is no key of the file.  Where it is a dataclass, its keys are in the file beside
the others of its table; where it is not, the code that loads the file sets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import AfterValidator, Field, PlainValidator
from pydantic.fields import FieldInfo


def _path(value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("must be the path of a file or folder")
    return Path(value)


def _address(value: str) -> str:
    if int(value.rpartition(":")[2]) > LAST_PORT:
        raise ValueError(f"a port is at most {LAST_PORT}")
    return value


LAST_PORT = 65_535
Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Port = Annotated[int, Field(ge=1, le=LAST_PORT)]
# HOST:PORT, an IPv6 host in brackets.
SocketAddress = Annotated[str, Field(pattern=r"^(\[[0-9a-fA-F:]+\]|[^:/\s]+):\d{1,5}$"), AfterValidator(_address)]
PathText = Annotated[Path, PlainValidator(_path)]
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
# Neither login nor query: a secret has no place in a URL that messages quote.
HttpUrl = Annotated[
    str, Field(pattern=r"^https?://(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?(/[A-Za-z0-9._~/-]*)?$")
]


def require_distinct(**values: Any) -> None:
    """
    Raises:
        ValueError: a key has the same value twice; the message names the key.
    """
    for name, item in values.items():
        if len(set(item)) != len(item):
            raise ValueError(f"{name}: the same value is listed twice")


def keys_of(kind: type) -> dict[str, Any]:
    """The keys of the file that fill a dataclass and its parts, with their defaults; None where there is no default."""
    found: dict[str, Any] = {}
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        key, part = _alias(hints[field.name]) or field.name, _part(hints[field.name])
        if not key.startswith("("):
            made = field.default if field.default_factory is MISSING else field.default_factory()
            found[key] = None if made is MISSING else made
        elif part is not None:
            found |= keys_of(part)
    return found


def nest_table(kind: type, table: Any) -> Any:
    """A table of the file in the dataclass's form: with the keys of each part in a separate table."""
    if not isinstance(table, Mapping):
        return table
    flat, parts = dict(table), {}
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        key, part = _alias(hints[field.name]), _part(hints[field.name])
        if key is not None and key.startswith("(") and part is not None:
            known = keys_of(part)
            parts[key] = nest_table(part, {name: flat.pop(name) for name in list(flat) if name in known})
    return {**flat, **parts}


def _alias(hint: Any) -> str | None:
    found = (each.alias for each in getattr(hint, "__metadata__", ()) if isinstance(each, FieldInfo) and each.alias)
    return next(found, None)


def _part(hint: Any) -> type | None:
    (argument, *_) = get_args(hint) or (hint,)
    return argument if is_dataclass(argument) and isinstance(argument, type) else None
