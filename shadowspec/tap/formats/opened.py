"""The content of one opened message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    OPENAI = "openai"  # our envelope around the bodies of OpenAI's and vLLM's API
    LITELLM = "litellm"  # StandardLoggingPayload
    CLOUDEVENTS = "cloudevents"  # KServe's inference logger, and others that write request and response apart
    KONG = "kong"  # a log plugin's entry with ai-proxy's fields
    OTLP = "otlp"  # OpenTelemetry's GenAI events and spans, as JSON
    BODY = "body"  # a request's body, without anything around it
    ROW = "row"  # a conversation of a data set: `messages`, or ShareGPT's `conversations`
    BATCH = "batch"  # input and output of OpenAI's Batch API
    LANGFUSE = "langfuse"  # generations among the observations of an export
    SGLANG = "sglang"  # the server's JSON log of requests
    DATABRICKS = "databricks"  # an inference table
    SAGEMAKER = "sagemaker"  # an endpoint's data capture
    BEDROCK = "bedrock"  # a log of model invocations
    DYNAMO = "dynamo"  # the request trace, with payloads
    AIPERF = "aiperf"  # inputs.json, or its sessions
    GUIDELLM = "guidellm"  # a report, its requests, or rows of a data set
    APIM = "apim"  # tables of Azure API Management
    VERTEX = "vertex"  # a table of Vertex AI's requests and responses


@dataclass(frozen=True, slots=True)
class EventHalf:
    """One of the two events of a call: its request or its response.

    Halves with the same `scope` and `join_id` belong together.  `event_time` is the event's, else the transport's, else
    the epoch.  `size` is that of the message in bytes: the memory that the waiting half takes.  A call may also be
    written in any number of pieces: `part` says which one this is, and `assemble` makes our envelope of their bodies.
    """

    join_id: str = field(repr=False)
    scope: tuple[str, ...]  # who numbered it: source, then KServe's names (namespace, service, component)
    is_request: bool
    body: Mapping[str, Any] = field(repr=False)
    event_time: datetime
    endpoint: str | None = None
    subject: str | None = field(default=None, repr=False)
    path: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # by lower-case name
    size: int = 0
    part: tuple[int, str] | None = None
    assemble: Callable[[Mapping[tuple[int, str], Mapping[str, Any]]], dict[str, Any]] | None = None


class Opened(Struct, frozen=True):
    """One record of a message, or the reason for its refusal, or half of a record: exactly one of the three is set.

    `members` are the keys of the halves, joined or not; empty where the record was one message.
    """

    key: RecordKey
    record: MirroredRecord | None = None
    error: RecordError | None = None
    half: EventHalf | None = None
    members: tuple[RecordKey, ...] = ()


def object_in(value: Any) -> dict[str, Any]:
    """The value where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def text_prompt(messages: Any) -> Any:
    """The prompt of a text completion that was logged as messages; several messages were several prompts."""
    if isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
        return [message.get("content") for message in messages]
    return messages
