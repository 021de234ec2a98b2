"""The results of a validation, from what was collected: one document, which page and picture are made of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import track

from kernels.benchmarks.engines.candidates import SERVING_ENGINE
from kernels.benchmarks.engines.collecting import GREEDY_REGIME, SAMPLED_REGIME, Answered, Prompt, collected
from kernels.benchmarks.engines.comparing import LEVEL, acceptance_cell, equality, own_outputs, replayed_rate
from kernels.benchmarks.engines.counted import Counted
from kernels.benchmarks.engines.ours import NEAR_TIE, Ours
from kernels.benchmarks.engines.predicting import (
    Measured,
    Place,
    Steps,
    TimedBlock,
    costs_of,
    judged,
    measured_speedup,
    predicted_speedup,
    price_spread,
)
from kernels.benchmarks.engines.tables import ALL
from kernels.benchmarks.engines.timing import IN_PROCESS, Queue, timed_blocks, timed_name
from kernels.benchmarks.engines.ways import BASELINE, DEPTHS, DRAFT, SHIPPED, SHIPPED_DEPTH, WAYS, Way
from shadowspec.types import ExpectedCounts


def acceptance(folder: Path, ours: Ours, prompts: Sequence[tuple[str, Prompt]], max_tokens: int) -> dict[str, Any]:
    """Equality and rates of every way and K that was collected."""
    only = [prompt for _, prompt in prompts]
    slices = {name: [row for row, (text, _) in enumerate(prompts) if text == name] for name, _ in prompts}
    slices = {ALL: list(range(len(prompts)))} | slices
    equalities, cells, audits = [], [], []
    for way in track(WAYS, "our side", console=Console(stderr=True)):
        regime = GREEDY_REGIME if way.is_greedy else SAMPLED_REGIME
        baseline = collected(folder, BASELINE, 0, regime)
        if baseline is None:
            continue
        outputs = [answer.tokens for answer in baseline]
        replay = ours.replayed(way, only, outputs, DEPTHS)
        by_default = ours.replayed(way, only, outputs, DEPTHS, names_engine=False) if way.differs else None
        for place, depth in enumerate(DEPTHS):
            answers = collected(folder, way.served.name, depth, regime)
            if answers is None:
                continue
            where = {"way": way.name, "K": depth}
            theirs = _server_side(answers, only, depth, way)
            loop = looped(folder, ours, way, only, max_tokens, depth)
            again = ours.replayed(way, only, [expected.tokens for expected in theirs], [depth])
            audits.append(where | _own_outputs(way, theirs, again))
            if way.is_greedy:
                equalities.append(where | _equality(ours, way, only, theirs, loop))
            for name, every in slices.items():
                rows = [row for row in every if replay[row] is not None]
                expected = [_at(replay, row, place) for row in rows]
                measured_cell = acceptance_cell([theirs[row] for row in rows], [loop[row] for row in rows], expected)
                if measured_cell is not None:
                    default_rate = by_default and replayed_rate([_at(by_default, row, place) for row in rows])
                    cells.append(where | {"slice": name} | measured_cell | {"replay_by_default": default_rate})
    return _rules(ours) | {"level": LEVEL, "equality": equalities, "cells": cells, "own_outputs": audits}


def greedy_equality(
    folder: Path, ours: Ours, ways: Sequence[Way], depths: Sequence[int], prompts: Sequence[Prompt], max_tokens: int
) -> dict[str, Any]:
    """Equality alone, of greedy requests of every way and K that was collected."""
    equalities = []
    for way in ways:
        for depth in depths:
            answers = collected(folder, way.served.name, depth, GREEDY_REGIME)
            if answers is None:
                continue
            theirs = _server_side(answers, prompts, depth, way)
            loop = looped(folder, ours, way, prompts, max_tokens, depth)
            equalities.append({"way": way.name, "K": depth} | _equality(ours, way, prompts, theirs, loop))
    return _rules(ours) | {"equality": equalities}


def _rules(ours: Ours) -> dict[str, Any]:
    return {"serving_engine": SERVING_ENGINE, "drafting_rules": ours.drafting_rules(), "near_tie_logit": NEAR_TIE}


def _at(replay: Sequence[tuple[ExpectedCounts, ...] | None], row: int, place: int) -> ExpectedCounts:
    counts = replay[row]
    assert counts is not None, "what cannot be the target's was left out"
    return counts[place]


def _own_outputs(
    way: Way, theirs: Sequence[Counted], again: Sequence[tuple[ExpectedCounts, ...] | None]
) -> dict[str, Any]:
    """vLLM's counters against replay of its own outputs, and how many of these cannot be the target's."""
    pairs = [(counted, expected[0]) for counted, expected in zip(theirs, again, strict=True) if expected is not None]
    audit = own_outputs(
        [counted for counted, _ in pairs], [expected for _, expected in pairs], is_certain=way.is_certain
    )
    return audit | {"impossible": len(theirs) - len(pairs)}


def shipped(folder: Path, ours: Ours, prompts: Sequence[Prompt]) -> dict[str, Any] | None:
    """How many sampled outputs of vLLM as it is shipped cannot be the target's; None: not collected."""
    way = next(candidate for candidate in WAYS if candidate.served is DRAFT and not candidate.is_greedy)
    impossible = {}
    for name, depth in ((BASELINE, 0), (SHIPPED.name, SHIPPED_DEPTH)):
        answers = collected(folder, name, depth, SAMPLED_REGIME)
        if answers is None:
            return None
        replay = ours.replayed(way, prompts, [answer.tokens for answer in answers], [SHIPPED_DEPTH])
        impossible[name] = sum(counts is None for counts in replay)
    return {
        "K": SHIPPED_DEPTH,
        "requests": len(prompts),
        "baseline_impossible": impossible[BASELINE],
        "impossible": impossible[SHIPPED.name],
    }


