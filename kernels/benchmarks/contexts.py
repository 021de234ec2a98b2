"""Acceptance, speedup and memory by context, on the bundled pair up to its longest one.

    python -m kernels.benchmarks.contexts [--blocks N] [--out FILE]

The bundled traffic's prompts are short, so that longer ones are made of them: prompts of one endpoint after each other,
cut to the length wanted.  Blocks of four run through both arms as `run` does it, greedy, 48 tokens each; lengths take
turns.  Nothing else should run meanwhile.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from kernels.benchmarks.harness import engine_machine, options, traffic_prompts, write
from shadowspec import demo
from shadowspec.engine import Engine, Models
from shadowspec.reports.tally import CacheCost, ContextPoint, Tally, by_context
from shadowspec.types import (
    Arm,
    Block,
    Memory,
    RecordKey,
    Run,
    SamplingParameters,
    ShadowPrompt,
    SpeculationConfig,
    VerifyRule,
)
from shadowspec.types.settings import EngineSettings

LENGTHS = (48, 96, 192, 384, 768, 1_536, 1_950)  # prompt tokens; the pair's context is 2,048
CONCURRENCY = 4
OUTPUT_TOKENS = 48


def long_prompts(length: int, count: int, draw: random.Random) -> list[tuple[int, ...]]:
    """Prompts of this length, each of one endpoint's text."""
    by_endpoint: dict[str, list[tuple[int, ...]]] = {}
    for name, prompt in traffic_prompts(2_000):
        by_endpoint.setdefault(name, []).append(prompt)
    names = sorted(by_endpoint)
    found = []
    for number in range(count):
        texts_left, tokens = by_endpoint[names[number % len(names)]], []
        while len(tokens) < length:
            tokens += draw.choice(texts_left)
        found.append(tuple(tokens[-length:]))
    return found


def block(number: int, found: list[tuple[int, ...]]) -> Block:
    """A block of these prompts."""
    sampling = SamplingParameters(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    requests = tuple(
        ShadowPrompt(
            key=RecordKey("contexts", 0, number * CONCURRENCY + place),
            endpoint="contexts",
            event_time=datetime.now(UTC),
            labels={},
            prompt_token_ids=prompt,
            sampling=sampling,
        )
        for place, prompt in enumerate(found)
    )
    first = (Arm.BASELINE, Arm.SPECULATIVE)[number % 2]
    return Block(f"contexts-{number}", number, "contexts", "", CONCURRENCY, requests, (), first)


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
            result = engine.measure(block(turn * len(LENGTHS) + place, turn_texts))
            runs += result.runs
            peaks[length] += result.memory.values()
    memory = peaks[LENGTHS[0]][0]
    points = [
        ContextPoint(run.counts.num_prompt_tokens, run.counts.num_output_tokens, Tally.of_measured(run, 1.0))
        for run in runs
        if run.counts is not None
    ]
    rows = by_context(points, CacheCost(memory.kv_bytes_per_token, memory.draft_kv_bytes_per_token))
    table = Table("prompt tokens", "requests", "tokens per step", "1st position", "speedup", "cache kB, base", "spec")
    document: list[dict[str, Any]] = []
    for row in rows:
        table.add_row(
            row.name, str(row.num_requests), f"{row.mean_acceptance_length:.2f}",
            f"{row.first_position_acceptance_rate:.0%}", f"{row.ratio_of_total_times:.2f}",
            f"{(row.baseline_cache_bytes or 0) / 1024:.0f}", f"{(row.speculative_cache_bytes or 0) / 1024:.0f}",
        )  # fmt: skip
        document.append({name: getattr(row, name) for name in row.__slots__})
    Console().print(table)
    found = {
        "machine": engine_machine(),
        "num_speculative_tokens": arguments.k,
        "concurrency": CONCURRENCY,
        "ranges": document,
        "peak_bytes": [
            {
                "prompt_tokens": length,
                "baseline": max(each.baseline_peak_bytes for each in peak),
                "speculative": max(each.speculative_peak_bytes for each in peak),
            }
            for length, peak in peaks.items()
        ],
    }
    write(arguments.out, found)


if __name__ == "__main__":
    main()
