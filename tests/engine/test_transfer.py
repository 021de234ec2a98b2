"""What a step asks of the device: its outcome is read back once, and nothing else in it makes the host wait."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.engine import sampling
from shadowspec.engine.batch import Batch, Request
from shadowspec.engine.decode import decode_batch
from shadowspec.engine.proposers import Proposer
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.engine.proposers.ngram import NgramProposer
from shadowspec.engine.sampling import kept_heads
from shadowspec.types import SamplingParameters, VerifyRule
from tests.builders.transfers import watched


@pytest.mark.parametrize("kind", ["baseline", "draft", "ngram"])
@pytest.mark.parametrize(
    "parameters",
    [
        SamplingParameters(temperature=0.0, max_tokens=20, ignore_eos=True),
        SamplingParameters(temperature=0.8, max_tokens=20, ignore_eos=True, top_p=0.9, top_k=8, min_p=0.01),
        SamplingParameters(
            temperature=0.8, max_tokens=20, min_tokens=5, repetition_penalty=1.1, presence_penalty=0.1, top_p=0.95
        ),
    ],
    ids=["greedy", "sampled", "penalties"],
)
def test_a_step_waits_for_the_device_once(
    kind: str, parameters: SamplingParameters, target: Any, draft: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "TOP_P_HEAD", target.vocab_size)  # as on a GPU
    monkeypatch.setattr(
        sampling, "highest_first", lambda values, count=None: values.sort(-1, descending=True).values[..., :count]
    )
    proposers: dict[str, Proposer | None] = {
        "baseline": None,
        "draft": DraftModelProposer(draft, 3, is_sampling=True),
        "ngram": NgramProposer(3, 1, 3),
    }
    commits: list[int] = []
    commit = Batch.commit

    with watched() as seen:

        def counted(batch: Batch, outcomes: list[list[int]]) -> None:
            commits.append(sum(seen.values()))
            commit(batch, outcomes)

        monkeypatch.setattr(Batch, "commit", counted)
        decode_batch(
            target,
            [Request((2, 3 + row, 4, 2, 3 + row), parameters, row) for row in range(4)],
            proposer=proposers[kind],
            num_speculative_tokens=3,
            verify_rule=VerifyRule.REJECTION if kind == "draft" else VerifyRule.GREEDY_DRAFT,
            end_token_ids=frozenset(),
        )
    assert len(commits) > 5
    steps = [after - before for before, after in pairwise(commits)]
    assert set(steps) == {1}, f"{seen}"


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_head_looked_at_first_changes_nothing(data: st.DataObject) -> None:
    """On a CPU top-p looks at a short head first, on a GPU at all entries.

    Multiples of 1/256, whose sums are exact in any order; ties, zeros and rows that need nothing among them.
    """
    rows, vocabulary = data.draw(st.integers(1, 4)), data.draw(st.integers(2, 90))
    counts = data.draw(
        st.lists(
            st.lists(st.integers(0, 40), min_size=vocabulary, max_size=vocabulary).filter(any),
            min_size=rows,
            max_size=rows,
        )
    )
    probs = torch.tensor(counts, dtype=torch.float32) / 256
    shares = data.draw(st.lists(st.integers(0, 8), min_size=rows, max_size=rows))
    needed = probs.sum(-1) * torch.tensor(shares) / 8
    edges, masses = kept_heads(probs, needed, vocabulary)
    for found, expected in zip(kept_heads(probs, needed, 3), (edges, masses), strict=True):
        assert found.tolist() == expected.tolist()
    for row in range(rows):
        kept = probs[row] >= edges[row]
        assert masses[row] == probs[row][kept].sum() >= needed[row]
        # Without the entries at the edge it is less than needed, or nothing.
        assert probs[row][probs[row] > edges[row]].sum() < max(float(needed[row]), 1 / 512)
