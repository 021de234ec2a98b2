"""Logs whose objects have other names than our envelope, by a table of paths; what no path expresses has a function.

| layout | source of the names |
|---|---|
| body, row | bodies of the APIs; rows of `messages` (Hugging Face) and `conversations` (ShareGPT) |
| batch | input and output files of OpenAI's Batch API, read as halves of a call |
| langfuse | observations of the API and of the export, and what SDK 5.0 writes |
| sglang | `--log-requests-format json` of SGLang 0.5.23, events `request.finished` |
| databricks, sagemaker, bedrock | the columns of inference tables, of data capture and of invocation logs |

A row and a body have no time: see `records.MirroredRecord.event_time`.  A row has no sampling parameters either.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from msgspec import Struct

from shadowspec.tap.formats.field_map import BODY_FIELDS, FieldMap, is_chat
from shadowspec.tap.formats.opened import EventHalf, MessageFormat, object_in
from shadowspec.tap.parameters import malformed_error, unsupported_error
from shadowspec.tap.records import EPOCH, NOT_LOGGED, parse_time, usable_id

CHAT_PATH: Final = "/v1/chat/completions"
SGLANG_PREFIX: Final = re.compile(rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] (?=\{)")  # its logger's, before the object
GENERATE_TOKENS: Final = 128  # SGLang's max_new_tokens of a /generate that does not say
NO_LIMIT: Final = 2**30  # tokens; more than any context, so that it is refused where nothing else bounds it
SGLANG_LEVEL_2: Final = 2_048  # characters of a text, and elements of a list, that --log-requests-level 2 leaves
_SGLANG_NAMES: Final = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
_SGLANG_HARMLESS: Final = frozenset({"no_stop_trim", "stream_interval"})  # of what is delivered, not of what is sampled
_SGLANG_MEDIA: Final = {"image_data": "image_url", "video_data": "video_url", "audio_data": "input_audio"}
_ROLES: Final[Mapping[str, str]] = {
    "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant",
    "model": "assistant", "system": "system",
}  # fmt: skip
_ROW_FIELDS: Final = ("messages", "conversations")
_BATCH_SCOPE: Final = ("openai-batch",)
BESIDE_A_BODY: Final = frozenset({"request", "response", "answer", "timestamp", "ts", "time", "request_body"})


def _as_it_is(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return document


class Layout(Struct, frozen=True):
    """How objects of a log are known, and where they hold the parts of a record.

    `marks`: of each tuple the object has a field.  `prepare` gives the object for the paths.  `not_logged` names
    sampling parameters that no object of the log has.
    """

    marks: tuple[tuple[str, ...], ...]
    fields: FieldMap
    prepare: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _as_it_is
    not_logged: str | None = None

    def matches(self, document: Mapping[str, Any]) -> bool:
        return all(any(name in document for name in names) for names in self.marks)

    def envelope(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """The object as our envelope.

        Raises:
            RecordError: malformed, or unsupported: the object is no call of a model.
        """
        envelope = self.fields.envelope(self.prepare(document))
        if self.not_logged is not None:
            envelope["metadata"][NOT_LOGGED] = self.not_logged
        return envelope


def is_body(document: Mapping[str, Any]) -> bool:
    """Whether an object is the body of a request itself, with nothing beside it that a log would write."""
    if not isinstance(document.get("model"), str) or not BESIDE_A_BODY.isdisjoint(document):
        return False
    return is_chat(document.get("messages")) or any(
        isinstance(document.get(name), str | list) and document[name] for name in BODY_FIELDS - {"messages"}
    )


def is_row(document: Mapping[str, Any]) -> bool:
    """Whether an object is a conversation of a data set: messages without a model that was asked."""
    if "model" in document or not BESIDE_A_BODY.isdisjoint(document):
        return False
    turns = document.get("conversations")
    is_sharegpt = isinstance(turns, list) and bool(turns) and all(
        isinstance(turn, dict) and isinstance(turn.get("from"), str) and "value" in turn for turn in turns
    )  # fmt: skip
    return is_sharegpt or is_chat(document.get("messages")) or is_chat(turns)


def row_envelope(document: Mapping[str, Any]) -> dict[str, Any]:
    """A conversation as the request for its last answer."""
    turns = next(document[name] for name in _ROW_FIELDS if name in document and isinstance(document[name], list))
    messages = [_message(turn) for turn in turns]
    last = max((place for place, message in enumerate(messages) if message.get("role") == "assistant"), default=None)
    is_answered = last is not None and last == len(messages) - 1 and last > 0
    request: dict[str, Any] = {"messages": messages[:last] if is_answered else messages}
    if document.get("tools"):
        request["tools"] = document["tools"]
    answer = {"choices": [{"index": 0, "message": messages[-1]}]} if is_answered else None
    return {"request": request, "response": answer, "metadata": {"no_sampling": True}}


def _message(turn: Any) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise malformed_error("invalid:conversations")
    if "from" not in turn:
        return turn
    role = str(turn["from"])
    return {"role": _ROLES.get(role.lower(), role), "content": turn.get("value")}


def is_batch(document: Mapping[str, Any]) -> bool:
    """Whether an object is a line of a batch's input or output file."""
    return "custom_id" in document and any(
        isinstance(document.get(name), dict) for name in ("body", "response", "error")
    )