def _server_side(answers: Sequence[Answered], prompts: Sequence[Prompt], depth: int, way: Way) -> list[Counted]:
    return [
        Counted.of_server(answer, len(prompt), depth, drafts_always=not way.is_lookup)
        for answer, prompt in zip(answers, prompts, strict=True)
    ]


def looped(folder: Path, ours: Ours, way: Way, prompts: Sequence[Prompt], max_tokens: int, depth: int) -> list[Counted]:
    """Our loop on the prompts, run once and kept."""
    path = folder / f"loop-{way.name}-k{depth}.json"
    if not path.exists():
        course = 100 * WAYS.index(way) + depth  # random numbers of its own
        decoded = ours.loop(way, prompts, max_tokens, depth, course)
        path.write_text(json.dumps([counted.written() for counted in decoded]) + "\n", encoding="utf-8")
    return [Counted.read(values) for values in json.loads(path.read_text(encoding="utf-8"))]


def _equality(
    ours: Ours, way: Way, prompts: Sequence[Prompt], theirs: Sequence[Counted], loop: Sequence[Counted]
) -> dict[str, Any]:
    def gap_at(row: int, position: int) -> float:
        return ours.top_two_gap(prompts[row], loop[row].tokens[: position + 1])

    def draft_gap(row: int) -> float:
        return ours.smallest_draft_gap(prompts[row], loop[row].tokens)

    return equality(theirs, loop, gap_at, NEAR_TIE, None if way.is_lookup else draft_gap)


def speedups(
    folder: Path, way: Way, portions: Sequence[Sequence[Queue]], loops: Mapping[int, Mapping[Prompt, Counted]]
) -> dict[str, Any] | None:
    """Predicted and measured speedup of every slice, K and load; None where no server was timed.

    Args:
        portions: what was sent, by number.
        loops: what our loop counted of each prompt, by K.
    """
    cells, idles, spreads = [], [], []
    for depth, looped_by_prompt in loops.items():
        blocks, idle = timed_blocks(folder, timed_name(way, depth))
        if not blocks:
            continue
        in_process, _ = timed_blocks(folder, timed_name(way, depth) + IN_PROCESS)
        idles.append(idle)
        spreads.append(price_spread(blocks))
        for queue in sorted(portions[0], key=lambda queue: queue.concurrency):
            sent = [
                [
                    looped_by_prompt[prompt]
                    for own_queue in portion
                    if own_queue.cell == queue.cell
                    for prompt in own_queue.prompts
                ]
                for portion in portions
            ]
            cells.append(_speedup_cell(*(_of_cell(timed, queue) for timed in (blocks, in_process)), queue, depth, sent))
    if not cells:
        return None
    return {"way": way.name, "idle_cpu_share": max(idles), "price_spread": max(spreads), "cells": cells}


def _of_cell(blocks: Sequence[TimedBlock], queue: Queue) -> list[TimedBlock]:
    return [block for block in blocks if (block.slice, block.place.concurrency) == queue.cell]


def _speedup_cell(
    blocks: Sequence[TimedBlock],
    in_process: Sequence[TimedBlock],
    queue: Queue,
    depth: int,
    sent: Sequence[Sequence[Counted]],
) -> dict[str, Any]:
    """The blocks of one slice, K and load; `sent`: what our loop counted of their requests, by number."""
    place = Place(queue.concurrency, depth)
    costs = [block for block in blocks if block.is_for_costs]
    timed = [block for block in blocks if not block.is_for_costs]
    first, again = (
        [block for block in timed if block.place.depth == 0 and (block.turn > 0) is is_again]
        for is_again in (False, True)
    )
    measured = _measured(timed, depth)
    return (
        {"slice": queue.slice, "K": depth, "concurrency": queue.concurrency}
        | judged(_predicted(costs, place, sent), measured)
        | {"error_at_own_prices": judged(_predicted(timed, place, sent), measured)["error"]}
        | {"baseline_again": judged(1.0, measured_speedup(first, again))}
        | {"in_process": _measured(in_process, depth).value if in_process else None}
    )


def _measured(blocks: Sequence[TimedBlock], depth: int) -> Measured:
    plain, sped = ([block for block in blocks if block.place.depth == at] for at in (0, depth))
    return measured_speedup(plain, sped)


def _predicted(blocks: Sequence[TimedBlock], place: Place, sent: Sequence[Sequence[Counted]]) -> float:
    """The speedup of what was sent, each number's at the prices of its blocks: the mean of their logs."""
    logs = []
    for number in sorted({block.number for block in blocks}):
        costs = costs_of(block for block in blocks if block.number == number)
        plain, steps = ([take(counted) for counted in sent[number]] for take in (_plainly, _steps))
        logs.append(log(predicted_speedup(costs, place, plain, steps)))
    return exp(fmean(logs))


def _steps(counted: Counted) -> Steps:
    counts = counted.counts
    return Steps(counts.num_prompt_tokens, counts.num_plain_steps, counts.num_drafts)


def _plainly(counted: Counted) -> Steps:
    """The same request decoded without drafts: a step for every token after the first."""
    counts = counted.counts
    return Steps(counts.num_prompt_tokens, counts.num_output_tokens - 1, 0)
