"""The control's error rates and delays in worlds whose truth is known.

    make bench NAME=control

Each repetition draws two weeks of windows of a plain and a speculative pool and passes them through
`shadowspec.rollout.control`, with a look every hour.  The result is a JSON file and the page docs/research/control.md.
"""

from __future__ import annotations

import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from scipy.stats import binomtest

from kernels.benchmarks import harness
from kernels.benchmarks.harness import options, sections, write
from kernels.benchmarks.pools import INTERVALS_PER_DAY, WORLDS, PoolOutcome, PoolWorld, run_world
from shadowspec.app.progress_bar import notes, progress_bar
from shadowspec.rollout.rollout_policy import RolloutPolicy

RESULTS = harness.RESULTS / "control.json"
PAGE = harness.DOCS / "control.md"
POLICY = RolloutPolicy()
_TEXTS = sections("control.md")
_HOURS = 24.0 / INTERVALS_PER_DAY


def summarise(world: PoolWorld, outcomes: list[PoolOutcome]) -> dict[str, Any]:
    """What happened in a world: reversions while speculation was no worse, delays after it became so, and moves on."""
    worse_from = world.worse_from(POLICY)
    reverted = [outcome.reverted_after for outcome in outcomes if outcome.reverted_after is not None]
    false = [at for at in reverted if worse_from is None or at <= worse_from]
    delays = sorted(_HOURS * (at - worse_from) for at in reverted if worse_from is not None and at > worse_from)
    forward = sorted(_HOURS * outcome.forward_after for outcome in outcomes if outcome.forward_after is not None)
    interval = binomtest(len(false), len(outcomes)).proportion_ci(0.95)
    return {
        "title": world.title,
        "days": world.days,
        "repetitions": len(outcomes),
        "worse_from_hours": None if worse_from is None else _HOURS * worse_from,
        "false_reverts": len(false),
        "false_reverts_interval": [interval.low, interval.high],
        "true_reverts": len(delays),
        "delay_hours": _quantiles(delays),
        "forward": len(forward),
        "forward_hours": _quantiles(forward),
    }


def write_page(results: dict[str, Any], path: Path) -> None:
    """The page of the documentation."""
    rows = [_row(name, world) for name, world in results["worlds"].items()]
    path.write_text(
        _TEXTS["head"].format(**results, **results["policy"]) + "\n".join(rows) + "\n" + _TEXTS["end"], encoding="utf-8"
    )


def _row(name: str, world: dict[str, Any]) -> str:
    low, high = (f"{100 * value:.1f}" for value in world["false_reverts_interval"])
    count = world["repetitions"]
    false = f"{world['false_reverts']} of {count} ({low} to {high}%)"
    if world["worse_from_hours"] == 0:
        false = "every move is right"
    true = f"{world['true_reverts']} of {count}" if world["worse_from_hours"] is not None else ""
    cells = [f"`{name}`: {world['title']}", false, true, _span(world["delay_hours"])]
    cells += [f"{world['forward']} of {count}", _span(world["forward_hours"])]
    return f"| {' | '.join(cells)} |"


def _span(quantiles: dict[str, float] | None) -> str:
    return "" if quantiles is None else f"{quantiles['median']:.0f} h (up to {quantiles['largest']:.0f} h)"


def _quantiles(values: list[float]) -> dict[str, float] | None:
    return None if not values else {"median": statistics.median(values), "largest": values[-1]}


def main() -> None:
    """Run every world, write the results and the page."""
    parser = options(__doc__, "control.json")
    parser.add_argument("--repetitions", "-n", type=int, default=200)
    parser.add_argument("--jobs", "-j", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    worlds: dict[str, Any] = {}
    seeds = range(arguments.repetitions)
    with ProcessPoolExecutor(arguments.jobs) as pool, progress_bar() as bar:
        task = bar.add_task("repetitions", total=len(WORLDS) * len(seeds))
        for world in WORLDS:
            futures = [pool.submit(run_world, world, seed, POLICY) for seed in seeds]
            for future in futures:
                future.result()
                bar.advance(task)
            worlds[world.name] = summarise(world, [future.result() for future in futures])
    used = ("control_level", "control_run_length", "control_interval_s", "control_requests", "max_slowdown")
    policy = {name: getattr(POLICY, name) for name in used}
    results = {"repetitions": arguments.repetitions, "policy": policy, "worlds": worlds}
    write(arguments.out, results)
    if arguments.out == RESULTS:
        write_page(results, PAGE)
    for name, running in worlds.items():
        notes.print(
            f"{name}: {running['false_reverts']} false, {running['true_reverts']} right, {running['delay_hours']}"
        )


if __name__ == "__main__":
    main()
