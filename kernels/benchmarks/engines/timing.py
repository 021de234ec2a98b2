"""Servers timed beside each other: the same queues of requests through each, one server at a time, the others stopped.

A portion holds one block of every slice and load for a deployment and two for its baseline, before and after it; so
drift that is even is in both, and what is not shows in the baseline's own difference.  Right before and right after
each block go requests that costs are taken from.  Portions are kept in the folder and not timed again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from rich.console import Console

from kernels.benchmarks.engines.collecting import WARM_TOKENS, Answered, Prompt, ask_server, server_requests
from kernels.benchmarks.engines.counted import Counted
from kernels.benchmarks.engines.ours import Ours
from kernels.benchmarks.engines.predicting import Place, Steps, TimedBlock, TimedRequest
from kernels.benchmarks.engines.servers import Server
from kernels.benchmarks.engines.ways import Way
from shadowspec.servers.stream import Completion

CONCURRENCIES = (1, 8)
REQUESTS_PER_SLOT = {1: 4, 8: 2}
COST_REQUESTS = {1: 6, 8: 12}  # of all slices together, at each load: before a block, and as many after it
IN_PROCESS = "-in-process"
SETTLING_S = 0.5  # after a change: threads spin for milliseconds after a pass


@dataclass(frozen=True, slots=True)
class Queue:
    """Requests that go through every server together."""

    slice: str
    concurrency: int
    prompts: tuple[Prompt, ...]
    around: tuple[tuple[Prompt, ...], tuple[Prompt, ...]] = ((), ())  # what costs are taken from: before and after

    @property
    def cell(self) -> tuple[str, int]:
        """What is predicted and measured, but for K."""
        return self.slice, self.concurrency


def queues(by_slice: dict[str, Sequence[Prompt]], for_costs: dict[str, Sequence[Prompt]], number: int) -> list[Queue]:
    """What a portion sends: for each slice and load its next prompts, between prompts of all slices for the costs."""

    def mixed(load: int, turn: int) -> tuple[Prompt, ...]:
        share = COST_REQUESTS[load] // len(for_costs)
        rows = zip(*(next_of(prompts, share, turn) for prompts in for_costs.values()), strict=True)
        return tuple(prompt for row in rows for prompt in row)

    return [
        Queue(
            name,
            load,
            next_of(prompts, load * REQUESTS_PER_SLOT[load], number),
            (mixed(load, 2 * number), mixed(load, 2 * number + 1)),
        )
        for name, prompts in by_slice.items()
        for load in CONCURRENCIES
    ]


def next_of(prompts: Sequence[Prompt], count: int, number: int) -> tuple[Prompt, ...]:
    """The `number`-th run of so many prompts, round and round."""
    return tuple(prompts[(number * count + place) % len(prompts)] for place in range(count))


@dataclass(frozen=True, slots=True)
class ServerTurn:
    """Of a server, in a portion."""

    place: int  # among the turns on these queues
    depth: int
    number: int  # of the portion


def timed_name(way: Way, depth: int) -> str:
    """Of what is timed together: a deployment beside its baseline."""
    return f"{way.name}-k{depth}"


def timed_file(folder: Path, name: str, number: int) -> Path:
    """Where a portion is kept."""
    return folder / f"timed-{name}-{number}.json"


def keep_portion(folder: Path, name: str, number: int, blocks: Sequence[TimedBlock], idle: float) -> None:
    """Write a portion; `idle` is the most that anybody else took of a processor meanwhile."""
    document = {"idle_cpu_share": idle, "blocks": [asdict(block) for block in blocks]}
    timed_file(folder, name, number).write_text(json.dumps(document) + "\n", encoding="utf-8")


def missing_portions(folder: Path, name: str, portions: Sequence[Sequence[Queue]]) -> list[int]:
    """Numbers of the portions that are not there yet."""
    return [number for number in range(len(portions)) if not timed_file(folder, name, number).exists()]


def time_servers(
    folder: Path, way: Way, servers: Mapping[int, Server], portions: Sequence[Sequence[Queue]], max_tokens: int
) -> None:
    """Time the portions that are not there yet on stopped servers: the baseline (0) and one with drafts, by K."""
    name = timed_name(way, max(servers))
    for number in missing_portions(folder, name, portions):
        Console(stderr=True).print(f"{name}: portion {number}")
        blocks, idle = _portion(servers, way, portions[number], number, max_tokens)
        keep_portion(folder, name, number, blocks, idle)


def time_ours(
    folder: Path, ours: Ours, way: Way, depth: int, portions: Sequence[Sequence[Queue]], max_tokens: int
) -> None:
    """The same portions through the engine in this process."""
    name = timed_name(way, depth) + IN_PROCESS
    for number in missing_portions(folder, name, portions):
        Console(stderr=True).print(f"{name}: portion {number}")
        blocks = []
        for place, queue in enumerate(portions[number]):
            for at in (0, depth) if (number + place) % 2 else (depth, 0):
                ours.queue(way, at, queue.prompts[:1], 1, WARM_TOKENS)
                timed = ours.queue(way, at, queue.prompts, queue.concurrency, max_tokens)
                blocks.append(TimedBlock(Place(queue.concurrency, at), queue.slice, number, timed))
        keep_portion(folder, name, number, blocks, 0.0)


def _portion(
    servers: Mapping[int, Server], way: Way, every: Sequence[Queue], number: int, max_tokens: int
) -> tuple[list[TimedBlock], float]:
    """Every queue through the baseline, the others and the baseline again, slice by slice; and the most that stopped
    servers took of a processor.
    """
    rows: list[TimedBlock] = []
    idle = 0.0
    for name in dict.fromkeys(queue.slice for queue in every):
        queues = [queue for queue in every if queue.slice == name]
        for turn, depth in enumerate((*servers, 0)):
            others = [server for other, server in servers.items() if other != depth]
            used, began = [server.processor_s() for server in others], time.perf_counter()
            rows += _through(servers[depth], way, queues, ServerTurn(turn, depth, number), max_tokens)
            spent = sum(server.processor_s() - before for server, before in zip(others, used, strict=True))
            idle = max(idle, spent / (time.perf_counter() - began))
    return rows, idle


def _through(server: Server, way: Way, queues: Sequence[Queue], turn: ServerTurn, max_tokens: int) -> list[TimedBlock]:
    """Queues through one server, after a few untimed tokens."""
    server.resume()
    try:
        warm = replace(way.sampling, max_tokens=WARM_TOKENS)
        slots = max(queue.concurrency for queue in queues)
        first = [queue.prompts[0] for queue in queues for _ in range(slots)]
        ask_server(server.url, server_requests(first, warm, 0), slots)
        time.sleep(SETTLING_S)
        sampling = replace(way.sampling, max_tokens=max_tokens)
        course = 1_000 + 10 * turn.number + turn.depth
        blocks = []
        for queue in queues:
            before, after = queue.around
            for prompts, is_for_costs in ((before, True), (queue.prompts, False), (after, True)):
                answers = ask_server(server.url, server_requests(prompts, sampling, course), queue.concurrency)
                timed = tuple(
                    timed_request(prompt, answer, turn.depth, way)
                    for prompt, answer in zip(prompts, answers, strict=True)
                )
                place = Place(queue.concurrency, turn.depth)
                blocks.append(TimedBlock(place, queue.slice, turn.number, timed, turn.place, is_for_costs))
        return blocks
    finally:
        server.pause()


def timed_request(prompt: Prompt, answer: Completion, depth: int, way: Way) -> TimedRequest:
    """One answer with its steps."""
    if depth:
        drafts_always = not way.is_lookup
        counts = Counted.of_server(Answered.of(answer), len(prompt), depth, drafts_always=drafts_always).counts
        steps = Steps(len(prompt), counts.num_plain_steps, counts.num_drafts)
    else:
        steps = Steps(len(prompt), answer.num_output_tokens - 1, 0)
    return TimedRequest(
        steps, 1e3 * (answer.first_token_s - answer.sent_s), 1e3 * (answer.last_token_s - answer.first_token_s)
    )


def timed_blocks(folder: Path, name: str) -> tuple[list[TimedBlock], float]:
    """All portions under a name, and the largest share of a processor that a stopped server took."""
    blocks: list[TimedBlock] = []
    idle = 0.0
    for path in sorted(folder.glob(f"timed-{name}-[0-9]*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        blocks += [_block(values) for values in document["blocks"]]
        idle = max(idle, document["idle_cpu_share"])
    return blocks, idle


def _block(values: dict[str, Any]) -> TimedBlock:
    requests = tuple(
        TimedRequest(Steps(**request["steps"]), request["prefill_ms"], request["decode_ms"])
        for request in values["requests"]
    )
    return TimedBlock(**values | {"place": Place(*values["place"]), "requests": requests})
