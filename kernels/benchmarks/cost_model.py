"""The cost model against the loop on the bundled target: predicted and measured time, at loads and depths not profiled.

    python -m kernels.benchmarks.cost_model [--way medusa] [--blocks N] [--out FILE]

One way of drafting at a time: the bundled draft model, the bundled heads, or a lookup.  The surface is profiled on
made-up prompts, as `shadowspec profile-device` does it; in turns with it blocks of the bundled traffic's prompts run
through both arms at loads and depths that lie between its points.  Predicted are the time of a step, from the surface
(and, of a lookup, from how often and how deep it drafted), and the end-to-end speedup, from the surface and the tokens
per step of the cell.  Nothing else may run meanwhile.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from kernels.benchmarks.harness import RESULTS, engine_machine, options, show, traffic_prompts, write
from shadowspec import demo, metrics
from shadowspec.engine.batch import Request
from shadowspec.engine.candidate import Candidate, Models
from shadowspec.engine.decode import Decoded, decode_batch
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.profiling import ProfileGrid, num_steps, profile
from shadowspec.planning.cost_model import CostSurface, Drafts
from shadowspec.types import Place, SamplingParameters, SpeculationConfig, VerifyRule
from shadowspec.types.settings import EngineSettings

LOADS = (1, 2, 4, 8, 16)
HELD_OUT = ((3, 3), (6, 3), (6, 6), (12, 3), (3, 6), (12, 6), (5, 5), (10, 7))  # load, K: neither was profiled
SHALLOW = ((3, 3), (6, 3), (10, 3), (12, 3))  # the same of heads, which are four


@dataclass(frozen=True, slots=True)
class DraftingWay:
    """A way of drafting for the bundled target, and where it is profiled and measured."""

    draft: str | None
    rule: VerifyRule
    depths: tuple[int, ...]
    contexts: tuple[int, ...]
    held_out: tuple[tuple[int, int], ...]


WAYS = {
    "draft_model": DraftingWay(str(demo.DRAFT), VerifyRule.REJECTION, (1, 2, 4, 8), (64, 256, 512), HELD_OUT),
    "medusa": DraftingWay(str(demo.HEADS / "medusa"), VerifyRule.REJECTION, (1, 2, 4), (64, 256), SHALLOW),
    "eagle3": DraftingWay(str(demo.HEADS / "eagle3"), VerifyRule.REJECTION, (1, 2, 4), (64, 256), SHALLOW),
    "ngram": DraftingWay(None, VerifyRule.GREEDY_DRAFT, (1, 2, 4), (64, 256), SHALLOW),
    "suffix": DraftingWay(None, VerifyRule.GREEDY_DRAFT, (1, 2, 4), (64, 256), SHALLOW),
}
LOOKUPS = ("ngram", "suffix")
OUTPUT_TOKENS = 48
WARM_UP = 2


def batch(target: LoadedModel, candidate: Candidate, requests: list[Request], depth: int) -> tuple[Decoded, ...]:
    """One arm; the baseline at depth 0."""
    config = candidate.config
    at_depth = replace(candidate, config=replace(config, config=replace(config.config, num_speculative_tokens=depth)))
    return decode_batch(
        target.model, requests, proposer=at_depth.proposer() if depth else None, num_speculative_tokens=depth,
        verify_rule=config.config.verify_rule, end_token_ids=target.end_token_ids,
    ).decoded  # fmt: skip


class LoadCell:
    """One load and depth: blocks of the bundled traffic's prompts through both arms, some at a time."""

    def __init__(
        self,
        pair: tuple[LoadedModel, Candidate],
        texts: list[tuple[int, ...]],
        load: int,
        depth: int,
        *,
        is_greedy: bool,
    ) -> None:
        self.load, self.depth, self.is_greedy = load, depth, is_greedy
        self._pair, self._texts, self._next = pair, texts, -WARM_UP
        self._sampling = SamplingParameters(
            temperature=0.0 if is_greedy else 0.8, max_tokens=OUTPUT_TOKENS, ignore_eos=True
        )
        self._drafted: list[Decoded] = []
        self._plain: list[Decoded] = []
        self._step_ms: dict[int, list[float]] = {0: [], depth: []}

    def run(self, blocks: int) -> None:
        """So many more blocks; before the first one, untimed ones."""
        last = max(self._next, 0) + blocks
        while self._next < last:
            first = self._next * self.load
            chosen = [self._texts[(first + row) % len(self._texts)] for row in range(self.load)]
            requests = [Request(prompt, self._sampling, first + row & 0xFFFF) for row, prompt in enumerate(chosen)]
            for number, decoded_so_far in ((0, self._plain), (self.depth, self._drafted)):
                decoded = batch(*self._pair, requests, number)
                if self._next >= 0:
                    longest = max(decoded, key=num_steps)
                    self._step_ms[number].append(longest.timing.decode_ms / num_steps(longest))
                    decoded_so_far.extend(decoded)
            self._next += 1

    def row(self, surface: CostSurface) -> dict[str, Any]:
        """What the surface says of it, beside what was measured."""
        load, depth, plain, drafted = self.load, self.depth, self._plain, self._drafted
        pooled = metrics.pool_counts([decoded.counts for decoded in drafted])
        assert pooled is not None, "something was decoded"
        steps = pooled.num_drafts + pooled.num_plain_steps
        length = 1.0 + pooled.num_accepted_tokens / steps
        drafts = None
        if self._pair[1].config.config.proposer in LOOKUPS:
            num_drafted = pooled.num_draft_tokens + pooled.num_cut_draft_tokens
            drafts = Drafts(pooled.num_drafts / steps, num_drafted / max(1, pooled.num_drafts))
        prompt = statistics.mean(decoded.counts.num_prompt_tokens for decoded in drafted)
        measured = sum(decoded.timing.end_to_end_ms for decoded in plain) / sum(
            decoded.timing.end_to_end_ms for decoded in drafted
        )
        place = Place(load, depth, prompt)
        plain_ms = surface.end_to_end_ms(1.0, place.baseline, OUTPUT_TOKENS)
        predicted = plain_ms / surface.end_to_end_ms(length, place, OUTPUT_TOKENS, drafts)
        row: dict[str, Any] = {
            "load": load, "num_speculative_tokens": depth, "is_greedy": self.is_greedy,
            "mean_prompt_tokens": round(prompt), "tokens_per_step": length,
            "drafting_share": pooled.num_drafts / steps,
            "measured_speedup": measured, "predicted_speedup": predicted, "speedup_error": predicted / measured - 1.0,
        }  # fmt: skip
        for number, name in ((0, "baseline"), (depth, "speculative")):
            found_ms, expected_ms = (
                statistics.median(self._step_ms[number]),
                surface.step_ms(Place(load, number, prompt + OUTPUT_TOKENS / 2), drafts),
            )
            row |= {
                f"measured_{name}_step_ms": found_ms, f"predicted_{name}_step_ms": expected_ms,
                f"{name}_step_error": expected_ms / found_ms - 1.0,
            }  # fmt: skip
        return row


