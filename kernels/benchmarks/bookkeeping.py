"""How much of a step is not a model's forward pass: the loop's own share, at one request and at sixteen.

    python -m kernels.benchmarks.bookkeeping [--rounds N] [--out FILE]

The direct forward of both models is timed call by call; whatever else a step takes (masks, sampling, verification,
copies to the host, counters) is the rest.  A share within one run, medians over rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from kernels.benchmarks.decode import MAX_TOKENS, NUM_SPECULATIVE_TOKENS, SAMPLING
from kernels.benchmarks.decoding import one_arm
from kernels.benchmarks.harness import code_prompts, engine_machine, in_turn, options, show, write
from shadowspec import demo
from shadowspec.engine.batch import Request
from shadowspec.engine.llama import DirectLlama
from shadowspec.engine.models import LoadedModel, load_model
from shadowspec.engine.profiling import num_steps

BATCHES = (1, 16)


class Clock:
    """Seconds spent in forward passes of steps; prefills, which append more tokens than a step can, are left out."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.prefill_seconds = 0.0


@contextmanager
def timed_forwards() -> Iterator[Clock]:
    """Time every direct forward pass within."""
    clock, original = Clock(), DirectLlama.forward

    def timed(self: DirectLlama, tokens: torch.Tensor, *rest: Any) -> torch.Tensor:
        began = time.perf_counter()
        logits = original(self, tokens, *rest)
        taken = time.perf_counter() - began
        if tokens.shape[1] > NUM_SPECULATIVE_TOKENS + 1:
            clock.prefill_seconds += taken
        else:
            clock.seconds += taken
        return logits

    DirectLlama.forward = timed  # type: ignore[method-assign]
    try:
        yield clock
    finally:
        DirectLlama.forward = original  # type: ignore[method-assign]


def share(target: LoadedModel, draft: LoadedModel | None, requests: list[Request]) -> tuple[float, float]:
    """The share of the steps' time that is no forward pass, and milliseconds of a step."""
    with timed_forwards() as clock:
        result = one_arm(target.model, None if draft is None else draft.model, requests, NUM_SPECULATIVE_TOKENS)
    last = max(result.decoded, key=num_steps)
    # The draft's prefill lies within the first step's drafting.
    draft_prefill = 0.0 if draft is None else max(0.0, clock.prefill_seconds - last.timing.prefill_ms / 1e3)
    decode = last.timing.decode_ms / 1e3 - draft_prefill
    return 1.0 - clock.seconds / decode, 1e3 * decode / num_steps(last)


def main() -> None:
    """Measure, print a table and write the results."""
    parser = options(__doc__, "bookkeeping.json")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    device = torch.device("cpu")
    target = load_model(str(demo.TARGET), device, torch.float32)
    draft = load_model(str(demo.DRAFT), device, torch.float32)
    prompts = code_prompts(max(BATCHES))
    contests = {
        (which, name, batch): partial(
            share, target, drafting, [Request(prompt, sampling, seed) for seed, prompt in enumerate(prompts[:batch])]
        )
        for name, sampling in SAMPLING.items()
        for batch in BATCHES
        for which, drafting in (("baseline", None), ("speculative", draft))
    }
    measured = in_turn(contests, arguments.rounds)
    rows = []
    for (which, name, batch), measured_shares in measured.items():
        shares, steps = zip(*measured_shares, strict=True)
        row = {"arm": which, "sampling": name, "concurrency": batch, "step_ms": statistics.median(steps)}
        rows.append(row | {"share_without_forwards": statistics.median(shares)})
    show("the loop's own share of a step", rows)
    document = {
        "rounds": arguments.rounds, "num_speculative_tokens": NUM_SPECULATIVE_TOKENS, "max_tokens": MAX_TOKENS,
        "machine": engine_machine(), "results": rows,
    }  # fmt: skip
    write(arguments.out, document)


if __name__ == "__main__":
    main()
