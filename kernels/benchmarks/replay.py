"""Replay against the loop on the bundled pair: the same figures, in how much less time, and whether an error is seen.

    python -m kernels.benchmarks.replay [--requests N] [--tokens N] [--k K...] [--out FILE]

The baseline loop answers the bundled traffic's prompts, as production would, and replay tells from these answers what
each rule accepts at every K. Then the speculative loop runs for every rule and K with random numbers of its own.  A
cell is a rule, a K and an endpoint of the traffic (or all of them): the loop's mean acceptance length is to lie within
99% intervals of replay's.  The interval is that of the difference, request by request, by Student's t on the residuals
of the ratios.  Greedy loops have no chance in them: they are to be equal, but for near-ties.

Times are of the same requests, with finished rows dropped from the loop's batches, in one process; before the first
one some requests go through both, sampled and greedy, untimed: what torch does once in a process belongs to neither.
Quote the ratio.  `same_error_ratio` is how many times longer the loops of all eight K take than one replay
for the same standard error: the ratio of times, times the mean ratio of variances.

The audit replays the outputs of the rejection loop at K = 4 themselves: the difference of its counters to their
expectation has mean zero, unless one of the two is wrong.  It is done twice, with the draft, and with the draft's
logits shifted by one position, which is to be seen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from msgspec import structs
from rich.console import Console
from rich.progress import track
from transformers import AutoModelForCausalLM

from kernels.benchmarks.decoding import in_batches
from kernels.benchmarks.engines.comparing import LEVEL, Rate, Reals, half_width, standard_errors
from kernels.benchmarks.harness import engine_machine, options, traffic_prompts, write
from kernels.benchmarks.shifted import Shifted
from shadowspec import demo
from shadowspec.engine.batch import Request
from shadowspec.engine.decode import Decoded
from shadowspec.engine.models import LoadedModel, load_model
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.engine.replay.replayer import Drafting, Replayed, Replayer
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.errors import RecordError
from shadowspec.types import (
    ExpectedCounts,
    RecordKey,
    SamplingParameters,
    SpeculationConfig,
    SpeculationCounts,
    VerifyRule,
)

DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8)
MIN_CELL = 20  # requests: of fewer an interval says little
SAMPLED = SamplingParameters(temperature=0.8, top_p=0.95, max_tokens=128)
GREEDY = SamplingParameters(temperature=0.0, max_tokens=128)
SAMPLED_RULES = (VerifyRule.REJECTION, VerifyRule.GREEDY_DRAFT, VerifyRule.EXACT_MATCH)
AUDIT_DEPTH = 4

Value = TypeVar("Value")


def timed(work: Callable[[], Value]) -> tuple[float, Value]:
    """Seconds of work, and what it gave."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


class Loop:
    """The engine's own loop over all requests, in batches of prompts of like length."""

    def __init__(self, target: LoadedModel, draft: LoadedModel) -> None:
        self._target, self._draft = target, draft

    def __call__(self, requests: Sequence[Request], rule: VerifyRule, depth: int) -> list[Decoded]:
        """Depth 0 is the baseline."""
        is_sampling = rule is VerifyRule.REJECTION
        proposer = partial(DraftModelProposer, self._draft.model, depth, is_sampling=is_sampling)
        return in_batches(
            self._target.model, requests, proposer if depth else lambda: None, num_speculative_tokens=depth,
            verify_rule=rule, end_token_ids=self._target.end_token_ids, releases_slots=True,
        )  # fmt: skip


def responses(requests: Sequence[Request], decoded: Sequence[Decoded]) -> list[Response]:
    """Outputs of the loop as logged responses."""
    return [
        Response(RecordKey("benchmark", 0, row), request, answer.output)
        for row, (request, answer) in enumerate(zip(requests, decoded, strict=True))
    ]


def replayed(
    target: LoadedModel, draft: LoadedModel, rule: VerifyRule, depths: Sequence[int], logged: Sequence[Response]
) -> list[Replayed]:
    """Every response replayed; one that is refused is a fault."""
    drafting = Drafting(SpeculationConfig("draft", "", "", "draft_model", max(depths), rule), draft)
    replayer = Replayer([drafting], depths, end_token_ids=target.end_token_ids, target=target)
    results = []
    for result in replayer.replay(logged):
        if isinstance(result, RecordError):
            raise result
        results.append(result)
    return results


def sums(counts: Sequence[SpeculationCounts | ExpectedCounts]) -> Reals:
    """Accepted tokens and drafts of each request; [requests, 2]."""
    return np.array(
        [(request_counts.num_accepted_tokens, request_counts.num_drafts) for request_counts in counts], dtype=np.float64
    )


