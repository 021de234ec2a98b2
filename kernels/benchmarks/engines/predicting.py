"""The speedup that acceptance and a server's costs predict, and the one that was measured.

Costs come of other requests than those that are predicted, which go through the server right before and right after
them.  At each load and depth a request's time to its first token is a line in its prompt's length, and its decoding a
sum over its steps: those with a draft and, where a proposer may find nothing, plain ones, each kind at its price.  How
many steps a request takes is what our loop says; the server's count is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from shadowspec import metrics

SPEEDUP_LEVEL = 0.95
TOLERANCE = 0.1  # of a prediction


class Place(NamedTuple):
    """Requests at once, and drafted tokens of a step; 0: the baseline."""

    concurrency: int
    depth: int


@dataclass(frozen=True, slots=True)
class Steps:
    """What decides a request's time: its prompt, and its steps after the first token."""

    num_prompt_tokens: int
    num_plain_steps: float
    num_drafts: float


@dataclass(frozen=True, slots=True)
class TimedRequest:
    """A request's steps, and its time by the client's clock."""

    steps: Steps
    prefill_ms: float
    decode_ms: float

    @property
    def end_to_end_ms(self) -> float:
        """From sending to the last token."""
        return self.prefill_ms + self.decode_ms


@dataclass(frozen=True, slots=True)
class TimedBlock:
    """A queue of requests of one slice through one server, or the requests around it that costs are taken from."""

    place: Place
    slice: str
    number: int  # blocks of all depths with the same number hold the same requests and follow each other
    requests: tuple[TimedRequest, ...]
    turn: int = 0  # of the server, among those of this number: the baseline has two, speculation's is between them
    is_for_costs: bool = False

    @property
    def end_to_end_ms(self) -> float:
        """Of all requests together."""
        return sum(request.end_to_end_ms for request in self.requests)


@dataclass(frozen=True, slots=True)
class Costs:
    """What a request costs at one load and depth."""

    first_token_ms: float
    prompt_token_ms: float
    plain_step_ms: float
    draft_step_ms: float

    @classmethod
    def of(cls, requests: Sequence[TimedRequest]) -> Costs:
        """By least squares; a kind of step that never came costs nothing, and predicts no request that has some."""
        prompts = np.array([[1.0, request.steps.num_prompt_tokens] for request in requests])
        prefill = np.linalg.lstsq(prompts, np.array([request.prefill_ms for request in requests]), rcond=None)[0]
        # Longer requests vary more: with these weights one kind of step costs total time over steps.
        steps = np.array(
            [[request.steps.num_plain_steps, request.steps.num_drafts] for request in requests], dtype=float
        )
        weights = 1.0 / np.sqrt(np.maximum(steps.sum(1), 1.0))
        decode = np.array([request.decode_ms for request in requests])
        kinds = np.flatnonzero(steps.any(0))
        each_kind = np.zeros(2)
        each_kind[kinds] = np.linalg.lstsq(steps[:, kinds] * weights[:, None], decode * weights, rcond=None)[0]
        return cls(*map(float, prefill), *map(float, each_kind))

    def end_to_end_ms(self, steps: Steps) -> float:
        """The predicted time of a request."""
        prefill = self.first_token_ms + self.prompt_token_ms * steps.num_prompt_tokens
        return prefill + self.plain_step_ms * steps.num_plain_steps + self.draft_step_ms * steps.num_drafts


def costs_of(blocks: Iterable[TimedBlock]) -> dict[Place, Costs]:
    """The servers' costs at every load and depth, from all requests of these blocks."""
    requests_at: dict[Place, list[TimedRequest]] = {}
    for block in blocks:
        requests_at.setdefault(block.place, []).extend(block.requests)
    return {place: Costs.of(requests) for place, requests in requests_at.items()}


def price_spread(blocks: Iterable[TimedBlock]) -> float:
    """How much a plain step's price wanders, one request at a time: the dearest of like blocks over the cheapest."""
    prices = [
        metrics.ratio(sum(request.decode_ms for request in block.requests), _num_steps(block))
        for block in blocks
        if block.is_for_costs and block.place == Place(1, 0)
    ]
    known = [price for price in prices if price is not None]
    return _of(max(known), min(known))


def _num_steps(block: TimedBlock) -> float:
    return sum(request.steps.num_plain_steps + request.steps.num_drafts for request in block.requests)


def predicted_speedup(
    costs: Mapping[Place, Costs], place: Place, baseline: Sequence[Steps], steps: Sequence[Steps]
) -> float:
    """Baseline's over speculation's total end-to-end time of the requests, in the steps that each arm takes."""
    plain = sum(costs[Place(place.concurrency, 0)].end_to_end_ms(own_steps) for own_steps in baseline)
    return _of(plain, sum(costs[place].end_to_end_ms(own_steps) for own_steps in steps))


@dataclass(frozen=True, slots=True)
class Measured:
    """A speedup over blocks: the mean of their logs, with its interval by Student's t."""

    value: float
    lower: float
    upper: float
    blocks: int

    @property
    def excludes_one(self) -> bool:
        """Whether it is known to be faster, or slower."""
        return self.lower > 1.0 or self.upper < 1.0


def measured_speedup(baseline: Sequence[TimedBlock], blocks: Sequence[TimedBlock]) -> Measured:
    """The speedup of blocks that follow each other, by number; several of one number count by their mean time."""
    plain, sped = _mean_ms(baseline), _mean_ms(blocks)
    logs = np.array([log(_of(plain[number], sped[number])) for number in sped])
    mean, number = float(logs.mean()), len(logs)
    half = float(student.ppf(0.5 + SPEEDUP_LEVEL / 2.0, number - 1) * logs.std(ddof=1) / number**0.5)
    return Measured(exp(mean), exp(mean - half), exp(mean + half), number)


def _mean_ms(blocks: Sequence[TimedBlock]) -> dict[int, float]:
    """Mean time of the blocks of each number."""
    times_ms: dict[int, list[float]] = {}
    for block in blocks:
        times_ms.setdefault(block.number, []).append(block.end_to_end_ms)
    return {number: fmean(times) for number, times in times_ms.items()}


def judged(predicted: float, measured: Measured) -> dict[str, Any]:
    """How far a prediction is off, and whether its sign is right where one is known."""
    is_right = (predicted > 1.0) == (measured.value > 1.0)
    return {
        "predicted": predicted,
        "measured": measured.value,
        "lower": measured.lower,
        "upper": measured.upper,
        "blocks": measured.blocks,
        "error": predicted / measured.value - 1.0,
        "is_close": abs(predicted / measured.value - 1.0) <= TOLERANCE,
        "is_inside": measured.lower <= predicted <= measured.upper,
        "sign_is_right": is_right if measured.excludes_one else None,
    }


def _of(baseline_ms: float, own_ms: float) -> float:
    value = metrics.ratio(baseline_ms, own_ms)
    assert value is not None, "a block takes time"
    return value
