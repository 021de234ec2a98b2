"""One worker on a real broker and a real database, as it is deployed: what it writes, contacts and says."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import make_url

from shadowspec.store import Store
from shadowspec.types import FunnelCounter
from tests.cli_process import run_command
from tests.faults import canaries
from tests.faults.casts import FAKE_CONFIG, SECRET
from tests.faults.traffic import START_MS, messages
from tests.kafka_topics import Message, Topics, read_topic
from tests.services import PATIENCE_S, free_port, postgres_programs

pytestmark = pytest.mark.integration
KILLER, HOLDER = 7, 8  # bytes that no ordinary prompt holds
CANARY = "cAnArY-7391-xyzzy"
LABELLED = 'slice_by = ["prompt_class", "tier", "language"]\nlabels = { tier = ["pro"] }'


class RunningWorker:
    """A worker process, its log and its health."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, port: int) -> None:
        self.process, self.log, self.port = process, log, port

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())

    def wait_ready(self) -> None:
        def is_ready() -> bool:
            try:
                return bool(json.loads(self.get("/readyz"))["is_ready"])
            except OSError:
                return False

        wait_for(is_ready, self)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


def wait_for(holds: Callable[[], bool], worker: RunningWorker | None = None) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if worker is not None and worker.process.poll() is not None:
            pytest.fail(f"the worker ended with {worker.process.returncode}:\n{worker.log.read_text()[-3000:]}")
        assert time.monotonic() < deadline, worker.log.read_text()[-3000:] if worker is not None else "waited in vain"
        time.sleep(0.2)


@pytest.fixture
def start_worker(
    tmp_path: Path, kafka_bootstrap: str, new_database: Callable[[str], str]
) -> Iterator[Callable[..., tuple[RunningWorker, Store, str, str, Topics]]]:
    """Starts a worker on topics and a database of its own."""
    running: list[RunningWorker] = []

    with ExitStack() as stack:
        topics = stack.enter_context(Topics(kafka_bootstrap))

        def start(*options: str, chat: str = "") -> tuple[RunningWorker, Store, str, str, Topics]:
            database, port = new_database("postgres"), free_port()
            topic = topics.create(3, retention_ms=-1)
            letters = topics.create(1, retention_ms=-1)
            config = tmp_path / "worker.toml"
            template = FAKE_CONFIG.replace("block_timeout_s = 20.0", "block_timeout_s = 300.0")  # no stall is cut short
            text = template.format(
                database=database, bootstrap=kafka_bootstrap, topic=topic, dead_letters=letters, port=port,
                session_timeout_ms=10_000,
            )  # fmt: skip
            text = text.replace('"storm"', f'"{topic}"')
            config.write_text(text.replace("sample_rate = 0.8", f"sample_rate = 0.8\n{chat}"))
            log = tmp_path / "worker.log"
            with log.open("ab") as stream:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tests.faults.worker_main", str(config), *options],
                    env=os.environ | {"SHADOWSPEC_HASH_SECRET": SECRET}, stdin=subprocess.DEVNULL,
                    stdout=stream, stderr=stream,
                )  # fmt: skip
            worker = RunningWorker(process, log, port)
            running.append(worker)
            return worker, stack.enter_context(Store.open(database)), topic, letters, topics

        yield start
        for worker in running:
            worker.process.kill()
            worker.process.wait()


def finished(store: Store, group: str) -> int:
    return sum(entry.num_messages for entry in store.ledger(group))


def peers(pid: int) -> tuple[set[int], set[int]]:
    """Remote ports that a process and its children talk to, and ports that they listen on (IPv4 and IPv6)."""
    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    pids = [str(pid), *children]
    inodes = set()
    for each in pids:
        for descriptor in Path(f"/proc/{each}/fd").glob("*"):
            try:
                inodes.add(str(descriptor.readlink()))
            except FileNotFoundError:
                continue  # closed meanwhile
    remote, listening = set(), set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if f"socket:[{words[9]}]" in inodes:
                local_port, remote_port = (int(words[index].rpartition(":")[2], 16) for index in (1, 2))
                listening.add(local_port) if words[3] == "0A" else remote.add(remote_port)
    return remote, listening


