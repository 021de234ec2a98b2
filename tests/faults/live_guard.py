"""A real vLLM under the live guard: read, restarted in the middle, then restarted with a draft that is no good.

    shadowspec demo --out shadowspec-demo
    python -m tests.faults.live_guard --demo shadowspec-demo --vllm-python PATH --out RESULTS.json

PATH is the interpreter of an environment with vLLM 0.32 (docs/live.md).  `--demo` is a folder that `shadowspec demo`
wrote: its gate has enabled the endpoint text-to-sql, and that ENABLE, with its own promise, is what is guarded; the
database is copied.  vLLM serves the bundled pair at K = 4 and gets requests of that endpoint's own traffic; after each
batch of them `shadowspec live` reads its counters once, which makes a window.

1. The pair as it was measured: `check` passes, flagd is on, no alarm.
2. The server dies with requests behind it that were never read, a reading fails meanwhile, and it comes back with
   counters at zero: no alarm, and nothing counted twice or made up.
3. It comes back with a draft of random weights: the guard sounds within the windows that it states, `check` exits
   with 1 and flagd is off.
4. The order is cleared and the good draft is back: no alarm.

Exit code 1 if anything was otherwise.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shadowspec import demo
from shadowspec.live.guard import windows_to_alarm
from shadowspec.store import Store
from shadowspec.types.settings import GuardPolicy
from tests.faults.outcome import conclude
from tests.services import free_port

ENDPOINT, MODEL, DEPTH = "text-to-sql", "demo-sql", 4
NUM_REQUESTS, CONCURRENCY, MAX_TOKENS = 32, 8, 64  # of a window: some 280 drafts of a good draft
READY_TIMEOUT_S = 900.0  # 75 s on two cores of its own; others may use them too
ANY_AGE = "9000d"  # the demo's traffic is years old
LIVE = """
[endpoints.text-to-sql.live]
metrics_urls = ["http://127.0.0.1:{port}/metrics"]
model = "demo-sql"
"""


@dataclass(frozen=True)
class Command:
    """`shadowspec` in the working folder."""

    folder: Path

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        rows = [sys.executable, "-m", "shadowspec", *arguments, "--config", str(self.folder / "shadowspec.toml")]
        environment = {**os.environ, "SHADOWSPEC_DATABASE_URL": f"sqlite:///{self.folder}/shadowspec.db"}
        return subprocess.run(rows, env=environment, capture_output=True, text=True, check=False)

    def store(self) -> Store:
        return Store.open(f"sqlite:///{self.folder}/shadowspec.db")

    def document(self, *arguments: str) -> dict[str, Any]:
        done = self(*arguments)
        if not done.stdout:
            raise SystemExit(f"shadowspec {' '.join(arguments)}: {done.stderr}")
        return dict(json.loads(done.stdout))

    def live(self) -> dict[str, Any]:
        """One reading: the endpoint's, with that of its replica under `replica`."""
        entry = self.document("live", "--json")["endpoints"][0]
        return {**entry, "replica": entry["replicas"][0]}

    def is_on(self) -> bool:
        """Whether any request would be speculated on by the exported flags."""
        flags = self.document("export", "--format", "flagd", "--max-age", ANY_AGE, "--accept-other-engine")["flags"]
        flag = flags[f"{ENDPOINT}.speculation"]
        return flag["targeting"] != {} or flag["defaultVariant"] != "off"

    def check(self) -> int:
        return self("check", "-e", ENDPOINT, "--max-age", ANY_AGE, "--expect-engine", "shadowspec-torch").returncode


