"""Seconds that a gate run and a promotion check take over an endpoint of 200 slices, by how many runs are stored.

    python -m kernels.benchmarks.gate [--runs 1000000 10000000] [--slices N] [--url URL [--keep]] [--fold N]

For each size: a database is filled in SQL (a record and a run per request, blocks of four; of the rollups what a check
reads: counts and weights), folded once by the product, and then gated again: with nothing new and with a minute's new
runs; last come `gate` and `check` as commands, start-up included.  Without `--url` a server of its own is started, with
its default settings; with `--keep` the databases stay there, and one that is filled, or folded in part, is taken up as
it is (what stands under `first_fold` is then of what was left); with `--fold` the ledger stops there.  Beside what
the clock says stands the time of the processor in the gate's own process: the clock's means something only where
nothing else runs.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from kernels.benchmarks import harness
from kernels.benchmarks.gate_rows import (
    CONFIG,
    Traffic,
    fill,
    fill_rollups,
    is_filled,
    kept_database,
    make_months,
    move_ledger,
    num_folded,
    vacuum,
)
from kernels.benchmarks.harness import options, show, write
from shadowspec.gate.policy import GatePolicy
from shadowspec.rollout.endpoint_run import run_endpoint
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.store import Store, upgrade
from shadowspec.types import Decision

NUM_LOOKS = 5
RUNS_A_MINUTE = 240
COMMANDS = {"command": ("gate",), "check": ("check", "--endpoint", "chat")}
VERDICT_CODES = (0, 1, 3)  # ENABLE, DISABLE, HOLD
SETTINGS = ("fsync", "synchronous_commit", "shared_buffers")


def measure(url: str, num_runs: int, num_slices: int, fold: int, note: Callable[[str], None]) -> dict[str, Any]:
    """Fill, fold the first `fold` of the runs, gate again."""
    upgrade(url)
    traffic = Traffic(num_runs, num_slices)
    policy = GatePolicy(max_hypotheses=num_slices + 1)
    with Store.open(url) as store:
        store.save_fingerprints([CONFIG])
        fill_s = None
        if not is_filled(url, traffic):
            note(f"filling {num_runs:,} runs")
            started = time.perf_counter()
            make_months(url)
            fill(url, traffic, 0, num_runs)
            vacuum(url)
            fill_rollups(url, traffic)
            fill_s = time.perf_counter() - started
        before = num_folded(url, traffic)
        fold = max(min(fold, num_runs), before)
        move_ledger(url, traffic, fold)
        note("folding")

        def gate() -> list[Decision]:
            return run_endpoint(store, traffic.endpoint, policy, RolloutPolicy()).decisions

        decisions: list[Decision] = []
        first = _timed(lambda: decisions.extend(gate()))
        note(f"folded in {first.wall_s:.0f} s, {first.cpu_s:.0f} s of the processor")
        folded = num_folded(url, traffic)
        idle = [_timed(gate) for _ in range(NUM_LOOKS)]
        busy = []
        for look in range(NUM_LOOKS):
            start = fold + look * RUNS_A_MINUTE
            if fold < num_runs:
                move_ledger(url, traffic, start + RUNS_A_MINUTE)
            else:
                fill(url, traffic, start, start + RUNS_A_MINUTE)
            busy.append(_timed(gate))
        commands = {name: _commands(url, num_slices, *arguments) for name, arguments in COMMANDS.items()}
    return {
        "num_runs": num_runs,
        "num_folded": folded,
        "num_slices": num_slices,
        "num_decisions": len(decisions),
        "verdicts": {name: sum(d.verdict.value == name for d in decisions) for name in ("ENABLE", "DISABLE", "HOLD")},
        "fill_s": None if fill_s is None else round(fill_s, 1),
        "first_fold_runs": folded - before,
        "first_fold_s": round(first.wall_s, 1),
        "first_fold_cpu_s": round(first.cpu_s, 1),
        **_summed("gate_idle", idle),
        **_summed("gate_240_new_runs", busy),
        **{name: value for command, seconds in commands.items() for name, value in _summed(command, seconds).items()},
        "load_average": round(os.getloadavg()[1], 1),
    }


@dataclass(frozen=True)
class GateSeconds:
    """By the clock, and of the processor in this process (or in the one that it started)."""

    wall_s: float
    cpu_s: float


def _timed(call: Callable[[], object]) -> GateSeconds:
    started, used = time.perf_counter(), _cpu_s()
    call()
    return GateSeconds(time.perf_counter() - started, _cpu_s() - used)


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _summed(name: str, each: Sequence[GateSeconds]) -> dict[str, float]:
    """The medians, and the quickest by the clock."""
    return {
        f"{name}_s": round(statistics.median(one.wall_s for one in each), 3),
        f"{name}_min_s": round(min(one.wall_s for one in each), 3),
        f"{name}_cpu_s": round(statistics.median(one.cpu_s for one in each), 3),
    }


def endpoint_table(name: str) -> str:
    """The configuration of an endpoint whose rows `gate_rows` makes."""
    return (
        f'[endpoints.{name}]\ntarget = "target"\nserved_models = ["{name}"]\nmatch = {{ model = "{name}" }}\n'
        "loads = [{ concurrency = 4 }]\n"
        f'[[endpoints.{name}.candidates]]\nname = "draft-4"\nproposer = "draft_model"\ndraft = "draft"\n'
        "num_speculative_tokens = 1\n"
    )


def _commands(url: str, num_slices: int, *arguments: str) -> list[GateSeconds]:
    """A command in a process of its own, after one that has warmed the files up."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shadowspec.toml"
        path.write_text(
            f'[database]\nurl = "sqlite:///no.db"\n[privacy]\nhash_secret_file = "secret"\n'
            f"[gate]\nmax_hypotheses = {num_slices + 1}\n{endpoint_table('chat')}",
            encoding="utf-8",
        )
        command = [sys.executable, "-m", "shadowspec", *arguments, "--json", "--config", str(path)]
        environment = os.environ | {"SHADOWSPEC_DATABASE_URL": url}

        def call() -> None:
            done = subprocess.run(command, check=False, capture_output=True, env=environment)  # noqa: S603
            if done.returncode not in VERDICT_CODES:
                raise RuntimeError(done.stderr.decode())

        return [_timed(call) for _ in range(NUM_LOOKS + 1)][1:]


