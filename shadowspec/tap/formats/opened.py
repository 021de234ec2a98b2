"""What one message is opened into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct

from shadowspec.errors import RecordError
from shadowspec.tap.records import MirroredRecord
from shadowspec.types import RecordKey


class MessageFormat(StrEnum):
    """How a topic's messages, or a file's lines, are written."""

    AUTO = "auto"
    OPENAI = "openai"  # our own envelope around the bodies of OpenAI's and vLLM's API
    LITELLM = "litellm"  # StandardLoggingPayload
    CLOUDEVENTS = "cloudevents"  # KServe's inference logger, and others that write request and response apart
    KONG = "kong"  # a log plugin's entry with what ai-proxy adds to it


@dataclass(frozen=True, slots=True)
class EventHalf:
    """One of the two events of a call: its request or its response.

    Halves with the same `scope` and `join_id` belong together.  `event_time` is the event's own time, else the
    transport's, else the epoch.  `size` is that of the message in bytes: what it costs to keep the half.
    """

    join_id: str = field(repr=False)
    scope: tuple[str, ...]  # who numbered it: source, then what of it KServe names (namespace, service, component)
    is_request: bool
    body: Mapping[str, Any] = field(repr=False)
    event_time: datetime
    endpoint: str | None = None
    subject: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # by lower-case name
    size: int = 0

    @property
    def source(self) -> str:
        """The event's `source` attribute."""
        return self.scope[0]


class Opened(Struct, frozen=True):
    """One record of a message, or why it is none, or half of one: exactly one of the three is set.

    `members` are the keys of the halves of which a record was joined, or was not; empty where it was one message.
    """

    key: RecordKey
    record: MirroredRecord | None = None
    error: RecordError | None = None
    half: EventHalf | None = None
    members: tuple[RecordKey, ...] = ()
