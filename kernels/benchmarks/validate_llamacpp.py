"""Our acceptance against llama.cpp's own, on servers of its own and on the same requests.

    make validate-llamacpp ARGS="--server PATH/llama-server --source PATH/llama.cpp"

llama.cpp is built outside of this repository (docs/research/validation-llamacpp.md has the commands).  Both sides run
the bundled pair in float32 on the bundled traffic's prompts, with K of 2, 4 and 6: greedy and sampled requests, drafts
of a draft model and looked up.  `--source` holds the converter that makes GGUF files of the pair, once; its Python
needs `sentencepiece` and `protobuf` beside torch and transformers.

One server after the other answers every request, at eight at a time; its steps come of `timings` at each token, through
the client that measures endpoints.  Our loop decodes the same prompts with the product's own proposers.  What was
collected is kept in the folder `--raw` and not asked for again.  At the end the results and
docs/research/validation-llamacpp.md are written.  A fault (other tokens or counts where no model was in doubt) ends it
with exit code 1.

With `--target`, `--draft` and `--prompts` another pair answers greedy requests; its results and its section of the page
stand beside those of the bundled pair, which are kept.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from rich.console import Console

from kernels.benchmarks.engines.comparing import LEVEL, own_outputs
from kernels.benchmarks.engines.documents import REAL_MODEL, add_pair_options, finish, pair_of
from kernels.benchmarks.engines.llamacpp.asking import LlamaAnswer, ask, keep, kept
from kernels.benchmarks.engines.llamacpp.comparing import acceptance_cell, equality
from kernels.benchmarks.engines.llamacpp.ours import LlamaCppOurs
from kernels.benchmarks.engines.llamacpp.page import write_page
from kernels.benchmarks.engines.llamacpp.servers import Binary, running
from kernels.benchmarks.engines.llamacpp.ways import DRAFT, WAYS, LlamaWay, speculation
from kernels.benchmarks.engines.pair import BUNDLED, Prompt
from kernels.benchmarks.engines.real_model.prompts import tokenised
from kernels.benchmarks.engines.tables import ALL
from kernels.benchmarks.engines.ways import BASELINE, DEPTHS, GREEDY, SAMPLED
from kernels.benchmarks.harness import DOCS, engine_machine, options, traffic_prompts
from shadowspec.quality.outputs import first_divergence

RAW = Path("build/validation-llamacpp")
CONVERTER = Path(__file__).parent / "engines" / "llamacpp" / "convert.py"
notes = Console(stderr=True)


def gguf_of(folder: Path, source: Path, python: str, raw: Path) -> Path:
    """The model as a GGUF file in float32, written once."""
    file = raw / f"{folder.name}.gguf"
    if not file.exists():
        part = file.with_suffix(".part")
        command = [python, str(CONVERTER), "--source", str(source), str(folder), str(part)]
        subprocess.run(command, check=True)  # noqa: S603 (what the caller names as its interpreter)
        part.rename(file)
    return file


@dataclass(frozen=True, slots=True)
class AskedRequests:
    """What is sent: as many greedy requests as are compared one by one, and sampled ones for rates."""

    greedy: Sequence[tuple[str, Prompt]]
    sampled: Sequence[tuple[str, Prompt]]
    max_tokens: int
    depths: Sequence[int]
    has_baseline: bool = True  # whether the baseline is asked too, and both arms compared

    def prompts(self, *, is_greedy: bool) -> list[Prompt]:
        return [prompt for _, prompt in (self.greedy if is_greedy else self.sampled)]

    def slices(self, *, is_greedy: bool) -> dict[str, list[int]]:
        """Places of the prompts by endpoint, and of all."""
        asked = self.greedy if is_greedy else self.sampled
        slices = {ALL: list(range(len(asked)))}
        return slices | {name: [row for row, (text, _) in enumerate(asked) if text == name] for name, _ in asked}


def collect(binary: Binary, raw: Path, asked: AskedRequests, ways: Sequence[LlamaWay]) -> None:
    """Ask every deployment for what is not in the folder yet."""
    for is_greedy in sorted({way.is_greedy for way in ways}, reverse=True):
        if (file := baseline_file(raw, is_greedy)).exists() or not asked.has_baseline:
            continue
        prompts = asked.prompts(is_greedy=is_greedy)
        sampling = replace(GREEDY if is_greedy else SAMPLED, max_tokens=asked.max_tokens)
        notes.print(f"{BASELINE}, temperature {sampling.temperature}: {len(prompts)} requests")
        with running(binary, ["--spec-type", "none"], raw / f"server-{file.stem}.log") as server:
            keep(file, ask(server.url, prompts, sampling, 0, drafts_always=False))
    for depth in asked.depths:
        for way in ways:
            if (file := served_file(raw, way, depth)).exists():
                continue
            prompts = asked.prompts(is_greedy=way.is_greedy)
            notes.print(f"{way.name} K={depth}: {len(prompts)} requests")
            with running(binary, speculation(way.proposer, binary, depth), raw / f"server-{file.stem}.log") as server:
                sampling, always = replace(way.sampling, max_tokens=asked.max_tokens), way.proposer == DRAFT
                keep(file, ask(server.url, prompts, sampling, depth, drafts_always=always))


def baseline_file(raw: Path, is_greedy: bool) -> Path:
    """Where the baseline's answers are."""
    return raw / f"{BASELINE}-{'greedy' if is_greedy else 'sampled'}.json"


def served_file(raw: Path, way: LlamaWay, depth: int) -> Path:
    """Where a deployment's answers are."""
    return raw / f"{way.name}-k{depth}.json"


