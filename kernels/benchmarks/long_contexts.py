"""The cost of a step and of a prefill by context, up to 32,768 tokens, on a target of 1.24 billion parameters.

    python -m kernels.benchmarks.long_contexts [--contexts 512 2048 8192 16384 32256] [--prefill 8192] [--out FILE]

Weights are random, in float32, in the shapes of the GPU benchmark: 16 layers of 2,048 and a vocabulary of 128,256.
What a step costs does not depend on what the tokens are, so that the cache is filled with random keys and values up to
each context.  Then passes of 1 token (a plain step), of 5 (a step that verifies 4) and of 512 (a chunk of a prefill)
are timed there, the contexts in turn, medians over rounds.  The cost model takes what lies between two contexts of a
profile to lie on a line: each context between two others is held against theirs.

A prompt is prefilled whole as well.  Its memory beyond weights and cache is that of one chunk, whatever its length: the
peak of the process stands beside that of a prompt of one chunk.  Nothing else should run meanwhile.
"""

from __future__ import annotations

import random
import resource
import statistics
import time
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from rich.progress import track

from kernels.benchmarks.gpu_decode import FULL, SMALL, random_model
from kernels.benchmarks.harness import engine_machine, options, show, write
from shadowspec.engine.llama import DirectLlama
from shadowspec.engine.runner import CHUNK, Runner

WIDTHS = (1, 5, CHUNK)  # tokens of a pass


def filled(model: DirectLlama, capacity: int) -> Runner:
    """One row whose cache holds anything."""
    runner, config = Runner(model, 1, capacity), model.config
    head_dim = config.hidden_size // config.num_attention_heads
    runner.cache.allocate(config.num_key_value_heads, head_dim, model.dtype)
    for layer in runner.cache.layers:
        layer.states.normal_()
    return runner


def pass_ms(runner: Runner, tokens: torch.Tensor, context: int) -> float:
    """Milliseconds of a pass over tokens (int64 [1, count]) behind `context` others."""
    began = time.perf_counter()
    runner.step(tokens, torch.tensor([context]), context, 1)
    return 1e3 * (time.perf_counter() - began)


def between(contexts: Sequence[int], found: dict[int, float], context: int) -> float | None:
    """What a line through the neighbours says of a context; None at either end."""
    place = contexts.index(context)
    if place in (0, len(contexts) - 1):
        return None
    low, high = contexts[place - 1], contexts[place + 1]
    return found[low] + (found[high] - found[low]) * (context - low) / (high - low)


def peak_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Measure, print and write the results."""
    parser = options(__doc__, "long_contexts.json")
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 2_048, 8_192, 16_384, 32_256])
    parser.add_argument("--prefill", type=int, default=8_192, help="tokens of the prompt (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="a small model: whether the script runs")
    given = parser.parse_args()
    sizes = SMALL if given.small else FULL
    contexts, capacity = sorted(given.contexts), max(*given.contexts, given.prefill) + CHUNK
    device = torch.device("cpu")
    model = random_model(sizes.target, sizes.vocabulary, device, capacity)
    num_parameters = sum(each.numel() for each in model.parameters())
    draw = random.Random(0)  # noqa: S311 - tokens that mean nothing
    with torch.inference_mode():
        target = DirectLlama(model)
        prefilled = [prefill(target, length, sizes.vocabulary, draw) for length in (CHUNK, given.prefill)]
        runner = filled(target, capacity)
        tokens = torch.tensor([[draw.randrange(sizes.vocabulary) for _ in range(CHUNK)]])
        times: dict[tuple[int, int], list[float]] = {each: [] for each in product(contexts, WIDTHS)}
        for number in track(range(given.rounds + 1), description="rounds"):
            for context, width in times:
                if not number and width == CHUNK and context != contexts[0]:
                    continue  # the first round warms up, and long chunks take long
                taken = pass_ms(runner, tokens[:, :width], context)
                if number:
                    times[context, width].append(taken)
    rows: list[dict[str, Any]] = []
    for width in WIDTHS:
        found = {context: statistics.median(times[context, width]) for context in contexts}
        for context in contexts:
            line = between(contexts, found, context)
            rows.append(
                {
                    "tokens": width,
                    "context": context,
                    "ms": found[context],
                    "of_first": found[context] / found[contexts[0]],
                    "line_over_measured": None if line is None else line / found[context],
                }
            )
    show("a pass by context", rows)
    show("a whole prefill", prefilled)
    results = {
        "machine": engine_machine(),
        "parameters": num_parameters,
        "kv_bytes_per_token": runner.cache_bytes() // (capacity + 1),
        "rounds": given.rounds,
        "passes": rows,
        "prefills": prefilled,
    }
    write(given.out, results)


def prefill(target: DirectLlama, length: int, vocabulary: int, draw: random.Random) -> dict[str, Any]:
    """A random prompt through an empty cache of its length."""
    runner = Runner(target, 1, length)
    prompt = [draw.randrange(vocabulary) for _ in range(length)]
    began = time.perf_counter()
    runner.prefill([prompt])
    seconds = time.perf_counter() - began
    return {
        "prompt_tokens": length,
        "seconds": seconds,
        "cache_bytes": runner.cache_bytes(),
        "peak_bytes": peak_bytes(),
        "peak_without_cache": peak_bytes() - runner.cache_bytes(),
    }


if __name__ == "__main__":
    main()
