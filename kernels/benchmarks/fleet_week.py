"""Hold what `plan --fleet` says of a week against a simulated one: fifty endpoints, the worker's tap and scheduler.

    make bench NAME=fleet_week

Requests of a daily cycle go through the worker's pipeline (admission, the budget of blocks, `BlockFormer`), and its
blocks through the worker's `Supervisor` to engine processes on a simulated clock: the devices, and pairs of servers
that several endpoints share.  Nothing else is simulated but the time of a block and its outcomes.  The worker begins
with one device.  What it has stored after two days, in SQLite, is folded by the gate, and the plan is made of
it.  The week is then run with the devices that the plan wants.  No verdict changes a sampling rate.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from heapq import merge
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from kernels.benchmarks.harness import configuration, options, show, write
from shadowspec.app.fleet_plans import FleetDocument, plan_fleet
from shadowspec.app.serve_worker import engine_factories
from shadowspec.config import Config, load_config
from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.simulate.rows import CONFIG, MEMORY, measured_run
from shadowspec.simulate.traffic import DAY_S, START
from shadowspec.store import Store, upgrade
from shadowspec.tap.admission import Admission
from shadowspec.tap.blocks import BlockFormer
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.joining import DEFAULT_WINDOW, Joiner
from shadowspec.tap.sources import RawRecord
from shadowspec.types import Block, BlockResult, PartitionId, RecordKey
from shadowspec.worker.engine_process import EngineFactory, EngineProcess, Event, Ready
from shadowspec.worker.pipeline import Pipeline
from shadowspec.worker.supervisor import Supervisor
from tests.fakes import FakeTokenizer

PLANNED_AFTER_DAYS, DAYS = 2, 7
PARTITION = PartitionId("simulated", 0)
SECRET = b"a secret for simulated traffic"
SESSION_GAP_S = 300.0  # a request continues a session this old or younger with a chance of a half
DAILY_SWING = 0.8  # of the rate about its mean
BLOCK_NOISE = 0.3  # standard deviation of the logarithm of a block's seconds
WRITE_EVERY = 2_000  # finished records


@dataclass(frozen=True, slots=True)
class SimulatedEndpoint:
    """An endpoint's traffic and costs; `pair` is the pair of servers that measures it (None: the devices)."""

    name: str
    per_hour: float
    peak_s: float  # of the day
    slice_shares: tuple[float, ...]
    loads: tuple[int, ...]
    block_s: float
    pair: int | None


def draw_fleet(number: int, num_pairs: int, seed: int) -> list[SimulatedEndpoint]:
    """Of 1 to 500 requests an hour, most of them few; pairs of servers measure a fifth, the devices the others."""
    rng = np.random.default_rng([seed, number])
    served = number // 5
    fleet = []
    for index in range(number):
        shares = rng.dirichlet([2.0] * int(rng.integers(1, 5)))
        fleet.append(
            SimulatedEndpoint(
                name=f"e{index:02d}",
                per_hour=float(500.0 ** rng.uniform() ** 2),
                peak_s=float(rng.uniform(0.0, DAY_S)),
                slice_shares=tuple(shares.tolist()),
                loads=(4, 8)[: int(rng.integers(1, 3))],
                block_s=float(np.exp(rng.uniform(math.log(5.0), math.log(120.0)))),
                pair=index % num_pairs if index < served else None,
            )
        )
    return fleet


def write_config(fleet: Sequence[SimulatedEndpoint], folder: Path, num_devices: int) -> Config:
    """The configuration of a fleet; its models and servers need not exist."""
    (folder / "secret").write_bytes(SECRET)
    devices = ", ".join(f'"cuda:{number}"' for number in range(num_devices))
    parts = [configuration("fleet.toml").format(folder=folder, devices=devices)]
    for endpoint in fleet:
        loads = ", ".join(f"{{ concurrency = {load} }}" for load in endpoint.loads)
        engine, servers = "", ""
        if endpoint.pair is not None:
            engine = 'engine = "openai"\n'
            servers = configuration("fleet-servers.toml").format(name=endpoint.name, pair=endpoint.pair)
        parts.append(configuration("fleet-endpoint.toml").format(name=endpoint.name, loads=loads, engine=engine))
        parts.append(servers)
    path = folder / "shadowspec.toml"
    path.write_text("".join(parts), encoding="utf-8")
    return load_config(path, environment={})


