"""The worker's metrics, from their registry."""

from __future__ import annotations

from docs.generate.markdown import code, table
from shadowspec.worker.telemetry import Telemetry


def metrics() -> str:
    """Every metric with its type, labels and meaning."""
    rows = [(code(each.name), each.kind, ", ".join(each.labels), each.meaning) for each in Telemetry().described]
    return table(("name", "type", "labels", "meaning"), rows)
