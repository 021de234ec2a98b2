"""Facts of a server on which figures depend, beside its speculation: one vocabulary for engines, operator and reports.

A fact is how a server was started, never what it measured at its start: two starts with the same flags have the same
facts.  Values are short lower-case words: `on`, `off`, `none`, a number, or the engine's own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

Dtype = Literal["float32", "bfloat16", "float16"]  # in which a server computes, by the names of a configuration
FactName = Literal[
    "kv_cache_dtype",
    "quantization",  # of the weights
    "tensor_parallel_size",
    "data_parallel_size",
    "max_num_seqs",  # requests that it serves at once at most
    "scheduling_policy",
    "attention_backend",
    "model_runner",
    "async_scheduling",
    "prefix_caching",
    "kv_offload",  # where keys and values go that leave the device, or "none"
    "lora",
]
FACTS: Final[tuple[FactName, ...]] = get_args(FactName)
FACT: Final = "fact_"  # begins the names of a fingerprint's details that are facts
_UNKNOWN: Final = "unknown"
_BETWEEN: Final = " | "  # the arms' values in such a detail


def fact_text(value: object) -> str:
    """A value as a fact has it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else str(value).strip().lower().replace(_BETWEEN, "/")


@dataclass(frozen=True, slots=True)
class Fact:
    """A known fact of one server, and whether the server reports it; else the operator has declared it."""

    value: str
    is_read: bool


@dataclass(frozen=True, slots=True)
class FactDifference:
    """A fact in which the servers of a pair differ; None where it is unknown of one of them."""

    name: str
    baseline: str | None
    speculative: str | None

    @property
    def text(self) -> str:
        """Name and values, baseline first."""
        return f"{self.name} ({self.baseline or _UNKNOWN}, {self.speculative or _UNKNOWN})"


def fact_details(baseline: Mapping[str, Fact], speculative: Mapping[str, Fact]) -> dict[str, str]:
    """The facts of both servers as details of a fingerprint; what is unknown of both is left out.

    It does not matter where they are known from.
    """
    details = {}
    for name in FACTS:
        if name in baseline or name in speculative:
            values = [_UNKNOWN if name not in facts else facts[name].value for facts in (baseline, speculative)]
            details[f"{FACT}{name}"] = _BETWEEN.join(dict.fromkeys(values))  # one where they are equal
    return details


def differing_facts(details: Mapping[str, str]) -> list[FactDifference]:
    """The facts in which the arms of a fingerprint differ, by its details."""
    pairs = {name: details.get(f"{FACT}{name}", "").split(_BETWEEN) for name in FACTS}
    return [
        FactDifference(name, *(None if value == _UNKNOWN else value for value in pair))
        for name, pair in pairs.items()
        if len(pair) == 2
    ]


def known_dtype(reported: object) -> Dtype | None:
    """A type as torch, a model's folder or a command line names it; None for any other word, such as `auto`."""
    name = str(reported).removeprefix("torch.")
    return next((dtype for dtype in get_args(Dtype) if dtype == name), None)
