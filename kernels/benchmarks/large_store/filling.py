"""Fills an empty store with the made-up world: rollups by COPY, everything else through the store's own writes."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
from sqlalchemy import text

from kernels.benchmarks.large_store.columns import set_next_number, write
from kernels.benchmarks.large_store.looks import History, history
from kernels.benchmarks.large_store.production import SPAN, newest_enabling, windows
from kernels.benchmarks.large_store.traffic import Hours, TrafficCell, is_measured, rollups
from kernels.benchmarks.large_store.units import SOURCE, MeasuredUnit
from kernels.benchmarks.large_store.world import SyntheticEndpoint, World, make_world
from shadowspec.errors import UsageError
from shadowspec.gate.run.state import FOLD_VERSION
from shadowspec.store import Store, session
from shadowspec.store import table_definitions as tables
from shadowspec.store.admin import schema
from shadowspec.types import (
    Advance,
    Block,
    BlockResult,
    Clearing,
    Fold,
    FunnelCounter,
    FunnelKey,
    Override,
    PartitionId,
    Span,
    Verdict,
    WriteBatch,
)

CONSUMER: Final = "synthetic"
AUTHOR: Final = "on-call (synthetic)"
RARE_READING: Final = timedelta(hours=1)  # of production, where it is not read at `Size.live_interval_s`
WINDOWS_AT_ONCE: Final = 5_000

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is made.  `num_runs` is the mean of a drawn total; `num_looks` the gate's, over all the days.

    `live_interval_s` is how often the production of one enabled endpoint was read; of the others it was once an hour.
    """

    num_slices: int = 200
    num_days: int = 90
    num_runs: int = 10_000_000
    num_looks: int = 90
    seed: int = 1
    live_interval_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Filled:
    """What was written."""

    num_runs: int
    num_rollups: int
    num_bins: int
    num_decisions: int
    num_raw_runs: int
    num_live_windows: int


def fill(url: str, size: Size, now: datetime, workers: int = 2) -> Filled:
    """Bring the database to this code's revision and fill it; its last hour ends at the last whole one before `now`.

    Raises:
        UsageError: the store holds something already.
        StoreError, ServiceUnavailableError: the database refuses, or cannot be reached.
    """
    schema.upgrade(url)
    world = make_world(size.num_slices, size.seed)
    end = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    start = end - timedelta(days=size.num_days)
    with Store.open(url) as store, ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        if store.endpoints() or store.fingerprints():
            raise UsageError("the store is not empty: synthetic data is never mixed with measured data")
        store.save_fingerprints([config for endpoint in world.endpoints for config in endpoint.fingerprints])
        drawn = [
            pool.submit(history, endpoint, place, world.policy, start, size.num_days, size.num_looks, size.seed)
            for place, endpoint in enumerate(world.endpoints)
        ]
        requests, counts = _write_rollups(url, world, Hours(start, size.num_days * 24), size)
        histories = [future.result() for future in drawn]
        num_raw_runs = _write_rows(store, world, histories, requests, end)
        num_decisions = _write_looks(store, world, histories, requests)
        _write_orders(store, world, end)
        num_live_windows = _write_production(store, world, histories, end, size)
    _analyze(url)
    return Filled(**counts, num_decisions=num_decisions, num_raw_runs=num_raw_runs, num_live_windows=num_live_windows)


