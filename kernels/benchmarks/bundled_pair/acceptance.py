"""What the pair does on the bundled traffic: acceptance, how alike a session's requests are, repetition loops.

Every request of the traffic runs through the engine's own loop at its endpoint's sampling, and a part of
them greedily as well.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from kernels.benchmarks.bundled_pair.prompts import ENDPOINTS
from kernels.benchmarks.bundled_pair.responses import load_model, request_seed, respond
from shadowspec.engine.batch import Request
from shadowspec.engine.decode import Decoded
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.metrics import first_position_acceptance_rate, mean_acceptance_length, pool_counts, ratio
from shadowspec.quality.outputs import is_repetition_loop
from shadowspec.types import SamplingParameters, VerifyRule

NUM_SPECULATIVE_TOKENS = 4
GREEDY_REQUESTS = 128  # per endpoint, for the greedy figures of endpoints that sample
RESAMPLES = 2_000  # of sessions, for the interval of the correlation


@dataclass(frozen=True, slots=True)
class TrafficRequest:
    """A usable record of the traffic file: what is needed to run it again."""

    endpoint: str
    session_id: str
    prompt_token_ids: tuple[int, ...]
    output_token_ids: tuple[int, ...]
    sampling: SamplingParameters


@dataclass(frozen=True, slots=True)
class SessionCorrelation:
    """Intraclass correlation of first-position acceptance per request within sessions, with a 95 % interval."""

    icc: float | None
    lower: float | None
    upper: float | None
    num_sessions: int
    num_requests: int


@dataclass(frozen=True, slots=True)
class EndpointFigures:
    """One endpoint; rates are pooled over steps, None where there was no step."""

    num_requests: int
    acceptance_length: float | None
    first_position_rate: float | None
    greedy_acceptance_length: float | None
    greedy_first_position_rate: float | None
    correlation: SessionCorrelation
    logged_loop_share: float | None
    speculative_loop_share: float | None
    greedy_loop_share: float | None


def read_requests(traffic: Path) -> dict[str, list[TrafficRequest]]:
    """The usable records by endpoint; a line that is bad on purpose is left out, and so is its original's copy."""
    endpoint_by_model = {plan.served_model: plan for plan in ENDPOINTS}
    requests: dict[str, list[TrafficRequest]] = {plan.name: [] for plan in ENDPOINTS}
    seen: set[str] = set()
    for line in gzip.decompress(traffic.read_bytes()).decode("utf-8").splitlines():
        record = _usable(line)
        if record is None or record["request_id"] in seen:
            continue
        seen.add(record["request_id"])
        plan = endpoint_by_model.get(record["request"]["model"])
        if plan is None:
            continue
        choice = record["response"]["choices"][0]
        prompt = record["response"].get("prompt_token_ids", choice.get("prompt_token_ids"))
        requests[plan.name].append(
            TrafficRequest(
                endpoint=plan.name,
                session_id=record["session_id"],
                prompt_token_ids=tuple(prompt),
                output_token_ids=tuple(choice["token_ids"]),
                sampling=SamplingParameters(**plan.parameters),
            )
        )
    return requests


