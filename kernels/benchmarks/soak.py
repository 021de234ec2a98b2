"""The engine for 45 minutes: memory stays flat, steps do not slow down, and the same blocks give the same results.

    python -m kernels.benchmarks.soak [--minutes M] [--out FILE]

Blocks are queues of 16 requests of the bundled traffic at concurrency 4, whose slots are refilled, greedy and sampled,
with a draft model, prompt lookup and an EAGLE-3 head as candidates.  The same blocks are measured again and again.
After each pass the process's memory is read, once the allocator has given back what is free, and the counts and reasons
to finish of every run are held against the first pass's.  A step is the processor time per forward pass of the target,
as a multiple of that of a piece of reference work which runs before and after each block (a product of matrices and a
loop, the same every time): a machine that changes its speed or does something else meanwhile is no drift of the engine.

Exit code 1 where memory after the first five minutes varies by more than 2%, results differ, or the 95% interval of the
steps' trend (Theil and Sen's, of the logarithm) lies beyond 0 by more than 2% over the whole time.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.progress import Progress
from scipy import stats

from kernels.benchmarks.decoding import block_of, resident_bytes
from kernels.benchmarks.harness import engine_machine, options, traffic_prompts, write
from shadowspec import demo
from shadowspec.engine import Engine, Models
from shadowspec.types import Block, Run, SamplingParameters, SpeculationConfig, VerifyRule
from shadowspec.types.settings import EngineSettings

CONCURRENCY, REQUESTS_PER_SLOT = 4, 4
NUM_BLOCKS = 6
MIN_PASSES = 4  # of fewer there is no trend
OUTPUT_TOKENS = 48
SETTLING_S = 300.0  # of the start, which allocates
MOST_GROWTH = 0.02
MOST_DRIFT = 0.02


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass over the blocks came to."""

    ended_s: float  # since the start
    used_bytes: int  # resident, after the allocator gave back what is free
    resident_bytes: int  # before that
    reference_ms: float  # processor time, median over blocks
    step: float  # median over blocks
    realised_concurrency: float  # of the baseline, mean over requests
    digest: str  # of every run's counts and reason to finish


