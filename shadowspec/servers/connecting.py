"""From the settings of an endpoint's servers to an engine that measures through them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from shadowspec.errors import ConfigError, ModelError
from shadowspec.quality.custom_scores import Scorer
from shadowspec.servers.identity import fingerprint_server_config
from shadowspec.servers.judging import OutputAuditor, ServedCandidate
from shadowspec.servers.measure_servers import ServerEngine
from shadowspec.servers.measured_server import MeasuredServer
from shadowspec.servers.prefix_caches import PrefixCaches
from shadowspec.servers.probing import counts_source, probe_servers, remarks, require_dtype
from shadowspec.servers.server_settings import ServerSettings
from shadowspec.servers.step_counts import COUNTERS
from shadowspec.types import Arm, FingerprintedConfig, SpeculationConfig
from shadowspec.types.prompt_rules import UNNAMED, PromptRules
from shadowspec.types.settings import EngineSettings

log = logging.getLogger(__name__)


def connect(
    settings: ServerSettings,
    candidates: Sequence[SpeculationConfig],
    measuring: EngineSettings,
    *,
    requests_per_slot: int,
    default_sampling: Mapping[str, float],
    max_turns: int = 1,
    prompt_rules: PromptRules = UNNAMED,
    has_folder: bool = True,
    scorer: Scorer | None = None,
    new_auditor: Callable[[FingerprintedConfig], OutputAuditor] | None = None,
) -> ServerEngine:
    """An engine on servers that were probed and fit the configs.

    `requests_per_slot`, `default_sampling`, `max_turns` and `prompt_rules` are those of the endpoint, a part of its
    fingerprints; `has_folder` says whether its target is a folder, whose tokenizer renders prompts.
    `new_auditor` makes the auditor of a config, once its servers are known.

    Raises:
        ServerError: one of them gives no usable answer.
        ModelError: they do not fit; the message names what is missing.
        ConfigError: the key's variable is not set, the file of certificates cannot be read, or scores need a text that
            a server does not return.
    """
    baseline, probes = probe_servers(settings, [config.name for config in candidates])
    noted: dict[str, list[str]] = {}
    for config, speculative in zip(candidates, probes, strict=True):
        for remark in remarks(baseline, speculative, config):
            noted.setdefault(remark, []).append(repr(config.name))
    for remark, names in noted.items():
        log.warning("%s %s: %s", "candidates" if len(names) > 1 else "candidate", ", ".join(names), remark)
    depth = baseline.num_speculative_tokens or 0
    served = []
    for config, speculative in zip(candidates, probes, strict=True):
        source = counts_source(config, baseline, speculative)
        require_dtype(config, settings.dtype, baseline, speculative)
        returns_text = baseline.engine.returns_text and speculative.engine.returns_text
        if scorer is not None and scorer.functions and not returns_text:
            raise ConfigError(
                f"scores: {speculative.engine.title} returns token ids without their text, which functions need; "
                "remove the key"
            )
        known = fingerprint_server_config(
            config,
            settings,
            {Arm.BASELINE: baseline.identity, Arm.SPECULATIVE: speculative.identity},
            source,
            requests_per_slot,
            default_sampling,
            max_turns,
            prompt_rules,
            baseline_depth=depth,
            has_folder=has_folder,
        )
        if new_auditor is not None and source == COUNTERS:
            raise ModelError(
                f"servers.audit_share: answers of {speculative.identity.name} do not report accepted tokens, and its "
                "counters count another answer; start it with per-request metrics (docs/servers.md), or remove the key"
            )
        server = MeasuredServer(
            settings,
            settings.server_of(config.name),
            Arm.SPECULATIVE,
            speculative,
            num_speculative_tokens=config.num_speculative_tokens,
            drafts_in_every_step=config.drafts_in_every_step,
        )
        served.append(ServedCandidate(known, server, source, None if new_auditor is None else new_auditor(known)))
    plain = MeasuredServer(
        settings,
        settings.baseline,
        Arm.BASELINE,
        baseline,
        num_speculative_tokens=depth,
        drafts_in_every_step=all(config.drafts_in_every_step for config in candidates),
    )
    has_salts = all(probe.has_salts for probe in (baseline, *probes))
    caches = PrefixCaches(settings.prefix_cache, has_salts=has_salts)
    return ServerEngine(settings, plain, served, measuring, caches, scorer)
