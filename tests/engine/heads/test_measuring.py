"""A block measured with every kind of heads beside each other: runs, and what the heads cost in memory."""

from __future__ import annotations

from pathlib import Path

from shadowspec.engine import Engine, Models
from shadowspec.engine.models import LoadedModel
from shadowspec.types import SpeculationConfig, VerifyRule
from shadowspec.types.settings import EngineSettings
from tests.builders.engine_blocks import block, prompt
from tests.builders.head_candidates import KINDS
from tests.identities import check_identities


def test_a_block_with_every_kind_of_heads(target: LoadedModel, folders: dict[str, Path]) -> None:
    configs = [
        SpeculationConfig(kind, target.path, str(folders[kind]), kind, 3, rule)
        for kind, rule in zip(
            KINDS, (VerifyRule.REJECTION, VerifyRule.GREEDY_DRAFT, VerifyRule.EXACT_MATCH), strict=True
        )
    ]
    loaded, candidates = Models(EngineSettings("cpu", "float32")).candidates(
        target.path, configs, lambda _: None, 1, {}
    )
    result = Engine(loaded, candidates, EngineSettings()).measure(block([prompt(1), prompt(2, 0.7)]))
    assert len(result.runs) == 2 * len(KINDS)
    for run in result.runs:
        assert run.counts is not None
        assert run.parity is not None
        check_identities(run.counts)
        assert run.parity.first_divergence is None
        assert run.counts.num_drafts > 0
    for candidate in candidates:
        memory, draft = result.memory[candidate.config.fingerprint], candidate.draft
        assert draft is not None
        assert memory.draft_weight_bytes == draft.weight_bytes > 0
        assert memory.draft_kv_bytes_per_token == draft.kv_bytes_per_token
        extra = memory.speculative_peak_bytes - memory.baseline_peak_bytes - draft.weight_bytes
        # Both arms hold the target's cache; K more columns of it are the speculative arm's, and EAGLE's own cache.
        assert extra > 0
        assert candidate.config.details["draft_forward"] == candidate.config.config.proposer
