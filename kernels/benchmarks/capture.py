"""What the capture adds to the time of a client's request, and what it drops, with a broker and without.

    make bench NAME=capture ARGS="--envoy PATH --litellm PATH --vllm PATH"     (nothing else may run meanwhile)

A trivial ASGI application streams an answer, in uvicorn on uvloop, as vLLM runs it: at once, or in the time that a
model takes.  Three servers run at once: without the middleware, with it, and with it while its broker is away.
`--envoy` and `--litellm` are programs.  Of each, two gateways stand before the first server: one as it is, and one with
what docs/capture.md adds.  `--vllm` is the Python of its environment, in which two servers serve the bundled target.
The environments of LiteLLM and vLLM have `shadowspec` installed.  The broker, which in production has a machine of its
own, gives way to all of them.

A client offers each requests at a steady rate, whether earlier ones have been answered or not, in short turns one after
the other.  A time is that from when a request was due until its answer ended.  LiteLLM and vLLM have turns of their own
afterwards, since they take processor time without requests too.  They may bear less than the rate.  What they bear
without the capture is measured first, and they are offered a share of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import uvloop
import yaml  # type: ignore[import-untyped]

from kernels.benchmarks.harness import ROOT, machine, options, show, write
from shadowspec.capture.asgi import Mirror
from shadowspec.capture.outlet import Outlet
from tests.kafka_server import kafka_server
from tests.kafka_topics import Topics, read_topic
from tests.services import free_port, is_listening

PROMPT = "Why is the sky blue? " * 100  # 2 kB
NUM_PIECES = 20  # chunks of the answer
PATH = "/v1/chat/completions"
END = b"0\r\n\r\n"  # of an answer in chunks
VLLM_TOKENS = 4  # of its answers: on two cores it bears few longer ones a second
ANSWERS_MS = (0, 200)
TURN_S = 4.0
MOST_OF_BORNE = 0.5  # of what a server bears is offered at most: a queue says nothing of the capture
CALLERS = 8  # at once, while what a server bears is measured
START_S = 300.0
KEY = "sk-of-this-benchmark-only-0123456789abcdef"
EXAMPLES = ROOT / "docs" / "capture"
TARGET = ROOT / "shadowspec" / "demo" / "pair" / "target"
VLLM: Final = (
    "-m", "vllm.entrypoints.openai.api_server", "--model", str(TARGET), "--served-model-name", "m", "--dtype",
    "float32", "--max-model-len", "512", "--enforce-eager", "--host", "127.0.0.1", "--disable-log-stats",
)  # fmt: skip
OFFLINE: Final = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": KEY, "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_LOGGING_LEVEL": "ERROR", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive",
}  # fmt: skip


@dataclass(frozen=True)
class Server:
    """A process that answers, and the server that it is compared with."""

    port: int
    process: int
    base: str | None = None
    answers_ms: tuple[int | None, ...] = ANSWERS_MS  # None: a model takes the time that it takes
    is_gateway: bool = False  # the model's name says how long the answer takes, not the path
    is_limited: bool = False  # it may bear less than the rate

    def request(self, answer_ms: int | None, session: int) -> bytes:
        """The bytes of a request."""
        name = "m" if answer_ms is None or not self.is_gateway else f"answer-{answer_ms}"
        body: dict[str, Any] = {"model": name, "stream": True, "messages": [{"role": "user", "content": PROMPT}]}
        if answer_ms is None:
            body |= {
                "messages": [{"role": "user", "content": PROMPT[:200]}],
                "max_tokens": VLLM_TOKENS,
                "temperature": 0,
            }
        content = json.dumps(body).encode()
        path = PATH if answer_ms is None or self.is_gateway else f"/{answer_ms}{PATH}"
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nx-session-id: s-{session}\r\nauthorization: Bearer {KEY}\r\n"
        return f"{head}content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content


async def answer(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
    """The application: it reads the request and streams an answer of fixed pieces."""
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    while (await receive()).get("more_body"):
        pass
    pause_s = int(scope["path"].split("/")[1]) / 1e3 / NUM_PIECES
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for number in range(NUM_PIECES):
        if pause_s:
            await asyncio.sleep(pause_s)
        piece = {"choices": [{"index": 0, "delta": {"content": f"{number} "}, "finish_reason": None}]}
        body = f"data: {json.dumps(piece)}\n\n".encode()
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


class Counted:
    """The middleware around the application; a GET gives its counts."""

    def __init__(self) -> None:
        self.mirror = Mirror(answer, Outlet.from_environment())

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "GET":
            await self.mirror(scope, receive, send)
            return
        counts = self.mirror.outlet.counts
        body = json.dumps({"sent": counts.sent, "dropped": counts.dropped, "held": self.mirror.outlet.held_bytes})
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body.encode()})


@contextmanager
def listening(command: Sequence[str], port: int, **variables: str) -> Iterator[int]:
    """A process that serves at this port, until the block ends; yields its number.

    Raises:
        SystemExit: it ended, or does not listen in time.
    """
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | OFFLINE | variables)  # noqa: S603
    try:
        while not is_listening(port):
            if process.poll() is not None or time.monotonic() - began > START_S:
                raise SystemExit(f"{' '.join(command[:4])} ... does not listen on port {port}")
            time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


@contextmanager
def served(app: str, base: str | None = None, **variables: str) -> Iterator[Server]:
    """uvicorn with an application of this module."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", f"kernels.benchmarks.capture:{app}", "--port", str(port)]
    command += ["--factory"] if app == "Counted" else []
    command += ["--loop", "uvloop", "--http", "httptools", "--log-level", "error"]
    with listening(command, port, **variables) as process:
        yield Server(port, process, base)