@pytest.mark.all
def test_what_it_writes_contacts_and_says(
    start_worker: Callable[..., tuple[RunningWorker, Store, str, str, Topics]], kafka_bootstrap: str
) -> None:
    worker, store, topic, letters, topics = start_worker("--verbose", "--kill", str(KILLER))
    worker.wait_ready()
    traffic = list(killing_canaries())
    names = topics.names()
    topics.write(topic, traffic)
    seen_remote: set[int] = set()
    seen_listening: set[int] = set()

    def is_done() -> bool:
        remote, listening = peers(worker.process.pid)
        seen_remote.update(remote)
        seen_listening.update(listening)
        return finished(store, topic) == len(traffic)

    wait_for(is_done, worker)  # each death of the engine is a start of a new one
    metrics = worker.get("/metrics")
    assert worker.stop() == 0

    # Every record in one counter, the blocks of requests that kill the engine failed, the others measured.
    funnel = store.funnel()
    assert sum(funnel.values()) == len(traffic)
    num_failed = funnel[
        "chat", FunnelCounter.FAILED, "engine_died"
    ]  # those that share a block with one that kills, too
    assert funnel[None, FunnelCounter.MALFORMED, "not_json"] == 2
    assert funnel["chat", FunnelCounter.MEASURED, None] >= 5
    runs = store.runs("chat")
    assert Counter(run.failure for run in runs) == {None: len(runs) - num_failed, "engine_died": num_failed}

    # It spoke to the broker and the database alone, and nothing came to any topic but the dead letters.
    broker, database = int(kafka_bootstrap.rpartition(":")[2]), make_url(str(store.engine.url)).port
    assert seen_remote - {0} <= {broker, database}
    assert {broker, database} <= seen_remote
    assert seen_listening == {worker.port}
    assert topics.names() == names
    assert len(read_topic(kafka_bootstrap, topic, "%o")) == len(traffic)
    dead = read_topic(kafka_bootstrap, letters, "%h")
    num_poisoned = len(dead) - 2
    assert 1 <= num_poisoned <= num_failed
    stages = [dict(part.split("=", 1) for part in each.split(",") if "=" in part) for each in dead]
    assert sorted(each["__connect.errors.stage"] for each in stages) == ["engine"] * num_poisoned + ["tap", "tap"]

    # No prompt, response, id or header anywhere but in the dead letters' own key, value and headers.
    address = store.engine.url.set(drivername="postgresql").render_as_string()
    command = [postgres_programs() / "pg_dump", "--dbname", address]
    dump = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    assert topic in dump  # it is the right database
    errors = "\n".join(value for each in stages for name, value in each.items() if name.startswith("__connect"))
    for name, text in {"dump": dump, "log": worker.log.read_text(), "metrics": metrics, "errors": errors}.items():
        assert CANARY not in text, name
        assert CANARY.encode().hex() not in text, name
    assert "is poisoned" in worker.log.read_text()  # it does say what happened
    assert 'shadowspec_records_total{counter="measured",endpoint="chat"' in metrics


