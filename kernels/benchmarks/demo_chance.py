"""`python -m kernels.benchmarks.demo_chance DEMO.db...`: how often a demo's verdicts would come out as they did.

Each repetition draws one demo and, for each of its blocks of an endpoint, the measurements of another block of that
endpoint, with replacement; records, order and configuration stay. The production gate decides each repetition.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from shadowspec.config.file import load_config
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.gate_run import run_gate
from shadowspec.simulate.memory import MemoryStore
from shadowspec.store import Store
from shadowspec.types import EndpointRows, RecordKey, Run, Watermark

REPETITIONS = 200
ENDPOINTS = ("text-to-sql", "code-completion")


def main(paths: Sequence[str]) -> None:
    """Print the shares of verdicts of each endpoint."""
    random_ = random.Random(1)  # noqa: S311 - a simulation
    for endpoint in ENDPOINTS:
        demos = []
        for path in paths:
            policy = load_config(Path(path).with_name("shadowspec.toml")).endpoints[endpoint].policy
            with Store.open(f"sqlite:///{path}") as store:
                demos.append((policy, store.evidence(endpoint)))
        verdicts = Counter(decide(*random_.choice(demos), random_) for _ in range(REPETITIONS))
        shares = ", ".join(f"{name} {count / REPETITIONS:.0%}" for name, count in verdicts.most_common())
        print(f"{endpoint}: {shares} of {REPETITIONS} repetitions over {len(demos)} demos")


def decide(policy: GatePolicy, rows: EndpointRows, random_: random.Random) -> str:
    """The verdict on the whole endpoint where its blocks were measured as blocks drawn from among them."""
    by_block: dict[str, list[Run]] = defaultdict(list)
    for run in rows.runs:
        by_block[run.block_id].append(run)
    records = sorted(rows.records, key=lambda record: record.key)
    place = records[0].key.source, records[0].key.partition
    keys = {record.key: RecordKey(*place, offset) for offset, record in enumerate(records)}
    runs = []
    for measured in by_block.values():
        drawn = random_.choice(list(by_block.values()))
        for at, run in enumerate(measured):
            runs.append(replace(drawn[at % len(drawn)], key=keys[run.key], block_id=run.block_id))
    store = MemoryStore(rows.endpoint, place, rows.fingerprints.values())
    store.add([msgspec.structs.replace(record, key=keys[record.key]) for record in records], rows.blocks, runs)
    store.finish(len(records), Watermark(rows.watermark.time, is_ended=True))
    decisions = run_gate(store, {rows.endpoint: policy}, now=datetime.now(UTC))
    return str(next(each.verdict for each in decisions if not each.slice_key))


if __name__ == "__main__":
    main(sys.argv[1:])
