"""The serving engines, one file each: a new engine is its file and its place in this list.

In: requests, pages and answers of servers, and schedules of depths.
Out: bodies, counts, names of metrics, and the files of an export.
Imports: types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from shadowspec.servers.engines.engine import Lack, ReportedDrafts, ServerIdentity, ServingEngine
from shadowspec.servers.engines.llamacpp import LlamaCpp
from shadowspec.servers.engines.rules import ENGINE_OPTIONS, EngineRules, RuleDifference, differences
from shadowspec.servers.engines.sglang import Sglang
from shadowspec.servers.engines.tensorrt_llm import TensorRtLlm
from shadowspec.servers.engines.vllm import Vllm
from shadowspec.types.prompt_rules import UNNAMED, PromptRules
from shadowspec.types.serving_engines import is_cpu_build, parse_engines, plain_name
from shadowspec.types.speculation import DraftSampling, NgramOccurrence, SpeculationConfig

__all__ = ["ENGINES", "Lack", "ReportedDrafts", "ServerIdentity", "ServingEngine", "known_engine"]

ENGINES: Final[Mapping[str, type[ServingEngine]]] = {
    engine.name: engine for engine in (Vllm, Sglang, LlamaCpp, TensorRtLlm)
}
DEFAULT: Final[type[ServingEngine]] = Vllm  # a server that names none of them is spoken to as to this one
_BY_NAME: Final = {plain_name(name): engine for name, engine in ENGINES.items()}
# Rules of engines that serve nothing here: `PromptLookupCandidateGenerator`, `AssistedCandidateGenerator`.
_OTHER_RULES: Final = {"transformers": EngineRules(NgramOccurrence.EARLIEST, DraftSampling.REQUEST)}


def engine_of(name: str, version: str = "") -> ServingEngine:
    """The engine of a server, by the name of its identity or by its owner in /v1/models."""
    engine = _BY_NAME.get(plain_name(name))
    return DEFAULT() if engine is None else engine(version)


def configured_name(name: str) -> str:
    """An engine's name as a configuration has it, from any spelling; unchanged where the engine is not known."""
    engine = _BY_NAME.get(plain_name(name))
    return name if engine is None else engine.name


def speculation_flags() -> str:
    """With what a server of each engine speculates, as in "NAME with --flag, OTHER with --flag"."""
    flags = {engine.title: engine.speculation_flags for engine in ENGINES.values()}
    return ", ".join(f"{title} with {flag}" for title, flag in flags.items() if flag is not None)


def known_engine(text: str | None) -> type[ServingEngine] | None:
    """The engine that a text names, with or without its version; None where it names none that is known."""
    names = parse_engines(text or "")
    return _BY_NAME.get(plain_name(names[0].name)) if len(names) == 1 else None


def rules_of(engine: str | None, device: str | None = None) -> EngineRules:
    """The rules of the engine that a text names, with or without its version; none where they are not known.

    Args:
        device: on which it runs, where that is known: "cpu" makes it the engine's build for CPUs.
    """
    names = parse_engines(engine or "")
    if (known := known_engine(engine)) is not None:
        is_on_cpu = device == "cpu" or is_cpu_build(names[0].name)
        return known.cpu_rules if is_on_cpu and known.cpu_rules is not None else known.rules
    return _OTHER_RULES.get(names[0].name, EngineRules()) if len(names) == 1 else EngineRules()


def prompt_rules_of(engine: str | None) -> PromptRules:
    """How the engine that a text names makes prompts; those of most where it is not known."""
    known = known_engine(engine)
    return UNNAMED if known is None else known.prompt_rules


def with_engine_rules(config: SpeculationConfig, engine: str | None, device: str | None = None) -> SpeculationConfig:
    """The config with the rules of the engine that serves it, as far as they are known and it uses them."""
    rules = rules_of(engine, device)
    known = {option: rule for option in ENGINE_OPTIONS if (rule := getattr(rules, option)) is not None}
    return replace(config, **{option: rule for option, rule in known.items() if config.uses(option)})


def rule_differences(config: SpeculationConfig, engine: str | None) -> tuple[RuleDifference, ...]:
    """Where a config drafts by another rule than the engine that a text names does."""
    return tuple(differences(config, rules_of(engine), str(engine)))
