"""The metrics of the worker and the scheduler, from their registries."""

from __future__ import annotations

from docs.generate.markdown import code, table
from shadowspec.scheduler.verdict_metrics import FAMILIES
from shadowspec.worker.telemetry import Telemetry


def metrics() -> str:
    """Every metric with its type, labels and meaning."""
    rows = [(code(each.name), each.kind, ", ".join(each.labels), each.meaning) for each in Telemetry().described]
    return table(("name", "type", "labels", "meaning"), rows)


def verdicts() -> str:
    """Every metric of verdicts with its labels and meaning."""
    rows = [(code(f"shadowspec_{name}"), ", ".join(labels), meaning) for name, (meaning, labels) in FAMILIES.items()]
    return table(("name", "labels", "meaning"), rows)
