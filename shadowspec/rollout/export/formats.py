"""The formats of exports, and whether the decisions behind one are for the engine that will read it.

Latency of one engine does not apply to another.  An export for an engine needs verdicts for that engine.  An export
without an engine (a flag system, a planner) serves the endpoint's engine: it needs verdicts for some serving engine.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from shadowspec.errors import ConfigError
from shadowspec.rollout.export.load_schedule import Schedule
from shadowspec.servers.engines import ENGINES
from shadowspec.types import Decision
from shadowspec.types.serving_engines import EngineName, is_for_serving, parse_engines

ACCEPT_OPTION: Final = "--accept-other-engine"


class ExportFormat(StrEnum):
    """The formats that are of no engine."""

    MODELOPT = "modelopt"
    FLAGD = "flagd"
    LITELLM = "litellm"
    HTTPROUTE = "httproute"
    ENVOY = "envoy"


FORMATS: Final = (*ENGINES, *ExportFormat)


def require_engine(form: str, schedules: Iterable[Schedule], *, is_accepted: bool) -> list[str]:
    """Remarks on verdicts for other engines that are exported all the same, because an operator accepts them.

    Raises:
        ConfigError: there are such verdicts, and nobody accepts them.
    """
    mismatches = sorted({mismatch for schedule in schedules for mismatch in _mismatches(form, schedule)})
    if mismatches and not is_accepted:
        raise ConfigError(
            f"export --format {form}: {'; '.join(mismatches)}. Measure on the engine that serves and name it "
            f"(serving_engine, docs/policy.md), or accept these verdicts with {ACCEPT_OPTION}"
        )
    return [f"accepted by {ACCEPT_OPTION}: {mismatch}" for mismatch in mismatches]


def _mismatches(form: str, schedule: Schedule) -> list[str]:
    """The mismatch of each decision behind a schedule that is on."""
    ids = set(schedule.decision_ids)
    behind = [served.decision for served in schedule.served_decisions if served.decision.decision_id in ids]
    return [text for decision in behind if (text := _mismatch(form, decision)) is not None]


def _mismatch(form: str, decision: Decision) -> str | None:
    if form not in ENGINES:
        if is_for_serving(decision.serving_engine, decision.engine):
            return None
        reader = ", which serves no traffic"
    else:
        wanted = EngineName(form)
        if any(wanted.names(engine) for engine in parse_engines(decision.serving_engine or decision.engine)):
            return None
        reader = f", not for {form}"
    return f"the verdicts on {decision.endpoint} are for {decision.verdict_engine}{reader}"
