"""The parts of engines' exports: what a schedule of depths must offer, and what a document is made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from shadowspec.types import SpeculationConfig


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Batch sizes from `first` to `last` inclusive (None: without end); 0 tokens: no speculation there."""

    first: int
    last: int | None
    num_speculative_tokens: int
    decision_ids: tuple[int, ...] = ()


class DepthSchedule(Protocol):
    """The depths that decisions allow a server, by batch size: `ranges` cover every size from 1 on, in order.

    `config` is the draft (its depth is not to be used: the ranges hold it); None where nothing is on.
    """

    @property
    def config(self) -> SpeculationConfig | None: ...

    @property
    def ranges(self) -> tuple[BatchRange, ...]: ...

    @property
    def basis(self) -> str:
        """What the schedule was made from, for a comment."""

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines that measured what is on."""

    @property
    def decision_ids(self) -> tuple[int, ...]: ...

    @property
    def largest_load_on(self) -> int:
        """The largest load at which any decision is on, whether a range has it or not; 0 without one."""

    def leading_ranges(self) -> tuple[BatchRange, ...]:
        """The ranges that are on without a gap from batch size 1."""


def left_out(schedule: DepthSchedule, last: int) -> list[str]:
    """A remark where the schedule is on above the last batch size of an export."""
    if not any(batches.num_speculative_tokens and batches.first > last for batches in schedule.ranges):
        return []
    return [f"speculation above batch size {last} cannot be expressed and is left out"]


@dataclass(frozen=True, slots=True)
class Export:
    """One export.  `beside` holds the texts of files that belong next to it, by the end of their name.

    `instead` says what to do where a deployer needs no text; it is then only written to a file.
    """

    text: str
    remarks: tuple[str, ...] = ()
    beside: Mapping[str, str] = field(default_factory=dict)
    instead: str | None = None

    @classmethod
    def of(cls, lines: Sequence[str], remarks: Sequence[str] = (), beside: Mapping[str, str] | None = None) -> Export:
        """An export of these lines."""
        return cls("\n".join(lines) + "\n", tuple(remarks), beside or {})


def yaml_lines(values: Mapping[str, object], indent: int = 0) -> list[str]:
    """A mapping of scalars and of mappings of scalars as lines of YAML; scalars are written as JSON, which is YAML."""
    lines = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            lines += [f"{' ' * indent}{name}:", *yaml_lines(value, indent + 2)]
        else:
            lines.append(f"{' ' * indent}{name}: {json.dumps(value)}")
    return lines


def comment_lines(lines: Sequence[str]) -> list[str]:
    """Lines as comments of YAML; a line break within one cannot end the comment."""
    return [f"# {' '.join(line.split())}" for line in lines]


@dataclass(frozen=True, slots=True)
class MethodKeys:
    """An engine's keys of a method, its depth and its draft."""

    method: str
    depth: str
    draft: str


@dataclass(frozen=True, slots=True)
class ServedSettings:
    """The settings of a server up to a batch size; None: exported as off, for the reasons among the remarks."""

    values: Mapping[str, Any] | None
    max_batch_size: int
    remarks: tuple[str, ...]


def counterpart(config: SpeculationConfig | None, names: Mapping[str, str]) -> str | None:
    """A peer's name for the measured drafting method; None where it has none, or nothing is on."""
    return None if config is None or config.is_adaptive or config.is_served_method else names.get(config.proposer)
