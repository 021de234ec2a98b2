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
from shadowspec.rollout.served_decision import engine_mismatch
from shadowspec.servers.engines import ENGINES

ACCEPT_OPTION: Final = "--accept-other-engine"


class ExportFormat(StrEnum):
    """The formats that are of no engine."""

    MODELOPT = "modelopt"
    FLAGD = "flagd"
    LITELLM = "litellm"
    HTTPROUTE = "httproute"
    KSERVE = "kserve"
    ENVOY = "envoy"


FORMATS: Final = (*ENGINES, *ExportFormat)
ROUTES: Final = (ExportFormat.LITELLM, ExportFormat.HTTPROUTE, ExportFormat.KSERVE, ExportFormat.ENVOY)


def require_engine(form: str, schedules: Iterable[Schedule], *, is_accepted: bool) -> list[str]:
    """Remarks on verdicts for other engines that are exported all the same, because an operator accepts them.

    Raises:
        ConfigError: a schedule is off because of such verdicts, which nobody accepts.
    """
    schedules = list(schedules)
    if is_accepted:
        return [
            f"accepted by {ACCEPT_OPTION}: {mismatch}"
            for mismatch in sorted({text for schedule in schedules for text in _mismatches(form, schedule)})
        ]
    if mismatches := sorted({served.reason for schedule in schedules for served in schedule.for_other_engines}):
        raise ConfigError(
            f"export --format {form}: {'; '.join(mismatches)}. Measure on the engine that serves and name it "
            f"(serving_engine, docs/policy.md), or accept these verdicts with {ACCEPT_OPTION}"
        )
    return []


def reader_of(form: str) -> str | None:
    """The engine that reads the format; None: whichever serves the endpoint."""
    return form if form in ENGINES else None


def _mismatches(form: str, schedule: Schedule) -> list[str]:
    """The mismatch of each decision behind a schedule that is on."""
    ids = set(schedule.decision_ids)
    behind = [served.decision for served in schedule.served_decisions if served.decision.decision_id in ids]
    return [text for decision in behind if (text := engine_mismatch(decision, reader_of(form))) is not None]
