"""Hold what `plan` says that a decision costs against what it cost: on the stored blocks of a demo, look by look.

    shadowspec demo --out shadowspec-demo     # nothing else may run meanwhile
    python -m kernels.benchmarks.plan_cost --config shadowspec-demo/shadowspec.toml

Every endpoint that was decided is decided again after each of its blocks, by the gate over a store that holds the
blocks up to it.  The decision's cost is what the blocks took, up to the one after which the verdict first stood.  The
plan is made after a part of these blocks, and knows nothing of those that follow.  Two ratios say how far off it is: of
all that it foresaw, and of the sessions that the decision took at the cost that the plan knew of one.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kernels.benchmarks.harness import options, write
from shadowspec.config import EndpointConfig, load_config
from shadowspec.metrics import ratio
from shadowspec.planning.block_costs import session_costs
from shadowspec.planning.plans import plan_stored
from shadowspec.planning.sizing import MAX_BLOCKS
from shadowspec.rollout.endpoint_run import run_endpoint
from shadowspec.store import Store, upgrade
from shadowspec.types import (
    Advance,
    Block,
    BlockResult,
    Decision,
    FingerprintedConfig,
    PartitionId,
    Verdict,
    WriteBatch,
)

PARTS = (0.25, 0.33, 0.5, 0.67, 0.75, 0.9)


class Story:
    """One endpoint's stored rows, of which any number of first blocks may be all that is known."""

    def __init__(
        self, store: Store, name: str, endpoint: EndpointConfig, configs: dict[str, FingerprintedConfig], empty: Path
    ) -> None:
        self.name, self._own, self._configs, self._empty = name, endpoint, configs, empty
        self.blocks, self._runs = store.blocks(name), store.runs(name)
        self._records = store.records(name)
        self.times = store.block_times([name], limit=MAX_BLOCKS)[name]

    @contextmanager
    def decided(self, number: int) -> Iterator[tuple[Store, list[Decision]]]:
        """A store in which the first blocks are all that was measured, and what its gate decides."""
        path = self._empty.with_name("cut.db")
        shutil.copy(self._empty, path)
        with Store.open(f"sqlite:///{path}") as store:
            store.save_fingerprints(list(self._configs.values()))
            store.save_batch(self._cut(number), "plan_cost")
            run = run_endpoint(store, self.name, self._own.policy, self._own.rollout, input_ended=True)
            yield store, run.decisions

    def _cut(self, number: int) -> WriteBatch:
        """What was stored after the first blocks."""
        kept = {block.block_id for block in self.blocks[:number]}
        runs = [run for run in self._runs if run.block_id in kept]
        keys, later = {run.key for run in runs}, {run.key for run in self._runs if run.block_id not in kept}
        last = max(key.offset for key in keys)
        records = {
            record.key: record
            for record in self._records
            if record.key not in later and (record.key in keys or record.key.offset <= last)
        }
        blocks = []
        for stored in self.blocks[:number]:
            own_runs = tuple(run for run in runs if run.block_id == stored.block_id)
            block = Block(
                stored.block_id, stored.sequence, self.name, stored.slice_key, stored.concurrency, (), (),
                stored.first_arm,
            )  # fmt: skip
            result = BlockResult(block, stored.started_at, own_runs, stored.memory)
            blocks.append((result, tuple(records[key] for key in dict.fromkeys(run.key for run in own_runs))))
        advances = []
        for place in sorted({(key.source, key.partition) for key in records}):
            own_records = [record for key, record in records.items() if (key.source, key.partition) == place]
            times = [own_record.event_time for own_record in own_records if own_record.event_time is not None]
            funnel = Counter((own_record.endpoint, own_record.counter, own_record.reason) for own_record in own_records)
            stop = max(own_record.key.offset for own_record in own_records) + 1
            advances.append(
                Advance(PartitionId(*place), None, stop, len(own_records), funnel, max(times, default=None))
            )
        rest = tuple(record for key, record in records.items() if key not in keys)
        return WriteBatch(rest, tuple(blocks), tuple(advances))

    def first_decided(self) -> tuple[int, Verdict] | None:
        """The number of blocks after which the whole endpoint has its verdict, and which."""
        for number in range(1, len(self.blocks) + 1):
            with self.decided(number) as (_, decisions):
                verdict = decisions[0].verdict
            if verdict is not Verdict.HOLD:
                return number, verdict
        return None

    def seconds(self, number: int) -> float:
        """What the first blocks took."""
        return sum(block_time.seconds or 0.0 for block_time in self.times[:number])

    def planned(self, number: int) -> dict[str, Any]:
        """What a plan says after so many blocks."""
        with self.decided(number) as (store, _):
            plan = plan_stored(
                store, self.name, self._own.policy, sample_rate=self._own.rule.sample_rate, capacity_per_s=None,
                costs=session_costs(self.times[:number]),
            )  # fmt: skip
        whole, first = plan.slices[0], plan.hypotheses[0]
        assert whole.shadow_time is not None
        assert plan.costs is not None
        return {
            "device_seconds_per_session": plan.costs.at("", whole.concurrency).seconds,
            "sessions": first.num_clusters,
            "sessions_to_come": first.clusters_median,
            "device_seconds_spent": whole.shadow_time.so_far_s,
            "device_seconds_to_come": whole.shadow_time.median_s,
            "device_seconds_to_come_p90": whole.shadow_time.late_s,
        }


def story_document(story: Story) -> dict[str, Any] | None:
    """The figures of one endpoint; None where it was not decided."""
    first = story.first_decided()
    if first is None:
        return None
    number, verdict = first
    measured_s, num_sessions = story.seconds(number), story.planned(number)["sessions"]
    plans = []
    for part in PARTS:
        blocks = max(round(part * number), 1)
        planned = story.planned(blocks)
        to_come = planned["device_seconds_to_come"]
        total = None if to_come is None else planned["device_seconds_spent"] + to_come
        share = None if total is None else ratio(total, measured_s)
        same = ratio(num_sessions * planned["device_seconds_per_session"], measured_s)
        shares = {"planned_over_measured": share, "same_sessions_over_measured": same}
        plans.append({"part": part, "blocks": blocks, **planned, **shares})
    return {
        "endpoint": story.name,
        "verdict": verdict.value,
        "blocks": number,
        "sessions": num_sessions,
        "device_seconds_measured": measured_s,
        "plans": plans,
    }


def main() -> None:
    """Print the figures and keep them."""
    parser = options(__doc__, "plan_cost.json")
    parser.add_argument("--config", type=Path, required=True)
    arguments = parser.parse_args()
    config = load_config(arguments.config)
    with TemporaryDirectory() as folder, Store.open(config.database_url) as store:
        empty, configs = Path(folder) / "empty.db", store.fingerprints()
        upgrade(f"sqlite:///{empty}")
        entries = [
            story_document(Story(store, name, endpoint, configs, empty)) for name, endpoint in config.endpoints.items()
        ]
    document = {"endpoints": [entry for entry in entries if entry is not None]}
    for entry in document["endpoints"]:
        seconds = entry["device_seconds_measured"]
        print(f"{entry['endpoint']}: {entry['verdict']} after {entry['blocks']} blocks, {seconds:.1f} s of the device")
        for plan in entry["plans"]:
            foreseen = plan["planned_over_measured"]
            print(f"  after {plan['blocks']:4d} blocks ({plan['part']:.0%}): planned / measured",
                  "never" if foreseen is None else f"{foreseen:.2f}",
                  f"; of the same sessions {plan['same_sessions_over_measured']:.2f}")  # fmt: skip
    write(arguments.out, document)


if __name__ == "__main__":
    main()