@contextmanager
def envoy(program: Path, folder: Path, model: int, receiver: int | None) -> Iterator[Server]:
    """Envoy before the application, as the documentation's example has it; without a receiver it copies nothing."""
    port = free_port()
    document = yaml.safe_load((EXAMPLES / "envoy.yaml").read_text(encoding="utf-8"))
    listener, clusters = document["static_resources"]["listeners"][0], document["static_resources"]["clusters"]
    listener["address"]["socket_address"] |= {"address": "127.0.0.1", "port_value": port}
    ports = {"model": model, "shadowspec": receiver}
    for cluster in clusters:
        address = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
        address["socket_address"]["port_value"] = ports[cluster["name"]] or model
    if receiver is None:
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        manager["http_filters"] = manager["http_filters"][-1:]
        del manager["access_log"]
    file = folder / f"{port}.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    command = [str(program), "-c", str(file), "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
    with listening(command, port) as process:
        yield Server(port, process, None if receiver is None else "Envoy, without")


@contextmanager
def litellm(program: Path, folder: Path, model: int, **variables: str) -> Iterator[Server]:
    """LiteLLM's proxy before the application, as the documentation's example has it; without variables, no callback."""
    port = free_port()
    document = yaml.safe_load((EXAMPLES / "litellm.yaml").read_text(encoding="utf-8"))
    (example,) = document["model_list"]
    document["model_list"] = [
        {
            "model_name": f"answer-{answer_ms}",
            "litellm_params": example["litellm_params"] | {"api_base": f"http://127.0.0.1:{model}/{answer_ms}/v1"},
        }
        for answer_ms in ANSWERS_MS
    ]
    if not variables:
        del document["litellm_settings"]
    file = folder / f"{port}.yaml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    command = [str(program), "--config", str(file), "--host", "127.0.0.1", "--port", str(port)]
    with listening(command, port, **variables) as process:
        base = "LiteLLM, without" if variables else None
        yield Server(port, process, base, is_gateway=True, is_limited=True)


@contextmanager
def vllm(python: Path, **variables: str) -> Iterator[Server]:
    """vLLM with the bundled target; without variables, no middleware."""
    port = free_port()
    command = [str(python), *VLLM, "--port", str(port)]
    command += ["--middleware", "shadowspec.capture.asgi.Mirror"] if variables else []
    with listening(command, port, **variables) as process:
        yield Server(port, process, "vLLM, without" if variables else None, (None,), is_gateway=True, is_limited=True)


@contextmanager
def receiving(**variables: str) -> Iterator[int]:
    """The receiver of Envoy's access log; yields its port."""
    port = free_port()
    command = [sys.executable, "-m", "shadowspec.capture.envoy_log_service", f"127.0.0.1:{port}"]
    with listening(command, port, **variables):
        yield port


