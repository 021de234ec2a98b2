"""A world's rows written to a database piece by piece, as a worker writes them, and decisions compared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

import pytest

from shadowspec.store import Store
from shadowspec.types import (
    Advance,
    Block,
    BlockResult,
    Decision,
    FingerprintedConfig,
    PartitionId,
    StoredRecord,
    WriteBatch,
)
from shadowspec.types.decision_documents import shown_details, shown_test_details
from tests.gate.oracle import EndpointEvidence
from tests.gate.worlds import CONFIG, ENDPOINT, MEMORY


class Feed:
    """Writes a world in the order of its offsets, with the ledger's steps."""

    def __init__(
        self, store: Store, world: EndpointEvidence, configs: Sequence[FingerprintedConfig] = (CONFIG,)
    ) -> None:
        self.store, self.world = store, world
        self._memory = {config.fingerprint: MEMORY for config in configs}
        self._places: dict[int, int] = {}
        self._watermark: datetime | None = None
        self.written: list[StoredRecord] = []
        store.save_fingerprints(list(configs))

    def write_blocks(self, start: int, stop: int, *, is_last: bool = False) -> EndpointEvidence:
        """Write these blocks with the records of their sessions; all that is written by now."""
        blocks = self.world.blocks[start:stop]
        ids = {block.block_id for block in blocks}
        runs = [run for run in self.world.runs if run.block_id in ids]
        offsets = {run.key.offset for run in runs}
        records = [r for r in self.world.records if _session(r) in offsets]
        self.write(records, ids, is_last=is_last)
        return self.so_far()

    def write(self, records: Sequence[StoredRecord], block_ids: set[str], *, is_last: bool = False) -> None:
        """Write records, and the blocks that are named, in one transaction."""
        by_key = {record.key: record for record in records}
        blocks = []
        for stored in self.world.blocks:
            if stored.block_id in block_ids:
                runs = tuple(run for run in self.world.runs if run.block_id == stored.block_id)
                block = Block(
                    *(stored.block_id, stored.sequence, ENDPOINT, stored.slice_key, stored.concurrency, (), ()),
                    stored.first_arm,
                )
                result = BlockResult(block, stored.started_at, runs, self._memory)
                keys = dict.fromkeys(run.key for run in runs)
                blocks.append((result, tuple(self._record(key) for key in keys)))
        measured = {run.key for result, _ in blocks for run in result.runs}
        rest = tuple(record for record in records if record.key not in measured)
        times = [record.event_time for record in records if record.event_time is not None]
        self._watermark = max([*times, *([self._watermark] if self._watermark else [])], default=None)
        advances = []
        for partition in sorted({key.partition for key in by_key} | (set(self._places) if is_last else set())):
            mine = [record for record in records if record.key.partition == partition]
            funnel = Counter((record.endpoint, record.counter, record.reason) for record in mine)
            before = self._places.get(partition)
            after = max([record.key.offset + 1 for record in mine], default=before or 0)
            self._places[partition] = max(after, before or 0)
            advances.append(
                Advance(
                    PartitionId("file", partition),
                    before,
                    self._places[partition],
                    len(mine),
                    funnel,
                    self._watermark,
                    is_ended=is_last,
                )
            )
        self.store.save_batch(WriteBatch(rest, tuple(blocks), tuple(advances)), "group")
        self.written += records

    def so_far(self) -> EndpointEvidence:
        """The rows of which the ledger has passed the records."""
        keys = {record.key for record in self.written}
        runs = [run for run in self.world.runs if run.key in keys]
        ids = {run.block_id for run in runs}
        blocks = [replace(b, memory=self._memory) for b in self.world.blocks if b.block_id in ids]
        return EndpointEvidence(ENDPOINT, list(self.written), blocks, runs, self.store.watermark(ENDPOINT).time)

    def _record(self, key: object) -> StoredRecord:
        return next(record for record in self.world.records if record.key == key)


def _session(record: StoredRecord) -> int:
    return record.key.offset if record.key.partition == 0 else record.key.offset // 10 + 1


def numbers(decision: Decision) -> Iterator[tuple[str, object]]:
    """Every figure of a decision by name."""
    yield from ((name, getattr(decision, name)) for name in ("num_clusters", "num_blocks", "clusters_needed"))
    yield from shown_details(decision).items()
    for test in decision.tests:
        for name in ("outcome", "estimate", "lower", "upper", "threshold", "alpha", "num_units", "min_units"):
            yield f"{test.name}.{name}", getattr(test, name)
        yield f"{test.name}.units_needed", test.units_needed
        yield from ((f"{test.name}.{name}", value) for name, value in shown_test_details(test).items())


def assert_same_decisions(one: Sequence[Decision], other: Sequence[Decision]) -> None:
    """The same verdicts on the same hypotheses, and every number to 1e-9."""
    assert [(d.slice_key, d.concurrency, d.fingerprint) for d in one] == [
        (d.slice_key, d.concurrency, d.fingerprint) for d in other
    ]
    for first, second in zip(one, other, strict=True):
        assert (first.verdict, first.reason_code) == (second.verdict, second.reason_code), first.slice_key
        mine, theirs = dict(numbers(first)), dict(numbers(second))
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            assert_same_value(value, theirs[name], f"{first.slice_key} {name}")


def assert_same_value(value: object, expected: object, name: str) -> None:
    """Equal, numbers to 1e-9, also those within JSON."""
    if isinstance(value, float) and isinstance(expected, float):
        assert value == pytest.approx(expected, rel=1e-9, abs=1e-9), name
    elif isinstance(value, str) and isinstance(expected, str) and value.startswith("{"):
        assert_same_value(json.loads(value), json.loads(expected), name)
    elif isinstance(value, dict) and isinstance(expected, dict):
        assert value.keys() == expected.keys(), name
        for key, item in value.items():
            assert_same_value(item, expected[key], f"{name} {key}")
    elif isinstance(value, list) and isinstance(expected, list):
        for item, other in zip(value, expected, strict=True):
            assert_same_value(item, other, name)
    else:
        assert value == expected, (name, value, expected)
