"""The rules by which engines draft where they differ, and what a difference means for a measurement.

An endpoint's candidates take the rules of the serving engine, unless the operator sets them.  A measurement by another
rule than an engine's does not predict the acceptance there.  Each engine class states its rules and where its source
has them (`shadowspec.servers.engines`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Final

from shadowspec.types.speculation import DraftSampling, NgramOccurrence, SpeculationConfig, VerifyRule

TRUNCATION: Final = ("top_p", "top_k", "min_p")
LOGIT_RULES: Final = ("penalties", "min_tokens")  # of a request, which change the arg-max too


@dataclass(frozen=True, slots=True)
class EngineRules:
    """The rules of one engine; None: it has no such drafts, or none that can be reproduced here."""

    ngram_occurrence: NgramOccurrence | None = None  # of several occurrences of an n-gram, the one that it copies from
    draft_sampling: DraftSampling | None = None  # the parameters that a draft's distribution follows
    drafts_within_limit: bool | None = None  # a draft is cut to the request's limit of output tokens


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


def differences(config: SpeculationConfig, rules: EngineRules, engine: str) -> Iterable[RuleDifference]:
    """Where a config drafts by another rule than an engine does; none where a server drafted, by its rules."""
    for option in ENGINE_OPTIONS:
        engine_rule, measured = getattr(rules, option), getattr(config, option)
        if engine_rule is not None and engine_rule is not measured and config.uses(option):
            concerns = _concerns(config, option)
            yield RuleDifference(engine, option, rule_word(measured), rule_word(engine_rule), concerns)


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


def _concerns(config: SpeculationConfig, option: str) -> tuple[str, ...]:
    if option != "draft_sampling":
        return ()
    is_drawn = config.verify_rule is VerifyRule.REJECTION or config.is_adaptive  # else the arg-max, which nothing cuts
    return (*TRUNCATION, *LOGIT_RULES) if is_drawn else LOGIT_RULES