def blocks() -> list[Block]:
    """Queues of the bundled traffic's prompts, every other one sampled."""
    size = CONCURRENCY * REQUESTS_PER_SLOT
    prompts = [prompt for _, prompt in traffic_prompts(NUM_BLOCKS * size)]
    made = []
    for number in range(NUM_BLOCKS):
        sampling = SamplingParameters(temperature=0.8 * (number % 2), max_tokens=OUTPUT_TOKENS)
        own = prompts[number * size :][:size]
        made.append(block_of("soak", number, own, sampling, CONCURRENCY, turn=number // 2))
    return made


def reference_ms() -> float:
    """The processor time of a fixed piece of work of the kinds that a step does; the median of seven."""
    left = torch.linspace(-1.0, 1.0, 512 * 512).view(512, 512)
    times = []
    for _ in range(7):
        start = time.process_time()
        for _ in range(4):
            left @ left
        sum(number for number in range(100_000))
        times.append(1e3 * (time.process_time() - start))
    return statistics.median(times)


def used_bytes() -> int:
    """What of it is not free memory that the allocator keeps."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return resident_bytes()


def one_pass(engine: Engine, work: list[Block], since: float) -> Pass:
    """Measure every block once."""
    texts: list[str] = []
    realised: list[float] = []
    references = [reference_ms()]
    steps: list[float] = []
    for block in work:
        start = time.process_time()
        runs = engine.measure(block).runs
        spent = 1e3 * (time.process_time() - start)
        references.append(reference_ms())
        steps.append(spent / num_passes(runs) / statistics.fmean(references[-2:]))
        realised += [run.baseline.concurrency or 0.0 for run in runs if run.baseline is not None]
        texts += [digested(run) for run in runs]
    return Pass(
        ended_s=time.monotonic() - since,
        resident_bytes=resident_bytes(),
        used_bytes=used_bytes(),
        reference_ms=statistics.median(references),
        step=statistics.median(steps),
        realised_concurrency=statistics.fmean(realised),
        digest=hashlib.sha256("\n".join(texts).encode()).hexdigest(),
    )


def num_passes(runs: Sequence[Run]) -> int:
    """Forward passes of the target that the requests took part in, in all arms."""
    baseline = {run.key: run.baseline.num_output_tokens for run in runs if run.baseline is not None}
    return sum(baseline.values()) + sum(run.counts.target_passes for run in runs if run.counts is not None)


def digested(run: Run) -> str:
    """What of a run is to be the same every time."""
    assert run.counts is not None
    return json.dumps([run.key.offset, run.fingerprint, asdict(run.counts), run.finish_reason])


def trend(passes: list[Pass]) -> dict[str, float]:
    """Change of the logarithm of the step over the whole time, with its 95% interval."""
    times = [one.ended_s for one in passes]
    slope, _, low, high = stats.theilslopes([math.log(one.step) for one in passes], times)
    span = times[-1] - times[0]
    return {"change": float(slope) * span, "low": float(low) * span, "high": float(high) * span}


def main() -> None:
    """Measure for the time asked for, write the results and judge them."""
    parser = options(__doc__, "soak.json")
    parser.add_argument("--minutes", type=float, default=45.0)
    arguments = parser.parse_args()
    eagle = str(demo.HEADS / "eagle3")
    configs = [
        SpeculationConfig("d", str(demo.TARGET), str(demo.DRAFT), "draft_model", 4, VerifyRule.REJECTION),
        SpeculationConfig("n", str(demo.TARGET), None, "ngram", 4, VerifyRule.GREEDY_DRAFT),
        SpeculationConfig("e", str(demo.TARGET), eagle, "eagle3", 4, VerifyRule.REJECTION),
    ]
    target, candidates = Models(EngineSettings("cpu", "float32")).candidates(
        str(demo.TARGET), configs, print, REQUESTS_PER_SLOT, {}
    )
    engine, work = Engine(target, candidates, EngineSettings()), blocks()
    passes: list[Pass] = []
    since = time.monotonic()
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("soaking", total=60 * arguments.minutes)
        while len(passes) < MIN_PASSES or passes[-1].ended_s < 60 * arguments.minutes:
            passes.append(one_pass(engine, work, since))
            progress.update(task, completed=passes[-1].ended_s)
    settled = [one for one in passes if one.ended_s >= SETTLING_S]
    settled = settled if len(settled) >= MIN_PASSES else passes
    sizes = [one.used_bytes for one in settled]
    growth = (max(sizes) - min(sizes)) / min(sizes)
    drift = trend(settled)
    words = f"steps drift by {drift['change']:+.1%} [{drift['low']:+.1%}, {drift['high']:+.1%}]"
    digests = {one.digest for one in passes}
    faults = [
        *([f"memory varies by {growth:.1%} after {SETTLING_S:.0f} s"] if growth > MOST_GROWTH else []),
        *([f"{len(digests)} different results"] if len(digests) > 1 else []),
        *([words] if drift["low"] > MOST_DRIFT or drift["high"] < -MOST_DRIFT else []),
    ]
    results = {
        "machine": engine_machine(),
        "concurrency": CONCURRENCY,
        "requests_per_slot": REQUESTS_PER_SLOT,
        "requests_a_pass": NUM_BLOCKS * CONCURRENCY * REQUESTS_PER_SLOT,
        "passes": [asdict(one) for one in passes],
        "growth": growth,
        "drift": drift,
        "faults": faults,
    }
    write(arguments.out, results)
    print(
        f"{len(passes)} passes in {passes[-1].ended_s / 60:.0f} min; memory {min(sizes) / 2**20:.0f} to "
        f"{max(sizes) / 2**20:.0f} MiB ({growth:.2%}); {words}"
    )
    for fault in faults:
        print(fault)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
