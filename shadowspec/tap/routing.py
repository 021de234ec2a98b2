"""Facts of a message outside its body: its endpoint and its session, where the mirror puts them there.

Where both are in the message's key or headers, a session that is not sampled is dropped before its body is decoded.
Values there take precedence over the body's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Final, NamedTuple

from pydantic import Field

from shadowspec.errors import ConfigError
from shadowspec.tap.records import usable_id
from shadowspec.tap.sources import RawRecord

BODY: Final = "body"
KEY: Final = "key"
TOPIC: Final = "topic"
HEADER: Final = "header:"
MAX_HINT_BYTES = 1024  # an id is short; anything longer is a body in the wrong place


class Hints(NamedTuple):
    """The facts known before the body is read; None: the body has to say."""

    endpoint: str | None = None
    session: str | None = None

    def __repr__(self) -> str:
        return f"Hints(endpoint={self.endpoint!r})"


NO_HINTS: Final = Hints()


@dataclass(frozen=True, slots=True)
class Routing:
    """Where endpoint ("body", "topic", "header:NAME") and session ("body", "key", "header:NAME") are."""

    endpoint: Annotated[str, Field(alias="endpoint_from", pattern=r"^(body|topic|header:.+)$")] = BODY
    session: Annotated[str, Field(alias="session_from", pattern=r"^(body|key|header:.+)$")] = BODY

    def __post_init__(self) -> None:
        for name, value, plain in (("endpoint", self.endpoint, TOPIC), ("session", self.session, KEY)):
            is_header = value.startswith(HEADER) and len(value) > len(HEADER)
            if value not in (BODY, plain) and not is_header:
                raise ConfigError(f'{name}: {value!r} must be "body", "{plain}" or "header:NAME"')

    @property
    def has_hints(self) -> bool:
        """Whether either is outside of the body."""
        return self.endpoint != BODY or self.session != BODY

    def hints(self, raw: RawRecord, topic: str | None) -> Hints:
        """The message's facts; missing or unreadable ones are left to the body."""
        endpoint = topic if self.endpoint == TOPIC else _header(raw, self.endpoint)
        session = _text(raw.message_key) if self.session == KEY else _header(raw, self.session)
        return Hints(endpoint, usable_id(session))


@lru_cache
def _header_name(wanted: str) -> str | None:
    return wanted[len(HEADER) :].lower() if wanted.startswith(HEADER) else None


def _header(raw: RawRecord, wanted: str) -> str | None:
    """The last header of that name, case-insensitive."""
    if (name := _header_name(wanted)) is None:
        return None
    for key, value in reversed(raw.headers):
        if key == name or key.lower() == name:
            return _text(value)
    return None


def _text(value: bytes | None) -> str | None:
    if value is None or len(value) > MAX_HINT_BYTES:
        return None
    try:
        return value.decode("utf-8").strip() or None
    except UnicodeDecodeError:
        return None
