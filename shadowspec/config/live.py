"""From [endpoints.NAME.live] to the settings of the live guard; no key is read here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shadowspec.config.sections import LiveSection
from shadowspec.gate.guard_policy import GuardPolicy
from shadowspec.gate.policy import GatePolicy
from shadowspec.servers.live_settings import LiveSource


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """What the production engines of an endpoint are read from, how often, and how the guard listens."""

    source: LiveSource
    guard: GuardPolicy
    interval_s: float


def live_settings(section: LiveSection, served_model: str, policy: GatePolicy) -> LiveSettings:
    """The settings of a section; `served_model` is the endpoint's first, `policy` its gate's."""
    return LiveSettings(
        source=LiveSource(
            engine=section.engine,
            urls=tuple(section.metrics_urls),
            model=section.model or served_model,
            api_key_variable=section.api_key_variable,
            ca_file=Path(section.ca_file) if section.ca_file else None,
            timeout_s=section.timeout_s,
        ),
        guard=GuardPolicy(
            metric=policy.acceptance_metric,
            scored_drafts=section.scored_drafts,
            run_length=section.run_length,
            num_replicas=len(section.metrics_urls),
        ),
        interval_s=section.interval_s,
    )
