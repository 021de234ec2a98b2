"""The engine for 45 minutes: memory stays flat, steps do not slow down, and the same blocks give the same results.

    make soak       (or: python kernels/benchmarks/soak.py [--minutes M] [--out FILE])

Blocks are queues of 16 requests of the bundled traffic at concurrency 4, whose slots are refilled, greedy and sampled,
with a draft model, prompt lookup and an EAGLE-3 head as candidates.  The same blocks are measured again and again.
After each pass the process's resident memory is read, and the counts and reasons to finish of every run are held
against the first pass's.  The time of a step is held against a piece of reference work that runs before and after each
block (a product of matrices and a loop, the same every time), so that a machine that changes its speed is no drift of
the engine.

Exit code 1 where memory after the first five minutes varies by more than 2%, results differ, or the 95% interval of the
steps' trend (Theil and Sen's, of the logarithm) lies beyond 0 by more than 2% over the whole time.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import math
import os
import platform
import resource
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from replay import prompts
from rich.console import Console
from rich.progress import Progress
from scipy import stats

from shadowspec import demo
from shadowspec.engine import Engine, Models
from shadowspec.types import (
    Arm,
    Block,
    RecordKey,
    Run,
    SamplingParameters,
    ShadowPrompt,
    SpeculationConfig,
    VerifyRule,
)

CONCURRENCY, REQUESTS_PER_SLOT = 4, 4
NUM_BLOCKS = 6
MIN_PASSES = 4  # of fewer there is no trend
OUTPUT_TOKENS = 48
SETTLING_S = 300.0  # of the start, which allocates
MOST_GROWTH = 0.02
MOST_DRIFT = 0.02


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass over the blocks came to.  A step is the decode time of a request per forward pass of the target."""

    ended_s: float  # since the start
    resident_bytes: int
    reference_ms: float  # median over blocks
    baseline_step: float  # median over blocks of the median over requests, as a multiple of the reference work
    speculative_step: float
    realised_concurrency: float  # of the baseline, mean over requests
    digest: str  # of every run's counts and reason to finish


