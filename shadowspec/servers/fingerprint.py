"""The identity of figures that servers gave: everything known of both that they depend on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shadowspec.servers.identity import Identity
from shadowspec.servers.probing import CountsSource
from shadowspec.servers.server_settings import ServerSettings
from shadowspec.types import (
    FIRST_OPTIONS,
    FIRST_SUFFIX_OPTIONS,
    PREFIX_CACHE,
    Arm,
    FingerprintedConfig,
    SpeculationConfig,
    fingerprint_config,
)

# Servers' fingerprints held every option that there was before options at their defaults were left out.
FROZEN_OPTIONS: Final = FIRST_OPTIONS.union(FIRST_SUFFIX_OPTIONS, ["draft_confidence_threshold"])


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
