"""LiteLLM's `StandardLoggingPayload`, as its callbacks and its generic API logger write it (1.106).

Gaps in the log: parameters that are not OpenAI's (top_k, min_p, everything in extra_body) are left out of
`model_parameters`.  A trace id that LiteLLM generated looks like one that the client gave, so only `session_id`, here
or in the client's metadata, names a session.  A copy to a silent model is marked from 1.110 on
(`metadata.is_silent_experiment`).  A text completion's prompt is logged as one user message.

A row of its database (`LiteLLM_SpendLogs`) has the client's own body in `proxy_server_request`, with every parameter,
and JSON as text.  Its `session_id` is a trace id, made where the client gave none; the client's is in its body.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from shadowspec.tap.documents import parse_document
from shadowspec.tap.formats.opened import object_in, text_prompt
from shadowspec.tap.records import usable_id
from shadowspec.types import Intervention

REDACTED: Final = "redacted-by-litellm"
CHAT_CALLS: Final = frozenset({"completion", "acompletion"})
TEXT_CALLS: Final = frozenset({"text_completion", "atext_completion"})
PATHS: Final[Mapping[str, str]] = {
    **dict.fromkeys(CHAT_CALLS, "/v1/chat/completions"),
    **dict.fromkeys(TEXT_CALLS, "/v1/completions"),
    **dict.fromkeys(("embedding", "aembedding"), "/v1/embeddings"),
}
# The marks of its loggers for text that they cut out: the database's, now and until 1.60, and Datadog's.
_CUT: Final = re.compile(r"\(litellm_truncated |\.\.\. \(truncated \d+ chars\)|\.\.\.truncated by litellm")
_MARKS: Final = ("litellm_call_id", "startTime", "model_map_information")
_INTERVENED: Final = ("guardrail_intervened", "blocked")  # a guardrail's status; the second in older versions
_BEHIND_MODEL: Final = "post_call"
_NOT_BEFORE: Final = (_BEHIND_MODEL, "logging_only")
_ROW: Final = "proxy_server_request"
_ROW_TEXTS: Final = (_ROW, "response", "metadata")
_ROW_PATHS: Final[Mapping[str, str]] = {
    **PATHS,
    **dict.fromkeys(("responses", "aresponses"), "/v1/responses"),
    "anthropic_messages": "/v1/messages",
}
# Of the client's body, for LiteLLM itself.
_FOR_LITELLM: Final = frozenset(
    {
        "litellm_session_id", "litellm_trace_id", "litellm_metadata", "litellm_params", "tags", "guardrails", "cache",
        "num_retries", "fallbacks", "api_key", "api_base", "base_url", "proxy_server_request", "litellm_call_id",
        "caching", "drop_params", "mock_timeout", "request_timeout",
    }
)  # fmt: skip
# What an answer has one of; a payload's of another API than chat is not in that API's form.
_ANSWERS: Final = {False: ("choices",), True: ("choices", "output", "content")}
_METADATA: Final = ("spend_logs_metadata", "requester_metadata")  # the client's; the latter wins


def is_payload(document: Mapping[str, Any]) -> bool:
    """Whether an object is a payload, with any of its fields excluded by the operator."""
    return "call_type" in document and any(mark in document for mark in _MARKS)


def envelope(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The payload as our envelope.  Disqualifications become annotations there, so that its endpoint is still known."""
    call, is_db_row = payload.get("call_type"), _ROW in payload
    if is_db_row:
        payload = _with_objects(payload)
    messages = payload.get("messages")
    logged = object_in(payload.get("metadata"))
    of_client: dict[str, Any] = {}
    for name in _METADATA:
        of_client |= object_in(logged.get(name))
    headers = object_in(of_client.pop("headers", None))  # the client's, without those that LiteLLM holds secret
    metadata: dict[str, Any] = {}
    if "is_silent_experiment" in logged:
        metadata["is_silent_experiment"] = logged["is_silent_experiment"]
    texts = list(_texts([messages, object_in(payload.get("model_parameters")).get("tools")]))
    if any(_CUT.search(text) for text in texts):
        metadata["truncated"] = True
    elif any(text == REDACTED for text in texts):
        metadata["redacted"] = True
    elif not messages:
        metadata["no_payload"] = True
    if payload.get("guardrail_information"):
        metadata["intervention"] = _intervention(payload)
    model = _served_model(payload)
    return {
        "request": (_sent(payload, model) if is_db_row else _request(payload, model, call))
        | ({"metadata": of_client} if of_client else {}),
        "response": _response(payload, model),
        "endpoint": payload.get("model_group") or None,
        "timestamp": payload.get("startTime"),
        "session_id": payload.get("session_id") or None,
        "user": payload.get("end_user") or logged.get("user_api_key_end_user_id"),
        "tenant": logged.get("user_api_key_team_id"),
        "request_id": usable_id(payload.get("litellm_call_id")) or payload.get("id") or payload.get("request_id"),
        "path": (_ROW_PATHS if is_db_row else PATHS).get(call, "/other") if isinstance(call, str) else None,
        "status": payload.get("status"),
        "cache_hit": payload.get("cache_hit"),
        "headers": headers,
        "metadata": metadata,
    }