def cell(loop: Reals, replay: Reals) -> dict[str, Any]:
    """The loop's mean acceptance length against replay's."""
    looped, expected = Rate.of(*loop.T), Rate.of(*replay.T)
    assert looped is not None, "the loop drafts in every cell"
    assert expected is not None, "and so does replay"
    half = half_width(looped.moves - expected.moves, LEVEL)
    return {
        "requests": len(loop),
        "loop": 1.0 + looped.value,
        "replay": 1.0 + expected.value,
        "half_width": half,
        "is_inside": bool(abs(looped.value - expected.value) <= half + 1e-9),
        "loop_variance": float(looped.moves.var(ddof=1)),
        "replay_variance": float(expected.moves.var(ddof=1)),
    }


def main() -> None:
    """Compare, print the summary and write all cells."""
    parser = options(__doc__, "replay.json")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=SAMPLED.max_tokens, help="length of an answer, at most")
    parser.add_argument("--k", type=int, nargs="+", default=DEPTHS)
    arguments = parser.parse_args()
    device = torch.device("cpu")
    target = load_model(str(demo.TARGET), device, torch.float32)
    draft = load_model(str(demo.DRAFT), device, torch.float32)
    loop = Loop(target, draft)
    chosen = traffic_prompts(arguments.requests)
    endpoints = np.array([name for name, _ in chosen])

    def build_requests(sampling: SamplingParameters, course: int) -> list[Request]:
        return [Request(prompt, sampling, 1_000_000 * course + row) for row, (_, prompt) in enumerate(chosen)]

    for sampling, rule in ((SAMPLED, VerifyRule.REJECTION), (GREEDY, VerifyRule.GREEDY)):  # warm
        requests = build_requests(sampling, 99)[:64]
        replayed(target, draft, rule, arguments.k, responses(requests, loop(requests, rule, 2)))
    cells, rows = [], []
    course = 0
    for rule in track((*SAMPLED_RULES, VerifyRule.GREEDY), "rules", console=Console(stderr=True)):
        sampling = structs.replace(GREEDY if rule is VerifyRule.GREEDY else SAMPLED, max_tokens=arguments.tokens)
        course += 1  # of its own, lest the rules share the luck of one set of answers
        answered = build_requests(sampling, course)
        logged = responses(answered, loop(answered, rule, 0))
        replay_s, results = timed(lambda rule=rule, logged=logged: replayed(target, draft, rule, arguments.k, logged))  # type: ignore[misc]
        loops_s, ratios = 0.0, []
        for place, depth in enumerate(arguments.k):
            course += 1
            requests = build_requests(sampling, course)
            seconds, decoded = timed(lambda r=requests, v=rule, d=depth: loop(r, v, d))  # type: ignore[misc]
            loops_s += seconds
            looped = sums([outcome.counts for outcome in decoded])
            expected = sums([outcome.counts[0][place] for outcome in results])
            for endpoint in ("", *demo.SERVED_MODELS):
                mine = endpoints == endpoint if endpoint else np.ones(len(chosen), dtype=bool)
                if mine.sum() < MIN_CELL:
                    continue
                entry = cell(looped[mine], expected[mine])
                cells.append({"rule": rule.value, "K": depth, "endpoint": endpoint or "all", **entry})
                if not endpoint and rule is not VerifyRule.GREEDY:
                    ratios.append(entry["loop_variance"] / entry["replay_variance"])
        variances = float(np.mean(ratios)) if ratios else 1.0
        own_cells = [cell["is_inside"] for cell in cells if cell["rule"] == rule.value]
        rows.append(
            {
                "rule": rule.value,
                "replay_s": replay_s,
                "loops_s": loops_s,
                "time_ratio": loops_s / replay_s,
                "variance_ratio": variances,
                "same_error_ratio": loops_s / replay_s * variances,
                "cells_inside": sum(own_cells),
                "cells": len(own_cells),
            }
        )
    requests = build_requests(structs.replace(SAMPLED, max_tokens=arguments.tokens), course + 1)
    decoded = loop(requests, VerifyRule.REJECTION, AUDIT_DEPTH)
    theirs = AutoModelForCausalLM.from_pretrained(demo.DRAFT, dtype=torch.float32, attn_implementation="sdpa").eval()
    audits = {}
    for name, model in (("sound", draft), ("shifted", replace(draft, model=Shifted(theirs)))):
        results = replayed(target, model, VerifyRule.REJECTION, [AUDIT_DEPTH], responses(requests, decoded))
        audits[name] = standard_errors(
            [outcome.counts for outcome in decoded], [outcome.counts[0][0] for outcome in results]
        )
    document = {
        "requests": len(chosen),
        "tokens": arguments.tokens,
        "depths": arguments.k,
        "level": LEVEL,
        "share_inside": sum(cell["is_inside"] for cell in cells) / len(cells),
        "audit_z": audits,
        "machine": engine_machine() | {"load_average": os.getloadavg()[0]},
        "rules": rows,
        "cells": cells,
    }  # fmt: skip
    write(arguments.out, document)
    for row in rows:
        Console().print(row)
    Console().print({name: document[name] for name in ("requests", "share_inside", "audit_z")})


if __name__ == "__main__":
    main()
