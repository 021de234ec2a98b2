"""What load generators were given or sent: AIPerf's sessions, GuideLLM's reports and rows; and Dynamo's request trace.

In: a parsed document of one of them.
Out: envelopes as ours, one or many a document.

| format | source of the names |
|---|---|
| aiperf | `inputs.json` of AIPerf 0.13, or one of its sessions: bodies as they stand, which AIPerf replays so as well |
| guidellm | the JSON report of GuideLLM 0.8, or one request of it; rows of its data sets |
| dynamo | `dynamo.request.trace.v1` of Dynamo: `request_payload` events, in the envelope of a file or bare |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from shadowspec.errors import RecordError
from shadowspec.tap.documents import parse_document
from shadowspec.tap.formats.layouts import BESIDE_A_BODY
from shadowspec.tap.formats.opened import object_in
from shadowspec.tap.parameters import malformed_error, unsupported_error
from shadowspec.tap.records import NO_SAMPLING

DYNAMO_SCHEMA: Final = "dynamo.request.trace."
SESSION_HEADER: Final = "x-dynamo-session-id"
# Of `nvext`: where a request is served and what is told of it, not what is sampled.
_DELIVERY: Final = frozenset(
    {
        "annotations", "backend_instance_id", "extra_fields", "prefill_worker_id", "decode_worker_id", "dp_rank",
        "prefill_dp_rank", "agent_hints", "request_timestamp_ms", "session_control",
    }
)  # fmt: skip
# GuideLLM's names for the columns of a row, the likeliest first; a number of tokens makes a row one of GuideLLM's.
_TEXTS: Final = ("prompt", "instruction", "question", "input", "context", "content", "text")
_SYSTEM: Final = ("system_prompt", "system", "prefix")
_OUTPUT_TOKENS: Final = ("output_tokens_count", "completion_tokens_count")
_COUNTS: Final = (*_OUTPUT_TOKENS, "prompt_tokens_count", "input_tokens_count")
_MEDIA: Final[Mapping[str, str]] = {"image": "image_url", "video": "video_url", "audio": "input_audio"}
_LATER_TURN: Final = re.compile(rf"(?:{'|'.join(_TEXTS)})(?:es|s)?[-_]\d+")
_ENDED: Final = ("successful", "errored", "incomplete")  # lists of a report's requests


# AIPerf


def is_aiperf(document: Mapping[str, Any]) -> bool:
    """Whether an object is an inputs.json, or a session of one."""
    sessions = document.get("data")
    if isinstance(sessions, list):
        return bool(sessions) and all(isinstance(object_in(session).get("payloads"), list) for session in sessions)
    return isinstance(document.get("payloads"), list)


def aiperf_envelopes(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each body of each session."""
    for session in document.get("data", [document]):
        for payload in session["payloads"]:
            yield {"request": payload, "session_id": session.get("session_id")}


# GuideLLM


def is_guidellm(document: Mapping[str, Any]) -> bool:
    """Whether an object is a report, a request of one, or a row of a data set with numbers of tokens."""
    runs = document.get("benchmarks")
    if isinstance(runs, list):
        return bool(runs) and all(isinstance(object_in(run).get("requests"), dict) for run in runs)
    return _is_sent(document) or _is_row(document)


def _is_sent(document: Mapping[str, Any]) -> bool:
    return "request_args" in document and isinstance(document.get("info"), dict)


def _is_row(document: Mapping[str, Any]) -> bool:
    """Whether an object is a row of one turn, with nothing beside it that a log would write."""
    if not BESIDE_A_BODY.isdisjoint(document) or "model" in document or any(map(_LATER_TURN.fullmatch, document)):
        return False
    is_counted = any(name in document for name in _COUNTS)
    return is_counted and any(isinstance(document.get(name), str) for name in _TEXTS) and "messages" not in document


def guidellm_envelopes(document: Mapping[str, Any]) -> Iterator[dict[str, Any] | RecordError]:
    """Each request of a report, or why it cannot be read; or the one that the object is."""
    if isinstance(document.get("benchmarks"), list):
        for run in document["benchmarks"]:
            for kind in _ENDED:
                requests = run["requests"].get(kind)
                for sent in requests if isinstance(requests, list) else ():
                    yield _sent_envelope(object_in(sent), is_failed=kind != _ENDED[0])
    else:
        yield _sent_envelope(document, is_failed=False) if _is_sent(document) else _row_envelope(document)


