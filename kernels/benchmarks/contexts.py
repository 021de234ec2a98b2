"""Acceptance, speedup and memory by context, on the bundled pair up to its longest one.

    python -m kernels.benchmarks.contexts [--blocks N] [--out FILE]

The bundled traffic's prompts are short, so that longer ones are made of them: prompts of one endpoint after each other,
cut to the length wanted.  Blocks of four run through both arms as `run` does it, greedy, 48 tokens each; lengths take
turns.  Nothing else should run meanwhile.
"""

from __future__ import annotations

import random

from rich.progress import track

from kernels.benchmarks.decoding import block_of
from kernels.benchmarks.harness import by_name, engine_machine, options, show, traffic_prompts, write
from shadowspec import demo
from shadowspec.engine import Engine, Models
from shadowspec.reports.figures.tally import CacheCost, ContextPoint, Tally, by_context
from shadowspec.types import Memory, Run, SamplingParameters, SpeculationConfig, VerifyRule
from shadowspec.types.settings import EngineSettings

LENGTHS = (48, 96, 192, 384, 768, 1_536, 1_950)  # prompt tokens; the pair's context is 2,048
CONCURRENCY = 4
SAMPLING = SamplingParameters(temperature=0.0, max_tokens=48, ignore_eos=True)


def long_prompts(length: int, count: int, draw: random.Random) -> list[tuple[int, ...]]:
    """Prompts of this length, each of one endpoint's text."""
    by_endpoint = by_name(traffic_prompts(2_000))
    names = sorted(by_endpoint)
    prompts = []
    for number in range(count):
        texts_left, tokens = by_endpoint[names[number % len(names)]], []
        while len(tokens) < length:
            tokens += draw.choice(texts_left)
        prompts.append(tuple(tokens[-length:]))
    return prompts


def main() -> None:
    """Measure, print a table and write the results."""
    parser = options(__doc__, "contexts.json")
    parser.add_argument("--blocks", type=int, default=12, help="of each length")
    parser.add_argument("--k", type=int, default=4)
    arguments = parser.parse_args()
    target, candidates = Models(EngineSettings("cpu", "float32")).candidates(
        str(demo.TARGET),
        [SpeculationConfig("d", str(demo.TARGET), str(demo.DRAFT), "draft_model", arguments.k, VerifyRule.REJECTION)],
        print,
        1,
        {},
    )
    engine = Engine(target, candidates, EngineSettings())
    draw = random.Random(0)  # noqa: S311 - which prompts stand behind each other
    texts = {length: long_prompts(length, arguments.blocks * CONCURRENCY, draw) for length in LENGTHS}
    runs: list[Run] = []
    peaks: dict[int, list[Memory]] = {length: [] for length in LENGTHS}
    for turn in track(range(arguments.blocks), description="blocks"):
        for place, length in enumerate(LENGTHS):
            turn_texts = texts[length][turn * CONCURRENCY : (turn + 1) * CONCURRENCY]
            result = engine.measure(
                block_of(
                    "contexts",
                    turn * len(LENGTHS) + place,
                    turn_texts,
                    SAMPLING,
                    CONCURRENCY,
                    turn * len(LENGTHS) + place,
                )
            )
            runs += result.runs
            peaks[length] += result.memory.values()
    memory = peaks[LENGTHS[0]][0]
    points = [
        ContextPoint(run.counts.num_prompt_tokens, run.counts.num_output_tokens, Tally.of_measured(run, 1.0))
        for run in runs
        if run.counts is not None
    ]
    rows = by_context(points, CacheCost(memory.kv_bytes_per_token, memory.draft_kv_bytes_per_token))
    shown = ("name", "num_requests", "mean_acceptance_length", "first_position_acceptance_rate", "ratio_of_total_times",
             "baseline_cache_bytes", "speculative_cache_bytes")  # fmt: skip
    show("by prompt tokens", [{name: getattr(row, name) for name in shown} for row in rows])
    results = {
        "machine": engine_machine(),
        "num_speculative_tokens": arguments.k,
        "concurrency": CONCURRENCY,
        "ranges": [{name: getattr(row, name) for name in row.__slots__} for row in rows],
        "peak_bytes": [
            {
                "prompt_tokens": length,
                "baseline": max(memory_peak.baseline_peak_bytes for memory_peak in peak),
                "speculative": max(memory_peak.speculative_peak_bytes for memory_peak in peak),
            }
            for length, peak in peaks.items()
        ],
    }
    write(arguments.out, results)


if __name__ == "__main__":
    main()
