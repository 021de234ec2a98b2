"""A method by which the measured server drafted: its settings go out as they came in, to the engine that was measured.

The settings of one engine mean nothing to another, and nothing is known of how the method depends on the batch size:
one depth runs at every batch size that the server is allowed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shadowspec.rollout.export.load_schedule import Schedule
from shadowspec.types import SpeculationConfig
from shadowspec.types.engine_names import parse_engines
from shadowspec.types.served_methods import DEPTH_KEYS, DRAFT_KEYS, METHOD_KEYS, setting

BATCH_SIZE_1: Final = "speculation is off at batch size 1, which cannot be expressed: exported as off"


@dataclass(frozen=True, slots=True)
class MethodKeys:
    """An engine's name in /v1/models, and its keys of a method, its depth and its draft."""

    engine: str
    method: str
    depth: str
    draft: str


@dataclass(frozen=True, slots=True)
class ServedSettings:
    """The settings of a server up to a batch size; None: exported as off, for the reasons among the remarks."""

    values: Mapping[str, Any] | None
    max_batch_size: int
    remarks: tuple[str, ...]


def served_settings(peer: str, schedule: Schedule, config: SpeculationConfig, keys: MethodKeys) -> ServedSettings:
    """What a server of the engine is started with, so that it drafts as was measured.

    Args:
        peer: the engine's name in remarks.
    """
    engines = {each.name for text in schedule.engines for each in parse_engines(text)}
    if engines != {keys.engine}:
        measured = ", ".join(sorted(engines)) or "an unknown engine"
        return _off(f"method {config.proposer} is what {measured} calls it, and not {peer}'s: exported as off")
    leading = schedule.leading_ranges()
    if not leading:
        return _off(BATCH_SIZE_1)
    last = leading[0].last
    assert last is not None, "no schedule is on without end"
    assert leading[0].num_speculative_tokens == config.num_speculative_tokens, "the settings are of another depth"
    values = dict(config.server_settings)
    if setting(values, METHOD_KEYS) is None:
        values[keys.method] = config.proposer
    if setting(values, DEPTH_KEYS) is None:
        values[keys.depth] = config.num_speculative_tokens
    if config.draft is not None and setting(values, DRAFT_KEYS) is None:
        values[keys.draft] = config.draft
    remarks = []
    if any(each.num_speculative_tokens and each.first > last for each in schedule.ranges):
        remarks.append(f"what is on above batch size {last} cannot be expressed and is left out")
    return ServedSettings(values, last, tuple(remarks))


def _off(reason: str) -> ServedSettings:
    return ServedSettings(None, 0, (reason,))