def _with_objects(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with its JSON read, and the client's session in place of the trace; `messages` is what it sent."""
    read = {name: _object_of(row.get(name)) for name in _ROW_TEXTS}
    sent = read[_ROW]
    given = object_in(sent.get("metadata"))
    names = ("messages", "prompt", "input", "system", "instructions", "tools")
    prompt = [sent[name] for name in names if sent.get(name)]
    session = sent.get("litellm_session_id") or given.get("session_id")
    metadata = {**read["metadata"], "requester_metadata": given or read["metadata"].get("requester_metadata")}
    metadata.setdefault("user_api_key_team_id", row.get("team_id") or None)
    return {**row, **read, "metadata": metadata, "messages": prompt, "session_id": session}


def _object_of(value: Any) -> dict[str, Any]:
    """An object of a column: some exports have it as text.

    Raises:
        RecordError: malformed; text that is no JSON.
    """
    return object_in(parse_document(value) if isinstance(value, str) and value else value)


def _sent(row: Mapping[str, Any], model: Any) -> dict[str, Any]:
    """The body of a row, to the model that served it."""
    sent = {name: value for name, value in row[_ROW].items() if name not in _FOR_LITELLM}
    return sent | object_in(sent.pop("extra_body", None)) | {"model": model}


def _served_model(payload: Mapping[str, Any]) -> Any:
    """The deployment's model, without the provider that LiteLLM puts before it."""
    model, provider = payload.get("model"), payload.get("custom_llm_provider")
    if isinstance(model, str) and isinstance(provider, str) and provider:
        return model.removeprefix(f"{provider}/")
    return model


def _request(payload: Mapping[str, Any], model: Any, call: Any) -> dict[str, Any]:
    request = dict(object_in(payload.get("model_parameters")))
    request |= object_in(request.pop("extra_body", None))
    request["model"] = model
    messages = payload.get("messages")
    if isinstance(call, str) and call in TEXT_CALLS:
        request["prompt"] = text_prompt(messages)
    elif messages is not None:
        request["messages"] = messages
    return request


def _response(payload: Mapping[str, Any], model: Any) -> dict[str, Any] | None:
    """The answer, if it has the form of one; under the name of its model, which the router may have replaced."""
    response = payload.get("response")
    if not isinstance(response, dict) or not any(name in response for name in _ANSWERS[_ROW in payload]):
        return None
    if response.get("model") in (payload.get("model_group"), payload.get("model")):
        return {**response, "model": model}
    return response


def _texts(value: Any) -> Iterator[str]:
    """All text in the messages, however deep it lies (the parser bounds the depth)."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for nested in value:
            yield from _texts(nested)
    elif isinstance(value, dict):
        for nested in value.values():
            yield from _texts(nested)


def _intervention(payload: Mapping[str, Any]) -> str | None:
    """The guardrails' action on the answer: of those that run behind the model and report that they intervened."""
    entries = payload.get("guardrail_information")
    failures = [
        entry
        for entry in (entries if isinstance(entries, list) else [entries])
        if isinstance(entry, dict) and _is_behind_model(entry.get("guardrail_mode")) and _has_intervened(entry)
    ]
    if not failures:
        return None
    return Intervention.REJECTED if payload.get("status") == "failure" else Intervention.REWRITTEN


def _is_behind_model(mode: Any) -> bool:
    """Whether a guardrail saw only the answer; for one that runs before as well the log does not say which it was."""
    modes = mode if isinstance(mode, list) else [mode]
    return _BEHIND_MODEL in modes and all(guardrail_mode in _NOT_BEFORE for guardrail_mode in modes)


def _has_intervened(entry: Mapping[str, Any]) -> bool:
    masked = object_in(entry.get("masked_entity_count"))
    return entry.get("guardrail_status") in _INTERVENED or any(
        isinstance(number, int) and number > 0 for number in masked.values()
    )
