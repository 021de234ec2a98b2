"""Seconds from the start of a command to its first output and to its end, on the results of a demo.

    python -m kernels.benchmarks.start_up --demo FOLDER [--against CHECKOUT] [--rounds N] [--out FILE]

FOLDER is what `shadowspec demo --out FOLDER` made; every round works on a copy of it.  With `--against` another
checkout is measured too, by turns with this one.  Commands that measure (`run`, `demo`) are ended at their first
output.  Bytecode is compiled beforehand, as it is wherever shadowspec was started once.  Under `without bytecode` each
process compiles every module that it loads (PYTHONDONTWRITEBYTECODE over an installation that was never compiled).
Beside what the clock says stands the processor's time: the clock's means something only where nothing else runs.
"""

from __future__ import annotations

import os
import selectors
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.benchmarks import harness
from kernels.benchmarks.harness import ROOT, options

ENDPOINT = "text-to-sql"  # of the demo
CODES = (0, 1, 3)  # done, and the verdicts of a check


@dataclass(frozen=True)
class Command:
    """A command of the demo's folder, and the seconds within which it must say something."""

    words: tuple[str, ...]
    limit_s: float
    is_ended_at_once: bool = False  # at its first output: it would measure for minutes

    @property
    def name(self) -> str:
        return " ".join(self.words)


COMMANDS = (
    Command(("--help",), 0.3),
    Command(("gate", "--help"), 0.3),
    Command(("check", "--endpoint", ENDPOINT), 1.5),
    Command(("gate", "--dry-run"), 1.5),
    Command(("gate",), 1.5),
    Command(("plan",), 1.5),
    Command(("report",), 1.5),
    Command(("report", "--json"), 1.5),
    Command(("doctor",), 1.5),
    Command(("run", "traffic.jsonl.gz"), 1.0, is_ended_at_once=True),
    Command(("demo", "--out", "another"), 1.0, is_ended_at_once=True),
)


@dataclass(frozen=True)
class CommandSeconds:
    """From the start of a process."""

    first: float
    end: float | None  # None: it was ended
    cpu: float  # of the processor, up to its end


def measure(command: Command, checkout: Path, folder: Path, variables: Mapping[str, str]) -> CommandSeconds:
    """Run a command of a checkout in a folder.

    Raises:
        RuntimeError: it failed, or said nothing.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(checkout), str(checkout / "kernels")))} | variables
    started, used = time.perf_counter(), _cpu_s()
    with (
        subprocess.Popen(  # noqa: S603 - our own
            [sys.executable, "-m", "shadowspec", *command.words],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process,
        selectors.DefaultSelector() as selector,
    ):
        assert process.stdout is not None, "it is a pipe"
        selector.register(process.stdout, selectors.EVENT_READ)
        selector.select()
        first = time.perf_counter() - started
        if command.is_ended_at_once:
            process.kill()
        said = process.stdout.read()
        code = process.wait()
    if not said or (code not in CODES and not command.is_ended_at_once):
        raise RuntimeError(f"{command.name} ended with {code}: {said.decode()[-500:]}")
    end = None if command.is_ended_at_once else time.perf_counter() - started
    return CommandSeconds(first, end, _cpu_s() - used)


def _cpu_s() -> float:
    """Of the processes that were started here and have ended."""
    times = os.times()
    return times.children_user + times.children_system


def copy_demo(demo: Path, folder: Path) -> None:
    """The demo's results in another folder, whose configuration names the copy."""
    shutil.copytree(demo, folder)
    path = folder / "shadowspec.toml"
    path.write_text(path.read_text(encoding="utf-8").replace(str(demo.resolve()), str(folder)), encoding="utf-8")
    shutil.copy(ROOT / "shadowspec" / "demo" / "traffic.jsonl.gz", folder)


def measure_all(
    demo: Path, checkouts: Mapping[str, Path], rounds: int, variables: Mapping[str, str], *, is_warmed: bool
) -> list[dict[str, Any]]:
    """Medians of every command, by checkout; the checkouts take turns."""
    rows = []
    for command in COMMANDS:
        times: dict[str, list[CommandSeconds]] = {name: [] for name in checkouts}
        for turn in range(rounds + is_warmed):
            for name, checkout in checkouts.items():
                with tempfile.TemporaryDirectory() as parent:
                    folder = Path(parent) / "demo"
                    copy_demo(demo, folder)
                    seconds = measure(command, checkout, folder, variables)
                if turn >= is_warmed:
                    times[name].append(seconds)
        rows.append({"command": command.name, "limit_s": command.limit_s, **_medians(times)})
    return rows


def _medians(times: Mapping[str, Sequence[CommandSeconds]]) -> dict[str, Any]:
    medians: dict[str, Any] = {}
    for name, measured in times.items():
        ends = [seconds.end for seconds in measured if seconds.end is not None]
        medians[name] = {
            "first_s": round(statistics.median(seconds.first for seconds in measured), 3),
            "end_s": round(statistics.median(ends), 3) if ends else None,
            "cpu_s": round(statistics.median(seconds.cpu for seconds in measured), 3),
        }
    return medians


def shown(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """What `measure_all` found, for a reader."""
    return [
        {"command": row["command"], "at most": row["limit_s"]}
        | {f"{name}: {figure}": seconds for name in names for figure, seconds in row[name].items()}
        for row in rows
    ]


def machine(checkouts: Mapping[str, Path]) -> dict[str, Any]:
    """Where and of what this was measured."""
    return harness.machine() | {
        "load average": [round(load, 1) for load in os.getloadavg()],
        "revisions": {name: harness.revision(checkout) for name, checkout in checkouts.items()},
    }


def main() -> None:
    """See the module's docstring."""
    parser = options(__doc__, "start_up.json")
    parser.add_argument("--demo", type=Path, required=True, help="what `shadowspec demo --out FOLDER` made")
    parser.add_argument("--against", type=Path, help="a checkout to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rounds-without-bytecode", type=int, default=1)
    given = parser.parse_args()
    checkouts = {**({"before": given.against.resolve()} if given.against else {}), "now": ROOT}
    by_title = {}
    with tempfile.TemporaryDirectory() as compiled, tempfile.TemporaryDirectory() as empty:
        with_bytecode = {"PYTHONPYCACHEPREFIX": compiled, "PYTHONDONTWRITEBYTECODE": ""}
        without = {"PYTHONPYCACHEPREFIX": empty, "PYTHONDONTWRITEBYTECODE": "1"}
        for title, rounds, variables in (
            ("with bytecode", given.rounds, with_bytecode),
            ("without bytecode", given.rounds_without_bytecode, without),
        ):
            if rounds:
                is_warmed = variables is with_bytecode
                by_title[title] = measure_all(given.demo, checkouts, rounds, variables, is_warmed=is_warmed)
                harness.show(title, shown(by_title[title], tuple(checkouts)))
    document = {
        "machine": machine(checkouts),
        "rounds": {"with bytecode": given.rounds, "without bytecode": given.rounds_without_bytecode},
        **by_title,
    }
    harness.write(given.out, document)


if __name__ == "__main__":
    main()
