"""Verdicts on a public language model through vLLM's and llama.cpp's servers, each beside a second run's truth.

    make bench-llm ARGS="--vllm-python PATH --llama-server PATH/llama-server [--weights Q8_0]"
    make bench-llm ARGS="--vllm-python PATH --eagle3 HEAD"

SmolLM2-135M-Instruct is dequantised to float32, and its draft is the target without three of 30 layers, so that it is
nearly as dear as the target.  With `--weights Q8_0` llama.cpp serves both in 8 bits.  With `--eagle3` vLLM drafts with
a head that speculators has trained, and nothing else is measured.  Every candidate is measured twice
by `shadowspec run`, `gate` and `report`, on prompts of four classes: sessions that decide, then as many others, whose
figures are the truth that the verdict is held against.

Nothing else may run meanwhile: a run begins once the machine's load average is below `--max-load`, and ends with an
error where it stays above.  Models and runs lie in `--folder`; what is done is not done again.  A sitting is what was
measured of one engine with one kind of weights: it replaces that of the committed results, and the others stay.  At the
end, and with `--page` alone, results and docs/research/real-model.md are written.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from kernels.benchmarks.engines.llamacpp.servers import Binary
from kernels.benchmarks.engines.pair import Pair
from kernels.benchmarks.engines.real_model.dequantised import FLOAT32, WEIGHTS, gguf_of, make_pair
from kernels.benchmarks.engines.real_model.engines import (
    LLAMACPP,
    TRAINED,
    VLLM,
    WAYS,
    MeasuredWay,
    llama_servers,
    vllm_servers,
    write_config,
)
from kernels.benchmarks.engines.real_model.page import write_page
from kernels.benchmarks.engines.real_model.prompts import CLASSES, PROMPTS, records, two_halves, write_records
from kernels.benchmarks.engines.real_model.results import LEVEL, RUNS, ResultCell, cells
from kernels.benchmarks.engines.servers import Environment
from kernels.benchmarks.harness import DOCS, engine_machine, options, write

FOLDER = Path("build/real-model")
PARTS = "parts.jsonl"  # how long each run took, and how busy the machine was
QUIET_S = 240.0  # that a run waits for a quiet machine: servers that have just started leave a load behind
LOOK_S = 5.0
notes = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Bench:
    """What is asked for, and where it is."""

    folder: Path
    prompts: Path
    requests: int  # of each class and run
    max_tokens: int
    max_load: float
    environment: Environment | None  # of vLLM
    llama_server: Path | None
    threads: int  # of llama.cpp
    weights: str  # of llama.cpp
    head: Path | None  # that vLLM drafts with, in place of every other candidate
    chosen: str | None  # the only candidate that is measured now
    classes: tuple[str, ...]  # of prompts

    @property
    def pair(self) -> Pair:
        return Pair(self.folder / "model", self.head or self.folder / "draft")

    @property
    def ways(self) -> tuple[MeasuredWay, ...]:
        return WAYS if self.head is None else TRAINED

    @property
    def engines(self) -> list[str]:
        given = {VLLM: self.environment, LLAMACPP: self.llama_server}
        return [engine for engine, program in given.items() if program is not None]

    @property
    def asked(self) -> list[MeasuredWay]:
        """What is measured now."""
        return [way for way in self.ways if self.chosen in (None, way.name)]

    def weights_of(self, engine: str) -> str:
        """vLLM's are those of the folder."""
        return self.weights if engine == LLAMACPP else FLOAT32

    def run_folder(self, engine: str, way: MeasuredWay, run: str) -> Path:
        """Of one run."""
        only = "" if self.classes == CLASSES else f"{'+'.join(self.classes)}-"
        return self.folder / "runs" / f"{engine}-{self.weights_of(engine)}-{way.name}-{only}{run}"

    def is_done(self, engine: str, way: MeasuredWay) -> bool:
        return all(report_of(self.run_folder(engine, way, run)).exists() for run in RUNS)

    def waiting(self) -> list[tuple[str, MeasuredWay]]:
        """Engine and candidate of what is asked for and not done."""
        return [(engine, way) for engine in self.engines for way in self.asked if not self.is_done(engine, way)]

    def servers(self, engine: str, way: MeasuredWay) -> AbstractContextManager[str]:
        """Both servers of a candidate; gives the section of the configuration that names them."""
        logs = self.folder / "logs" / f"{engine}-{way.name}"
        if engine == VLLM:
            assert self.environment is not None
            return vllm_servers(self.environment, self.pair, way, logs)
        assert self.llama_server is not None
        target, draft = (gguf_of(model, self.weights) for model in (self.pair.target, self.pair.draft))
        return llama_servers(Binary(self.llama_server, target, draft, self.threads), way, logs)