def _usable(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except json.JSONDecodeError:
        return None
    # The ids of lines that are bad on purpose are `resp-`, whatever is bad about them.
    if not isinstance(record, dict) or record["response"]["id"].startswith("resp-"):
        return None
    return record


def measure(pair: Path, traffic: Path) -> dict[str, EndpointFigures]:
    """Run the traffic through the pair; figures by endpoint."""
    target, draft = load_model(pair / "target"), load_model(pair / "draft")
    return {name: _endpoint_figures(target, draft, rows) for name, rows in read_requests(traffic).items()}


def _endpoint_figures(target: Any, draft: Any, rows: Sequence[TrafficRequest]) -> EndpointFigures:
    decoded = _speculative(target, draft, rows)
    is_greedy = all(row.sampling.temperature == 0.0 for row in rows)
    greedy_rows = [
        replace(row, sampling=structs.replace(row.sampling, temperature=0.0, top_p=1.0))
        for row in rows[:GREEDY_REQUESTS]
    ]
    greedy = decoded if is_greedy else _speculative(target, draft, greedy_rows)
    counts, greedy_counts = pool_counts(one.counts for one in decoded), pool_counts(one.counts for one in greedy)
    return EndpointFigures(
        num_requests=len(rows),
        acceptance_length=mean_acceptance_length(counts) if counts else None,
        first_position_rate=first_position_acceptance_rate(counts) if counts else None,
        greedy_acceptance_length=mean_acceptance_length(greedy_counts) if greedy_counts else None,
        greedy_first_position_rate=first_position_acceptance_rate(greedy_counts) if greedy_counts else None,
        correlation=session_correlation(_rates_by_session(rows, decoded)),
        logged_loop_share=_loop_share([row.output_token_ids for row in rows]),
        speculative_loop_share=_loop_share([one.output for one in decoded]),
        greedy_loop_share=_loop_share([one.output for one in greedy]),
    )


def _speculative(target: Any, draft: Any, rows: Sequence[TrafficRequest]) -> list[Decoded]:
    is_sampling = any(row.sampling.temperature > 0.0 for row in rows)
    return respond(
        target,
        [
            Request(row.prompt_token_ids, row.sampling, request_seed("card", row.endpoint, *row.prompt_token_ids))
            for row in rows
        ],
        proposer=DraftModelProposer(draft, NUM_SPECULATIVE_TOKENS, is_sampling=is_sampling),
        num_speculative_tokens=NUM_SPECULATIVE_TOKENS,
        verify_rule=VerifyRule.REJECTION if is_sampling else VerifyRule.GREEDY,
    )


def _loop_share(outputs: Sequence[Sequence[int]]) -> float | None:
    return ratio(sum(is_repetition_loop(output) for output in outputs), len(outputs))


def _rates_by_session(rows: Sequence[TrafficRequest], decoded: Sequence[Decoded]) -> dict[str, list[float]]:
    """First-position acceptance of each request that made a step, by session."""
    rates: dict[str, list[float]] = {}
    for row, one in zip(rows, decoded, strict=True):
        rate = first_position_acceptance_rate(one.counts)
        if rate is not None:
            rates.setdefault(row.session_id, []).append(rate)
    return rates


def session_correlation(rates: Mapping[str, Sequence[float]]) -> SessionCorrelation:
    """One-way random-effects intraclass correlation, ICC(1), for sessions of unequal size (Donner 1986).

    The interval is the percentile bootstrap over sessions.
    """
    sessions = list(rates.values())
    moments = np.array([[len(row), sum(row), sum(rate * rate for rate in row)] for row in sessions])  # [sessions, 3]
    lower = upper = None
    if len(sessions) > 1:
        rng = np.random.default_rng(0)
        drawn = [_icc(moments[rng.integers(0, len(sessions), len(sessions))]) for _ in range(RESAMPLES)]
        values = [value for value in drawn if value is not None]
        if values:
            lower, upper = (float(bound) for bound in np.quantile(values, (0.025, 0.975)))
    return SessionCorrelation(
        icc=_icc(moments) if sessions else None,
        lower=lower,
        upper=upper,
        num_sessions=len(sessions),
        num_requests=sum(len(row) for row in sessions),
    )


def _icc(moments: npt.NDArray[np.float64]) -> float | None:
    """ICC(1) from each session's count, sum and sum of squares; None where it is undefined."""
    sizes, sums, squares = moments.T
    groups, total = len(sizes), float(sizes.sum())
    if groups < 2 or total <= groups:
        return None
    between = (float((sums**2 / sizes).sum()) - float(sums.sum()) ** 2 / total) / (groups - 1)
    within = float((squares - sums**2 / sizes).sum()) / (total - groups)
    typical_size = (total - float((sizes**2).sum()) / total) / (groups - 1)
    return ratio(between - within, between + (typical_size - 1.0) * within)