def draw_requests(endpoint: SimulatedEndpoint, days: float, seed: int) -> Iterator[tuple[float, bytes]]:
    """Seconds after the start, and the mirrored message, in order."""
    rng = np.random.default_rng([seed, int(endpoint.name[1:])])
    number = int(rng.poisson(endpoint.per_hour * days * 24.0 * (1.0 + DAILY_SWING)))
    at_s = np.sort(rng.uniform(0.0, days * DAY_S, number))
    day = np.cos((at_s - endpoint.peak_s) / DAY_S * 2.0 * math.pi)
    at_s = at_s[rng.random(number) < (1.0 + DAILY_SWING * day) / (1.0 + DAILY_SWING)]
    draws = zip(
        at_s.tolist(), rng.choice(len(endpoint.slice_shares), len(at_s), p=endpoint.slice_shares).tolist(),
        rng.random(len(at_s)).tolist(), strict=True,
    )  # fmt: skip
    session, session_slice, newest_s = -1, 0, -math.inf
    for request, (seconds, slice_index, draw) in enumerate(draws):
        if draw < 0.5 or seconds - newest_s > SESSION_GAP_S:
            session, session_slice = session + 1, slice_index
        newest_s = seconds
        record = {
            "timestamp": START.timestamp() + seconds,
            "session_id": f"{endpoint.name}-{session}",
            "request_id": f"{endpoint.name}-{request}",
            "path": "/v1/completions",
            "metadata": {"tier": f"t{session_slice}"},
            "request": {"model": endpoint.name, "prompt": "a prompt", "max_tokens": 8, "temperature": 0.0},
        }
        yield seconds, json.dumps(record).encode()


@dataclass(slots=True)
class Clock:
    """Simulated seconds since the start."""

    now_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """A block: when it was formed and when it began, on the simulated clock, and the time that it took."""

    endpoint: str
    formed_s: float
    began_s: float
    seconds: float


class SimulatedProcess(EngineProcess):
    """Measures the blocks that it is given one after the other, in the time that they take on the simulated clock."""

    def __init__(self, factory: EngineFactory, name: str, week: Week) -> None:
        super().__init__(factory, name)
        self._endpoints, self._week = factory.endpoints, week
        self._in_hand: deque[tuple[float, BlockResult]] = deque()  # with the time of its end
        self._events: list[Event] = []

    def start(self) -> None:
        self._events.append(Ready(dict.fromkeys(self._endpoints, (CONFIG,)), "simulated"))

    def submit(self, block: Block) -> None:
        began_s = self._in_hand[-1][0] if self._in_hand else self._week.clock.now_s
        result = self._week.measure(block, began_s)
        assert result.seconds is not None
        self._in_hand.append((began_s + result.seconds, result))

    @property
    def next_end_s(self) -> float:
        """When the block ends that is being measured; infinite without one."""
        return self._in_hand[0][0] if self._in_hand else math.inf

    def poll(self) -> list[Event]:
        events, self._events = self._events, []
        while self.next_end_s <= self._week.clock.now_s:
            events.append(self._in_hand.popleft()[1])
        return events

    def stop(self, timeout_s: float) -> list[Event]:
        return []


