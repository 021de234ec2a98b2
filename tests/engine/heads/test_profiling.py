"""Every way of drafting is profiled on the same grid: what it does once, what a step costs, and a full proposal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shadowspec.engine import profiling
from shadowspec.engine.batch import Batch
from shadowspec.engine.candidate import Candidate, Models
from shadowspec.engine.decode import ArmResult, Decoded, decode_batch
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.profiling import ProfileGrid, max_depth, profile
from shadowspec.engine.proposers.ngram import NgramProposer
from shadowspec.errors import InputError
from shadowspec.types import CostKey, SpeculationConfig, VerifyRule
from shadowspec.types.settings import EngineSettings
from tests.builders.head_candidates import KINDS

LOOKUPS = ("ngram", "suffix")
GRID = ProfileGrid(loads=(1, 3), depths=(1, 3), contexts=(8, 24), rounds=1)


def candidates(
    target: LoadedModel, folders: dict[str, Path], rule: VerifyRule = VerifyRule.GREEDY_DRAFT
) -> tuple[LoadedModel, tuple[Candidate, ...]]:
    heads = [SpeculationConfig(kind, target.path, str(folders[kind]), kind, 3, rule) for kind in KINDS]
    model = SpeculationConfig("model", target.path, target.path, "draft_model", 3, rule, drafts_within_limit=True)
    lookups = [
        SpeculationConfig(kind, target.path, None, kind, 3, VerifyRule.GREEDY_DRAFT, ngram_min=1, ngram_max=3)
        for kind in LOOKUPS
    ]
    return Models(EngineSettings("cpu", "float32")).candidates(
        target.path, [model, *heads, *lookups], lambda _: None, 1, {}
    )


@pytest.mark.all
@pytest.mark.representative("True-greedy_draft")
@pytest.mark.parametrize(("is_greedy", "rule"), [(True, VerifyRule.GREEDY_DRAFT), (False, VerifyRule.REJECTION)])
def test_every_way_has_its_costs_on_the_whole_grid(
    target: LoadedModel, folders: dict[str, Path], is_greedy: bool, rule: VerifyRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, every = candidates(target, folders, rule)
    results: list[tuple[int, ArmResult[Decoded]]] = []

    def watched(*arguments: Any, **named: Any) -> ArmResult[Decoded]:
        found = decode_batch(*arguments, **named)
        results.append((named["num_speculative_tokens"], found))
        return found

    monkeypatch.setattr(profiling, "decode_batch", watched)
    grid = ProfileGrid(GRID.loads, GRID.depths, GRID.contexts, is_greedy, rounds=1)
    keys = set()
    for candidate in every:
        points = profile(loaded, candidate, grid)
        assert [each.place for each in points] == grid.places
        for each in points:
            assert each.verify_ms > 0.0
            assert each.prefill_ms > 0.0
            assert each.draft_ms > 0.0 or not each.num_speculative_tokens
        keys.add(CostKey.of(candidate.config, is_greedy=is_greedy))
    assert len(keys) == len(every)  # none takes another one's place in the store
    for depth, result in results:
        for each in result.decoded:
            counts = each.counts
            if depth:  # every step verifies as many tokens as the point says, whatever a lookup found
                assert counts.num_plain_steps == 0
                assert counts.num_draft_tokens + counts.num_cut_draft_tokens == depth * counts.num_drafts
            else:
                assert counts.num_drafts == 0


def test_what_is_done_once_counts_to_the_prefill(
    target: LoadedModel, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the mean over the steps, of which there are 31 at most, it would look like slow steps."""
    begin, admit = NgramProposer.begin, NgramProposer.admit

    def slow_begin(self: NgramProposer, batch: Batch) -> None:
        time.sleep(0.3)
        begin(self, batch)

    def slow_admit(self: NgramProposer, batch: Batch, slots: Sequence[int]) -> None:
        time.sleep(0.6)
        admit(self, batch, slots)

    monkeypatch.setattr(NgramProposer, "begin", slow_begin)
    monkeypatch.setattr(NgramProposer, "admit", slow_admit)
    loaded, every = candidates(target, folders)
    lookup = next(each for each in every if each.config.config.proposer == "ngram")
    _, drafting = profile(loaded, lookup, ProfileGrid((1,), (2,), (8,), rounds=1))
    assert drafting.prefill_ms >= 900.0
    assert drafting.draft_ms < 900.0 / 31


def test_more_tokens_than_there_are_heads_are_refused(target: LoadedModel, folders: dict[str, Path]) -> None:
    loaded, every = candidates(target, folders)
    limits = {each.config.config.name: max_depth(each) for each in every}
    assert limits == {
        "model": None, "medusa": 4, "mlp_speculator": 4, "eagle3": None, "ngram": None, "suffix": None,
    }  # fmt: skip
    medusa = next(each for each in every if each.config.config.name == "medusa")
    with pytest.raises(InputError, match="5 tokens cannot be profiled: it drafts 4 at most"):
        profile(loaded, medusa, ProfileGrid((1,), (2, 5), (8,)))
