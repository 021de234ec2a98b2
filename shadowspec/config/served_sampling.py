"""How production samples requests that set nothing: as configured, else as its engine reads the model's folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shadowspec.model_folder import GENERATION, stated_sampling
from shadowspec.servers.engines import known_engine
from shadowspec.servers.engines.engine import GENERATION_DEFAULTS
from shadowspec.types import sampling_defaults
from shadowspec.types.serving_engines import IN_PROCESS, parse_engines

PENALTIES: Final = frozenset({"repetition_penalty", "presence_penalty", "frequency_penalty"})
SAMPLED_BY: Final = PENALTIES | set(GENERATION_DEFAULTS)  # the parameters of which servers have defaults
OUTPUT_LIMIT = "max_new_tokens"  # of a generation config: a limit of outputs, and no sampling parameter


@dataclass(frozen=True, slots=True)
class ServedSampling:
    """The defaults of one endpoint's production, and where they are from.

    `stated` is what the target's generation_config.json states, and `is_applied` whether production applies it.
    """

    defaults: Mapping[str, float] = field(default_factory=dict)  # by the names of SamplingParameters
    max_new_tokens: int | None = None  # limit of every output, None: none
    stated: Mapping[str, float] = field(default_factory=dict)
    is_applied: bool = False
    engine: str | None = None  # that serves, as it was named
    applies: bool | None = None  # what the endpoint says of the generation config
    is_read: bool = True  # whether there was a folder to read

    @property
    def text(self) -> str:
        """The defaults, and what became of the generation config, for people."""
        return self.text_of("requests that set none")

    def mattering(self, left_out: Collection[str], *, is_greedy: bool) -> set[str]:
        """Those that a request left out and a default decides, or one that is not known."""
        engine = known_engine(self.engine)
        doubted = () if not self._is_in_doubt else GENERATION_DEFAULTS if engine is None else engine.generation_defaults
        named = {*self.defaults, *self.stated, *doubted} & (PENALTIES if is_greedy else SAMPLED_BY)
        return (named | {"temperature"}) & set(left_out)

    @property
    def _is_in_doubt(self) -> bool:
        """Whether production may apply a generation config that nobody has read."""
        engine = known_engine(self.engine)
        return not self.is_read and bool(engine is None or engine.generation_defaults or self.applies)

    def text_of(self, requests: str, *, neutral: str = "plain sampling at temperature 1") -> str:
        """The text, of requests that are named so; `neutral`: what they get where no default is known."""
        given = sampling_defaults(self.defaults) or neutral
        limit = "" if self.max_new_tokens is None else f", outputs of at most {self.max_new_tokens} tokens"
        stated = sampling_defaults({name: value for name, value in self.stated.items() if name != OUTPUT_LIMIT})
        text = f"{requests} get {given}{limit}"
        if self._is_in_doubt:
            return f"{text}; the servers' {GENERATION} is not known: set default_sampling, or give the target's folder"
        if not stated and not limit:
            return text
        if self.is_applied:
            return (
                f"{text}, because {self.engine or 'production'} applies {GENERATION}; where it does not, set "
                "applies_generation_config = false"
            )
        if self.applies is False:
            return f"{text}; {GENERATION} states {stated}, which is not applied (applies_generation_config = false)"
        is_named = self.engine is not None and parse_engines(self.engine)[0].name != IN_PROCESS
        remedy = "set applies_generation_config = true" if is_named else "name its serving_engine"
        engine = self.engine or "the engine in this process"
        return f"{text}; {GENERATION} states {stated}, which {engine} does not apply: where production does, {remedy}"


def served_sampling(
    target: Path | None, serving_engine: str | None, *, applies: bool | None = None, configured: Mapping[str, float]
) -> ServedSampling:
    """The defaults of an endpoint: those configured, then the generation config's, then the engine's.

    Args:
        target: the target's folder; without a generation config, or where the folder is not there, it states nothing.
            None: it is not at hand.
        serving_engine: as the endpoint names it.
        applies: whether production applies the generation config; None: as its engine does.
        configured: the endpoint's `default_sampling`.

    Raises:
        ModelError: the generation config is damaged.
    """
    engine = known_engine(serving_engine)
    every = {} if target is None else stated_sampling(str(target), target)
    taken = () if engine is None else engine.generation_defaults
    is_applied = bool(taken) if applies is None else applies
    names = (taken or every) if is_applied else ()
    limit = every[OUTPUT_LIMIT] if OUTPUT_LIMIT in names and OUTPUT_LIMIT in every else None
    stated = {name: value for name, value in every.items() if name in names and name != OUTPUT_LIMIT}
    own = {} if engine is None else engine.own_sampling
    return ServedSampling(
        {**own, **stated, **configured},
        None if limit is None else int(limit),
        every if not is_applied else {name: every[name] for name in every if name in names},
        is_applied,
        serving_engine,
        applies,
        is_read=target is not None,
    )