def measured(
    target: LoadedModel,
    candidate: Candidate,
    texts: list[tuple[int, ...]],
    blocks: int,
    way: DraftingWay,
    *,
    is_greedy: bool,
) -> list[dict[str, Any]]:
    """Profile, and after each round of the profile some blocks of every cell: a machine's slow minutes hit both."""
    grid = ProfileGrid(LOADS, way.depths, way.contexts, is_greedy)
    cells = [LoadCell((target, candidate), texts, load, depth, is_greedy=is_greedy) for load, depth in way.held_out]
    with Progress() as progress:
        task = progress.add_task("greedy" if is_greedy else "sampled", total=grid.num_runs)

        def advance() -> None:
            progress.update(task, advance=1)
            if progress.tasks[task].completed % len(grid.places) == 0:
                for cell in cells:
                    cell.run(blocks)

        surface = CostSurface(profile(target, candidate, grid, on_run=advance))
    return [cell.row(surface) for cell in cells]


def main() -> None:
    """Profile, run the held-out cells, print a table and write the results."""
    parser = options(__doc__)
    parser.add_argument("--blocks", type=int, default=2, help="per cell and arm, after each round of the profile")
    parser.add_argument("--way", choices=sorted(WAYS), default="draft_model", help="of drafting")
    parser.add_argument("--out", type=Path, help="default: results/cost_model.json, or cost_model_WAY.json")
    arguments = parser.parse_args()
    name, way = arguments.way, WAYS[arguments.way]
    file = "cost_model.json" if name == "draft_model" else f"cost_model_{name}.json"
    out = arguments.out or RESULTS / file
    console = Console()
    target, (candidate,) = Models(EngineSettings("cpu", "float32")).candidates(
        str(demo.TARGET),
        [SpeculationConfig("draft", str(demo.TARGET), way.draft, name, max(way.depths[:3]), way.rule)],
        console.print,
        1,
        {},
    )
    texts = [prompt for _, prompt in traffic_prompts(400) if 64 <= len(prompt) <= 400]
    rows = []
    for is_greedy in (True, False):
        rows += measured(target, candidate, texts, arguments.blocks, way, is_greedy=is_greedy)
    shown = ("is_greedy", "load", "num_speculative_tokens", "tokens_per_step", "measured_speculative_step_ms",
             "predicted_speculative_step_ms", "measured_speedup", "predicted_speedup")  # fmt: skip
    show("held-out cells", [{name: row[name] for name in shown} for row in rows])
    errors = {
        name: statistics.median(abs(row[f"{name}_error"]) for row in rows)
        for name in ("speedup", "speculative_step", "baseline_step")
    }
    console.print("median absolute error:", {name: f"{value:.1%}" for name, value in errors.items()})
    document = {
        "machine": engine_machine() | {"load average": [round(load, 1) for load in os.getloadavg()]},
        "way": name, "blocks": arguments.blocks, "median_absolute_error": errors, "cells": rows,
    }  # fmt: skip
    write(out, document)


if __name__ == "__main__":
    main()