def machine(url: str) -> dict[str, str]:
    """What the figures were measured on."""
    settings = harness.postgres_settings(url, "server_version", *SETTINGS)
    server = settings.pop("server_version")
    named = ", ".join(f"{name} {value}" for name, value in settings.items())
    return harness.machine() | {"postgres": server, "settings": named}


def main() -> None:
    """Measure each size, print a table and write the results."""
    parser = options(__doc__, "gate.json")
    parser.add_argument("--url", help="a Postgres server on which databases may be made")
    parser.add_argument("--keep", action="store_true", help="leave the databases gate_N on that server, or find them")
    parser.add_argument("--runs", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--fold", type=int, default=sys.maxsize, help="fold only so many of the stored runs")
    parser.add_argument("--slices", type=int, default=200)
    arguments = parser.parse_args()
    from tests.builders.databases import temporary_database
    from tests.services import postgres_server

    console = Console(stderr=True)
    sizes = []
    with postgres_server(is_durable=True) as bench_server:
        server = arguments.url or bench_server.url
        for num_runs in arguments.runs:
            with kept_database(server, f"gate_{num_runs}") if arguments.keep else temporary_database(server) as url:
                sizes.append(measure(url, num_runs, arguments.slices, arguments.fold, console.print))
                console.print(sizes[-1])
        results = {"machine": machine(server), "results": sizes}
    show("seconds by runs", [{"": name} | {f"{row['num_runs']:,}": row[name] for row in sizes} for name in sizes[0]])
    write(arguments.out, results)


if __name__ == "__main__":
    main()
