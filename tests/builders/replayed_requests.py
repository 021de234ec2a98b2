"""Requests with responses that the loop itself made, and the comparison of counts."""

from __future__ import annotations

import numpy as np

from shadowspec.engine.batch import Request
from shadowspec.engine.decode import Decoded
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.types import (
    ExpectedCounts,
    RecordKey,
    SamplingParameters,
    SpeculationCounts,
)

ENDS = frozenset({1})
COUNTED = (
    "num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos", "acceptance_histogram",
    "num_output_tokens", "num_prompt_tokens", "num_plain_steps", "num_cut_steps", "num_cut_draft_tokens",
)  # fmt: skip
SAMPLINGS = {
    "plain": SamplingParameters(max_tokens=20),
    "warm": SamplingParameters(temperature=0.7, top_p=0.9, max_tokens=24),
    "cut": SamplingParameters(temperature=1.3, top_k=5, min_p=0.02, max_tokens=17, ignore_eos=True),
    "penalised": SamplingParameters(
        temperature=0.9, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2, max_tokens=22,
        min_tokens=6,
    ),
    "greedy": SamplingParameters(temperature=0.0, max_tokens=24),
    "greedy penalised": SamplingParameters(temperature=0.0, frequency_penalty=0.7, max_tokens=24, min_tokens=4),
}  # fmt: skip


def requests(count: int, names: tuple[str, ...] = tuple(SAMPLINGS)) -> list[Request]:
    """Ragged prompts, the first of one token, with every kind of sampling."""
    rng = np.random.default_rng(3)
    return [
        Request(tuple(rng.integers(2, 12, 1 + row % 11).tolist()), SAMPLINGS[names[row % len(names)]], row)
        for row in range(count)
    ]


def responses_of(wanted: list[Request], outputs: list[Decoded]) -> list[Response]:
    return [
        Response(RecordKey("file", 0, row), request, each.output)
        for row, (request, each) in enumerate(zip(wanted, outputs, strict=True))
    ]


def assert_counts_equal(counts: SpeculationCounts, expected: ExpectedCounts) -> None:
    for name in COUNTED:
        assert np.allclose(getattr(expected, name), getattr(counts, name), atol=1e-9), name
    assert expected.drafts_variance < 1e-9
    assert expected.accepted_variance < 1e-9
