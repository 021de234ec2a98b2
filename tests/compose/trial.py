"""The deployment of docker-compose.yml, run from its images to a verdict, and through the death of each container.

    python -m tests.compose.trial        (or: make test-compose)

It builds substitutes for the public images and our image, starts every service, mirrors bundled traffic into Kafka, and
waits until the dashboard shows a verdict in a browser.  Then it kills and restarts each container while more traffic
comes.  In the end the database must have counted each message once, and the verdict must still be there.
"""

from __future__ import annotations

import argparse
import errno
import gzip
import json
import secrets
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from playwright.sync_api import Browser

from shadowspec import demo
from tests.browser.looking import browser, reader
from tests.compose.engine import Docker, DockerError, engine
from tests.compose.images import PREFIX, SUBSTITUTES, name_of, pip_configuration, substitutes
from tests.compose.stack import LASTING, Stack, stack
from tests.services import free_port

ENDPOINT, VERDICT = "text-to-sql", "DISABLE"
SERVED_MODEL = demo.SERVED_MODELS[ENDPOINT].encode()
VERDICT_CODES = {"ENABLE": 0, "DISABLE": 1, "HOLD": 3}
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
USER = 10001
CONFINED = """
import os
print(os.getuid())
try:
    open("/opt/x", "w")
except OSError as error:
    print(error.errno)
"""
START_TIMEOUT_S = 300.0
MEASURE_TIMEOUT_S = 1_200.0
RECOVER_TIMEOUT_S = 300.0
PASSWORDS = ("POSTGRES", "OWNER", "WORKER", "SCHEDULER", "READER", "OPERATOR")


@dataclass
class Progress:
    """Lines with the time since the start, and the seconds that each step took."""

    began: float = field(default_factory=time.monotonic)
    steps: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.monotonic)

    def say(self, line: str) -> None:
        print(f"{time.monotonic() - self.began:6.0f} s  {line}", file=sys.stderr, flush=True)

    def finish(self, step: str) -> None:
        now = time.monotonic()
        self.steps[step] = round(now - self._last, 1)
        self._last = now
        self.say(f"{step}: done in {self.steps[step]:.0f} s")

    def end(self, figures: dict[str, Any], out: Path | None) -> NoReturn:
        """Print the figures with the times, keep them in a file, and exit with 1 where something is wrong."""
        figures["seconds"] = self.steps | figures.get("seconds", {})
        figures["total_s"] = round(time.monotonic() - self.began, 1)
        document = json.dumps(figures, indent=1)
        print(document)
        if out is not None:
            out.write_text(document + "\n", encoding="utf-8")
        sys.exit(1 if figures["wrong"] else 0)


@dataclass(frozen=True)
class Trial:
    """The running services, and a browser."""

    stack: Stack
    browser: Browser
    port: int
    progress: Progress

    def produce(self, name: str) -> None:
        """Put a file of the data folder on the mirrored topic, with our own command."""
        code = self.stack.command("produce", name, "--topic", "shadow.prompts")
        if code != 0:
            raise DockerError(f"shadowspec produce {name} ended with {code}")

    def num_counted(self) -> int:
        """Messages whose end the database knows: the sum of the funnel."""
        return int(self.stack.sql("SELECT coalesce(sum(num_records), 0) FROM funnel_counts"))

    def wait_counted(self, num_messages: int, timeout_s: float) -> None:
        last = time.monotonic()

        def holds() -> bool:
            nonlocal last
            self.stack.is_well("worker")
            counted = self.num_counted()
            if time.monotonic() - last > 30:
                last = time.monotonic()
                self.progress.say(f"{counted} of {num_messages} messages counted")
            return counted >= num_messages

        self.stack.wait(f"{num_messages} messages counted", "worker", holds, timeout_s)

    def wait_well(self) -> None:
        """Wait until every lasting service runs and is healthy."""
        for service in LASTING:
            self.stack.wait("healthy", service, partial(self.stack.is_well, service), START_TIMEOUT_S)

    def wait_verdict(self) -> None:
        """Wait until `check` has the verdict's exit code, then until the dashboard shows it.

        Raises:
            DockerError: another verdict, or none.
        """
        wanted = VERDICT_CODES[VERDICT]
        check = ("check", "--endpoint", ENDPOINT)
        self.stack.wait(f"check: {wanted}", "schedule", lambda: self.stack.command(*check) == wanted, RECOVER_TIMEOUT_S)
        with reader(self.browser) as page:
            page.open(f"http://127.0.0.1:{self.port}/")
            self.stack.wait(
                f"the board shows {ENDPOINT} and {VERDICT}",
                "dashboard",
                lambda: ENDPOINT in page.words and VERDICT in page.words,
                RECOVER_TIMEOUT_S,
            )
            if page.exceptions() or page.errors:
                raise self.stack.failure("dashboard", f"the board says {page.exceptions() + page.errors}")


def check_confinement(running: Stack) -> None:
    """Each of our containers runs as our user, on a root that it cannot write to."""
    for service in ("worker", "dashboard", "schedule"):
        said = running.compose("exec", "-T", service, "python", "-c", CONFINED).split()
        if said != [str(USER), str(errno.EROFS)]:
            raise DockerError(f"{service} runs as {said[0]} and is not on a read-only root: {said[1:]}")
        capabilities = running.state(service)["HostConfig"]["CapDrop"]
        if capabilities != ["ALL"]:
            raise DockerError(f"{service} keeps capabilities: it drops {capabilities}")


def check_gpu_profile(running: Stack) -> None:
    """Compose takes the GPU's profile, and asks for the devices."""
    config = json.loads(running.compose("--profile", "gpu", "config", "--format", "json"))
    worker = config["services"]["worker-gpu"]
    (device,) = worker["deploy"]["resources"]["reservations"]["devices"]
    if device["capabilities"] != ["gpu"] or worker["build"]["args"]["TORCH_BACKEND"] == "cpu":
        raise DockerError(f"the GPU's profile asks for {device} and builds {worker['build']['args']}")