def give_way(process: int) -> None:
    """Have all threads of a process wait for those of others."""
    for thread in Path(f"/proc/{process}/task").iterdir():
        os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))


class Client:
    """Connections that are kept, and no more work for a request than writing and reading it."""

    def __init__(self, server: Server, answer_ms: int | None) -> None:
        self._port = server.port
        self._requests = [server.request(answer_ms, session) for session in range(50)]
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def call(self, due: float, number: int) -> float:
        """One request; the milliseconds from when it was due."""
        connection = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = connection
        writer.write(self._requests[number % len(self._requests)])
        answer = await reader.readuntil(END)
        if b" 200 OK" not in answer or b"[DONE]" not in answer:
            raise SystemExit(f"an answer is broken: {answer[:300]!r}")
        self._idle.append(connection)
        return (time.perf_counter() - due) * 1e3

    def close(self) -> None:
        """Close the connections."""
        for _, writer in self._idle:
            writer.close()


def cpu_s(process: int) -> float:
    """Processor time that a process and the living ones below it have taken."""
    top = psutil.Process(process)
    taken = [process.cpu_times() for process in (top, *top.children(recursive=True))]
    return sum(times.user + times.system for times in taken)


async def offer(server: Server, answer_ms: int | None, rate: float, seconds: float) -> list[float]:
    """The milliseconds of each request, in a turn."""
    client = Client(server, answer_ms)
    calls = []
    async for due, number in _dues(time.perf_counter(), rate, seconds):
        calls.append(asyncio.create_task(client.call(due, number)))
    times = list(await asyncio.gather(*calls))
    client.close()
    return times


async def borne(server: Server, answer_ms: int | None) -> tuple[int, float]:
    """Requests of some callers that each wait for their answer, in a turn, and how many that is a second."""
    client = Client(server, answer_ms)
    began = time.perf_counter()

    async def keep_calling() -> int:
        count = 0
        while time.perf_counter() - began < TURN_S:
            await client.call(time.perf_counter(), count)
            count += 1
        return count

    count = sum(await asyncio.gather(*(keep_calling() for _ in range(CALLERS))))
    client.close()
    return count, count / (time.perf_counter() - began)


async def _dues(began: float, rate: float, seconds: float) -> AsyncIterator[tuple[float, int]]:
    for number in range(int(rate * seconds)):
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        yield due, number


def measure(servers: dict[str, Server], rate: float, turns: int) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """A row of figures for each server and answer, and how many requests each server got."""
    asked, borne_by = dict.fromkeys(servers, 0), {}
    for name, server in servers.items():
        for _ in range(2 if server.is_limited else 0):  # the first warms up
            count, borne_by[name] = uvloop.run(borne(server, server.answers_ms[0]))
            asked[name] += count
    rates = {
        name: min(rate, MOST_OF_BORNE * borne_by.get(server.base or name, float("inf")))
        for name, server in servers.items()
    }
    of_each: dict[tuple[str, int | None], list[list[float]]] = {
        (name, answer_ms): [] for name, server in servers.items() for answer_ms in server.answers_ms
    }
    cpu = dict.fromkeys(of_each, 0.0)
    for number in range(turns + 1):
        for name, answer_ms in of_each:
            server = servers[name]
            before = cpu_s(server.process)
            times = uvloop.run(offer(server, answer_ms, rates[name], TURN_S))
            time.sleep(0.5)  # the last copies are sent
            asked[name] += len(times)
            if number:  # the first turn warms up
                of_each[name, answer_ms].append(times)
                cpu[name, answer_ms] += cpu_s(server.process) - before
        print(f"{', '.join(servers)}: turn {number} of {turns} is done", file=sys.stderr)
    medians = {each: [statistics.median(times) for times in of_turns] for each, of_turns in of_each.items()}
    rows = []
    for (name, answer_ms), of_turns in of_each.items():
        times = sorted(time_ms for turn in of_turns for time_ms in turn)
        base = medians[servers[name].base or name, answer_ms]
        ratios = [mine / plain for mine, plain in zip(medians[name, answer_ms], base, strict=True)]
        rows.append(
            {
                "server": name,
                "answer_ms": answer_ms,
                "offered_per_s": rates[name],
                "borne_per_s": borne_by.get(name),
                "p50_ms": statistics.median(times),
                "p99_ms": times[int(len(times) * 0.99)],
                "ratio_of_medians": statistics.median(ratios),
                "ratios": ratios,
                "cpu_ms_per_request": cpu[name, answer_ms] * 1e3 / len(times),
            }
        )
    return rows, asked


