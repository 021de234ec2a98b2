"""`python -m kernels.benchmarks.demo_chance DEMO.db...`: how often a demo's verdicts would come out as they did.

Each repetition draws one demo and, for each of its blocks of an endpoint, the measurements of another block of that
endpoint, with replacement; records, order and configuration stay. The production gate decides each repetition.

Beside it stands what all demos together measured of every endpoint: the truth, as near as they know it.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from shadowspec.config.file import load_config
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.gate.run.memory_store import MemoryStore
from shadowspec.store import Store
from shadowspec.types import EndpointRows, RecordKey, Run, Watermark

REPETITIONS = 200
ENDPOINTS = ("text-to-sql", "code-completion")


def main(paths: Sequence[str]) -> None:
    """Print the shares of verdicts of the busy endpoints, and what was measured of all."""
    random_ = random.Random(1)  # noqa: S311 - a simulation
    for name, figures in pooled(paths).items():
        print(f"{name}: {figures}")
    for endpoint in ENDPOINTS:
        demos = []
        for path in paths:
            policy = load_config(Path(path).with_name("shadowspec.toml")).endpoints[endpoint].policy
            with Store.open(f"sqlite:///{path}") as store:
                demos.append((policy, store.evidence(endpoint)))
        verdicts = Counter(decide(*random_.choice(demos), random_) for _ in range(REPETITIONS))
        shares = ", ".join(f"{name} {count / REPETITIONS:.0%}" for name, count in verdicts.most_common())
        print(f"{endpoint}: {shares} of {REPETITIONS} repetitions over {len(demos)} demos")


def pooled(paths: Sequence[str]) -> dict[str, str]:
    """Speedup and slowed requests of each endpoint over all demos, and the verdict that each demo came to."""
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    verdicts: dict[str, Counter[str]] = defaultdict(Counter)
    for path in paths:
        with Store.open(f"sqlite:///{path}") as store:
            for endpoint in store.endpoints():
                times[endpoint] += [
                    (
                        run.baseline.prefill_ms + run.baseline.decode_ms,
                        run.speculative.prefill_ms + run.speculative.decode_ms,
                    )
                    for run in store.runs(endpoint)
                    if run.baseline is not None and run.speculative is not None
                ]
            for decision in store.latest_decisions():
                if not decision.slice_key:
                    verdicts[decision.endpoint][decision.verdict] += 1
    shown_by_endpoint = {}
    for endpoint, measured in times.items():
        logs = [math.log(plain / speculative) for plain, speculative in measured]
        total = sum(plain for plain, _ in measured) / sum(speculative for _, speculative in measured)
        slowed = sum(log < -math.log1p(GatePolicy().tail_margin) for log in logs) / len(logs)
        shown = ", ".join(f"{verdict} {count}" for verdict, count in verdicts[endpoint].most_common())
        shown_by_endpoint[endpoint] = (
            f"{len(logs):,} requests, {math.exp(statistics.mean(logs)):.2f}x, total times {total:.2f}x, "
            f"{slowed:.1%} slowed; {shown} of {len(paths)} demos"
        )
    return shown_by_endpoint


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
    decisions = run_endpoint_gate(store, rows.endpoint, policy, now=datetime.now(UTC)).decisions
    return str(next(decision.verdict for decision in decisions if not decision.slice_key))


if __name__ == "__main__":
    main(sys.argv[1:])