def bad_draft(folder: Path) -> Path:
    """A draft as the bundled one, with weights drawn at random."""
    import torch
    from transformers import AutoConfig, LlamaForCausalLM

    shutil.copytree(demo.DRAFT, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    torch.manual_seed(0)
    LlamaForCausalLM(AutoConfig.from_pretrained(demo.DRAFT)).to(torch.bfloat16).save_pretrained(folder)
    return folder


def bodies() -> Iterator[dict[str, Any]]:
    """Requests of the endpoint's bundled traffic, without end."""
    with gzip.open(demo.TRAFFIC, "rt", encoding="utf-8") as lines:
        rows = [found for line in lines if (found := _body(line)) is not None]
    while True:
        for body in rows:
            length = {"max_completion_tokens": None, "max_tokens": MAX_TOKENS, "stream": False}
            yield {name: value for name, value in (body | length).items() if value is not None}


def _body(line: str) -> dict[str, Any] | None:
    """The request of a record of this endpoint, None of others and of those that the traffic spoils on purpose."""
    try:
        found = json.loads(line)["request"]
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(found, dict) or found.get("model") != MODEL:
        return None
    is_text = all(isinstance(message.get("content"), str) for message in found.get("messages", [{}]))
    return found if is_text else None


@contextmanager
def serving(
    python: Path,
    preload: str,
    draft: Path | None,
    port: int,
    log: Path,
    *,
    models: Sequence[str] = (MODEL,),
    depth: int = DEPTH,
) -> Iterator[None]:
    """vLLM with this draft (None: without one) until the block ends; it is then killed, and nothing of it is saved."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OMP_NUM_THREADS")}
    environment |= {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "auto",
        "LD_PRELOAD": preload,
    }
    command = [
        python, "-m", "vllm.entrypoints.openai.api_server", "--model", demo.TARGET, "--served-model-name", *models,
        "--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", str(CONCURRENCY), "--host", "127.0.0.1",
        "--port", str(port), "--disable-uvicorn-access-log",
    ]  # fmt: skip
    if draft is not None:
        speculation = {"method": "draft_model", "model": str(draft), "num_speculative_tokens": depth}
        command += ["--speculative-config", json.dumps(speculation)]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(part) for part in command], env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        _wait_until_ready(process, port, log)
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"vLLM has ended; see {log}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except OSError:
            time.sleep(1)
    raise SystemExit(f"vLLM was not ready within {READY_TIMEOUT_S:.0f} s; see {log}")


@dataclass
class Traffic:
    """Sends requests, as many at once as the server takes."""

    port: int
    requests: Iterator[dict[str, Any]]
    num_sent: int = 0

    def send(self, number: int = NUM_REQUESTS) -> None:
        rows = [next(self.requests) for _ in range(number)]
        with ThreadPoolExecutor(CONCURRENCY) as pool:
            list(pool.map(self._send, rows))
        self.num_sent += number

    def _send(self, body: dict[str, Any]) -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=300) as response:
            response.read()


class Guard:
    """What is read window by window, and whatever is not as it should be."""

    def __init__(self, command: Command, traffic: Traffic) -> None:
        self.command, self._traffic = command, traffic
        self.wrong: list[str] = []
        self.windows: list[dict[str, Any]] = []

    def expect(self, what: str, is_so: bool) -> None:
        print(f"{'ok   ' if is_so else 'WRONG'} {what}", file=sys.stderr, flush=True)
        if not is_so:
            self.wrong.append(what)

    def window(self, phase: str) -> dict[str, Any]:
        """Requests, then a reading, which must be of these and no others."""
        self._traffic.send()
        found = self.command.live()
        last_window = found["replica"]["window"]
        self.expect(
            f"{phase}: a window of {NUM_REQUESTS} requests",
            last_window is not None and last_window["num_requests"] == NUM_REQUESTS,
        )
        if last_window is not None:
            kept = ("num_requests", "num_drafts", "first_position_acceptance_rate", "mean_acceptance_length")
            self.windows.append(
                {"phase": phase, "outcome": found["replica"]["outcome"], **{name: last_window[name] for name in kept}}
            )
        return found


def play(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    port = free_port()
    for name in ("shadowspec.db", "shadowspec.toml", "demo.secret"):
        shutil.copy(options.demo / name, folder / name)
    with (folder / "shadowspec.toml").open("a", encoding="utf-8") as file:
        file.write(LIVE.format(port=port))
    command, traffic = Command(folder), Traffic(port, bodies())
    if (done := command("db", "upgrade")).returncode:
        raise SystemExit(done.stderr)
    guard, log = Guard(command, traffic), options.log or folder / "vllm.log"
    server = (options.vllm_python, options.vllm_preload)

    # 1. As it was measured.
    with serving(*server, demo.DRAFT, port, log):
        guard.expect("check passes", command.check() == 0)
        guard.expect("flagd is on", command.is_on())
        guard.expect("the first reading is where counting begins", command.live()["replica"]["outcome"] == "first")
        for _ in range(options.windows):
            found = guard.window("good")
            guard.expect("no alarm", found["override_id"] is None and found["promise"] is not None)
        if options.page is not None:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as response:
                options.page.write_bytes(response.read())
        traffic.send()  # never read: the server dies first

    # 2. Away, then back with counters at zero.
    guard.expect("a server that is away is told", command.live()["replica"]["outcome"] == "unreachable")
    with serving(*server, demo.DRAFT, port, log):
        found = guard.window("good, restarted")
        guard.expect("the reset is seen", found["replica"]["outcome"] == "reset")
        guard.expect("the failed reading is counted", found["replica"]["window"]["num_failed_scrapes"] == 1)
        for _ in range(options.windows):
            guard.expect("no alarm", guard.window("good, restarted")["override_id"] is None)
    guard.expect("check still passes", command.check() == 0)
    promise, threshold = found["promise"]["rate"], GuardPolicy()

    # 3. A draft that is no good.
    with serving(*server, bad_draft(folder / "bad"), port, log):
        ordered, number = None, 0
        while ordered is None and number < 100:
            found, number = guard.window("bad"), number + 1
            ordered = found["override_id"]
    highest = max(window["first_position_acceptance_rate"] for window in guard.windows if window["phase"] == "bad")
    stated = windows_to_alarm(promise, highest, threshold)
    guard.expect("it sounds", ordered is not None)
    guard.expect(f"within the {stated} windows stated", stated is not None and number <= stated)
    guard.expect("check exits with 1", command.check() == 1)
    guard.expect("flagd is off", not command.is_on())
    orders = command.document("override", "list", "--json")["overrides"]

    # 4. Cleared, with the good draft.
    command("override", "clear", str(ordered), "--reason", "the good draft is back", "--author", "the test")
    with serving(*server, demo.DRAFT, port, log):
        for _ in range(options.windows):
            guard.expect("no alarm", guard.window("good again")["override_id"] is None)
    guard.expect("check passes again", command.check() == 0)
    guard.expect("flagd is on again", command.is_on())
    return {
        "promise": promise,
        "num_requests_of_a_window": NUM_REQUESTS,
        "windows_until_alarm": number,
        "windows_stated": stated,
        "alarm": [order["reason"].replace(f":{port}", "") for order in orders],
        "rates": rates(guard.windows),
        "windows": guard.windows,
        "wrong": guard.wrong,
    }


def rates(windows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """The least and the most that a window of each phase accepted at the first position."""
    phases = dict.fromkeys(window["phase"] for window in windows)
    found = {
        phase: [window["first_position_acceptance_rate"] for window in windows if window["phase"] == phase]
        for phase in phases
    }
    return {phase: [round(min(rows), 4), round(max(rows), 4)] for phase, rows in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, required=True, help="folder that `shadowspec demo` wrote")
    parser.add_argument("--vllm-python", type=Path, required=True, help="interpreter of an environment with vLLM")
    parser.add_argument("--vllm-preload", default="", help="LD_PRELOAD of vLLM, as its installation asks for it")
    parser.add_argument("--windows", type=int, default=5, help="of each phase with a good draft")
    parser.add_argument("--page", type=Path, help="file that gets a page of metrics, as vLLM sent it")
    parser.add_argument("--log", type=Path, help="file that gets what vLLM says; default: it is not kept")
    parser.add_argument("--out", type=Path, help="file that gets the figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shadowspec-live-") as folder:
        figures = play(options, Path(folder))
    conclude(figures, options.out)


if __name__ == "__main__":
    main()
