"""Live windows of a made-up production around an enabling: it drafts from ninety minutes after it, and is faster."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kernels.benchmarks.large_store.looks import History
from kernels.benchmarks.large_store.traffic import DAY, WEEKEND, Floats
from kernels.benchmarks.large_store.world import (
    MEAN_OUTPUT_TOKENS,
    MEAN_PROMPT_TOKENS,
    SyntheticEndpoint,
    acceptance_length,
    log_speedup,
)
from shadowspec.types import END_TO_END, FIRST_TOKEN, PER_TOKEN, Buckets, LiveCounts, LiveWindow, Verdict

SPAN: Final = timedelta(days=7)  # on either side of the enabling
SWITCHED_AFTER: Final = timedelta(minutes=90)
REPLICAS: Final = ("engine-0 (synthetic)", "engine-1 (synthetic)")
SERIES: Final = "synthetic"
REQUESTS_PER_S: Final = 0.7  # of a replica in a mean hour
CACHED_SHARE: Final = 0.3  # of prompt tokens
FIRST_TOKEN_S: Final = 0.08  # mean, with drafts and without
LATENCY_SPREAD: Final = 0.5  # of the log of a time
BOUNDS: Final = {  # seconds; as a server of today has them
    END_TO_END: (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    FIRST_TOKEN: (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0),
    PER_TOKEN: (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
}

_Ints = NDArray[np.int64]


def newest_enabling(history: History, until: datetime) -> datetime | None:
    """When a hypothesis of the endpoint last became ENABLE before `until`."""
    enabled_at: datetime | None = None
    verdicts: dict[tuple[str, int, str], Verdict] = {}
    for decision in (decision for look in history.looks if look.at <= until for decision in look.decisions):
        key = (decision.slice_key, decision.concurrency, decision.fingerprint)
        if decision.verdict is Verdict.ENABLE and verdicts.get(key) is not Verdict.ENABLE:
            enabled_at = decision.decided_at
        verdicts[key] = decision.verdict
    return enabled_at


def windows(
    endpoint: SyntheticEndpoint, enabled_at: datetime, step: timedelta, draw: np.random.Generator
) -> list[LiveWindow]:
    """What every replica counted in each `step`, from `SPAN` before the enabling to `SPAN` after it."""
    begins = [enabled_at - SPAN + place * step for place in range(2 * SPAN // step)]
    is_on = np.array([at >= enabled_at + SWITCHED_AFTER for at in begins])
    profile = np.array([DAY[at.hour] * (WEEKEND if at.weekday() >= 5 else 1.0) for at in begins])
    mean_requests: Floats = profile * REQUESTS_PER_S * step.total_seconds()
    return [
        LiveWindow(replica, SERIES, at, at + step, False, 0, counts)
        for replica in REPLICAS
        for at, counts in zip(begins, _counts(endpoint, mean_requests, is_on, draw), strict=True)
    ]


def _counts(
    endpoint: SyntheticEndpoint, mean_requests: Floats, is_on: NDArray[np.bool_], draw: np.random.Generator
) -> Iterator[LiveCounts]:
    """One replica's counts, window by window; the endpoint's mean slice stands for all its traffic."""
    weights = [synthetic.weight for synthetic in endpoint.slices]
    acceptance = float(np.average([synthetic.acceptance for synthetic in endpoint.slices], weights=weights))
    depth = endpoint.configs[0][-1].config.num_speculative_tokens
    faster = math.exp(-log_speedup(acceptance, depth, endpoint.loads[0]))
    per_token_s = 1.0 / endpoint.tokens_per_s
    requests = draw.poisson(mean_requests)
    tokens = draw.poisson(requests * float(MEAN_OUTPUT_TOKENS))
    prompts = draw.poisson(requests * float(MEAN_PROMPT_TOKENS))
    cached = draw.binomial(prompts, CACHED_SHARE)
    drafts = np.where(is_on, tokens / acceptance_length(acceptance, depth), 0.0).astype(np.int64)
    accepted = [draw.binomial(drafts, acceptance)]
    for _ in range(1, depth):
        accepted.append(draw.binomial(accepted[-1], acceptance))
    means = {END_TO_END: per_token_s * MEAN_OUTPUT_TOKENS, FIRST_TOKEN: FIRST_TOKEN_S, PER_TOKEN: per_token_s}
    binned = {
        name: _binned(requests, is_on, mean, 1.0 if name == FIRST_TOKEN else faster, BOUNDS[name], draw)
        for name, mean in means.items()
    }
    for place, per_pos in enumerate(np.stack(accepted, axis=1).tolist()):
        yield LiveCounts(
            num_drafts=int(drafts[place]),
            num_draft_tokens=depth * int(drafts[place]),
            num_accepted_tokens=sum(per_pos),
            num_accepted_tokens_per_pos=tuple(per_pos),
            num_output_tokens=int(tokens[place]),
            num_requests=int(requests[place]),
            num_prompt_tokens=int(prompts[place]),
            num_cached_tokens=int(cached[place]),
            latencies={name: Buckets(BOUNDS[name], tuple(values[place].tolist())) for name, values in binned.items()},
        )


def _binned(
    requests: _Ints,
    is_on: NDArray[np.bool_],
    mean_s: float,
    faster: float,
    bounds: Sequence[float],
    draw: np.random.Generator,
) -> _Ints:
    """Each window's requests by bin; [windows, bins]."""
    shares = np.stack([_shares(mean_s, bounds), _shares(mean_s * faster, bounds)])[is_on.astype(np.int64)]
    numbers: _Ints = draw.multinomial(requests, shares)
    return numbers


def _shares(mean_s: float, bounds: Sequence[float]) -> Floats:
    """Of a log-normal time, by bin."""
    below = [0.5 * (1.0 + math.erf((math.log(bound / mean_s)) / (LATENCY_SPREAD * math.sqrt(2.0)))) for bound in bounds]
    shares: Floats = np.diff(np.array([0.0, *below, 1.0]))
    return shares
