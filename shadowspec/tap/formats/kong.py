"""An entry of Kong's log plugins (kafka-log, http-log, file-log) with the ai-proxy plugins' fields.

Written from Kong Gateway's published documentation ("AI Gateway audit log reference", 3.6 to 3.12, and the log
plugins' log format) and the source of `serialize-analytics`.  From 3.10 on the plugins write under `ai.proxy`;
before, under their names, with the request in `ai.payload`.  Payloads are JSON in a string, there only with
`logging.log_payloads`, and the request is missing if it did not fit nginx's `client_body_buffer_size`.  The payload of
the request is the upstream one, in the provider's dialect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shadowspec.errors import RecordError
from shadowspec.tap.documents import assemble_answer, parse_document
from shadowspec.tap.formats.opened import object_in
from shadowspec.tap.parameters import malformed_error
from shadowspec.types import Intervention

PLUGINS: Final = ("proxy", "ai-proxy", "ai-proxy-advanced")  # the newest first
FOREIGN_DIALECTS: Final = frozenset({"bedrock", "cohere", "gemini"})  # providers with other bodies
BLOCKED_OUTPUT: Final = "AI_GUARDRAIL_BLOCK_OUTPUT"
CALLS: Final = ("/completions", "/embeddings", "/responses", "/messages")  # how the paths of known calls end


def is_log_entry(document: Mapping[str, Any]) -> bool:
    """Whether an object is an entry of a log plugin, with or without the AI plugins' fields."""
    return "started_at" in document and any(name in document for name in ("latencies", "ai", "tries"))


def envelope(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry as our envelope.  Disqualifications become annotations there, so that its endpoint is still known.

    Raises:
        RecordError: malformed; a payload is not a JSON object.
    """
    ai = object_in(entry.get("ai"))
    plugin = next((object_in(ai[name]) for name in PLUGINS if isinstance(ai.get(name), dict)), {})
    meta, payload = object_in(plugin.get("meta")), object_in(plugin.get("payload"))
    call, answer = object_in(entry.get("request")), object_in(entry.get("response"))
    sent = payload.get("request") or object_in(ai.get("payload")).get("request")
    is_foreign = str(meta.get("provider_name")) in FOREIGN_DIALECTS
    request = {} if is_foreign else _body(sent, "request") or {}
    if request.get("model") is None:
        request = {**request, "model": meta.get("request_model")}
    return {
        "request": request,
        "response": None if is_foreign else _response(payload.get("response")),
        "endpoint": _name(entry.get("route")) or _name(entry.get("service")),
        "timestamp": entry.get("started_at"),
        "tenant": _tenant(object_in(entry.get("consumer"))),
        "request_id": call.get("id"),
        "path": _path(entry.get("upstream_uri")) or _path(call.get("uri")),
        "status": answer.get("status"),
        "cache_hit": _is_cache_hit(ai),
        "headers": call.get("headers"),
        "metadata": {"no_payload": not sent, "provider_dialect": is_foreign, "intervention": _intervention(plugin)},
    }


def _body(payload: Any, name: str) -> dict[str, Any] | None:
    if payload is None or payload == "":
        return None
    if isinstance(payload, str):
        try:
            payload = parse_document(payload)
        except RecordError:
            payload = None
    if not isinstance(payload, dict):
        raise malformed_error(f"invalid:ai.proxy.payload.{name}")
    return payload


def _response(payload: Any) -> dict[str, Any] | None:
    """The answer; one that was streamed and not put together by Kong is put together here."""
    streamed = assemble_answer(payload) if isinstance(payload, str) else None
    return streamed if streamed is not None else _body(payload, "response")


def _name(entity: Any) -> Any:
    return object_in(entity).get("name")


def _tenant(consumer: Mapping[str, Any]) -> Any:
    """A consumer is a client of the gateway, mostly a whole service: a tenant, not a user."""
    return consumer.get("username") or consumer.get("custom_id") or consumer.get("id")


def _path(uri: Any) -> str | None:
    """The path where it is one of OpenAI's or Anthropic's; a route's path does not identify the call."""
    path = uri.split("?", 1)[0].rstrip("/") if isinstance(uri, str) else ""
    return path if path.endswith(CALLS) else None


def _is_cache_hit(ai: Mapping[str, Any]) -> bool:
    caches = (object_in(object_in(plugin).get("cache")) for plugin in ai.values())
    return any(str(cache.get("cache_status")).lower() == "hit" for cache in caches)


def _intervention(plugin: Mapping[str, Any]) -> str | None:
    """Whether a guardrail's plugin blocked the answer, which fails the call; each plugin writes under its name."""
    shared = object_in(plugin.get("guardrail_triggered"))
    guards = (object_in(guard) for guard in plugin.values())
    is_blocked = shared.get("block_direction") == BLOCKED_OUTPUT or any(
        guard.get("output_block_reason") for guard in guards
    )
    return Intervention.REJECTED if is_blocked else None
