"""Whether what an export switches on was decided for the engine that will read it.

Latency says nothing of another engine.  An export for an engine needs verdicts for that engine.  One that names none
(a flag system, a planner) serves whatever serves the endpoint: it needs verdicts for an engine that serves anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from shadowspec.errors import ConfigError
from shadowspec.rollout.export.export_document import ExportFormat
from shadowspec.rollout.export.load_schedule import Schedule
from shadowspec.types import Decision
from shadowspec.types.engine_names import is_for_serving, parse_engines

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
    """What is wrong with each decision behind a schedule that is on."""
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