class Week:
    """A worker over simulated traffic; `measured` has the blocks that began."""

    def __init__(self, config: Config, fleet: Sequence[SimulatedEndpoint], store: Store, seed: int) -> None:
        self.clock = Clock()
        self.measured: list[Measured] = []
        self._fleet = {endpoint.name: endpoint for endpoint in fleet}
        self._store, self._seed = store, seed
        self._formed_s: dict[str, float] = {}
        rules = [endpoint.rule for endpoint in config.endpoints.values()]
        admission = Admission(rules, dict.fromkeys(config.endpoints, FakeTokenizer()), KeyedHash(SECRET))
        self._pipeline = Pipeline(admission, BlockFormer(rules), joiner=Joiner(DEFAULT_WINDOW))
        self._pipeline.start(PARTITION, None, {})
        self._processes: list[SimulatedProcess] = []
        self._supervisor = Supervisor(engine_factories(config), store, config.worker, new_process=self._new_process)
        store.save_fingerprints([CONFIG])

    def run(self, days: float, stored_days: float = 0.0) -> float:
        """Work off this much traffic, but for no longer; what is finished in `stored_days` is stored.

        Returns:
            The days of event time that were taken in.
        """
        end_s, at_s = days * DAY_S, 0.0
        with self._supervisor:
            self._supervisor.step()
            traffic = merge(*(draw_requests(endpoint, days, self._seed) for endpoint in self._fleet.values()))
            for offset, (at_s, message) in enumerate(traffic):
                self._pass_to(at_s)
                key = RecordKey(
                    PARTITION.source, PARTITION.partition, offset, round(1_000 * (START.timestamp() + at_s))
                )
                self._pipeline.take(RawRecord(key, message))
                for block in self._pipeline.ready:
                    self._formed_s.setdefault(block.block_id, at_s)
                if self._pipeline.ready:
                    self._give()
                while self._pipeline.ready and self.clock.now_s < end_s:  # a queue is full: the partition is paused
                    self._pass_to(min(self._next_end_s, end_s))
                if self._pipeline.outbox.num_finished >= WRITE_EVERY:
                    self._write(self.clock.now_s < stored_days * DAY_S)
                if self.clock.now_s >= end_s:
                    break
            self._write(stored_days >= days)
        return at_s / DAY_S

    @property
    def _next_end_s(self) -> float:
        return min(process.next_end_s for process in self._processes)

    def _pass_to(self, to_s: float) -> None:
        """Let time pass, and the worker take back what ends meanwhile."""
        while self._next_end_s <= to_s:
            self.clock.now_s = self._next_end_s
            self._give()
        self.clock.now_s = max(self.clock.now_s, to_s)

    def _give(self) -> None:
        """Two turns of the worker, which has many during a block: the second fills the queue that the first emptied."""
        for _ in range(2):
            self._supervisor.take_from(self._pipeline.ready)
            for outcome in self._supervisor.step():
                self._pipeline.finish(outcome.result)

    def _write(self, is_stored: bool) -> None:
        batch = self._pipeline.outbox.batch()
        if batch is not None:
            if is_stored:
                self._store.save_batch(batch, "fleet")
            self._pipeline.outbox.settle()

    def _new_process(self, factory: EngineFactory, name: str) -> SimulatedProcess:
        self._processes.append(SimulatedProcess(factory, name, self))
        return self._processes[-1]

    def measure(self, block: Block, began_s: float) -> BlockResult:
        """The block's result, which depends on the block alone."""
        rng = np.random.default_rng([self._seed, int(block.block_id[:15], 16)])
        endpoint = self._fleet[block.endpoint]
        seconds = endpoint.block_s * float(np.exp(rng.normal(-(BLOCK_NOISE**2) / 2.0, BLOCK_NOISE)))
        runs = []
        for prompt in block.requests:
            num_drafts = 1 + int(rng.poisson(29.0))
            log_speedup, baseline_ms = float(rng.normal(0.25, 0.1)), 300.0 * seconds
            run = measured_run(
                prompt.key, CONFIG.fingerprint, block.block_id, log_speedup, baseline_ms, num_drafts,
                int(rng.binomial(num_drafts, 0.65)),
            )  # fmt: skip
            runs.append(run)
        self.measured.append(Measured(block.endpoint, self._formed_s.pop(block.block_id), began_s, seconds))
        started_at = START + timedelta(seconds=began_s)
        return BlockResult(block, started_at, tuple(runs), {CONFIG.fingerprint: MEMORY}, seconds=seconds)


def simulate(
    fleet: Sequence[SimulatedEndpoint],
    folder: Path,
    seed: int,
    *,
    num_devices: int,
    days: float,
    stored_days: float = 0.0,
) -> tuple[Week, Config, float]:
    """A worker's time over a fleet; the days of event time that it took in."""
    config = write_config(fleet, folder, num_devices)
    upgrade(config.database_url)
    with Store.open(config.database_url) as store:
        week = Week(config, fleet, store, seed)
        taken_days = week.run(days, stored_days)
    return week, config, taken_days


