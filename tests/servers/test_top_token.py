"""Bounds of the likeliest token's processed probability, against the in-process engine's whole distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shadowspec.engine.sampling import BatchSampling
from shadowspec.servers.top_token import likeliest_probs, num_needed
from shadowspec.types import SamplingParameters

VOCABULARY = 300


def logits_of(seed: int, places: int = 4) -> torch.Tensor:
    """From certain to nearly level, float32 [places, vocabulary]."""
    rng = np.random.default_rng(seed)
    scale = np.geomspace(0.3, 6.0, places)[:, None]
    return torch.tensor(rng.normal(0.0, 1.0, (places, VOCABULARY)) * scale, dtype=torch.float32)


def report_logprobs(logits: torch.Tensor, number: int) -> NDArray[np.float64]:
    """What a server would say of the places, [places, number]."""
    return logits.log_softmax(-1).topk(number).values.double().numpy()


def truth(logits: torch.Tensor, sampling: SamplingParameters) -> NDArray[np.float64]:
    """The in-process engine's, [places]."""
    batch_sampling = BatchSampling([sampling], [(1,)], [()], VOCABULARY, torch.device("cpu"))
    return batch_sampling.probs(logits[None])[0].max(-1).values.double().numpy()


def bounds(
    logits: torch.Tensor, number: int, sampling: SamplingParameters
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return likeliest_probs(report_logprobs(logits, number), sampling)


SAMPLINGS = st.builds(
    SamplingParameters,
    temperature=st.floats(0.05, 2.0),
    top_p=st.one_of(st.just(1.0), st.floats(0.05, 1.0)),
    top_k=st.one_of(st.just(0), st.integers(1, 2 * VOCABULARY)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0)),
)


@given(st.integers(0, 2**20), st.integers(1, VOCABULARY), SAMPLINGS)
@example(5, 1, SamplingParameters(temperature=0.7, top_p=0.9, top_k=1))
@example(5, 40, SamplingParameters(temperature=0.9, top_p=0.99, top_k=40))
@example(7, 20, SamplingParameters(temperature=1.5))
@example(7, 20, SamplingParameters(temperature=1.3, top_k=30))
def test_the_truth_lies_between_the_bounds(seed: int, number: int, sampling: SamplingParameters) -> None:
    logits = logits_of(seed)
    low, high = bounds(logits, number, sampling)
    found = truth(logits, sampling)
    assert (low <= found + 1e-5).all()
    assert (found <= high + 1e-5).all()
    assert (low > 0.0).all()
    assert (high <= 1.0).all()


EXACT = [
    (1, {"temperature": 1.0}),
    (30, {"temperature": 0.7, "top_k": 20}),
    (30, {"temperature": 1.4, "top_k": 20, "top_p": 0.9}),
    (150, {"temperature": 0.2, "top_p": 0.6}),
    (VOCABULARY, {"temperature": 0.8}),
    (VOCABULARY, {"temperature": 0.8, "top_p": 0.95}),
    (60, {"temperature": 0.3, "min_p": 0.2}),
]


@pytest.mark.parametrize(("number", "changes"), EXACT)
def test_what_is_told_whole_is_known_exactly(number: int, changes: dict[str, float]) -> None:
    sampling = SamplingParameters(**changes)  # type: ignore[arg-type]
    logits = logits_of(3)[1:]  # none that is nearly level
    low, high = bounds(logits, number, sampling)
    assert (high - low).max() < 1e-3
    assert np.abs((low + high) / 2.0 - truth(logits, sampling)).max() < 5e-4


@pytest.mark.parametrize("temperature", [0.5, 0.7, 0.9])
def test_more_tokens_leave_less_in_doubt(temperature: float) -> None:
    logits, sampling = logits_of(11), SamplingParameters(temperature=temperature)
    widths = [float((high - low).max()) for low, high in (bounds(logits, n, sampling) for n in (1, 5, 20, 100))]
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < widths[0] / 4


def test_ties_at_the_edge_of_what_is_told_are_not_taken_for_certain() -> None:
    """Five equal tokens of which three are told, cut at the three likeliest: all five stay in the engine."""
    logits = torch.full((1, VOCABULARY), -4.0)
    logits[0, :5] = 3.0
    sampling = SamplingParameters(temperature=0.8, top_k=3)
    assert truth(logits, sampling)[0] == pytest.approx(0.2)
    low, high = bounds(logits, 3, sampling)
    assert low[0] <= 0.2 < high[0] == pytest.approx(1.0 / 3.0)
    low, high = bounds(logits, 6, sampling)
    assert low[0] == pytest.approx(0.2)


def test_ties_at_the_edge_of_the_nucleus_may_be_cut_or_not() -> None:
    """The engine keeps both tokens of which one would do; servers that sort cut one of them."""
    logits = torch.full((1, VOCABULARY), -30.0)
    logits[0, :4] = torch.tensor([0.4, 0.2, 0.2, 0.2]).log()
    sampling = SamplingParameters(temperature=1.0, top_p=0.5)
    assert truth(logits, sampling)[0] == pytest.approx(0.4)
    low, high = bounds(logits, 8, sampling)
    assert low[0] == pytest.approx(0.4)
    assert high[0] == pytest.approx(0.4 / 0.6)


def test_a_last_token_that_cannot_come_leaves_nothing_beyond_it() -> None:
    logprobs = np.array([[math.log(0.75), math.log(0.25), -9999.0]])
    for temperature in (0.5, 2.0):
        low, high = likeliest_probs(logprobs, SamplingParameters(temperature=temperature))
        weights = np.array([0.75, 0.25]) ** (1.0 / temperature)
        assert low[0] == pytest.approx(weights[0] / weights.sum())
        assert high[0] == pytest.approx(low[0])


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [({}, 1), ({"temperature": 0.9}, 20), ({"top_p": 0.9}, 20), ({"top_k": 5}, 20), ({"min_p": 0.1}, 20)],
)
def test_one_token_is_asked_for_where_it_says_it_all(changes: dict[str, float], wanted: int) -> None:
    sampling = SamplingParameters(**{"temperature": 1.0, **changes})  # type: ignore[arg-type]
    assert num_needed(sampling, 20) == wanted