def batch_half(document: Mapping[str, Any], size: int) -> EventHalf:
    """A line of an input file is a request, one of an output or error file its response.

    Raises:
        RecordError: malformed; a line without a usable id, or without a body.
    """
    if (join_id := usable_id(document["custom_id"])) is None:
        raise malformed_error("invalid:custom_id")
    is_request = isinstance(document.get("body"), dict)
    answer = object_in(document.get("response"))
    body = document["body"] if is_request else object_in(answer.get("body")) or {"error": document.get("error") or True}
    path = usable_id(document.get("url")) if is_request else None
    return EventHalf(join_id, _BATCH_SCOPE, is_request, body, EPOCH, path=path, size=size)


def _generation(document: Mapping[str, Any]) -> Mapping[str, Any]:
    if str(document.get("type")).upper() != "GENERATION":
        raise unsupported_error("other_call")
    return {**document, "(status)": "error" if document.get("level") == "ERROR" else None}


def _sglang(document: Mapping[str, Any]) -> Mapping[str, Any]:
    if document.get("event") != "request.finished":
        raise unsupported_error("other_event")
    sent, out = object_in(document.get("obj")), object_in(document.get("out"))
    given, meta = sent.get("sampling_params"), object_in(out.get("meta_info"))
    request: dict[str, Any] = {}
    if isinstance(given, dict):
        request = {
            str(_SGLANG_NAMES.get(name, name)): value for name, value in given.items() if name not in _SGLANG_HARMLESS
        }
        if given.get("max_new_tokens", GENERATE_TOKENS) is None:
            request["max_tokens"] = NO_LIMIT
        request.setdefault("max_tokens", GENERATE_TOKENS)
    is_cut = False
    if sent.get("input_ids") is not None:
        is_cut = isinstance(sent["input_ids"], list) and "..." in sent["input_ids"]
        request["prompt"] = sent["input_ids"]
    elif sent.get("text") is not None:
        is_cut = isinstance(sent["text"], str) and len(sent["text"]) == SGLANG_LEVEL_2 + len("...")
        request["prompt"] = sent["text"]
    if request.get("max_tokens") == NO_LIMIT and isinstance(request.get("prompt"), list):
        del request["max_tokens"]  # as a chat, whose length the context bounds
        request["prompt_token_ids"] = request.pop("prompt")
    media = next((kind for name, kind in _SGLANG_MEDIA.items() if sent.get(name)), None)
    if media is not None:
        request |= {"messages": [{"role": "user", "content": [{"type": media}]}]}
    for name in ("lora_path", "session_params", "custom_logit_processor"):
        if sent.get(name) is not None:
            request[name] = sent[name]
    if not isinstance(given, dict):  # levels 0 and 1 leave text out, level 0 the parameters as well
        request = {}
    reason = meta.get("finish_reason")
    ended = reason.get("type") if isinstance(reason, dict) else reason
    usage = {"completion_tokens": meta.get("completion_tokens"), "prompt_tokens": meta.get("prompt_tokens")}
    usage["prompt_tokens_details"] = {"cached_tokens": meta.get("cached_tokens")}
    choice = {"index": 0, "text": out.get("text"), "token_ids": out.get("output_ids"), "finish_reason": ended}
    return {
        "request": {} if is_cut else request,
        "response": None if is_cut else {"choices": [choice], "usage": usage},
        "time": _started(document.get("timestamp"), meta.get("e2e_latency")),
        "session": sent.get("session_id"),
        "id": document.get("rid"),
        "path": CHAT_PATH if "messages" in request or "prompt_token_ids" in request else "/v1/completions",
        "status": "error" if ended == "abort" else None,
        "headers": document.get("headers"),
    }


