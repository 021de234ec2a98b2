"""Runs a target under atheris: `python tests/fuzz/fuzz.py kong -max_total_time=600 CORPUS`.

Every option is libFuzzer's own.  CORPUS (a temporary folder if none is given) grows; the committed seeds are read
beside it and stay as they are.  Half of the mutations keep the message JSON.  For interpreters that have no atheris
there is `run_blindly`, which goes by no coverage and knows `-max_total_time`, `-runs` and `-seed` alone.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.fuzz.mutation import mutated

SEEDS = Path(__file__).with_name("corpus")
NEWEST_WITH_ATHERIS = (3, 13)
DEFAULT_SECONDS = 60.0


def main(name: str, arguments: Sequence[str]) -> None:
    """Fuzz the target until the limit; an exception ends the process with a status that is not 0."""
    options = [argument for argument in arguments if argument.startswith("-")]
    folders = [Path(argument) for argument in arguments if not argument.startswith("-")]
    folders = folders or [Path(tempfile.mkdtemp(prefix="shadowspec-fuzz-"))]  # it stays: atheris ends the process
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    folders.append(SEEDS / name)
    if sys.version_info[:2] > NEWEST_WITH_ATHERIS:
        run_blindly(name, options, folders)
    else:
        run_with_coverage(name, options, folders)


def run_with_coverage(name: str, options: Sequence[str], folders: Sequence[Path]) -> None:
    """Fuzz under atheris; ends the process."""
    import atheris

    with atheris.instrument_imports(include=["shadowspec.tap", "shadowspec.servers", "shadowspec.backfill"]):
        from tests.fuzz.target import TARGETS

    run = TARGETS[name]

    def target(data: bytes) -> None:
        run(data)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        generator = Random(seed)
        if len(data) < 2 or generator.random() < 0.5:
            return bytes(atheris.Mutate(data, max_size))
        return (data[:1] + mutated(data[1:], generator))[:max_size]

    arguments = [sys.argv[0], *options, *map(str, folders)]
    atheris.Setup(arguments, target, custom_mutator=mutate)
    atheris.Fuzz()


def run_blindly(name: str, options: Sequence[str], folders: Sequence[Path]) -> None:
    """Fuzz without coverage: mutations of the corpus, `-runs` of them or until `-max_total_time`."""
    from tests.fuzz.target import TARGETS

    given = dict(option.lstrip("-").split("=", 1) for option in options)
    corpus = [path.read_bytes() for folder in folders for path in sorted(folder.iterdir())]
    generator = Random(int(given.get("seed", 0)))
    wanted = int(given["runs"]) if "runs" in given else None
    seconds = float(given.get("max_total_time", DEFAULT_SECONDS if wanted is None else math.inf))
    ends = time.monotonic() + seconds
    runs = 0
    while time.monotonic() < ends and runs != wanted:
        data = generator.choice(corpus)
        TARGETS[name](data[:1] + mutated(data[1:], generator))
        runs += 1
    print(f"Done {runs} runs", file=sys.stderr)