def looped(
    raw: Path, ours: LlamaCppOurs, way: LlamaWay, prompts: Sequence[Prompt], max_tokens: int, depth: int
) -> list[LlamaAnswer]:
    """Our loop on the prompts, run once and kept."""
    file = raw / f"loop-{way.name}-k{depth}.json"
    if not file.exists():
        notes.print(f"our loop, {way.name} K={depth}")
        keep(file, ours.loop(way, prompts, max_tokens, depth))
    return kept(file) or []


def arms(
    ours: LlamaCppOurs, way: LlamaWay, prompts: Sequence[Prompt], base: list[LlamaAnswer], spec: list[LlamaAnswer]
) -> dict[str, Any]:
    """Of how many requests both of llama.cpp's own arms emitted the same tokens, and how near a tie the others part."""
    parted = [
        (row, place)
        for row, (one, other) in enumerate(zip(base, spec, strict=True))
        if (place := first_divergence(one.tokens, other.tokens)) is not None
    ]
    gaps = [ours.top_two_gap(prompts[row], base[row].tokens[: place + 1]) for row, place in parted if way.is_greedy]
    return {"requests": len(base), "equal": len(base) - len(parted), "largest_gap": max(gaps, default=None)}


def results(raw: Path, ours: LlamaCppOurs, asked: AskedRequests, ways: Sequence[LlamaWay]) -> dict[str, Any]:
    """Equality and rates of these ways and every K."""
    equalities, cells, both, audits = [], [], [], []
    for way in ways:
        base, only = kept(baseline_file(raw, way.is_greedy)), asked.prompts(is_greedy=way.is_greedy)
        for depth in asked.depths:
            theirs, loop = kept(served_file(raw, way, depth)), looped(raw, ours, way, only, asked.max_tokens, depth)
            assert theirs is not None, "every deployment was asked"
            where = {"way": way.name, "K": depth}
            again = ours.replayed(way, only, [answer.tokens for answer in theirs], asked.max_tokens, depth)
            audits.append(where | own_outputs(theirs, again, is_certain=True))
            if asked.has_baseline:
                assert base is not None, "the baseline was asked first"
                both.append(where | arms(ours, way, only, base, theirs))
            if way.is_greedy:
                equalities.append(where | equality(way, ours, only, theirs, loop))
            for name, rows in asked.slices(is_greedy=way.is_greedy).items():
                cell = acceptance_cell([theirs[row] for row in rows], [loop[row] for row in rows])
                if cell is not None:
                    cells.append(where | {"slice": name} | dict(cell))
    return {"level": LEVEL, "equality": equalities, "own_outputs": audits, "arms": both, "cells": cells}


def main() -> None:
    """Collect what is missing, compare, and write results and page."""
    parser = options(__doc__, "validation-llamacpp.json")
    parser.add_argument("--server", type=Path, required=True, help="the built llama-server")
    parser.add_argument("--source", type=Path, required=True, help="llama.cpp's sources, for its converter")
    parser.add_argument(
        "--converter-python", default=sys.executable, help="with gguf's requirements (default: this one)"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--requests", type=int, default=300, help="greedy ones (default: %(default)s)")
    parser.add_argument("--sampled", type=int, default=120, help="sampled requests (default: %(default)s)")
    parser.add_argument("--depths", type=int, nargs="+", default=DEPTHS, help="K (default: %(default)s)")
    parser.add_argument(
        "--ways", nargs="*", choices=[way.name for way in WAYS], help="collect these alone; write only of another pair"
    )
    parser.add_argument("--tokens", type=int, default=64, help="of an answer, at most")
    parser.add_argument("--small", action="store_true", help="a quick try: 24 and 12 requests, 16 tokens")
    parser.add_argument("--raw", type=Path, default=RAW, help="what was collected (default: %(default)s)")
    parser.add_argument("--docs", type=Path, default=DOCS)
    add_pair_options(parser)
    arguments = parser.parse_args()
    pair = pair_of(parser, arguments)
    if arguments.small:
        arguments.requests, arguments.sampled, arguments.tokens = 24, 12, 16
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # which ends the servers on its way
    raw: Path = arguments.raw if pair is None else arguments.raw / REAL_MODEL
    raw.mkdir(parents=True, exist_ok=True)
    models = pair or BUNDLED
    files = [gguf_of(model_path, arguments.source, arguments.converter_python, raw) for model_path in astuple(models)]
    binary = Binary(arguments.server, *files, arguments.threads)
    if pair is None:
        prompts = traffic_prompts(arguments.requests), traffic_prompts(arguments.sampled)
    else:
        prompts = tokenised(arguments.prompts, arguments.requests, pair.target), []
    asked = AskedRequests(*prompts, arguments.tokens, arguments.depths, has_baseline=pair is None)
    possible = [way for way in WAYS if pair is None or way.is_greedy]
    ways = [way for way in possible if arguments.ways is None or way.name in arguments.ways]
    collect(binary, raw, asked, ways)
    ours = LlamaCppOurs(models)
    if arguments.ways is not None and pair is None:
        for way in ways:
            for depth in asked.depths:
                looped(raw, ours, way, asked.prompts(is_greedy=way.is_greedy), asked.max_tokens, depth)
        return
    if pair is not None:
        ways = [way for way in possible if all(served_file(raw, way, depth).exists() for depth in asked.depths)]
    document = {
        "requests": len(asked.greedy),
        "sampled_requests": len(asked.sampled),
        "depths": list(asked.depths),
        "max_tokens": asked.max_tokens,
        "machine": engine_machine(),
        "llamacpp": binary.version(),
    } | results(raw, ours, asked, ways)
    finish(document, pair, arguments.out, arguments.docs, write_page)


if __name__ == "__main__":
    main()
