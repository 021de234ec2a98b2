"""Our two arms beside vLLM's servers on the same CPU: tokens per second, and whether both emit the same.

    make bench NAME=vllm ARGS="--vllm-python PATH"     (PATH: the interpreter of vLLM's own environment)

Both sides run the bundled pair in float32 on the same prompts, greedy, all requests to the same length: one after the
other, and a queue of sixteen of which eight are decoded at a time.  Contestants take turns within each round; medians
over rounds; quote the ratios.  vLLM's time is a client's: from the first request sent to the last token.  Its servers
are stopped (SIGSTOP) while it is not their turn, and after each change a few tokens are decoded untimed.

Then prompts of all endpoints go through both sides untimed.  Where greedy outputs part, the target's top-2 logit gap
there tells rounding from a fault; a fault ends the run with exit code 1.  `make validate-vllm` compares steps as well.
Nothing else may run meanwhile.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from kernels.benchmarks.decoding import one_arm
from kernels.benchmarks.engines.collecting import WARM_TOKENS, ask_server, server_requests
from kernels.benchmarks.engines.servers import Environment, Server, both_arms, vllm_version
from kernels.benchmarks.engines.timing import SETTLING_S
from kernels.benchmarks.engines.ways import DRAFT
from kernels.benchmarks.harness import (
    Prompt,
    code_prompts,
    engine_machine,
    in_turn,
    options,
    ratios,
    show,
    traffic_prompts,
    write,
)
from shadowspec import demo
from shadowspec.engine.batch import Request
from shadowspec.engine.models import LoadedModel, load_model
from shadowspec.engine.parity import divergence_gap
from shadowspec.gate.policy import NEAR_TIE_LOGIT
from shadowspec.quality.outputs import first_divergence
from shadowspec.types import SamplingParameters

DEPTH = 4
REQUESTS = {1: 4, 8: 16}  # timed, by how many are decoded at once: enough that no single prompt decides
ARMS = ("baseline", "speculative")

Answers = tuple[float, list[tuple[int, ...]]]  # seconds, and the tokens of each request
Contestant = Callable[[Sequence[Prompt], int], Answers]  # prompts, and how many at once


def ours(target: LoadedModel, draft: LoadedModel | None, sampling: SamplingParameters) -> Contestant:
    """One of our arms, in this process."""

    def decoded(prompts: Sequence[Prompt], slots: int, tokens: int) -> list[tuple[int, ...]]:
        requests = [Request(prompt, replace(sampling, max_tokens=tokens), 0) for prompt in prompts]
        drafting = None if draft is None else draft.model
        result = one_arm(target.model, drafting, requests, DEPTH, num_slots=slots, releases_slots=True)
        return [request.output for request in result.decoded]

    def answer(prompts: Sequence[Prompt], slots: int) -> Answers:
        decoded(prompts[:slots], slots, WARM_TOKENS)
        began = time.perf_counter()
        outputs = decoded(prompts, slots, sampling.max_tokens or 0)
        return time.perf_counter() - began, outputs

    return answer


def theirs(server: Server, sampling: SamplingParameters) -> Contestant:
    """One of vLLM's, which is stopped unless it is asked."""

    def answer(prompts: Sequence[Prompt], slots: int) -> Answers:
        time.sleep(SETTLING_S)  # torch's threads spin for milliseconds after a pass
        server.resume()
        try:
            ask_server(
                server.url, server_requests(prompts[:slots], replace(sampling, max_tokens=WARM_TOKENS), 0), slots
            )
            answers = ask_server(server.url, server_requests(prompts, sampling, 0), slots)
        finally:
            server.pause()
        seconds = max(one.last_token_s for one in answers) - min(one.sent_s for one in answers)
        return seconds, [one.token_ids or () for one in answers]

    return answer


def timed_rows(rounds: int, mine: dict[str, Contestant], other: dict[str, Contestant]) -> list[dict[str, Any]]:
    """Tokens per second of every arm and concurrency on both sides, and their ratio."""
    prompts = code_prompts(max(REQUESTS.values()))

    def rate(contestant: Contestant, slots: int) -> float:
        seconds, outputs = contestant(prompts[: REQUESTS[slots]], slots)
        return sum(map(len, outputs)) / seconds

    contests = {
        (arm, slots, side): partial(rate, contestants[arm], slots)
        for slots in REQUESTS
        for arm in ARMS
        for side, contestants in (("ours", mine), ("vllm", other))
    }
    rates = in_turn(contests, rounds)
    rows = []
    for arm, slots in ((arm, slots) for slots in REQUESTS for arm in ARMS):
        sides = {side: rates[arm, slots, side] for side in ("ours", "vllm")}
        medians = {f"{side}_tokens_per_second": statistics.median(values) for side, values in sides.items()}
        rows.append({"arm": arm, "concurrency": slots, **medians, **ratios(*sides.values())})
    return rows


def compare(target: LoadedModel, prompts: Sequence[Prompt], mine: Contestant, other: Contestant) -> dict[str, Any]:
    """How many requests are equal in tokens, and every one that is not."""
    differences = []
    outputs = zip(prompts, mine(prompts, max(REQUESTS))[1], other(prompts, max(REQUESTS))[1], strict=True)
    for row, (prompt, left, right) in enumerate(outputs):
        if (position := first_divergence(left, right)) is not None:
            sampling = SamplingParameters(temperature=0.0, max_tokens=len(left), ignore_eos=True)
            gap = divergence_gap(target.model, Request(prompt, sampling, 0), left[: position + 1], frozenset())
            differences.append({"request": row, "position": position, "top_two_gap": gap})
    return {"requests": len(prompts), "equal": len(prompts) - len(differences), "differences": differences}


def main() -> None:
    """Time both sides, compare what they emit, print tables and write the results."""
    parser = options(__doc__, "vllm.json")
    Environment.add_options(parser)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=96, help="of each request (default: %(default)s)")
    parser.add_argument("--compared", type=int, default=72, help="prompts whose answers are compared")
    arguments = parser.parse_args()
    environment = Environment.of(arguments)
    target, draft = (load_model(str(path), torch.device("cpu"), torch.float32) for path in (demo.TARGET, demo.DRAFT))
    sampling = SamplingParameters(temperature=0.0, max_tokens=arguments.tokens, ignore_eos=True)
    mine = {arm: ours(target, model, sampling) for arm, model in zip(ARMS, (None, draft), strict=True)}
    with (
        tempfile.TemporaryDirectory() as folder,
        both_arms(environment, DRAFT.speculative_config(DEPTH), Path(folder)) as servers,
    ):
        for server in servers:
            server.pause()
        other = {arm: theirs(server, sampling) for arm, server in zip(ARMS, servers, strict=True)}
        rows = timed_rows(arguments.rounds, mine, other)
        prompts = [prompt for _, prompt in traffic_prompts(arguments.compared)]
        equality = {arm: compare(target, prompts, mine[arm], other[arm]) for arm in ARMS}
    show("tokens per second", rows)
    document = {
        "rounds": arguments.rounds,
        "num_speculative_tokens": DEPTH,
        "max_tokens": arguments.tokens,
        "machine": engine_machine(),
        "vllm": {"vllm": vllm_version(environment), "threads_bind": environment.threads},
        "results": rows,
        "equality": equality,
    }
    write(arguments.out, document)
    gaps = [difference["top_two_gap"] for compared in equality.values() for difference in compared["differences"]]
    if any(gap > NEAR_TIE_LOGIT["float32"] for gap in gaps):
        sys.exit("outputs differ where the target was not in doubt")


if __name__ == "__main__":
    main()
