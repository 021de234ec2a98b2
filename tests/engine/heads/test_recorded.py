"""Heads draft from the hidden states that recorded passes of the target hand out as from any others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.benchmarks.rerun import Rerun
from shadowspec.engine import static_passes
from shadowspec.engine.arms import record_ahead
from shadowspec.engine.batch import Request
from shadowspec.engine.candidate import Candidate
from shadowspec.engine.decode import decode_batch
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.static_passes import StaticPasses
from shadowspec.types import SamplingParameters, VerifyRule
from tests.builders.head_candidates import KINDS, REQUESTS, candidate


@pytest.mark.representative("mlp_speculator-3", "eagle3-16")
@pytest.mark.parametrize("slots", [16, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_drafts_from_recorded_passes(
    kind: str, slots: int, folders: dict[str, Path], target: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_passes, "LEAST_STEP", 8)
    drafting = candidate(kind, folders, target, 3, VerifyRule.REJECTION)
    recorded = replace(target, passes=StaticPasses(target.model, Rerun))
    assert recorded.passes is not None
    sampled = SamplingParameters(temperature=0.8, max_tokens=16)
    for requests in (REQUESTS, [replace(each, sampling=sampled) for each in REQUESTS[::-1]]):
        assert decoded(drafting, recorded, requests, slots) == decoded(drafting, target, requests, slots)


def decoded(candidate: Candidate, target: LoadedModel, requests: list[Request], slots: int) -> list[tuple[object, ...]]:
    record_ahead(target, candidate, requests, slots)
    if target.passes is not None:
        _spoil(target.passes)
        before = target.passes.num_recorded
    result = decode_batch(
        target.model,
        requests,
        proposer=candidate.proposer(),
        num_speculative_tokens=3,
        verify_rule=VerifyRule.REJECTION,
        end_token_ids=frozenset({1}),
        num_slots=slots,
        passes=target.passes,
    )
    if target.passes is not None:
        assert target.passes.num_recorded == before
    return [(each.output, each.finish_reason, each.counts) for each in result.decoded]


@torch.inference_mode()
def _spoil(passes: StaticPasses) -> None:
    """Results of what was recorded are no results of the batch."""
    for (name, _), buffer in passes._buffers.items():
        if name in ("logits", "states"):
            buffer.fill_(torch.nan)
