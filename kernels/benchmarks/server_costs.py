"""What `shadowspec profile-server` predicts of a real vLLM, beside what is then timed through the same two servers.

    make bench NAME=server_costs ARGS="--vllm-python PATH"     (PATH: the interpreter of vLLM's own environment)

The bundled pair in float32 behind two of vLLM's OpenAI servers, without and with its draft (K = 4).  Their step costs
are profiled on made-up prompts, then requests of the bundled traffic of all endpoints are measured through them in
paired blocks, all by the commands that a user has; what the costs predicted of them, and what was timed, is the
report's.  Both servers run all the time, as they do for a user: the one that waits is not stopped.  Nothing else may
run meanwhile.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kernels.benchmarks.engines.servers import Environment, Server, both_arms, served_endpoint
from kernels.benchmarks.engines.ways import PROBABILISTIC
from kernels.benchmarks.harness import answered, engine_machine, options, run_command, write
from shadowspec import demo

DEPTH = 4
LOADS = (1, 4)
CONTEXTS = (16, 128, 400)  # prompt tokens that are profiled; those of the traffic lie between

HEAD = """\
[database]
url = "sqlite:///{folder}/shadow.db"
[engine]
warmup_blocks = 1
audit_share = 0.0
[gate]
min_span_s = 0.0
timed_positions = 1
entry_clusters = 2
memory_budget_share = "none"
"""


def traffic(sessions: int) -> str:
    """The first request of so many sessions of every endpoint, as lines."""
    found: dict[str, dict[str, str]] = {model: {} for model in demo.SERVED_MODELS.values()}
    for record in answered():
        found[record["request"]["model"]].setdefault(record["session_id"], json.dumps(record) + "\n")
    return "".join(line for entry in found.values() for line in list(entry.values())[:sessions])


def configuration(folder: Path, baseline: Server, speculative: Server) -> str:
    """All endpoints of the demo, measured through the two servers."""
    return HEAD.format(folder=folder) + "".join(
        served_endpoint(
            name, (baseline, speculative), DEPTH, LOADS, settings="max_new_tokens = 64\nrequests_per_slot = 4\n"
        )
        for name in demo.SERVED_MODELS
    )


def predicted(folder: Path, endpoint: str, rounds: int) -> list[dict[str, Any]]:
    """Profile one endpoint's servers, measure all traffic, and read the report's predictions that were timed, too."""
    shadowspec = partial(run_command, folder)
    shadowspec("db", "upgrade")
    grid = ("--loads", ",".join(map(str, LOADS)), "--contexts", ",".join(map(str, CONTEXTS)), "--rounds", str(rounds))
    shadowspec("profile-server", "--endpoint", endpoint, *grid)
    shadowspec("run", "traffic.jsonl", "--json")
    document = json.loads(shadowspec("report", "--format", "json", "--out", "-"))
    return [
        {"endpoint": item["endpoint"], **cell}
        for item in document["endpoints"]
        for cell in item["predictions"]
        if cell["relative_error"] is not None
    ]


def main() -> None:
    """Measure, print, and write the results."""
    parser = options(__doc__, "server_costs.json")
    Environment.add_options(parser)
    parser.add_argument("--sessions", type=int, default=48, help="of every endpoint, a request each")
    parser.add_argument("--rounds", type=int, default=3, help="of the profile")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with both_arms(Environment.of(arguments), PROBABILISTIC.speculative_config(DEPTH), folder) as servers:
            (folder / "traffic.jsonl").write_text(traffic(arguments.sessions), encoding="utf-8")
            (folder / "shadowspec.toml").write_text(configuration(folder, *servers), encoding="utf-8")
            cells = predicted(folder, next(iter(demo.SERVED_MODELS)), arguments.rounds)
    errors = [abs(cell["relative_error"]) for cell in cells]
    found = {
        "machine": engine_machine(),
        "engine": cells[0]["engine"],
        "num_speculative_tokens": DEPTH,
        "rounds": arguments.rounds,
        "median_absolute_error": statistics.median(errors),
        "within_10_percent": sum(error <= 0.1 for error in errors),
        "right_side_of_1": sum((cell["predicted_speedup"] > 1) == (cell["measured_speedup"] > 1) for cell in cells),
        "cells": cells,
    }
    write(arguments.out, found)
    show(found)


def show(found: dict[str, Any]) -> None:
    """A table of the cells."""
    table = Table("endpoint", "slice", "load", "tokens per step", "predicted", "measured", "error")
    for item in found["cells"]:
        table.add_row(
            item["endpoint"],
            ", ".join(item["slice"].values()),
            str(item["load"]["concurrency"]),
            f"{item['tokens_per_step']:.2f}",
            f"{item['predicted_speedup']:.2f}",
            f"{item['measured_speedup']:.2f}",
            f"{item['relative_error']:+.1%}",
        )
    console = Console()
    console.print(table)
    console.print(f"median absolute error {found['median_absolute_error']:.1%} of {len(found['cells'])} cells")


if __name__ == "__main__":
    main()