def prepare(folder: Path, num_messages: int) -> list[tuple[str, int]]:
    """Fill the data folder; the names of the files of traffic, with their messages: one to begin, one for each kill."""
    shutil.copyfile(Path(__file__).with_name("shadowspec.toml"), folder / "shadowspec.toml")
    for source, name in ((demo.TARGET, "target"), (demo.DRAFT, "draft")):
        shutil.copytree(source, folder / "models" / name)
    with gzip.open(demo.TRAFFIC, "rb") as lines:
        # Most of what is measured, and a part of all the rest.
        chosen = (line for number, line in enumerate(lines) if SERVED_MODEL in line or number % 8 == 0)
        traffic = list(islice(chosen, num_messages))
    share = len(traffic) // 10
    first = len(traffic) - len(LASTING) * share
    parts = [traffic[:first], *(traffic[start : start + share] for start in range(first, len(traffic), share))]
    made = []
    for number, part in enumerate(parts):
        (folder / f"traffic-{number}.jsonl").write_bytes(b"".join(part))
        made.append((f"traffic-{number}.jsonl", len(part)))
    for path in (folder, *folder.rglob("*")):  # mkdtemp lets only us in
        path.chmod(0o755 if path.is_dir() else 0o644)
    return made


def compare(running: Stack, num_messages: int) -> dict[str, Any]:
    """The figures of the database; `wrong` lists each that is not what the messages ask for."""
    counts = {
        "messages": num_messages,
        "in the funnel": int(running.sql("SELECT sum(num_records) FROM funnel_counts")),
        "in the ledger": int(running.sql("SELECT sum(num_messages) FROM ledger")),
        "measured": int(running.sql("SELECT sum(num_records) FROM funnel_counts WHERE counter = 'measured'")),
        "failed": int(running.sql("SELECT coalesce(sum(num_records), 0) FROM funnel_counts WHERE counter = 'failed'")),
        "runs": int(running.sql("SELECT count(*) FROM runs")),
    }
    wrong = [
        f"{name}: {counts[name]}, not {num_messages}"
        for name in ("in the funnel", "in the ledger")
        if counts[name] != num_messages
    ]
    if counts["runs"] != counts["measured"] + counts["failed"]:
        wrong.append(f"{counts['runs']} runs of {counts['measured']} measured and {counts['failed']} failed requests")
    return {"counts": counts, "wrong": wrong}


def run(docker: Docker, images: dict[str, str], folder: Path, num_messages: int, progress: Progress) -> dict[str, Any]:
    """Everything after the substitutes."""
    data = folder / "data"
    data.mkdir()
    parts = prepare(data, num_messages)
    port = free_port()
    environment = {
        "BASE_IMAGE": images["python"],
        "KAFKA_IMAGE": images["kafka"],
        "POSTGRES_IMAGE": images["postgres"],
        "SHADOWSPEC_IMAGE": name_of("shadowspec"),
        "SHADOWSPEC_DATA": str(data),
        "DASHBOARD_PORT": str(port),
        "PIP_CONF": str(pip_configuration(folder)),
        "CERTIFICATES": str(CERTIFICATES) if CERTIFICATES.exists() else "/dev/null",
        **{f"{name}_PASSWORD": secrets.token_hex(16) for name in PASSWORDS},
        "SHADOWSPEC_HASH_SECRET": secrets.token_hex(32),
    }
    with ExitStack() as opened:
        running = opened.enter_context(stack(docker, f"{PREFIX}-{port}", environment))
        check_gpu_profile(running)
        running.compose("--progress", "plain", "build")
        progress.finish("our image")
        sizes = {name: docker.size_bytes(images[name]) for name in SUBSTITUTES}
        sizes["shadowspec"] = docker.size_bytes(environment["SHADOWSPEC_IMAGE"])

        trial = Trial(running, opened.enter_context(browser()), port, progress)
        running.compose("up", "--detach", "--no-build")
        trial.wait_well()
        check_confinement(running)
        progress.finish("all services healthy")

        name, num_sent = parts[0]
        trial.produce(name)
        trial.wait_counted(num_sent, MEASURE_TIMEOUT_S)
        progress.finish(f"{num_sent} messages counted")
        trial.wait_verdict()
        progress.finish(f"{VERDICT} on the dashboard")

        for service, (name, num_added) in zip(LASTING, parts[1:], strict=True):
            trial.produce(name)
            num_sent += num_added
            running.kill(service)
            time.sleep(2.0)  # the others notice
            running.start(service)
            trial.wait_well()
            progress.finish(f"{service} killed, and all well")
        trial.wait_counted(num_sent, MEASURE_TIMEOUT_S)
        trial.wait_verdict()
        progress.finish("the rest counted")
        return {"image_bytes": sizes, **compare(running, num_sent)}


def main() -> NoReturn:
    """Run it; exit code 1 where something is wrong, with the container and its last lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=400)
    parser.add_argument("--keep-images", action="store_true", help="leave the substitutes for the next run")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that everything is removed
    progress = Progress()
    folder = Path(tempfile.mkdtemp(prefix="shadowspec-compose-"))
    try:
        with engine() as docker:
            progress.finish("an engine")
            with substitutes(docker, folder, progress.say, is_kept=chosen.keep_images) as images:
                progress.finish("substitutes")
                figures = run(docker, images, folder, chosen.messages, progress)
            progress.finish("removed")
    except DockerError as error:
        sys.exit(f"test-compose: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    progress.end(figures, chosen.out)


if __name__ == "__main__":
    main()
