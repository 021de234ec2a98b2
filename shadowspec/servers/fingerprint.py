"""The identity of figures that servers gave: everything known of both that they depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict

from shadowspec.servers.identity import Identity
from shadowspec.servers.probing import CountsSource
from shadowspec.servers.settings import ServerSettings
from shadowspec.types import Arm, FingerprintedConfig, SpeculationConfig


def fingerprinted(
    config: SpeculationConfig,
    settings: ServerSettings,
    identities: Mapping[Arm, Identity],
    source: CountsSource,
    requests_per_slot: int,
) -> FingerprintedConfig:
    """The config with everything known of the servers that its figures depend on; where they stand is no part of it.

    Of a server's weights no digest is known: what it took them from stands for them, and the draft's name in the
    configuration for the draft's.
    """
    own, other = identities[Arm.BASELINE], identities[Arm.SPECULATIVE]
    details = {
        "served_model": settings.model,
        "target_root": other.root,
        "baseline_root": own.root,
        "draft": config.draft or "",
        "baseline_engine": own.name,
        "max_model_len": f"{own.max_model_len}, {other.max_model_len}",
        "counts_source": source.value,
        "requests_per_slot": str(requests_per_slot),
        **dict(other.told),
    }
    settings_of = {name: value for name, value in asdict(config).items() if name not in ("name", "target", "draft")}
    identity = settings_of | {
        "details": details,
        "engine": other.name,
        "device": settings.device,
        "dtype": settings.dtype,
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return FingerprintedConfig(config, other.name, settings.device, settings.dtype, details, digest)
