"""Quality figures of an output text, from 0 to 1: JSON validity, contract validity, and the operator's functions.

Texts exist only in memory, in the process that made them.  A function that raises, or returns anything but a number
from 0 to 1, leaves its figure missing: the run records it and the gate counts it at its worst.  An error message may
quote the text, so only the error's class is logged.
"""

from __future__ import annotations

import importlib
import inspect
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from shadowspec.errors import ConfigError
from shadowspec.types import PairedScore, RunFlags, ShadowPrompt, Validity

JSON_VALID: Final = "json_valid"
CONTRACT_VALID: Final = "contract_valid"
# The names under which runs carry them and policies set their margins.
STRUCTURED_VALIDITY: Final = "structured_validity"
OWN_SCORE: Final = "score"

# What a function may ask for by name, beside the output that is its only positional argument.
PROMPT: Final = "prompt"
REFERENCE: Final = "reference"
OTHER_OUTPUT: Final = "other_output"
NAMED: Final = (PROMPT, REFERENCE, OTHER_OUTPUT)

ScoreFunction = Callable[..., float]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Scorer:
    """The scores of an endpoint's outputs: functions of the text, by the name of the figure in runs.

    A function takes an output, and by name any of `NAMED`: the prompt as the model sees it, production's recorded
    answer (None: the record has none), and the output of the other arm.  Nothing says which arm an output is of.

    `uses_contract`: contract validity, from the run's flags, is a figure as well.  `decode` reads prompts; engines set
    it where a function takes them.
    """

    functions: Mapping[str, ScoreFunction] = field(default_factory=dict)
    uses_contract: bool = False
    decode: Callable[[Sequence[int]], str] | None = None

    @property
    def takes_prompt(self) -> bool:
        """Whether a function asks for the prompt."""
        return any(PROMPT in _named_parameters(function) for function in self.functions.values())

    def score_pairs(
        self, baseline: Sequence[str], speculative: Sequence[str], prompts: Sequence[ShadowPrompt] | None = None
    ) -> list[dict[str, PairedScore | None]]:
        """The figures of both arms' outputs of the same requests, as their runs carry them.

        `prompts` are these requests; None where no function takes their prompt or reference.
        """
        arguments: list[dict[str, str | None]] = [{}] * len(baseline) if prompts is None else self._arguments(prompts)
        base = self._score(baseline, speculative, arguments)
        spec = self._score(speculative, baseline, arguments)
        return [
            {name: PairedScore(b[name], s[name]) for name in self.functions} for b, s in zip(base, spec, strict=True)
        ]

    def of_flags(self, flags: RunFlags) -> dict[str, PairedScore | None]:
        """The figures that a run's flags give; None where the contract applied to neither arm.

        1 for an arm that satisfies it, 0 for one that breaks it, was cut, or answered in plain text where the other did
        not.
        """
        if not self.uses_contract:
            return {}
        keeps = [
            float(validity is Validity.VALID) for validity in (flags.baseline_validity, flags.speculative_validity)
        ]
        return {STRUCTURED_VALIDITY: None if flags.contract is None else PairedScore(*keeps)}

    def _arguments(self, prompts: Sequence[ShadowPrompt]) -> list[dict[str, str | None]]:
        if not self.takes_prompt:
            return [{REFERENCE: prompt.reference} for prompt in prompts]
        assert self.decode is not None, "an engine whose scorer takes prompts lets it read them"
        return [{PROMPT: self.decode(prompt.prompt_token_ids), REFERENCE: prompt.reference} for prompt in prompts]

    def _score(
        self, texts: Sequence[str], others: Sequence[str], arguments: Sequence[Mapping[str, str | None]]
    ) -> list[dict[str, float | None]]:
        """The figures of each text, by name; None where it is missing."""
        failed: Counter[tuple[str, str]] = Counter()
        named = {name: _named_parameters(function) for name, function in self.functions.items()}
        scored: list[dict[str, float | None]] = []
        for text, other, given in zip(texts, others, arguments, strict=True):
            every = {**given, OTHER_OUTPUT: other}
            scored.append(
                {
                    name: _figure(name, function, text, {key: every[key] for key in named[name]}, failed)
                    for name, function in self.functions.items()
                }
            )
        for (name, why), number in sorted(failed.items()):
            log.warning("%s of %d of %d outputs is missing: %s", name, number, len(texts), why)
        return scored


def load_scorer(names: Sequence[str]) -> Scorer:
    """The scorer of `json_valid` or `contract_valid`, and of one `package.module:function`.

    Raises:
        ConfigError: there is no such function; the message names the fault.
    """
    functions = {name: is_json if name == JSON_VALID else _function(name) for name in names if name != CONTRACT_VALID}
    return Scorer({score_name(name): function for name, function in functions.items()}, CONTRACT_VALID in names)


def is_json(text: str) -> float:
    """1 where the whole text is one JSON value by RFC 8259, 0 where it is not."""
    try:
        # Numbers stay text, because their length does not matter for validity; RFC 8259 has no NaN.
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return 0.0
    return 1.0


def score_name(name: str) -> str:
    """The name that runs carry a score under, by how the configuration calls it."""
    return STRUCTURED_VALIDITY if name in (JSON_VALID, CONTRACT_VALID) else OWN_SCORE


def _function(name: str) -> ScoreFunction:
    module_name, _, attribute = name.partition(":")
    try:
        loaded: Any = getattr(importlib.import_module(module_name), attribute)
    except ImportError as error:
        raise ConfigError(f"scores: {name}: {module_name} cannot be imported ({error}); is it installed?") from error
    except AttributeError as error:
        raise ConfigError(f"scores: {name}: {module_name} has no {attribute}") from error
    except Exception as error:  # a module may raise anything at import; no output has been seen yet
        raise ConfigError(f"scores: {name}: importing {module_name} failed: {type(error).__name__}: {error}") from error
    if not callable(loaded):
        raise ConfigError(f"scores: {name}: this is not a function")
    function: ScoreFunction = loaded
    try:
        inspect.signature(function).bind("", **dict.fromkeys(_named_parameters(function)))
    except ValueError:
        pass  # a function in C may have no signature: it takes the output
    except TypeError as error:
        raise ConfigError(
            f"scores: {name}: it cannot be called ({error}): a score takes the output, and by name any of "
            f"{', '.join(NAMED)}"
        ) from error
    return function


def _named_parameters(function: ScoreFunction) -> tuple[str, ...]:
    """Those of `NAMED` that a function takes beside its first argument."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a function in C may have no signature
        return ()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return NAMED
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    behind_output = list(parameters)[1:]
    taken = {parameter.name for parameter in behind_output if parameter.kind in by_name}
    return tuple(name for name in NAMED if name in taken)


def _figure(
    name: str,
    function: ScoreFunction,
    text: str,
    named: Mapping[str, str | None],
    failed: Counter[tuple[str, str]],
) -> float | None:
    try:
        value = float(function(text, **named))
    except (Exception, SystemExit) as error:  # the operator's code may raise anything; its message may quote the text
        failed[name, type(error).__name__] += 1
        return None
    if not 0.0 <= value <= 1.0:
        failed[name, "a figure that does not lie from 0 to 1"] += 1
        return None
    return value


def _refuse(_: str) -> NoReturn:
    raise ValueError("not a number of RFC 8259")
