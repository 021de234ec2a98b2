"""A server's self-description: its engine, its version, the model that it serves and from where.

The fingerprint of figures that servers gave is made of it: everything known of both servers that they depend on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from shadowspec.errors import ModelError
from shadowspec.model_folder import tokenizer_digest
from shadowspec.servers.client import ServerClient, open_client, run_async, trust
from shadowspec.servers.engines import ServerIdentity, configured_name, engine_of
from shadowspec.servers.engines.engine import document_of
from shadowspec.servers.server_settings import NamedServer, ServerSettings
from shadowspec.servers.step_counts import CountsSource
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
from shadowspec.types.prompt_rules import UNNAMED, PromptRules
from shadowspec.types.server_facts import Fact, fact_details
from shadowspec.types.serving_engines import parse_engines

SERVERS_TOKENIZER: Final = "the server's"  # in place of the digest of a folder's tokenizer
AUTO: Final = "auto"  # a server that reports this chooses by itself, and an operator may say what
# Servers' fingerprints held every option that there was before options at their defaults were left out.
FROZEN_OPTIONS: Final = FIRST_OPTIONS.union(FIRST_SUFFIX_OPTIONS, ["draft_confidence_threshold"])


def engine_name(url: str) -> str:
    """The name of the engine behind a server's root, as a configuration names it.

    Raises:
        ServerError: it cannot be reached, or does not say which engine it is.
    """
    name, entries = _look_at_models(url)
    owners = [entry.get("owned_by") for entry in entries]
    named = [engine for owner in owners if isinstance(owner, str) for engine in parse_engines(owner)]
    names = {configured_name(engine.name) for engine in named}
    if len(names) != 1:
        raise ServerError(name, "garbage", "/v1/models does not name the engine: give --serving-engine")
    return names.pop()


def served_names(url: str) -> list[str]:
    """The names under which the server at a root serves models, in its order; one or more.

    Raises:
        ServerError: it cannot be reached, or lists none.
    """
    name, entries = _look_at_models(url)
    names = [entry["id"] for entry in entries if isinstance(entry.get("id"), str)]
    if not names:
        raise ServerError(name, "garbage", "/v1/models lists no models")
    return names


def _look_at_models(url: str) -> tuple[str, list[Mapping[str, Any]]]:
    """A server's name in messages, and its models."""
    settings = ServerSettings(url, "any", "unknown", "float32", url)  # a look at its models needs no more than a URL

    async def look() -> tuple[str, list[Mapping[str, Any]]]:
        async with open_client("serving", url, settings, trust(None), 1) as client:
            return client.name, await _models(client)

    return run_async(look())


async def identify(client: ServerClient, model: str) -> ServerIdentity:
    """The model that the server serves under this name.

    Raises:
        ServerError: it cannot be reached, points elsewhere, or does not serve this model.
    """
    entries = await _models(client)
    client.served_models = frozenset(str(entry.get("id")) for entry in entries)
    entry = next((entry for entry in entries if entry.get("id") == model), None)
    if entry is None:
        names = ", ".join(sorted(str(entry.get("id")) for entry in entries)) or "none"
        raise ServerError(client.name, "other_model", f"it serves {names}, and not {model}")
    engine = engine_of(str(entry.get("owned_by")))
    known = client.engine if type(client.engine) is type(engine) else engine  # it remembers what it was told
    return await known.identify(client, entry)


async def _models(client: ServerClient) -> list[Mapping[str, Any]]:
    """The entries of /v1/models."""
    entries = document_of(client, await client.look("v1/models"), "/v1/models").get("data")
    if not isinstance(entries, list):
        raise ServerError(client.name, "garbage", "/v1/models lists no models")
    return [entry for entry in entries if isinstance(entry, dict)]


def known_facts(identity: ServerIdentity, server: NamedServer) -> dict[str, Fact]:
    """What a server reports of itself, and where it reports nothing what the operator has declared.

    Raises:
        ModelError: the server contradicts the operator.
    """
    read = {name: Fact(value, is_read=True) for name, value in identity.reported_facts}
    for name, fact in server.facts.items():
        known = read.get(name)
        if known is not None and known.value not in (AUTO, fact.value):
            raise ModelError(
                f"servers.facts: {name} is {fact.value!r}, and the {server.label} server reports {known.value!r}: "
                "correct it, or remove it"
            )
        if known is None or known.value == AUTO:
            read[name] = fact
    return read


def fingerprint_server_config(
    config: SpeculationConfig,
    settings: ServerSettings,
    identities: Mapping[Arm, ServerIdentity],
    source: CountsSource,
    requests_per_slot: int,
    default_sampling: Mapping[str, float],
    max_turns: int = 1,
    prompt_rules: PromptRules = UNNAMED,
    baseline_depth: int = 0,
    has_folder: bool = True,
) -> FingerprintedConfig:
    """The config with everything known of its two servers that its figures depend on; their address is no part of it.

    A server's weights have no known digest: their source replaces it, and the draft's name in the configuration for the
    draft's.  Prompts are rendered by the tokenizer of the target's folder, and by `prompt_rules`; without a folder
    (`has_folder`) by the baseline's server.  `max_turns` are
    those of a conversation, where conversations are measured; `baseline_depth` is the number of tokens that the first
    of two deployments drafts.
    """
    identity, other = identities[Arm.BASELINE], identities[Arm.SPECULATIVE]
    details = {
        "served_model": settings.model,
        "target_root": other.root,
        "target_tokenizer": tokenizer_digest(Path(config.target)) if has_folder else SERVERS_TOKENIZER,
        "baseline_root": identity.root,
        "draft": config.draft or "",
        "baseline_engine": identity.name,
        "max_model_len": f"{identity.max_model_len}, {other.max_model_len}",
        "counts_source": source.name,
        **({"api": settings.api} if settings.api == "chat" else {}),
        "requests_per_slot": str(requests_per_slot),
        **(
            {PREFIX_CACHE: settings.prefix_cache, "max_turns": str(max_turns)}
            if settings.measures_conversations
            else {}
        ),
        **dict(other.reported_settings),
        **({"baseline_drafts": str(baseline_depth)} if config.is_deployment else {}),
        **fact_details(known_facts(identity, settings.baseline), known_facts(other, settings.server_of(config.name))),
    }
    return fingerprint_config(
        config,
        engine=other.name,
        device=settings.device,
        dtype=settings.dtype,
        details=details,
        frozen_options=FROZEN_OPTIONS,
        default_sampling=default_sampling,
        prompt_rules=prompt_rules,
    )