def blocks() -> list[Block]:
    """Queues of the bundled traffic's prompts, every other one sampled."""
    size = CONCURRENCY * REQUESTS_PER_SLOT
    found = [prompt for _, prompt in prompts(NUM_BLOCKS * size)]
    made = []
    for number in range(NUM_BLOCKS):
        sampling = SamplingParameters(temperature=0.8 * (number % 2), max_tokens=OUTPUT_TOKENS)
        own = tuple(
            ShadowPrompt(
                key=RecordKey("soak", 0, number * size + place),
                endpoint="soak",
                event_time=datetime(2026, 1, 1, tzinfo=UTC),
                labels={},
                prompt_token_ids=prompt,
                sampling=sampling,
            )
            for place, prompt in enumerate(found[number * size :][:size])
        )
        first = (Arm.BASELINE, Arm.SPECULATIVE)[number // 2 % 2]
        made.append(Block(f"soak-{number}", number, "soak", "", CONCURRENCY, own, (), first, REQUESTS_PER_SLOT))
    return made


def reference_ms() -> float:
    """The time of a fixed piece of work of the kinds that a step does; the median of seven."""
    left = torch.linspace(-1.0, 1.0, 512 * 512).view(512, 512)
    times = []
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(4):
            left @ left
        sum(number for number in range(100_000))
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def resident_bytes() -> int:
    """Of this process, now."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def one_pass(engine: Engine, work: list[Block], since: float) -> Pass:
    """Measure every block once."""
    texts: list[str] = []
    realised: list[float] = []
    references = [reference_ms()]
    steps: dict[Arm, list[float]] = {arm: [] for arm in Arm}
    for own in work:
        runs = engine.measure(own).runs
        references.append(reference_ms())
        reference = statistics.fmean(references[-2:])
        times = [step_ms(run) for run in runs]
        for arm in Arm:
            steps[arm].append(statistics.median(found[arm] for found in times if found) / reference)
        realised += [run.baseline.concurrency or 0.0 for run in runs if run.baseline is not None]
        texts += [digested(run) for run in runs]
    return Pass(
        ended_s=time.monotonic() - since,
        resident_bytes=resident_bytes(),
        reference_ms=statistics.median(references),
        baseline_step=statistics.median(steps[Arm.BASELINE]),
        speculative_step=statistics.median(steps[Arm.SPECULATIVE]),
        realised_concurrency=statistics.fmean(realised),
        digest=hashlib.sha256("\n".join(texts).encode()).hexdigest(),
    )


def step_ms(run: Run) -> dict[Arm, float]:
    """Decode time per forward pass of the target, of both arms; empty for a request that made none but the first."""
    assert run.counts is not None
    assert run.baseline is not None
    assert run.speculative is not None
    if run.baseline.num_output_tokens < 2 or run.counts.target_passes < 2:
        return {}
    return {
        Arm.BASELINE: run.baseline.decode_ms / (run.baseline.num_output_tokens - 1),
        Arm.SPECULATIVE: run.speculative.decode_ms / (run.counts.target_passes - 1),
    }


def digested(run: Run) -> str:
    """What of a run is to be the same every time."""
    assert run.counts is not None
    return json.dumps([run.key.offset, run.fingerprint, asdict(run.counts), run.finish_reason])


def trend(passes: list[Pass], arm: Arm) -> tuple[float, float, float]:
    """Change of the logarithm of the arm's step over the whole time, with its 95% interval."""
    times = [own.ended_s for own in passes]
    logs = [math.log(getattr(own, f"{arm}_step")) for own in passes]
    slope, _, low, high = stats.theilslopes(logs, times)
    span = times[-1] - times[0]
    return float(slope) * span, float(low) * span, float(high) * span


def main() -> None:
    """Measure for the time asked for, write the results and judge them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=45.0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "soak.json")
    arguments = parser.parse_args()
    eagle = str(demo.HEADS / "eagle3")
    configs = [
        SpeculationConfig("d", str(demo.TARGET), str(demo.DRAFT), "draft_model", 4, VerifyRule.REJECTION),
        SpeculationConfig("n", str(demo.TARGET), None, "ngram", 4, VerifyRule.GREEDY_DRAFT),
        SpeculationConfig("e", str(demo.TARGET), eagle, "eagle3", 4, VerifyRule.REJECTION),
    ]
    target, candidates = Models("cpu", "float32").candidates(str(demo.TARGET), configs, print, REQUESTS_PER_SLOT)
    engine, work = Engine(target, candidates), blocks()
    passes: list[Pass] = []
    since = time.monotonic()
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("soaking", total=60 * arguments.minutes)
        while len(passes) < MIN_PASSES or passes[-1].ended_s < 60 * arguments.minutes:
            passes.append(one_pass(engine, work, since))
            progress.update(task, completed=passes[-1].ended_s)
    settled = [own for own in passes if own.ended_s >= SETTLING_S]
    settled = settled if len(settled) >= MIN_PASSES else passes
    sizes = [own.resident_bytes for own in settled]
    growth = (max(sizes) - min(sizes)) / min(sizes)
    trends = {arm.value: trend(settled, arm) for arm in Arm}
    digests = {own.digest for own in passes}
    faults = [
        *([f"memory varies by {growth:.1%} after {SETTLING_S:.0f} s"] if growth > MOST_GROWTH else []),
        *([f"{len(digests)} different results"] if len(digests) > 1 else []),
        *(
            f"steps of the {name} arm drift by {change:+.1%} [{low:+.1%}, {high:+.1%}]"
            for name, (change, low, high) in trends.items()
            if low > MOST_DRIFT or high < -MOST_DRIFT
        ),
    ]
    found = {
        "machine": {"cpu": platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__},
        "concurrency": CONCURRENCY,
        "requests_per_slot": REQUESTS_PER_SLOT,
        "requests_a_pass": NUM_BLOCKS * CONCURRENCY * REQUESTS_PER_SLOT,
        "passes": [asdict(own) for own in passes],
        "growth": growth,
        "trends": {name: dict(zip(("change", "low", "high"), own, strict=True)) for name, own in trends.items()},
        "faults": faults,
    }
    arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(
        f"{len(passes)} passes in {passes[-1].ended_s / 60:.0f} min; memory {min(sizes) / 2**20:.0f} to "
        f"{max(sizes) / 2**20:.0f} MiB ({growth:.2%}); step trends "
        + ", ".join(f"{name} {change:+.1%} [{low:+.1%}, {high:+.1%}]" for name, (change, low, high) in trends.items())
    )
    for fault in faults:
        print(fault)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
