"""Serving engines: their names, and the one table of how they draft where they differ, as their sources have it.

A config records the measuring engine as `name/version`: `vllm/0.32.0`, or several for the engine in this process
(`shadowspec-torch/0.1.0 torch/2.13.0 transformers/5.23.0`).  An operator names an engine by its name, or with a version
after a slash or a space: "vllm", "vllm/0.32", "vllm 0.32".  The name must be equal but for case; of the version as many
parts as are given, so that 0.32 matches 0.32.0 and 0.32.1, but not 0.320.  Where several engines are named together,
every one must match.

A verdict is for one engine: the one that serves the endpoint where the configuration names it, else the one that
measured.

| engine | n-grams: of several occurrences it copies from | a draft's distribution follows |
|---|---|---|
| vLLM 0.32 | the earliest (`ngram_proposer.py`, and its GPU version) | only temperature (`llm_base_proposer.py`) |
| SGLang | no such lookup: a trie of all requests' outputs | only temperature (`sample_draft_proposal`) |
| TensorRT-LLM | no such lookup: a pool of all requests' n-grams | top-k and top-p too (`one_model_sampler.py`) |
| llama.cpp | the latest, if as much follows (`common_ngram_simple_draft`) | arg-max of its logits (`draft-simple`) |
| transformers 5.23 | the earliest (`PromptLookupCandidateGenerator`) | all parameters (`AssistedCandidateGenerator`) |

Near a request's limit of output tokens llama.cpp cuts a draft to one token less than may still be emitted (its server's
`get_n_draft_max`).  vLLM drafts K tokens there too.  transformers cuts only what a model drafts.

None of them limits the lookup to the end of the text.  An endpoint's candidates take the rules of the serving engine
(`serving_engine`), unless the operator sets them.  A measurement by another rule than an engine's does not predict the
acceptance there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

from shadowspec.types.speculation import DraftSampling, NgramOccurrence, SpeculationConfig, VerifyRule

_VERSION: Final = re.compile(r"v?\d\S*", re.IGNORECASE)
_ENDS_OF_PARTS: Final = ".+-"
IN_PROCESS: Final = "shadowspec-torch"  # the engine in this process, which measures and serves nobody
UNKNOWN: Final = "unknown"  # of decisions without a stored engine
SERVING_ENGINES: Final = ("vllm", "sglang", "llama.cpp", "tensorrt-llm", IN_PROCESS)  # named in questions and messages
_ALIASES: Final = {"tensorrt_llm": "tensorrt-llm", "llamacpp": "llama.cpp"}  # servers' names of themselves
TRUNCATION: Final = ("top_p", "top_k", "min_p")
LOGIT_RULES: Final = ("penalties", "min_tokens")  # of a request, which change the arg-max too


@dataclass(frozen=True, slots=True)
class EngineName:
    """One engine as it is named; `version` may be cut after any of its parts, and is "" where none is given."""

    name: str
    version: str = ""

    def names(self, other: EngineName) -> bool:
        """Whether the other one, as it was measured, is the one that is meant."""
        wanted, found = self.version, other.version
        is_version = found.startswith(wanted) and (not wanted or found[len(wanted) :][:1] in ("", *_ENDS_OF_PARTS))
        return self.name == other.name and is_version


def parse_engines(text: str) -> tuple[EngineName, ...]:
    """The engines that a text names, in its order; a word that begins with a digit is the version of the one before."""
    found: list[EngineName] = []
    for word in text.split():
        name, _, version = word.lower().partition("/")
        if found and not found[-1].version and not version and _VERSION.fullmatch(name):
            found[-1] = EngineName(found[-1].name, _plain(name))
        else:
            found.append(EngineName(_ALIASES.get(name, name), _plain(version)))
    return tuple(found)


def is_measured_on(expected: str, measured: str) -> bool:
    """Whether every engine that `expected` names is among those of a config; an empty expectation never matches."""
    wanted, found = parse_engines(expected), parse_engines(measured)
    return bool(wanted) and all(any(engine_name.names(each) for each in found) for engine_name in wanted)


def verdict_engine(serving: str | None, measured: str) -> str:
    """The engine that a verdict is for: `serving` if named, else the name of the measuring engine."""
    if serving is not None:
        return serving
    found = parse_engines(measured)
    return found[0].name if found else UNKNOWN


def is_for_serving(serving: str | None, measured: str) -> bool:
    """Whether a verdict is for an engine that serves: one that is named or was measured, and not that in process."""
    found = parse_engines(verdict_engine(serving, measured))
    return bool(found) and found[0].name not in (IN_PROCESS, UNKNOWN)


def verdict_engine_text(serving: str | None, measured: str) -> str:
    """The engine that a verdict is for, with the remark that readers need where the endpoint names none."""
    name = verdict_engine(serving, measured)
    if serving is not None:
        return name
    what = "as its servers report" if is_for_serving(serving, measured) else "which measured"
    return f"{name}, {what}: the endpoint names no serving_engine"


def _plain(version: str) -> str:
    return version[1:] if _VERSION.fullmatch(version) and version.startswith("v") else version


@dataclass(frozen=True, slots=True)
class EngineRules:
    """The rules of one engine; None: it has no such drafts, or none that can be reproduced here."""

    ngram_occurrence: NgramOccurrence | None = None
    draft_sampling: DraftSampling | None = None
    drafts_within_limit: bool | None = None


ENGINE_RULES: Final[Mapping[str, EngineRules]] = {  # by the name that `serving_engine` gives
    "vllm": EngineRules(NgramOccurrence.EARLIEST, DraftSampling.TEMPERATURE, drafts_within_limit=False),
    "sglang": EngineRules(None, DraftSampling.TEMPERATURE),
    "tensorrt-llm": EngineRules(None, DraftSampling.REQUEST),
    "llama.cpp": EngineRules(NgramOccurrence.LATEST_FOLLOWED, DraftSampling.TEMPERATURE, drafts_within_limit=True),
    "transformers": EngineRules(NgramOccurrence.EARLIEST, DraftSampling.REQUEST),
}
ENGINE_OPTIONS: Final = tuple(rule.name for rule in fields(EngineRules))  # of a speculation config, named alike


@dataclass(frozen=True, slots=True)
class RuleDifference:
    """An option in which a config that was measured in process drafts otherwise than an engine."""

    engine: str  # as it was named
    option: str
    measured: str
    engine_rule: str
    concerns: tuple[str, ...]  # request parameters for which it matters; none: every request

    @property
    def text(self) -> str:
        """The difference and its consequence, in one sentence."""
        where = f" for requests with {', '.join(self.concerns[:-1])} or {self.concerns[-1]}" if self.concerns else ""
        return (
            f"measured with {self.option} = {self.measured}, while {self.engine}'s rule is {self.engine_rule}: "
            f"acceptance does not carry over{where}"
        )


def rules_of(engine: str | None) -> EngineRules:
    """The rules of the engine that a text names, with or without its version; none where they are not known."""
    names = parse_engines(engine or "")
    return ENGINE_RULES.get(names[0].name, EngineRules()) if len(names) == 1 else EngineRules()


def with_engine_rules(config: SpeculationConfig, engine: str | None) -> SpeculationConfig:
    """The config with the rules of the engine that serves it, as far as they are known and it uses them."""
    rules = rules_of(engine)
    known = {option: rule for option in ENGINE_OPTIONS if (rule := getattr(rules, option)) is not None}
    return replace(config, **{option: rule for option, rule in known.items() if config.uses(option)})


def used_rules(config: SpeculationConfig) -> dict[str, str | bool]:
    """The options in which engines differ and that a config uses, with their values."""
    values = {option: getattr(config, option) for option in ENGINE_OPTIONS if config.uses(option)}
    return {option: value if isinstance(value, bool) else str(value) for option, value in values.items()}


def rule_word(value: str | bool) -> str:
    """A rule as the configuration writes it, without quotes."""
    return str(value).lower()


def rule_texts(config: SpeculationConfig) -> list[str]:
    """The same for people, as in `ngram occurrence: latest`."""
    return [f"{option.replace('_', ' ')}: {rule_word(value)}" for option, value in used_rules(config).items()]


def rule_differences(config: SpeculationConfig, engine: str | None) -> tuple[RuleDifference, ...]:
    """Where a config drafts by another rule than an engine does; empty where a server drafted, by its rules."""
    rules, found = rules_of(engine), []
    for option in ENGINE_OPTIONS:
        theirs, measured = getattr(rules, option), getattr(config, option)
        if theirs is not None and theirs is not measured and config.uses(option):
            concerns = _concerns(config, option)
            found.append(RuleDifference(str(engine), option, rule_word(measured), rule_word(theirs), concerns))
    return tuple(found)


def _concerns(config: SpeculationConfig, option: str) -> tuple[str, ...]:
    if option != "draft_sampling":
        return ()
    is_drawn = config.verify_rule is VerifyRule.REJECTION or config.is_adaptive  # else the arg-max, which nothing cuts
    return (*TRUNCATION, *LOGIT_RULES) if is_drawn else LOGIT_RULES