def _sent_envelope(sent: Mapping[str, Any], *, is_failed: bool) -> dict[str, Any] | RecordError:
    text, info = sent.get("request_args"), object_in(sent.get("info"))
    try:
        body = object_in(object_in(parse_document(text)).get("body")) if isinstance(text, str) else {}
    except RecordError:
        return malformed_error("invalid:request_args")
    output, usage = sent.get("output"), object_in(sent.get("output_metrics"))
    answer = {"text": output} if "prompt" in body else {"message": {"role": "assistant", "content": output}}
    response = {
        "id": sent.get("response_id"),
        "choices": [{"index": 0, **answer}],
        "usage": {"completion_tokens": usage.get("total_tokens"), "prompt_tokens": sent.get("prompt_tokens")},
    }
    is_failed = is_failed or info.get("status") not in (None, "completed")
    return {
        "request": body,
        "response": response if isinstance(output, str) and output and not is_failed else None,
        "timestamp": object_in(info.get("timings")).get("request_start"),
        "session_id": info.get("conversation_id"),
        "request_id": sent.get("request_id"),
        "status": "error" if is_failed else None,
        "metadata": {"no_payload": not body},  # only sampled requests keep it
    }


def _row_envelope(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as GuideLLM sends it: a chat of one turn, and the given number of tokens whatever the model would end."""
    prompt = next(row[name] for name in _TEXTS if isinstance(row.get(name), str))
    system = next((row[name] for name in _SYSTEM if isinstance(row.get(name), str)), None)
    media = [{"type": kind} for name, kind in _MEDIA.items() if row.get(name) is not None]
    messages = [{"role": "user", "content": [*media, {"type": "text", "text": prompt}] if media else prompt}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    request: dict[str, Any] = {"messages": messages}
    number = next((row[name] for name in _OUTPUT_TOKENS if row.get(name) is not None), None)
    if number is not None:
        request |= {"max_completion_tokens": number, "ignore_eos": True}
    return {"request": request, "metadata": {NO_SAMPLING: True}}


# Dynamo


def is_dynamo(document: Mapping[str, Any]) -> bool:
    """Whether an object is an event of the request trace, or a line of the trace's file."""
    schema = _event(document).get("schema")
    return isinstance(schema, str) and schema.startswith(DYNAMO_SCHEMA)


def dynamo_envelope(document: Mapping[str, Any]) -> dict[str, Any]:
    """The request and the response of a `request_payload` event.

    Raises:
        RecordError: unsupported; another event, which has hashes of the prompt at most.
    """
    event = _event(document)
    if event.get("event_type") != "request_payload":
        raise unsupported_error("only_hashes" if event.get("event_type") == "request_end" else "other_event")
    payload = object_in(event.get("payload"))
    body, headers = object_in(payload.get("request")), object_in(payload.get("http_request_headers"))
    extension = object_in(body.get("nvext"))
    sessions = (
        object_in(event.get("agent_context")).get("session_id"),
        object_in(extension.get("session_control")).get("session_id"),
        headers.get(SESSION_HEADER),
    )
    return {
        "request": _without_extension(body, extension),
        "response": payload.get("response"),
        "timestamp": event.get("event_time_unix_ms"),
        "session_id": next((session for session in sessions if session is not None), None),
        "request_id": payload.get("request_id"),
        "path": "/v1/chat/completions",  # no other is captured
        "status": None if payload.get("payload_complete", True) else "error",
        "headers": headers,
        "metadata": {"no_payload": not body},
    }


def _without_extension(body: Mapping[str, Any], extension: Mapping[str, Any]) -> dict[str, Any]:
    """The body without Dynamo's extension, where that says nothing of the output but that it is greedy.

    A body with any other keeps it, and is refused for an unknown parameter.
    """
    rest = {name for name, value in extension.items() if value is not None} - _DELIVERY
    if "nvext" not in body or rest - {"greed_sampling"}:
        return dict(body)
    plain = {name: value for name, value in body.items() if name != "nvext"}
    return plain | {"temperature": 0.0} if extension.get("greed_sampling") is True else plain


def _event(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The event in a line of a file, whose own time counts from the writer's start."""
    return object_in(document.get("event")) if "event" in document else document
