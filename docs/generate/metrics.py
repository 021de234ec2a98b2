"""The metrics of the worker and the scheduler, from their registries."""

from __future__ import annotations

from docs.generate.markdown import code, listing
from shadowspec.scheduler.verdict_metrics import FAMILIES
from shadowspec.worker.telemetry import Telemetry


def metrics() -> str:
    """Every metric with its type, labels and meaning."""
    return listing(
        (code(family.name), "; ".join(filter(None, (family.kind, ", ".join(family.labels)))), family.meaning)
        for family in Telemetry().described
    )


def verdicts() -> str:
    """Every metric of verdicts with its labels and meaning."""
    return listing(
        (code(f"shadowspec_{name}"), ", ".join(labels), meaning) for name, (meaning, labels) in FAMILIES.items()
    )
