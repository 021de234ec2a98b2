"""A short run of every fuzzer; the long ones are started by hand (see harness.py)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from shadowspec.tap.formats import MessageFormat
from tests.fuzz.harness import SEEDS, run_blindly
from tests.fuzz.mutation import MAX_BYTES, mutated
from tests.fuzz.target import TARGETS, open_and_admit

HERE = Path(__file__).parent
RUNS = {"model": 300}  # a folder is loaded every time
MOST_RUNS = 5_000  # as many on every machine, with one seed and one order of hashes: what it finds is found everywhere


@pytest.mark.representative("openai")
@pytest.mark.parametrize("name", TARGETS)
def test_a_short_run_finds_nothing(name: str, tmp_path: Path) -> None:
    # Linux hands the peak of this process on to the fuzzer, which would take it for its own: only what one input
    # allocates is limited.
    limits = ("-rss_limit_mb=0", "-malloc_limit_mb=1024")
    number = RUNS.get(name, MOST_RUNS)
    command = [sys.executable, str(HERE / "fuzz.py"), name, f"-runs={number}", "-seed=1", *limits, "grown"]
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stdout[-3_000:] + done.stderr[-1_000:]  # atheris writes the traceback to stdout
    runs = re.search(r"Done (\d+) runs", done.stderr)
    assert runs is not None
    assert int(runs[1]) >= number


@pytest.mark.parametrize("format", MessageFormat)
def test_most_seeds_are_messages_of_their_format(format: MessageFormat) -> None:
    seeds = [path.read_bytes() for path in sorted((SEEDS / format).iterdir())]
    opened = [each for seed in seeds for each in open_and_admit(seed, format)]
    assert sum(each.error is None for each in opened) >= 0.9 * len(opened) > 0


def test_the_run_without_coverage(capsys: pytest.CaptureFixture[str]) -> None:
    run_blindly("kong", ["-runs=200", "-seed=3"], [SEEDS / "kong"])
    assert "Done 200 runs" in capsys.readouterr().err


def test_mutations_keep_json_json_and_differ() -> None:
    value = (SEEDS / "kong" / "entry").read_bytes()[1:]
    changed = [mutated(value, Random(seed)) for seed in range(200)]
    assert len(set(changed)) > 150
    assert all(len(each) <= MAX_BYTES for each in changed)
    found = [open_and_admit(b"\x00" + each, MessageFormat.KONG)[0] for each in changed]
    assert sum(each.record is not None for each in found) > 50  # most go past the parser
    assert mutated(b"{broken", Random(1)) != b"{broken"