def _write_rollups(url: str, world: World, hours: Hours, size: Size) -> tuple[dict[str, int], dict[str, int]]:
    """Requests by endpoint (a run of each config is made of one), and how much was written."""
    requests = {endpoint.name: 0 for endpoint in world.endpoints}
    num_runs = num_rollups = num_bins = 0
    engine = session.create_engine(session.parse_url(url))
    draw = np.random.default_rng([size.seed, 2])
    try:
        with session.write(engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
            for endpoint, cell, share in _cells(world, hours):
                for columns in rollups(cell, hours, share * size.num_runs / hours.number, num_rollups + 1, draw):
                    write(connection, columns)
                    if columns.table is tables.rollups:
                        number = int(np.asarray(columns.values["num_runs"]).sum())
                        num_runs, first_number = num_runs + number, num_rollups
                        num_rollups = first_number + columns.number
                        requests[endpoint.name] += number // len(endpoint.configs)
                    num_bins += columns.number if columns.table is tables.rollup_bins else 0
                log.info("%s %s: %d runs so far", endpoint.name, cell.slice_world.key, num_runs)
            set_next_number(connection, tables.rollups, "rollup_id")
    finally:
        engine.dispose()
    return requests, {"num_runs": num_runs, "num_rollups": num_rollups, "num_bins": num_bins}


def _cells(world: World, hours: Hours) -> Iterator[tuple[SyntheticEndpoint, TrafficCell, float]]:
    """Every stretch of rollups, with its share of all runs."""
    cells = [
        (endpoint, TrafficCell(endpoint, synthetic, load, versions, config), synthetic.weight / len(endpoint.loads))
        for endpoint in world.endpoints
        for synthetic in endpoint.slices
        for load in endpoint.loads
        for versions in endpoint.configs
        for config in versions
    ]
    # Versions of one config follow each other, so that together they have the share of one.
    profile = hours.profile
    there = {endpoint.name: float((profile * is_measured(endpoint, hours)).mean()) for endpoint in world.endpoints}
    total = sum(weight * there[endpoint.name] / len(cell.versions) for endpoint, cell, weight in cells)
    for endpoint, cell, weight in cells:
        yield endpoint, cell, weight / total


def _write_rows(
    store: Store, world: World, histories: Sequence[History], requests: Mapping[str, int], end: datetime
) -> int:
    """The last day's records, blocks and runs, the funnel and the ledger; the runs written."""
    num_runs = 0
    for place, (endpoint, looks) in enumerate(zip(world.endpoints, histories, strict=True)):
        funnel = _funnel(endpoint, requests[endpoint.name])
        number = sum(funnel.values())
        advance = Advance(
            partition=PartitionId(SOURCE, place),
            expected=None,
            next_offset=max(number, looks.next_offset),
            num_messages=number,
            funnel=funnel,
            watermark=end - timedelta(days=5 if endpoint.is_stale else 0),
        )
        blocks = tuple((_result(unit), unit.records) for unit in looks.last_blocks)
        num_runs += store.save_batch(WriteBatch(blocks=blocks, advances=(advance,)), CONSUMER).num_new_runs
    return num_runs


def _result(measured: MeasuredUnit) -> BlockResult:
    stored_block = measured.block
    block = Block(
        stored_block.block_id,
        stored_block.sequence,
        stored_block.endpoint,
        stored_block.slice_key,
        stored_block.concurrency,
        (),
        (),
        stored_block.first_arm,
    )
    return BlockResult(block, stored_block.started_at, measured.runs, stored_block.memory)


def _funnel(endpoint: SyntheticEndpoint, num_measured: int) -> dict[FunnelKey, int]:
    """Where the endpoint's records ended, as the shares of a busy mirror have it."""
    sampled_out = round(num_measured * (1.0 / endpoint.sample_rate - 1.0))
    consumed = num_measured + sampled_out
    shares = {
        (endpoint.name, FunnelCounter.FAILED, "time_out"): 0.002,
        (endpoint.name, FunnelCounter.SHED, "overload"): 0.01,
        (endpoint.name, FunnelCounter.UNSUPPORTED, "image_content"): 0.015,
        (endpoint.name, FunnelCounter.UNSUPPORTED, "logit_bias"): 0.004,
        (endpoint.name, FunnelCounter.DUPLICATE, None): 0.001,
        (endpoint.name, FunnelCounter.EXPIRED, None): 0.0005,
        (None, FunnelCounter.MALFORMED, "not_json"): 0.0004,
    }
    funnel: dict[FunnelKey, int] = {
        (endpoint.name, FunnelCounter.MEASURED, None): num_measured,
        (endpoint.name, FunnelCounter.SAMPLED_OUT, "not_sampled"): sampled_out,
    }
    return funnel | {key: round(share * consumed) for key, share in shares.items()}


def _write_looks(store: Store, world: World, histories: Sequence[History], requests: Mapping[str, int]) -> int:
    """Folds, decisions and rollouts in the order of time, the evidence with the last of each; the decisions written."""
    looks = sorted(
        (
            (look.at, place, number)
            for place, own_history in enumerate(histories)
            for number, look in enumerate(own_history.looks)
        )
    )
    ends = {
        place: max(
            sum(_funnel(world.endpoints[place], requests[own_history.endpoint]).values()), own_history.next_offset
        )
        for place, own_history in enumerate(histories)
    }
    num_decisions = 0
    for _, place, number in looks:
        history = histories[place]
        look, last = history.looks[number], len(history.looks) - 1
        until = ends[place] if number == last else ends[place] * (number + 1) // (last + 1)
        after = Span(SOURCE, place, 0, until)
        fold = Fold(
            spans=(Span(SOURCE, place, ends[place] * number // (last + 1), until),),
            closed_by=look.at,
            num_records=look.num_records,
            num_runs=look.num_runs,
            parameters={"version": FOLD_VERSION, **asdict(world.policy)},
            folded_at=look.at,
        )
        with store.evidence_session(history.endpoint) as evidence:
            if number == last:
                evidence.save_evidence(history.evidence)
            fold_id = evidence.append(fold, look.document, (after,))
            num_decisions += len(evidence.append_decisions(look.decisions, fold_id))
        if look.rollouts:
            store.append_rollouts(look.rollouts)
    return num_decisions


def _write_orders(store: Store, world: World, end: datetime) -> None:
    """An override in force on one slice, one that was cleared, one that ran out."""
    first, second = world.endpoints[0], world.endpoints[-1]
    order = Override(0, first.name, first.slices[0].key, None, Verdict.DISABLE, "", AUTHOR, end - timedelta(hours=5))
    store.add_override(_reason(order, "customers report slow first tokens"))
    earlier = Override(0, second.name, "", None, Verdict.DISABLE, "", AUTHOR, end - timedelta(days=20))
    number = store.add_override(_reason(earlier, "driver update on the serving nodes"))
    store.clear_override(Clearing(number, "the update is done", AUTHOR, end - timedelta(days=19)))
    old = Override(
        0, second.name, "", None, Verdict.HOLD, "", AUTHOR, end - timedelta(days=40), end - timedelta(days=39)
    )
    store.add_override(_reason(old, "load test"))


def _write_production(store: Store, world: World, histories: Sequence[History], end: datetime, size: Size) -> int:
    """What the engines of every enabled endpoint counted around its newest enabling whose time after it is whole."""
    enablings = [(newest_enabling(history, end - SPAN), place) for place, history in enumerate(histories)]
    enabled = sorted(((at, place) for at, place in enablings if at is not None), reverse=True)
    draw = np.random.default_rng([size.seed, 3])
    total = 0
    for number, (at, place) in enumerate(enabled):
        endpoint = world.endpoints[place]
        step = RARE_READING if number else timedelta(seconds=size.live_interval_s)
        live_windows = windows(endpoint, at, step, draw)
        with store.live_session(endpoint.name) as session:
            for start in range(0, len(live_windows), WINDOWS_AT_ONCE):
                total += session.keep([], live_windows[start : start + WINDOWS_AT_ONCE])
    return total


def _reason(order: Override, reason: str) -> Override:
    return Override(**{**asdict(order), "reason": f"{reason} (synthetic)"})


def _analyze(url: str) -> None:
    """Let the planner know what is there; a store that grew over months has been analyzed many times."""
    engine = session.create_engine(session.parse_url(url))
    try:
        is_postgres = engine.dialect.name == "postgresql"
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            if is_postgres:
                connection.execute(text(f"SET statement_timeout = '{session.LONG_TIMEOUT_S}s'"))
            connection.execute(text("VACUUM ANALYZE" if is_postgres else "ANALYZE"))
    finally:
        engine.dispose()