def _started(logged: Any, seconds: Any) -> Any:
    """When a request came whose end was logged."""
    time = parse_time(logged)
    is_known = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds < 1e6
    return logged if time is None or not is_known else (time - timedelta(seconds=seconds)).isoformat()


def _captured(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """SageMaker's two sides, each in the encoding that it names."""
    data = object_in(document.get("captureData"))
    sides = {name: object_in(data.get(name)) for name in ("endpointInput", "endpointOutput")}
    return {**document, **{name: _decoded(side) for name, side in sides.items()}}


def _decoded(side: Mapping[str, Any]) -> Any:
    text = side.get("data")
    if side.get("encoding") != "BASE64" or not isinstance(text, str):
        return text
    try:
        return base64.b64decode(text, validate=True).decode()
    except (ValueError, binascii.Error):
        raise malformed_error("invalid:data_base64") from None


def _invoked(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**document, "(status)": "error" if document.get("errorCode") else None}


def _places(**paths: str) -> Mapping[str, tuple[str, ...]]:
    return {name: tuple(text.split(" ")) for name, text in paths.items()}


LAYOUTS: Final[Mapping[MessageFormat, Layout]] = {
    MessageFormat.LANGFUSE: Layout(
        (("traceId", "trace_id"), ("input",), ("type",), ("startTime", "start_time")),
        FieldMap(
            _places(
                request="input", response="output", parameters="modelParameters model_parameters",
                model="providedModelName provided_model_name model", time="startTime start_time",
                session="sessionId session_id metadata.session_id", user="userId user_id", id="id", status="(status)",
            ),
            takes_bodies=False,
        ),
        _generation,
        not_logged="top_k, min_p, stop",
    ),
    MessageFormat.SGLANG: Layout(
        (("event",), ("obj",), ("timestamp",)),
        FieldMap(
            _places(
                request="request", response="response", time="time", session="session", id="id", path="path",
                status="status", headers="headers",
            )
        ),
        _sglang,
    ),
    MessageFormat.DATABRICKS: Layout(
        (("databricks_request_id",), ("request",)),
        FieldMap(
            _places(
                request="request", response="response", time="request_time timestamp_ms", status="status_code",
                id="client_request_id databricks_request_id",
            )
        ),
    ),
    MessageFormat.SAGEMAKER: Layout(
        (("captureData",), ("eventMetadata",)),
        FieldMap(
            _places(
                request="endpointInput", response="endpointOutput", time="eventMetadata.inferenceTime",
                id="eventMetadata.eventId",
            )
        ),
        _captured,
    ),
    MessageFormat.BEDROCK: Layout(
        (("schemaType",), ("modelId",), ("input",)),
        FieldMap(
            _places(
                request="input.inputBodyJson", response="output.outputBodyJson", time="timestamp", model="modelId",
                id="requestId", status="(status)",
            )
        ),
        _invoked,
    ),
}  # fmt: skip