def plan_after(
    fleet: Sequence[SimulatedEndpoint], folder: Path, seed: int, *, num_devices: int, days: float
) -> tuple[FleetDocument, float]:
    """What `plan --fleet` says of the blocks that a worker has stored after some days, when the gate has run; and the
    days of event time that the worker took in."""
    _, config, taken_days = simulate(fleet, folder, seed, num_devices=num_devices, days=days, stored_days=days)
    with Store.open(config.database_url) as store:
        for name, endpoint in config.endpoints.items():
            run_endpoint_gate(store, name, endpoint.policy, now=START + timedelta(days=days))
    return plan_fleet(config), taken_days


def compare(plan: FleetDocument, week: Week, days: float) -> dict[str, Any]:
    """The plan's device hours and waits beside the simulated ones."""
    hours, waits = defaultdict[str, float](float), defaultdict[str, list[float]](list)
    for block in week.measured:
        hours[block.endpoint] += block.seconds / 3_600.0
        waits[block.endpoint].append(block.began_s - block.formed_s)
    endpoints: list[dict[str, Any]] = [
        {
            "endpoint": row.endpoint,
            "measured_by": row.measured_by,
            "blocks": len(waits[row.endpoint]),
            "device_hours_planned": (row.device_hours_per_week or 0.0) * days / 7.0,
            "device_hours_simulated": hours[row.endpoint],
            "seconds_p90": row.seconds_p90,
        }
        for row in plan.endpoints
    ]
    groups = []
    for group in plan.groups:
        of_group = [entry for entry in endpoints if entry["endpoint"] in group.endpoints]
        planned, simulated = (
            sum(entry[f"device_hours_{what}"] for entry in of_group) for what in ("planned", "simulated")
        )
        groups.append(
            {
                "measured_by": group.measured_by,
                "endpoints": len(of_group),
                "busy_share_planned": group.busy_share,
                "engines_needed": group.engines_needed,
                "device_hours_planned": planned,
                "device_hours_simulated": simulated,
                "planned_over_simulated": planned / simulated,
                "block_wait_s_planned": group.block_wait_s,
                "block_wait_s_simulated": fmean(wait for name in group.endpoints for wait in waits[name]),
            }
        )
    planned, simulated = (
        sum(entry[f"device_hours_{what}"] for entry in endpoints) for what in ("planned", "simulated")
    )
    off = [abs(math.log(entry["device_hours_planned"] / entry["device_hours_simulated"])) for entry in endpoints]
    return {
        "device_hours_planned": planned,
        "device_hours_simulated": simulated,
        "planned_over_simulated": planned / simulated,
        "endpoint_off_median": math.expm1(median(off)),
        "endpoint_off_max": math.expm1(max(off)),
        "groups": groups,
        "endpoints": endpoints,
    }


def main() -> None:
    """Print the figures and keep them."""
    parser = options(__doc__, "fleet_week.json")
    parser.add_argument("--endpoints", type=int, default=50)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    fleet, seed = draw_fleet(arguments.endpoints, arguments.pairs, arguments.seed), arguments.seed
    with TemporaryDirectory() as name:
        planning, enough = (Path(name) / part for part in ("planning", "enough"))
        for folder in (planning, enough):
            folder.mkdir()
        plan, taken = plan_after(fleet, planning, seed, num_devices=1, days=PLANNED_AFTER_DAYS)
        found = {"seed": seed, "days_planned_from": PLANNED_AFTER_DAYS, "days_taken_in_by_one_device": taken}
        (devices,) = [group.engines_needed for group in plan.groups if not group.is_served]
        assert devices is not None
        week, _, taken = simulate(fleet, enough, seed, num_devices=devices, days=DAYS)
        found |= {"devices_planned": devices, "days": DAYS, "days_taken_in": taken} | compare(plan, week, DAYS)
    show("groups", found["groups"])
    print({name: value for name, value in found.items() if not isinstance(value, list)})
    write(arguments.out, found)


if __name__ == "__main__":
    main()
