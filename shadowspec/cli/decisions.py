"""A decision as the JSON document that CI and cron rely on."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from shadowspec.types import Decision

if TYPE_CHECKING:
    from shadowspec.reports.rendering import Json


def decision_document(decision: Decision) -> dict[str, Any]:
    """The decision in the shape of the command-line contract; the names carry the units."""
    from shadowspec.reports.rendering import test_document, verdict_document

    def with_clusters(test: dict[str, Json]) -> dict[str, Json]:
        return {"num_clusters" if name == "num_units" else name: value for name, value in test.items()}

    return {
        "decision_id": decision.decision_id,
        "endpoint": decision.endpoint,
        "slice": decision.slice_labels,
        "load": {"concurrency": decision.concurrency},
        "speculation_config": asdict(decision.config),
        "fingerprint": decision.fingerprint,
        "engine": decision.engine,
        "serving_engine": decision.serving_engine,
        "verdict_engine": decision.verdict_engine,
        **verdict_document(decision),
        "tests": [with_clusters(test_document(test)) for test in decision.tests],
    }
