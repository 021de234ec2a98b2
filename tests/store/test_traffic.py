"""How much traffic each slice stood for lately: what promotion checks weigh slices and loads by."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from msgspec import structs

from shadowspec.store import SHARE_WINDOW, Store, Traffic
from shadowspec.types import Block, RecordKey, StoredRecord, WriteBatch
from tests.store import examples
from tests.store.examples import NOON


def measure(
    store: Store,
    slice_key: str,
    requests: int,
    at: datetime,
    *,
    rate: float = 1.0,
    load: int = 4,
    fingerprint: str = "fp",
) -> None:
    """A block of one slice, all of whose requests happened then."""
    name = f"{slice_key} {at} {load} {fingerprint}"
    result = examples.block(name, range(1, requests + 1), fingerprint=fingerprint)
    shape: Block = structs.replace(result.block, slice_key=slice_key, concurrency=load)
    runs = tuple(replace(run, key=run.key._replace(source=name)) for run in result.runs)
    records = tuple(
        StoredRecord(
            RecordKey(name, 0, line),
            examples.record(line).counter,
            None,
            "chat",
            slice_key,
            event_time=at,
            sampling_rate=rate,
        )
        for line in range(1, requests + 1)
    )
    store.save_fingerprints([examples.config(fingerprint)])
    store.save_batch(WriteBatch(blocks=((replace(result, block=shape, runs=runs), records),)), "test")


def test_requests_weigh_by_the_inverse_of_their_rate(store: Store) -> None:
    measure(store, "a=1", 3, NOON)
    measure(store, "a=2", 2, NOON + timedelta(minutes=59), rate=0.1)
    measure(store, "a=2", 1, NOON, load=8)
    measure(store, "a=1", 1, NOON, fingerprint="new")
    assert store.traffic("chat") == [
        Traffic("a=1", "fp", 4, 3.0, NOON, NOON),
        Traffic("a=1", "new", 4, 1.0, NOON, NOON),
        Traffic("a=2", "fp", 4, 20.0, NOON, NOON),
        Traffic("a=2", "fp", 8, 1.0, NOON, NOON),
    ]


def test_only_the_last_week_before_the_newest_hour_weighs(store: Store) -> None:
    measure(store, "a=1", 5, NOON - SHARE_WINDOW)
    measure(store, "a=1", 3, NOON - SHARE_WINDOW + timedelta(hours=1))
    measure(store, "a=2", 1, NOON)
    measure(store, "a=3", 1, NOON - 2 * SHARE_WINDOW)
    weights = {row.slice_key: (row.weight, row.newest_hour) for row in store.traffic("chat")}
    oldest = {"a=3": (0.0, NOON - 2 * SHARE_WINDOW)}
    assert weights == {"a=1": (3.0, NOON - SHARE_WINDOW + timedelta(hours=1)), "a=2": (1.0, NOON), **oldest}


def test_traffic_until_a_moment_is_what_it_was_then(store: Store) -> None:
    measure(store, "a=1", 5, NOON - SHARE_WINDOW)
    before = store.traffic("chat")
    measure(store, "a=1", 3, NOON)
    measure(store, "a=2", 1, NOON)
    assert store.traffic("chat", NOON) == before
    assert store.traffic("chat", NOON + timedelta(minutes=1)) == store.traffic("chat")
    assert store.traffic("chat", NOON - SHARE_WINDOW) == []


def test_an_endpoint_without_runs_has_none(store: Store) -> None:
    measure(store, "a=1", 1, NOON)
    assert store.traffic("other") == []
