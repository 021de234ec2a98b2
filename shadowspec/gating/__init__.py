"""Folds an endpoint's committed rows into evidence and decides every hypothesis it has: store and gate together."""

from __future__ import annotations

from shadowspec.gating.look import Look
from shadowspec.gating.looks import (
    EndpointEvidence,
    decide_endpoint,
    endpoint_looks,
    endpoint_sequences,
)
from shadowspec.gating.replay import Difference, Explanation, explain
from shadowspec.gating.runs import EvidenceStore, run_gate
from shadowspec.gating.trials import HypothesisId, hypothesis_id

__all__ = [
    "Difference",
    "EndpointEvidence",
    "EvidenceStore",
    "Explanation",
    "HypothesisId",
    "Look",
    "decide_endpoint",
    "endpoint_looks",
    "endpoint_sequences",
    "explain",
    "hypothesis_id",
    "run_gate",
]
