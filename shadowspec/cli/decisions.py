"""A decision as the JSON document that CI and cron rely on."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from shadowspec.types import Decision


def decision_document(decision: Decision) -> dict[str, Any]:
    """The decision in the shape of the command-line contract; units stand in the names."""
    return {
        "decision_id": decision.decision_id,
        "endpoint": decision.endpoint,
        "slice": decision.slice_labels,
        "load": {"concurrency": decision.concurrency},
        "speculation_config": asdict(decision.config),
        "fingerprint": decision.fingerprint,
        "engine": decision.engine,
        "serving_engine": decision.serving_engine,
        "verdict": decision.verdict.value,
        "reason_code": decision.reason_code,
        "reason": decision.reason,
        "num_clusters": decision.num_clusters,
        "num_blocks": decision.num_blocks,
        "clusters_needed": decision.clusters_needed,
        "tests": [
            {
                "name": test.name,
                "outcome": test.outcome,
                "estimate": test.estimate,
                "lower": test.lower,
                "upper": test.upper,
                "threshold": test.threshold,
                "alpha": test.alpha,
                "num_clusters": test.num_units,
                "unit": test.unit,
                "min_units": test.min_units,
                "units_needed": test.units_needed,
                "details": dict(test.details),
            }
            for test in decision.tests
        ],
        "decided_at": decision.decided_at.isoformat(),
    }
