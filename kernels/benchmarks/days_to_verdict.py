"""Days to the verdicts of production's policy, of one slice and of eight, and device time of the rule before it.

    make bench NAME=days_to_verdict

Every slice has four requests an hour measured, one block's: the budget of a window.  The rule before, whose units were
blocks, measured all of the traffic: its slice has six blocks an hour.  The production gate looks twice a day for two
weeks, over a store in memory.  `make simulation` writes the table into docs/research/simulation.md.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from kernels.benchmarks import harness
from kernels.benchmarks.harness import machine, options, show, write
from shadowspec.gate.policy import DAY_S, GatePolicy
from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.gate.run.memory_store import MemoryStore
from shadowspec.simulate.effects import Effects, draw_outcomes
from shadowspec.simulate.rows import CONFIG, rows_of
from shadowspec.simulate.traffic import CONCURRENCY, ENDPOINT, PLACE, SECOND, START, Arrivals, draw_requests
from shadowspec.types import ReasonCode, Verdict, Watermark

RESULTS = harness.RESULTS / "days_to_verdict.json"
DAYS, LOOKS_A_DAY = 14, 2
SPEEDUPS, NOISES = (1.0, 1.05, 1.1, 1.15, 1.3), (0.1, 0.25)
SLOWED = 0.02  # share of the requests, where the table does not vary it
BLOCKS_AN_HOUR = 6  # of a slice's traffic
PASSED = (ReasonCode.MIN_SPAN, ReasonCode.ALL_TESTS_PASS)


@dataclass(frozen=True, slots=True)
class Cell:
    """The truth of one column; `is_before`: blocks are the units, and all of the traffic is measured."""

    slowed: float = SLOWED
    num_slices: int = 1
    is_before: bool = False

    @property
    def blocks_an_hour(self) -> int:
        """Those that are measured of one slice."""
        return BLOCKS_AN_HOUR if self.is_before else 1


CELLS = (Cell(0.0), Cell(), Cell(0.05), Cell(is_before=True), Cell(num_slices=8))


def run(cell: Cell, speedup: float, noise: float, seed: int) -> dict[str, dict[str, float]]:
    """One draw: by slice ("" the endpoint) the `days` after which its tests pass or disable, and those to each verdict.

    What was not reached is absent.
    """
    num_slices, per_hour = cell.num_slices, CONCURRENCY * cell.num_slices * cell.blocks_an_hour
    arrivals = Arrivals(num_sessions=DAYS * 24 * per_hour, num_slices=num_slices, gap_s=3_600.0 / per_hour)
    effects = Effects(log_speedup=math.log(speedup), noise_sd=noise, slowed=cell.slowed)
    policy = GatePolicy(max_hypotheses=max(num_slices + 1, GatePolicy().max_hypotheses))
    if cell.is_before:
        policy = replace(policy, window_s=0.0)
    traffic_seed, effects_seed = np.random.SeedSequence([seed, num_slices]).spawn(2)
    requests = draw_requests(arrivals, np.random.default_rng(traffic_seed), "greedy")
    rows = rows_of(requests, draw_outcomes(effects, requests, np.random.default_rng(effects_seed)), "greedy", ())
    store = MemoryStore(ENDPOINT, PLACE, [CONFIG])
    store.add(rows.records, rows.blocks, rows.runs)
    times = requests.at_us / SECOND
    found: dict[str, dict[str, float]] = {}
    for look in range(1, DAYS * LOOKS_A_DAY + 1):
        number = int(np.searchsorted(times, look * DAY_S / LOOKS_A_DAY))
        store.finish(number, Watermark(rows.records[number - 1].event_time, is_ended=False))
        for decision in run_endpoint_gate(store, ENDPOINT, policy, now=START).decisions:
            of_slice = found.setdefault(decision.slice_key, {})
            day, code = look / LOOKS_A_DAY, decision.reason_code
            if code in PASSED or decision.verdict is Verdict.DISABLE:
                of_slice.setdefault("days", day)
            if code == ReasonCode.FUTILE:
                of_slice.setdefault("futile_days", day)
            if decision.verdict is not Verdict.HOLD:
                of_slice.setdefault(f"{decision.verdict.lower()}_days", day)
        if num_slices == 1 and {"enable_days", "disable_days"} & found.get("", {}).keys():
            break  # nothing else is counted
    return found


def summarise(draws: Sequence[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Of the endpoint and of its slices: shares of each verdict, and the medians of those that came to it."""
    parts = {
        "endpoint": [draw[""] for draw in draws],
        "slices": [of_slice for draw in draws for slice_key, of_slice in draw.items() if slice_key],
    }
    return {name: _medians(runs) for name, runs in parts.items() if runs}


def _medians(runs: Sequence[dict[str, float]]) -> dict[str, Any]:
    names = ("days", "futile_days", "enable_days", "disable_days")
    values = {name: [each[name] for each in runs if name in each] for name in names}
    medians = {name: float(np.median(found)) if found else None for name, found in values.items()}
    shares = {f"{name}_share": len(values[f"{name}_days"]) / len(runs) for name in ("futile", "enable", "disable")}
    return {"number": len(runs), **medians, **shares}


def main() -> None:
    """Run every cell of the table and write the results."""
    parser = options(__doc__, RESULTS.name)
    parser.add_argument("--repetitions", "-n", type=int, default=10)
    parser.add_argument("--of-slices", type=int, default=3, help="repetitions of the endpoint of eight slices")
    parser.add_argument("--jobs", "-j", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for cell in CELLS:
            number = arguments.repetitions if cell.num_slices == 1 else arguments.of_slices
            for speedup, noise in product(SPEEDUPS, NOISES):
                futures = [pool.submit(run, cell, speedup, noise, seed) for seed in range(number)]
                found = summarise([future.result() for future in futures])
                rows += [
                    {"speedup": speedup, "noise": noise, **asdict(cell), "of": of, "draws": number, **figures}
                    for of, figures in found.items()
                    if of == "endpoint" or cell.num_slices > 1
                ]
                show(str(cell), rows[-len(found) :])
                write(arguments.out, {"blocks_an_hour": BLOCKS_AN_HOUR, "cells": rows, **machine("numpy", "scipy")})


if __name__ == "__main__":
    main()
