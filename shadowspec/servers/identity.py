"""A server's self-description: its engine, its version, the model that it serves and from where.

The fingerprint of figures that servers gave is made of it: everything known of both servers that they depend on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shadowspec.servers import llamacpp, sglang
from shadowspec.servers.client import Client, open_client, run_async, trust
from shadowspec.servers.counters import CountsSource
from shadowspec.servers.server_settings import ServerSettings
from shadowspec.servers.stream import ServerError
from shadowspec.types import (
    FIRST_OPTIONS,
    FIRST_SUFFIX_OPTIONS,
    PREFIX_CACHE,
    Arm,
    FingerprintedConfig,
    SpeculationConfig,
    fingerprint_config,
)
from shadowspec.types.serving_engines import parse_engines

UNKNOWN = "unknown"
_ENGINES = {llamacpp.OWNER: llamacpp.ENGINE}  # by the owner of their models, where that is another name
# Servers' fingerprints held every option that there was before options at their defaults were left out.
FROZEN_OPTIONS: Final = FIRST_OPTIONS.union(FIRST_SUFFIX_OPTIONS, ["draft_confidence_threshold"])


@dataclass(frozen=True, slots=True)
class Identity:
    """A server as it describes itself; another answer is another server."""

    engine: str  # e.g. "vllm"
    version: str
    root: str  # where it took the model's weights from
    max_model_len: int | None
    reported_settings: tuple[
        tuple[str, str], ...
    ] = ()  # its settings on which figures depend; () where it reports none

    @property
    def name(self) -> str:
        """Engine and version, as a fingerprint has them."""
        return f"{self.engine}/{self.version}"


def engine_name(url: str) -> str:
    """The name of the engine behind a server's root, as a configuration names it.

    Raises:
        ServerError: it cannot be reached, or does not say which engine it is.
    """
    settings = ServerSettings(url, url, "any", "unknown", "float32")  # a look at its models needs no more than a URL

    async def look() -> str:
        async with open_client("serving", url, settings, trust(None), 1) as client:
            owners = [each.get("owned_by") for each in await _models(client)]
            known = [_ENGINES.get(owner, owner) for owner in owners if isinstance(owner, str)]
            names = {engine.name for name in known for engine in parse_engines(name)}
            if len(names) != 1:
                raise ServerError(client.name, "garbage", "/v1/models does not name the engine: give --serving-engine")
            return names.pop()

    return run_async(look())


async def identify(client: Client, model: str) -> Identity:
    """The model that the server serves under this name.

    Raises:
        ServerError: it cannot be reached, points elsewhere, or does not serve this model.
    """
    entries = await _models(client)
    rows = [each for each in entries if each.get("id") == model]
    if not rows:
        names = ", ".join(sorted(str(each.get("id")) for each in entries)) or "none"
        raise ServerError(client.name, "other_model", f"it serves {names}, and not {model}")
    if rows[0].get("owned_by") == sglang.ENGINE:
        return await _sglang(client, rows[0])
    if rows[0].get("owned_by") == llamacpp.OWNER:
        return await _llamacpp(client)
    text = await client.look("version")
    version = UNKNOWN if text is None else str(_document(client, text, "/version").get("version", UNKNOWN))
    length = rows[0].get("max_model_len")
    return Identity(
        str(rows[0].get("owned_by") or UNKNOWN),
        version,
        str(rows[0].get("root") or UNKNOWN),
        length if type(length) is int else None,
    )


async def sglang_info(client: Client) -> Mapping[str, Any]:
    """SGLang's start settings and its capacity.

    Raises:
        ServerError: it cannot be reached, or does not report them.
    """
    text = await client.look("server_info")
    return _document(client, text if text is not None else await client.look("get_server_info"), "/server_info")


async def _models(client: Client) -> list[Mapping[str, Any]]:
    """The entries of /v1/models."""
    entries = _document(client, await client.look("v1/models"), "/v1/models").get("data")
    if not isinstance(entries, list):
        raise ServerError(client.name, "garbage", "/v1/models lists no models")
    return [each for each in entries if isinstance(each, dict)]


async def _sglang(client: Client, entry: Mapping[str, Any]) -> Identity:
    """SGLang says of itself how it was started."""
    info = await sglang_info(client)
    length = entry.get("max_model_len")
    return Identity(
        sglang.ENGINE,
        str(info.get("version", UNKNOWN)),
        str(info.get("model_path", UNKNOWN)),
        length if type(length) is int else None,
        tuple((name, str(info[name])) for name in sglang.REPORTED_SETTINGS if name in info),
    )


async def _llamacpp(client: Client) -> Identity:
    """llama.cpp's self-description; the context is that of one slot.

    Raises:
        ServerError: it is incomplete, or the server routes requests to others.
    """
    props = _document(client, await client.look("props"), "/props")
    settings = props.get("default_generation_settings")
    length = settings.get("n_ctx") if isinstance(settings, dict) else None
    if type(length) is not int or length < 1:
        raise ServerError(client.name, "garbage", "/props names no context of a slot: a router's model has none")
    reported = {name: props[name] for name in llamacpp.REPORTED_SETTINGS if name in props}
    return Identity(
        llamacpp.ENGINE,
        str(props.get("build_info", UNKNOWN)),
        str(props.get("model_path", UNKNOWN)),
        length,
        tuple((name, str(value)) for name, value in reported.items()),
    )


def _document(client: Client, text: str | None, path: str) -> Mapping[str, Any]:
    try:
        document = json.loads(text or "")
    except ValueError as error:
        raise ServerError(client.name, "garbage", f"{path} is missing or not JSON") from error
    if not isinstance(document, dict):
        raise ServerError(client.name, "garbage", f"{path} is not an object")
    return document


def fingerprint_server_config(
    config: SpeculationConfig,
    settings: ServerSettings,
    identities: Mapping[Arm, Identity],
    source: CountsSource,
    requests_per_slot: int,
    default_sampling: Mapping[str, float],
    max_turns: int = 1,
) -> FingerprintedConfig:
    """The config with everything known of the servers that its figures depend on; their address is no part of it.

    A server's weights have no known digest: their source replaces it, and the draft's name in the configuration for the
    draft's.  `max_turns` are those of a conversation, where conversations are measured.
    """
    identity, other = identities[Arm.BASELINE], identities[Arm.SPECULATIVE]
    details = {
        "served_model": settings.model,
        "target_root": other.root,
        "baseline_root": identity.root,
        "draft": config.draft or "",
        "baseline_engine": identity.name,
        "max_model_len": f"{identity.max_model_len}, {other.max_model_len}",
        "counts_source": source.value,
        "requests_per_slot": str(requests_per_slot),
        **({PREFIX_CACHE: "on", "max_turns": str(max_turns)} if settings.measures_conversations else {}),
        **dict(other.reported_settings),
    }
    return fingerprint_config(
        config,
        engine=other.name,
        device=settings.device,
        dtype=settings.dtype,
        details=details,
        frozen_options=FROZEN_OPTIONS,
        default_sampling=default_sampling,
    )