def main() -> None:
    """Measure, print, and write the results."""
    parser = options(__doc__, "capture.json")
    parser.add_argument("--rate", type=float, default=500.0, help="offered requests per second (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--envoy", type=Path, help="Envoy's program: compare it too")
    parser.add_argument("--litellm", type=Path, help="LiteLLM's program: compare it too")
    parser.add_argument("--vllm", type=Path, help="the Python of vLLM's environment: compare it too")
    arguments = parser.parse_args()
    topic_of: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    asked: dict[str, int] = {}
    with kafka_server() as broker, Topics(broker.bootstrap) as topics, tempfile.TemporaryDirectory() as made:
        give_way(broker.pid)
        folder = Path(made)

        def copying(name: str) -> dict[str, str]:
            """The variables with which the server of this name copies to a topic of its own."""
            topic_of[name] = topics.create(3)
            return {"SHADOWSPEC_CAPTURE_TOPIC": topic_of[name], "SHADOWSPEC_KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap}

        def add(servers: dict[str, Server]) -> None:
            """Measure servers, and keep the figures."""
            figures, counts = measure(servers, arguments.rate, arguments.turns)
            rows.extend(figures)
            asked.update(counts)

        with ExitStack() as stack:
            away = copying("broker away") | {
                "SHADOWSPEC_KAFKA_BOOTSTRAP_SERVERS": f"localhost:{free_port()}",
                "SHADOWSPEC_CAPTURE_MAX_WAITING_BYTES": str(4 * 1024 * 1024),
            }
            servers = {
                "without": stack.enter_context(served("answer")),
                "with": stack.enter_context(served("Counted", "without", **copying("with"))),
                "broker away": stack.enter_context(served("Counted", "without", **away)),
            }
            if arguments.envoy:
                receiver = stack.enter_context(receiving(**copying("Envoy, with")))
                for name, port in (("Envoy, without", None), ("Envoy, with", receiver)):
                    gateway = envoy(arguments.envoy, folder, servers["without"].port, port)
                    servers[name] = stack.enter_context(gateway)
            add(servers)
            load = os.getloadavg()[0]
            ports = {name: servers[name].port for name in ("with", "broker away")}
            copies = {name: httpx.get(f"http://127.0.0.1:{port}/").json() for name, port in ports.items()}
            time.sleep(2.0)  # Envoy flushes its log each second
        if arguments.litellm:
            with served("answer") as model:
                none = litellm(arguments.litellm, folder, model.port)
                some = litellm(arguments.litellm, folder, model.port, **copying("LiteLLM, with"))
                with none as plain, some as copied:
                    add({"LiteLLM, without": plain, "LiteLLM, with": copied})
        if arguments.vllm:
            with vllm(arguments.vllm) as plain, vllm(arguments.vllm, **copying("vLLM, with")) as copied:
                add({"vLLM, without": plain, "vLLM, with": copied})
        for name in set(topic_of) - set(copies):
            arrived = len(read_topic(broker.bootstrap, topic_of[name], "%o"))
            copies[name] = {"sent": arrived, "dropped": asked[name] - arrived}
    show("milliseconds", [{key: value for key, value in row.items() if key != "ratios"} for row in rows])
    document = {
        "offered_per_s": arguments.rate,
        "turns": arguments.turns,
        "turn_s": TURN_S,
        "requests": asked,
        "request_bytes": len(PROMPT),
        "chunks": NUM_PIECES,
        "load_of_machine": load,
        "machine": machine("kafka-python"),
        "results": rows,
        "copies": {name: {key: counts[key] for key in ("sent", "dropped")} for name, counts in copies.items()},
    }
    write(arguments.out, document)


if __name__ == "__main__":
    main()
