"""The cost model against the loop on the bundled pair: predicted and measured time, at loads and depths not profiled.

    make bench-costs          (or: python kernels/benchmarks/cost_model.py [--blocks N] [--out FILE])

The surface is profiled on made-up prompts, as `shadowspec profile-device` does it. Then blocks of the bundled
traffic's prompts run through both arms at loads and depths that lie between its points.  Predicted are the time of a
step, from the surface alone, and the end-to-end speedup, from the surface and the mean acceptance length of the cell.
Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from pathlib import Path
from typing import Any

import torch
from replay import prompts
from rich.console import Console
from rich.progress import track
from rich.table import Table

from shadowspec import demo, metrics
from shadowspec.cost_model import CostSurface
from shadowspec.engine.batch import Request
from shadowspec.engine.candidate import Models
from shadowspec.engine.decode import Decoded, decode_batch
from shadowspec.engine.profiling import Grid, num_steps, profile
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.types import Place, SamplingParameters, SpeculationConfig, VerifyRule

PROFILED = Grid(loads=(1, 2, 4, 8, 16), depths=(1, 2, 4, 8), contexts=(64, 256, 512))
HELD_OUT = ((3, 3), (6, 3), (6, 6), (12, 3), (3, 6), (12, 6), (5, 5), (10, 7))  # load, K: neither was profiled
OUTPUT_TOKENS = 48
WARM_UP = 2


def batch(pair: tuple[Any, Any], requests: list[Request], depth: int, rule: VerifyRule) -> tuple[Decoded, ...]:
    """One arm; the baseline at depth 0."""
    target, draft = pair
    proposer = DraftModelProposer(draft.model, depth, is_sampling=rule is VerifyRule.REJECTION) if depth else None
    return decode_batch(
        target.model, requests, proposer=proposer, num_speculative_tokens=depth, verify_rule=rule,
        end_token_ids=target.end_token_ids,
    ).decoded  # fmt: skip


def cell(
    pair: tuple[Any, Any], surface: CostSurface, texts: list[tuple[int, ...]], load: int, depth: int, blocks: int,
    *, is_greedy: bool,
) -> dict[str, Any]:  # fmt: skip
    """One load and depth: what the surface says of it, and what `blocks` blocks took."""
    sampling = SamplingParameters(temperature=0.0 if is_greedy else 0.8, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    drafted: list[Decoded] = []
    plain: list[Decoded] = []
    step_ms: dict[int, list[float]] = {0: [], depth: []}
    for block in range(-WARM_UP, blocks):
        chosen = [texts[(block * load + row) % len(texts)] for row in range(load)]
        requests = [Request(prompt, sampling, block * load + row & 0xFFFF) for row, prompt in enumerate(chosen)]
        for own, found in ((0, plain), (depth, drafted)):
            decoded = batch(pair, requests, own, VerifyRule.REJECTION)
            if block < 0:
                continue
            last = max(decoded, key=num_steps)
            step_ms[own].append(last.timing.decode_ms / num_steps(last))
            found.extend(decoded)
    pooled = metrics.pooled([each.counts for each in drafted])
    assert pooled is not None, "something was decoded"
    length = metrics.mean_acceptance_length(pooled)
    assert length is not None, "something was drafted"
    context = statistics.mean(each.counts.num_prompt_tokens for each in drafted) + OUTPUT_TOKENS / 2
    measured = sum(each.timing.end_to_end_ms for each in plain) / sum(each.timing.end_to_end_ms for each in drafted)
    predicted = surface.end_to_end_speedup(length, Place(load, depth, context), OUTPUT_TOKENS)
    rows: dict[str, Any] = {
        "load": load, "num_speculative_tokens": depth, "is_greedy": is_greedy, "mean_context": round(context),
        "mean_acceptance_length": length, "measured_speedup": measured, "predicted_speedup": predicted,
        "speedup_error": predicted / measured - 1.0,
    }  # fmt: skip
    for own, name in ((0, "baseline"), (depth, "speculative")):
        found_ms, expected_ms = statistics.median(step_ms[own]), surface.step_ms(Place(load, own, context))
        rows |= {
            f"measured_{name}_step_ms": found_ms, f"predicted_{name}_step_ms": expected_ms,
            f"{name}_step_error": expected_ms / found_ms - 1.0,
        }  # fmt: skip
    return rows


def main() -> None:
    """Profile, run the held-out cells, print a table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=6, help="per cell and arm")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "cost_model.json")
    arguments = parser.parse_args()
    console = Console()
    target, (candidate,) = Models("cpu", "float32").candidates(
        str(demo.TARGET),
        [SpeculationConfig("draft", str(demo.TARGET), str(demo.DRAFT), "draft_model", 4, VerifyRule.REJECTION)],
        console.print,
    )
    texts = [prompt for _, prompt in prompts(400) if 64 <= len(prompt) <= 400]
    rows = []
    for is_greedy in (True, False):
        grid = Grid(PROFILED.loads, PROFILED.depths, PROFILED.contexts, is_greedy)
        surface = CostSurface(profile(target, candidate, grid))
        for load, depth in track(HELD_OUT, description="greedy" if is_greedy else "sampled"):
            pair = (target, candidate.draft)
            rows.append(cell(pair, surface, texts, load, depth, arguments.blocks, is_greedy=is_greedy))
    table = Table("regime", "load", "K", "L", "step ms", "predicted", "speedup", "predicted")
    for row in rows:
        table.add_row(
            "greedy" if row["is_greedy"] else "sampled", str(row["load"]), str(row["num_speculative_tokens"]),
            f"{row['mean_acceptance_length']:.2f}", f"{row['measured_speculative_step_ms']:.2f}",
            f"{row['predicted_speculative_step_ms']:.2f}", f"{row['measured_speedup']:.2f}",
            f"{row['predicted_speedup']:.2f}",
        )  # fmt: skip
    console.print(table)
    errors = {
        name: statistics.median(abs(row[f"{name}_error"]) for row in rows)
        for name in ("speedup", "speculative_step", "baseline_step")
    }
    console.print("median absolute error:", {name: f"{value:.1%}" for name, value in errors.items()})
    document = {
        "machine": {
            "cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "torch": torch.__version__,
            "load average": [round(each, 1) for each in os.getloadavg()],
        },
        "blocks": arguments.blocks, "median_absolute_error": errors, "cells": rows,
    }  # fmt: skip
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
