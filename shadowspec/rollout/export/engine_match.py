"""Whether the decisions behind an export are for the engine that will read it.

Latency of one engine does not apply to another.  An export for an engine needs verdicts for that engine.  An export
without an engine (a flag system, a planner) serves the endpoint's engine: it needs verdicts for some serving engine.
A server's drafting method is exported unchanged, and only to the same engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from shadowspec.errors import ConfigError
from shadowspec.rollout.export.export_document import ExportFormat
from shadowspec.rollout.export.load_schedule import Schedule
from shadowspec.types import Decision, SpeculationConfig
from shadowspec.types.served_methods import DEPTH_KEYS, DRAFT_KEYS, METHOD_KEYS, setting
from shadowspec.types.serving_engines import is_for_serving, parse_engines

ACCEPT_OPTION: Final = "--accept-other-engine"
_ENGINES: Final[Mapping[ExportFormat, str]] = {
    ExportFormat.VLLM: "vllm",
    ExportFormat.SGLANG: "sglang",
    ExportFormat.TENSORRT_LLM: "tensorrt-llm",
    ExportFormat.LLAMACPP: "llama.cpp",
}  # the other formats name no engine


def require_engine(form: ExportFormat, schedules: Iterable[Schedule], *, is_accepted: bool) -> list[str]:
    """Remarks on verdicts for other engines that are exported all the same, because an operator accepts them.

    Raises:
        ConfigError: there are such verdicts, and nobody accepts them.
    """
    found = sorted({mismatch for schedule in schedules for mismatch in _mismatches(form, schedule)})
    if found and not is_accepted:
        raise ConfigError(
            f"export --format {form}: {'; '.join(found)}. Measure on the engine that serves and name it "
            f"(serving_engine, docs/policy.md), or accept these verdicts with {ACCEPT_OPTION}"
        )
    return [f"accepted by {ACCEPT_OPTION}: {mismatch}" for mismatch in found]


def _mismatches(form: ExportFormat, schedule: Schedule) -> list[str]:
    """The mismatch of each decision behind a schedule that is on."""
    ids = set(schedule.decision_ids)
    behind = [each.decision for each in schedule.served_decisions if each.decision.decision_id in ids]
    return [text for decision in behind if (text := _mismatch(form, decision)) is not None]


def _mismatch(form: ExportFormat, decision: Decision) -> str | None:
    wanted = _ENGINES.get(form)
    if wanted is None:
        if is_for_serving(decision.serving_engine, decision.engine):
            return None
        reader = ", which serves no traffic"
    else:
        if wanted in {each.name for each in parse_engines(decision.serving_engine or decision.engine)}:
            return None
        reader = f", not for {wanted}"
    return f"the verdicts on {decision.endpoint} are for {decision.verdict_engine}{reader}"


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
    """The start settings of a server of the engine that drafts as measured.

    Args:
        peer: the engine's name in remarks.
    """
    engines = {each.name for text in schedule.engines for each in parse_engines(text)}
    if engines != {keys.engine}:
        measured = ", ".join(sorted(engines)) or "an unknown engine"
        return _off(f"{config.proposer} is a method of {measured}, not of {peer}: exported as off")
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
        remarks.append(f"speculation above batch size {last} cannot be expressed and is left out")
    return ServedSettings(values, last, tuple(remarks))


def _off(reason: str) -> ServedSettings:
    return ServedSettings(None, 0, (reason,))
