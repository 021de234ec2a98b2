"""Engines that hold models in this process: they measure endpoints, and audit what servers answered.

This module loads torch and transformers; without them it says how to install the extra.

In: a configuration with endpoints whose models are loaded.  Out: their engines.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from shadowspec.app.before_loading import connect_servers, load_scorers, with_endpoint_context
from shadowspec.config import Config
from shadowspec.engine import Engine, Models
from shadowspec.engine.audit import Auditor
from shadowspec.engine.candidate import BACKEND
from shadowspec.errors import ModelError
from shadowspec.servers.engines import with_engine_rules
from shadowspec.servers.measure_servers import ServerEngine
from shadowspec.types import FingerprintedConfig

log = logging.getLogger(__name__)


def build_model_engines(config: Config) -> dict[str, Engine | ServerEngine]:
    """The engine of each endpoint; models are loaded once and shared, pairs are checked, servers are looked at.

    Raises:
        ConfigError: a function that scores outputs is not there, or what judges SQL.
        ModelError: a model cannot be loaded, or a pair does not fit together.
        ServiceUnavailableError: a server gives no usable answer.
    """
    scorers = load_scorers(config)
    models = Models(config.engine)
    engines: dict[str, Engine | ServerEngine] = {}
    shared: dict[tuple[object, ...], Engine] = {}
    for name, endpoint in config.endpoints.items():
        rule = endpoint.rule
        if endpoint.servers is not None:
            audits = endpoint.servers.audit_share > 0.0
            new_auditor = partial(_new_auditor, config, name, models) if audits else None
            engines[name] = connect_servers(config, endpoint, scorers[name], new_auditor)
            continue
        sampling, prompts = frozenset(rule.default_sampling.items()), rule.prompt_rules.identity
        key = (endpoint.target, rule.requests_per_slot, sampling, prompts, *endpoint.candidates)
        if key not in shared:
            with with_endpoint_context(config, name):
                target, candidates = models.candidates(
                    endpoint.target,
                    endpoint.candidates,
                    log.warning,
                    rule.requests_per_slot,
                    rule.default_sampling,
                    rule.prompt_rules,
                )
            auditor = Auditor(target, candidates, config.engine)
            shared[key] = Engine(target, candidates, config.engine, scorers=scorers, auditor=auditor)
        engines[name] = shared[key]
    return engines


def _new_auditor(config: Config, name: str, models: Models, known: FingerprintedConfig) -> Auditor:
    """The auditor of one server's outputs, whose drafts follow the rules of the engine that answers.

    Raises:
        ModelError: a model cannot be loaded, the pair does not fit, or the draft cannot follow its target to the end.
    """
    endpoint = config.endpoints[name]
    assert endpoint.servers is not None, "only outputs of servers are audited apart"
    drafting = with_engine_rules(replace(known.config, backend=BACKEND), known.engine, known.device)
    with with_endpoint_context(config, name):
        target, (candidate,) = models.candidates(endpoint.target, [drafting], log.warning, 1, {})
        if candidate.context_limit is not None:
            raise ModelError(
                f"servers.audit_share: the draft takes {candidate.context_limit} tokens, fewer than the target: where "
                "drafting ends does not follow from an output; remove the key"
            )
    audited = replace(candidate, config=replace(candidate.config, fingerprint=known.fingerprint))
    settings = replace(config.engine, audit_share=endpoint.servers.audit_share)
    return Auditor(target, [audited], settings, endpoint.servers.audit_tolerance)