def shadowspec(*arguments: str, out: Path | None = None) -> None:
    """The product's command, with its progress on stderr; `out` is there once it has ended well.

    Raises:
        SystemExit: it ended with an error.
    """
    command = [sys.executable, "-m", "shadowspec", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise SystemExit(f"shadowspec {arguments[0]} ended with exit code {done.returncode}")
    if out is not None:
        part = out.with_suffix(".part")
        part.write_text(done.stdout, encoding="utf-8")
        part.replace(out)


def await_quiet(limit: float) -> None:
    """Wait until the load average of the last minute is below the limit.

    Raises:
        SystemExit: it stays above.
    """
    deadline = time.monotonic() + QUIET_S
    while (load := os.getloadavg()[0]) > limit:
        if time.monotonic() > deadline:
            raise SystemExit(
                f"the load average of this machine is {load:.1f}, and timing needs {limit:g}: end what else runs"
            )
        notes.print(f"waiting for a quiet machine: load {load:.1f}, wanted {limit:g}")
        time.sleep(LOOK_S)


@contextmanager
def timed(bench: Bench, name: str) -> Iterator[None]:
    """A run: announced, and kept with how long it took and how busy the machine was when it began and ended."""
    await_quiet(bench.max_load)
    notes.print(f"[bold]{name}[/]: begun {time.strftime('%H:%M:%S')}, load {os.getloadavg()[0]:.1f}")
    began, load = time.monotonic(), os.getloadavg()[0]
    yield
    row = {"part": name, "seconds": time.monotonic() - began, "loads": [load, os.getloadavg()[0]]}
    with (bench.folder / PARTS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    notes.print(f"[bold]{name}[/]: {row['seconds']:.0f} s; {time_left(bench)}")


def read_parts(bench: Bench) -> list[dict[str, Any]]:
    """The runs that were done, in their order."""
    path = bench.folder / PARTS
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def time_left(bench: Bench) -> str:
    """How many runs wait, and how long they take at the pace of those that are done."""
    every = [bench.run_folder(engine, way, run) for engine in bench.engines for way in bench.asked for run in RUNS]
    number = sum(not report_of(folder).exists() for folder in every)
    paces = [part["seconds"] for part in read_parts(bench)]
    left = f", some {number * sum(paces) / len(paces) / 60:.0f} minutes" if paces and number else ""
    return f"{number} of {len(every)} runs are left{left}"


def measure(bench: Bench) -> None:
    """What a user runs, on every engine: measure, decide, report."""
    for run, prompts in zip(RUNS, two_halves(bench.prompts, bench.requests, bench.classes), strict=True):
        write_records(traffic_of(bench, run), records(prompts, bench.max_tokens))
    for engine, way in bench.waiting():
        with bench.servers(engine, way) as section:
            for run in RUNS:
                folder = bench.run_folder(engine, way, run)
                if report_of(folder).exists():
                    continue
                with timed(bench, folder.name):
                    config = str(write_config(folder, engine, bench.pair, way, bench.max_tokens, section))
                    shadowspec("db", "upgrade", "--config", config)
                    shadowspec("run", str(traffic_of(bench, run)), "--config", config)
                    shadowspec("gate", "--config", config, "--json", out=folder / "gate.json")
                    shadowspec("report", "--config", config, "--json", "--out", "-", out=report_of(folder))


def traffic_of(bench: Bench, run: str) -> Path:
    """The records of a run."""
    return bench.folder / f"{'+'.join(bench.classes)}-{run}.jsonl"


def report_of(folder: Path) -> Path:
    """Where a run's report is, once it is done."""
    return folder / "report.json"


def sitting(bench: Bench, engine: str, note: str) -> dict[str, Any] | None:
    """Everything that was found on an engine so far; None: nothing was."""
    folders = {way: [bench.run_folder(engine, way, run) for run in RUNS] for way in bench.ways}
    names = {folder.name for of_way in folders.values() for folder in of_way}
    parts = [part for part in read_parts(bench) if part["part"] in names]
    found: list[ResultCell] = []
    missing = []
    for way, (first, second) in folders.items():
        has_truth = report_of(second).exists()
        if report_of(first).exists():
            found += cells(first, second if has_truth else None)
            missing += [] if has_truth else [f"{way.name}, second run"]
        else:
            missing.append(way.name)
    if not found:
        return None
    return {
        "engine": engine,
        "weights": bench.weights_of(engine),
        "has_head": bench.head is not None,
        "classes": list(bench.classes),
        "requests_per_class": bench.requests,
        "max_tokens": bench.max_tokens,
        "max_load": bench.max_load,
        "machine": engine_machine(),
        "parts": parts,
        "highest_load": max((load for part in parts for load in part["loads"]), default=0.0),
        "not_run": missing,
        "note": note,
        "options": " ".join(bench.environment.flags) if engine == VLLM and bench.environment is not None else "",
        "cells": [asdict(cell) for cell in found],
    }


def document(bench: Bench, note: str, committed: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The sittings of these engines in place of the committed ones, beside those of other engines and weights."""
    every = {_kind(each): each for each in committed}
    for engine in bench.engines:
        if (found := sitting(bench, engine, note)) is not None:
            every[_kind(found)] = found
    return {"model": "SmolLM2-135M-Instruct", "level": LEVEL, "sittings": list(every.values())}


def _kind(sitting: Mapping[str, Any]) -> tuple[object, ...]:
    """What another sitting of the same takes the place of."""
    return sitting["engine"], sitting["weights"], sitting["has_head"], tuple(sitting["classes"])


def main(arguments_given: Sequence[str] | None = None) -> None:
    """Make what is missing, then write results, page and picture."""
    parser = options(__doc__, "real_model.json")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="models and runs (default: %(default)s)")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="(default: the public ones beside the benchmark)")
    parser.add_argument("--requests", type=int, default=60, help="of each class and run (default: %(default)s)")
    parser.add_argument("--classes", nargs="+", choices=CLASSES, default=CLASSES, help="of prompts (default: all)")
    parser.add_argument("--tokens", type=int, default=24, help="of an answer, at most (default: %(default)s)")
    parser.add_argument(
        "--max-load", type=float, default=1.0, help="of the machine, at most, as a run begins (default: %(default)s)"
    )
    Environment.add_options(parser, "0-1", is_required=False)
    parser.add_argument("--llama-server", type=Path, help="llama.cpp's server")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of llama.cpp")
    parser.add_argument(
        "--weights", choices=WEIGHTS, default=FLOAT32, help="of llama.cpp's models (default: %(default)s)"
    )
    parser.add_argument("--candidate", help="measure only this one now, such as ngram-k4")
    parser.add_argument("--eagle3", type=Path, help="a head for the model, as vLLM reads it: measure this only")
    parser.add_argument(
        "--page", action="store_true", help="write the page of the committed results, and measure nothing"
    )
    parser.add_argument("--as-is", action="store_true", help="write what was measured so far, and measure nothing")
    parser.add_argument("--note", default="", help="a sentence about what else the machine did")
    parser.add_argument("--docs", type=Path, default=DOCS)
    given = parser.parse_args(arguments_given)
    if given.page:
        write_page(json.loads(given.out.read_text(encoding="utf-8")), given.docs)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which ends the servers on its way
    bench = bench_of(given)
    if not given.as_is:
        make_pair(bench.folder, bench.weights)
        measure(bench)
    committed = json.loads(given.out.read_text(encoding="utf-8"))["sittings"] if given.out.exists() else []
    results = document(bench, given.note, committed)
    write(given.out, results)
    write_page(results, given.docs)


def bench_of(given: argparse.Namespace) -> Bench:
    """From the options that were given."""
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return Bench(
        folder,
        given.prompts,
        requests=given.requests,
        max_tokens=given.tokens,
        max_load=given.max_load,
        environment=None if given.vllm_python is None else Environment.of(given),
        llama_server=given.llama_server,
        threads=given.threads,
        weights=given.weights,
        head=given.eagle3,
        chosen=given.candidate,
        classes=tuple(given.classes),
    )


if __name__ == "__main__":
    main()
