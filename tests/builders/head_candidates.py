"""Candidates with small heads of each kind, and requests for them."""

from __future__ import annotations

from pathlib import Path

from shadowspec.engine.batch import Request
from shadowspec.engine.candidate import Candidate, Models, fingerprint_candidate
from shadowspec.engine.models import LoadedModel
from shadowspec.types import SamplingParameters, SpeculationConfig, VerifyRule
from shadowspec.types.settings import EngineSettings

KINDS = ["medusa", "mlp_speculator", "eagle3"]
GREEDY = SamplingParameters(temperature=0.0, max_tokens=24, ignore_eos=True)
REQUESTS = [
    Request(tuple(2 + (row * row + step) % 10 for step in range(1 + row % 9)), GREEDY, row) for row in range(16)
]


def candidate(kind: str, folders: dict[str, Path], target: LoadedModel, depth: int, rule: VerifyRule) -> Candidate:
    config = SpeculationConfig("h", target.path, str(folders[kind]), kind, depth, rule)
    draft = Models(EngineSettings("cpu", "float32")).draft(config, target)
    return Candidate(fingerprint_candidate(config, target, draft, 1, {}), draft)


TOLERANCE = {"atol": 1e-4, "rtol": 1e-4}
