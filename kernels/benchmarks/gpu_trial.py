"""Everything that needs a GPU, in order of value and within twelve minutes; results are written as they come.

    make gpu-trial                       (on a machine with a GPU, beside nothing else)
    make gpu-trial ARGS="--small"        (anywhere: shows that it runs, and means nothing)

Parts, each in a process of its own that is ended when the time is up:

- loop: `gpu_decode`, that is greedy outputs against transformers', rates beside transformers with a draft that is
  accepted, a step beside the time to read the weights, sampled rates with top-p, and waits of the host.
- worker: `shadowspec run` over mirrored records on the bundled pair with recorded steps, then its report: verdicts,
  parity, and the memory test.
- kernels: the tests of Triton's kernels on the device.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch

from kernels.benchmarks.harness import RESULTS, ROOT, answered, configuration, engine_machine, options, show, write
from shadowspec import demo

LIMIT_S: Final = 720.0
ENDPOINT: Final = "text-to-sql"
DEPTH: Final = 4
NUM_RECORDS: Final = 400
KERNEL_TESTS: Final = ("test_appending.py", "test_verification.py", "test_scoring.py")
Found = dict[str, Any]  # what a part has measured so far
Run = Callable[..., str]  # a command by its words, ended when the time is up; gives what it prints


def loop(run: Run, folder: Path, found: Found, *, is_small: bool) -> None:
    """The tables of `gpu_decode`, as many as it has measured."""
    out = folder / "gpu_decode.json"
    options_of = ["--small"] if is_small else ["--rounds", "3"]
    try:
        run("-m", "kernels.benchmarks.gpu_decode", *options_of, "--out", str(out))
    finally:
        if out.exists():
            found |= json.loads(out.read_text(encoding="utf-8"))


def worker(run: Run, folder: Path, found: Found, *, is_small: bool) -> None:
    """What the report says of the bundled pair."""
    device, number = ("cpu", 24) if is_small else ("cuda", NUM_RECORDS)
    records = (record for record in answered() if record["request"]["model"] == demo.SERVED_MODELS[ENDPOINT])
    traffic, config = folder / "traffic.jsonl", folder / "shadowspec.toml"
    traffic.write_text("".join(json.dumps(record) + "\n" for record in islice(records, number)), encoding="utf-8")
    text = configuration("gpu-trial.toml").format(
        folder=folder, device=device, passes="dynamic" if is_small else "graphs", endpoint=ENDPOINT,
        model=demo.SERVED_MODELS[ENDPOINT], target=demo.TARGET, draft=demo.DRAFT, depth=DEPTH,
    )  # fmt: skip
    config.write_text(text, encoding="utf-8")
    began = time.monotonic()
    for words in (("db", "upgrade"), ("run", str(traffic))):
        run("-m", "shadowspec", *words, "--config", str(config))
    measured_s = time.monotonic() - began
    run("-m", "shadowspec", "gate", "--config", str(config), "--json")
    report = json.loads(run("-m", "shadowspec", "report", "--config", str(config), "--json", "--out", "-"))
    kept = ("slice", "load", "verdict", "num_requests", "num_failed", "acceptance", "parity", "kv_cache", "decision")
    whole = next(each for each in report["endpoints"][0]["hypotheses"] if not each["slice"])
    found |= {"records": number, "seconds": measured_s} | {name: whole[name] for name in kept}


def kernels(run: Run, _folder: Path, found: Found, *, is_small: bool) -> None:
    """The last line of the tests of the kernels."""
    files = [str(ROOT / "tests" / "kernels" / name) for name in KERNEL_TESTS[: 1 if is_small else None]]
    said = run("-m", "pytest", "-q", "-p", "no:cacheprovider", *files)
    found["tests"] = said.strip().splitlines()[-1]


PARTS: Final = {"loop": loop, "worker": worker, "kernels": kernels}


def main() -> None:
    """Run the parts, and write what each gave before the next begins."""
    parser = options(__doc__)
    parser.add_argument("--small", action="store_true", help="try the script, with or without a GPU")
    parser.add_argument("--out", type=Path, help="default: gpu_trial.json among the results; with --small nowhere")
    given = parser.parse_args()
    if not torch.cuda.is_available() and not given.small:
        sys.exit("torch finds no GPU; --small tries the script without one")
    out = given.out or (None if given.small else RESULTS / "gpu_trial.json")
    ends_at = time.monotonic() + LIMIT_S

    def run(*words: str) -> str:
        command = [sys.executable, *words]
        environment = os.environ | {"SHADOWSPEC_HASH_SECRET": demo.DEMO_SECRET}
        left = max(1.0, ends_at - time.monotonic())
        done = subprocess.run(  # noqa: S603 (this interpreter)
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=left
        )
        return done.stdout

    document: dict[str, Any] = {
        "is_small": given.small,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "machine": engine_machine(),
        "limit_s": LIMIT_S,
        "parts": {},
    }
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, part in PARTS.items():
            began, ended = time.monotonic(), "whole"
            folder = Path(scratch) / name
            folder.mkdir()
            try:
                part(run, folder, document["parts"].setdefault(name, {}), is_small=given.small)
            except subprocess.TimeoutExpired:
                ended = "the time was up"
            except subprocess.CalledProcessError as error:
                ended = f"exit code {error.returncode}"
            rows.append({"part": name, "seconds": time.monotonic() - began, "ended": ended})
            document["ended"] = rows
            if out is not None:
                write(out, document)
    show("parts", rows)
    if any(row["ended"] != "whole" for row in rows):
        sys.exit("a part did not end as it should")


if __name__ == "__main__":
    main()