@pytest.mark.all
def test_a_clients_words_come_into_nothing_that_is_stored_said_or_shown(
    start_worker: Callable[..., tuple[RunningWorker, Store, str, str, Topics]],
    kafka_bootstrap: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    worker, store, topic, letters, topics = start_worker("--verbose", chat=LABELLED)
    config = tmp_path / "worker.toml"
    worker.wait_ready()
    traffic = list(canaries.canaries())
    topics.write(topic, traffic)
    wait_for(lambda: finished(store, topic) == len(traffic), worker)
    children = subprocess.run(["pgrep", "-P", str(worker.process.pid)], capture_output=True, text=True, check=True)
    pids = (worker.process.pid, *children.stdout.split())
    limits = {pid: Path(f"/proc/{pid}/limits").read_text() for pid in pids}
    assert len(limits) > 1, "it has an engine"
    assert all(re.search("^Max core file size +0 +0 ", text, re.MULTILINE) for text in limits.values())
    shown = {path: worker.get(path) for path in ("/metrics", "/readyz", "/livez")}
    assert worker.stop() == 0
    shown["log"] = worker.log.read_text()

    # It measured the ordinary ones, refused others, and has dead letters: every way out was taken.
    funnel = store.funnel()
    assert funnel["chat", FunnelCounter.MEASURED, None] >= 4, "of each session one in four requests is timed"
    assert {counter for _, counter, _ in funnel} >= {FunnelCounter.UNSUPPORTED, FunnelCounter.MALFORMED}
    dead = read_topic(kafka_bootstrap, letters, "%s")
    assert canaries.leaks("\n".join(dead)), "dead letters hold what the client wrote, and nothing else does"

    # What commands say of it, and all of the database.
    monkeypatch.setenv("SHADOWSPEC_HASH_SECRET", SECRET)
    for words in (
        "gate", "gate --json", "plan --json", "check -e chat", "check -e chat --json", "report --out -",
        "report --format json", "report --format md", "dead-letters list", "dead-letters list --json",
    ):  # fmt: skip
        done = run_command(monkeypatch, capsys, "--verbose", *words.split(), "--config", str(config))
        assert done.out, (words, done.err)
        shown[words] = done.out + done.err
    address = store.engine.url.set(drivername="postgresql").render_as_string()
    command = [postgres_programs() / "pg_dump", "--dbname", address]
    shown["dump"] = subprocess.run(command, capture_output=True, check=True).stdout.decode()
    assert topic in shown["dump"]
    assert "tier=other" in shown["dump"], "its labels have values, of which none is a client's"
    assert {name: canaries.leaks(text) for name, text in shown.items()} == {name: [] for name in shown}


def killing_canaries() -> Iterator[Message]:
    """Traffic with a canary in every place that could leak.

    All of it is in one partition: a worker reads several in any order, and the order says which requests share a block
    with one that kills the engine.
    """
    headers = (("x-trace", CANARY.encode()), ("odd", b"\xff\xfe"), ("x-trace", b"again"))
    for number in range(60):
        request = {
            "model": "chat-model", "prompt": f"{CANARY} tell me {number}", "max_tokens": 8, "temperature": 0.0,
            "user": f"user-{CANARY}-{number}",
        }  # fmt: skip
        if 20 <= number < 28:  # some of them are sampled and timed
            request["prompt"] += chr(KILLER)
        if number == 40:
            request["logit_bias"] = {CANARY: 1}
        record = {
            "timestamp": START_MS / 1000 + number, "session_id": f"{CANARY}-{number}", "path": "/v1/completions",
            "metadata": {"session_id": CANARY, "tenant": CANARY}, "request_id": f"{CANARY}-r{number}",
            "request": request, "response": {"id": f"{CANARY}-{number}", "model": "chat-model",
            "choices": [{"text": f"{CANARY} sure", "finish_reason": "stop"}]},
        }  # fmt: skip
        key = f"{CANARY}-{number}".encode()
        yield Message(json.dumps(record).encode(), key, headers, 0, START_MS + number)
    yield Message(f'{{"{CANARY}'.encode(), b"k", headers, 0, START_MS)
    yield Message(CANARY.encode(), CANARY.encode(), headers, 0, START_MS)


@pytest.mark.all
@pytest.mark.slow
def test_an_engine_that_holds_its_interpreter_for_90_seconds_costs_no_membership(
    start_worker: Callable[..., tuple[RunningWorker, Store, str, str, Topics]],
) -> None:
    worker, store, topic, _, topics = start_worker("--hold", str(HOLDER), "--hold-s", "90")
    worker.wait_ready()
    held = json.loads(next(m.value for m in messages(50, 1, ["code-model"]) if m.value and b"prompt" in m.value))
    held["session_id"], held["request"]["prompt"] = "held", chr(HOLDER)
    held["request"].pop("logit_bias", None)
    # Whatever place of its session is timed, the prompt is there.
    topics.write(topic, [Message(json.dumps(held | {"request_id": f"h{n}"}).encode(), b"held") for n in range(4)])
    topics.write(topic, messages(400, 9, ["code-model"]))

    def membership() -> tuple[str, tuple[str, ...]]:
        (group,) = topics.admin.describe_groups([topic]).values()
        return str(group["group_state"]), tuple(member["member_id"] for member in group["members"])

    before = membership()
    assert before[0] == "Stable"
    began = time.monotonic()
    states = set()
    while time.monotonic() - began < 95:
        states.add(membership())
        assert json.loads(worker.get("/livez"))["is_alive"]
        time.sleep(2)
    assert states == {before}
    # The held request comes back as a filler of short blocks and holds again, so the end is not waited for.
    wait_for(lambda: bool(store.runs("code")), worker)
    assert membership() == before
    assert not [run for run in store.runs("code") if run.failure is not None]
