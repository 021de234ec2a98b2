"""Checkpoints that the speculators package wrote: chains of drafts equal the package's own forward to 1e-4."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from shadowspec.engine.heads.eagle3 import Eagle3Draft
from shadowspec.engine.heads.loading import load_heads
from shadowspec.engine.kv_cache import ColumnSpan, RaggedCache
from shadowspec.engine.models import LoadedModel
from tests.builders.head_candidates import TOLERANCE

FOLDER = Path(__file__).parents[2] / "data" / "heads" / "speculators"
REDUCED = [1, 4, 5, 8, 11]


@pytest.mark.parametrize("name", ["llama_whole", "llama_reduced", "qwen3_norms"])
@torch.inference_mode()
def test_chains_equal_the_packages_own(name: str, target: LoadedModel) -> None:
    draft = load_heads(str(FOLDER / name), "eagle3", target).heads
    assert isinstance(draft, Eagle3Draft)
    assert draft.hidden.layers == (0, 1, 2)
    expected = load_file(FOLDER / f"{name}.safetensors")
    tokens, hidden, logits = (
        expected["tokens"],
        expected["hidden"],
        expected["logits"],
    )  # logits: [depths, entries, own]
    depths, length, vocabulary = logits.shape
    kept = REDUCED if vocabulary == len(REDUCED) else list(range(vocabulary))
    compared = 0
    for start in range(length):
        cache = RaggedCache(1, 1, length + depths, torch.device("cpu"))
        span = ColumnSpan.after(torch.tensor([0]), 0, length + depths, torch.float32)
        angles = draft.angles(span.columns)
        mask = cache.begin_step(span, 0, start + 1)
        entries = draft.fuse(hidden[None, : start + 1])
        states = draft.forward(tokens[None, : start + 1], entries, angles[:, : start + 1], mask, cache)[:, -1:]
        for depth in range(depths):
            found = draft.logits(states[:, 0])[0]
            torch.testing.assert_close(found[kept], logits[depth, start], **TOLERANCE)
            assert torch.isinf(found).sum() == len(found) - vocabulary
            compared += 1
            place = start + 1 + depth
            if place == length:
                break
            mask = cache.begin_step(span, place, place + 1)
            states = draft.forward(tokens[None, place, None], states, angles[:, place : place + 1], mask, cache)
    assert compared == depths * length - sum(range(depths))
