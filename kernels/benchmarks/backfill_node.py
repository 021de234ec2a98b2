"""`shadowspec backfill` on a cluster that is there, one node of which is killed with all that runs on it.

    python -m kernels.benchmarks.backfill_node [--responses N]   (with the extra `backfill`)

Two nodes of one processor each are started on this machine by `ray start`; a backfill joins them by `--ray-address`,
with an actor on each.  When some blocks are finished the second node's raylet and its workers get SIGKILL: nothing is
to be lost, and nothing written twice.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from kernels.benchmarks.backfill import children, write_logs
from kernels.benchmarks.engines.servers import free_port
from kernels.benchmarks.harness import options, write
from shadowspec import demo

FILES = 6
DEPTHS = "1..4"
BLOCKS_BEFORE = 5  # that are finished when the node dies
RAY = Path(sys.executable).parent / "ray"


def raylets() -> set[int]:
    """The processes of nodes on this machine."""
    return {process.pid for process in psutil.process_iter(["name"]) if process.info["name"] == "raylet"}


def killed(node: int) -> int:
    """End a node and all that it has started; how many processes there were."""
    processes = [node, *(pid for pid, _ in children(node))]
    for pid in processes:
        os.kill(pid, signal.SIGKILL)
    return len(processes)


def num_blocks(database: Path) -> int:
    """Blocks that are finished."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as connection:
        return int(connection.execute("SELECT count(*) FROM backfill_blocks").fetchone()[0])


def measured(folder: Path, address: str, victim: int, environment: dict[str, str]) -> dict[str, Any]:
    """The backfill, with the node killed in the middle of it."""
    command = [
        sys.executable, "-m", "shadowspec", "backfill", "logs", "--k", DEPTHS, "--ray-address", address,
        "--actors", "2", "--json",
    ]  # fmt: skip
    began = time.monotonic()
    ended = at = 0
    with subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        while process.poll() is None and not ended:
            at = num_blocks(folder / "shadow.db")
            ended = killed(victim) if at >= BLOCKS_BEFORE else 0
            time.sleep(0.2)
        out, _ = process.communicate()
    document = json.loads(out)
    names = ("records", "requests_replayed", "blocks", "new_rows", "unfinished_files")
    figures = {name: document[name] for name in names}
    return figures | {
        "exit_code": process.returncode,
        "seconds": round(time.monotonic() - began, 1),
        "processes_killed": ended,
        "blocks_finished_then": at,
    }


def main() -> None:
    """Start the nodes, kill one, print and write."""
    parser = options(__doc__, "backfill_node.json")
    parser.add_argument("--responses", type=int, default=3_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bf-", dir="/tmp") as scratch:  # Ray's sockets want a short path
        folder = Path(scratch)
        (folder / "logs").mkdir()
        written = write_logs(folder / "logs", arguments.responses, FILES)
        config = demo.demo_config(folder, 0)
        (folder / "shadowspec.toml").write_text(config, encoding="utf-8")
        (folder / "demo.secret").write_text(demo.DEMO_SECRET, encoding="utf-8")
        environment = os.environ | {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            "SHADOWSPEC_CONFIG": str(folder / "shadowspec.toml"),
            "SHADOWSPEC_DATABASE_URL": f"sqlite:///{folder}/shadow.db",
        }
        address = f"127.0.0.1:{free_port()}"

        def run(*command: object) -> None:
            subprocess.run(  # noqa: S603
                [str(word) for word in command], env=environment, cwd=folder, stdout=subprocess.DEVNULL, check=True
            )

        run(sys.executable, "-m", "shadowspec", "db", "upgrade")
        head = (
            "--head",
            f"--port={address.rpartition(':')[2]}",
            "--include-dashboard=false",
            f"--temp-dir={folder}/ray",
        )
        try:
            run(RAY, "start", *head, "--num-cpus=1", "--disable-usage-stats")
            first = raylets()
            run(RAY, "start", f"--address={address}", "--num-cpus=1", "--disable-usage-stats")
            (victim,) = raylets() - first
            figures = {"responses": written, "files": FILES, **measured(folder, address, victim, environment)}
        finally:
            run(RAY, "stop", "--force")
    Console().print(figures)
    write(arguments.out, figures)
    if figures["exit_code"] or figures["records"] != written or not figures["processes_killed"]:
        raise SystemExit("a node was to be killed, and every record to be accounted for")


if __name__ == "__main__":
    main()
