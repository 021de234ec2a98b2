"""Hold what `plan` says that a decision costs against what it cost: on the stored blocks of a demo, look by look.

    shadowspec demo --out shadowspec-demo     # nothing else may run meanwhile
    python kernels/benchmarks/plan_cost.py --config shadowspec-demo/shadowspec.toml

Every endpoint that was decided is decided again after each of its blocks.  The decision's cost is measured from the
blocks' starts: from each block's to that of the next one, up to the block after which the verdict first stood.  The
plan is made after a part of these blocks, and knows nothing of those that follow.  Two ratios say how far off it is: of
all that it foresaw, and of the sessions that the decision took at the cost that the plan knew of one.
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shadowspec.block_costs import session_costs
from shadowspec.config import EndpointConfig, load_config
from shadowspec.gating import EndpointEvidence, decide_endpoint, endpoint_looks
from shadowspec.gating.plans import plan_endpoint
from shadowspec.gating.sizing import MAX_BLOCKS
from shadowspec.metrics import ratio
from shadowspec.store import Store
from shadowspec.types import Decision, FingerprintedConfig, Verdict

PARTS = (0.25, 0.33, 0.5, 0.67, 0.75, 0.9)
RESULTS = Path(__file__).parent / "results" / "plan_cost.json"


class Story:
    """One endpoint's stored rows, of which any number of first blocks may be all that is known."""

    def __init__(self, store: Store, name: str, own: EndpointConfig, configs: dict[str, FingerprintedConfig]) -> None:
        self.name, self._own, self._configs = name, own, configs
        self.blocks, self._runs = store.blocks(name), store.runs(name)
        self._records = store.records(name)
        self.times = store.block_times([name], limit=MAX_BLOCKS)[name]
        self._loads = sorted({block.concurrency for block in self.blocks})

    def cut(self, number: int) -> EndpointEvidence:
        """What was stored after the first blocks."""
        kept = {block.block_id for block in self.blocks[:number]}
        runs = [run for run in self._runs if run.block_id in kept]
        keys, later = {run.key for run in runs}, {run.key for run in self._runs if run.block_id not in kept}
        last = max(key.offset for key in keys)
        records = [own for own in self._records if own.key not in later and (own.key in keys or own.key.offset <= last)]
        return EndpointEvidence(self.name, records, self.blocks[:number], runs)

    def decided(self, number: int) -> list[Decision]:
        """The decisions after so many blocks, the whole endpoint's first."""
        return decide_endpoint(
            self.cut(number), self._own.policy, self._configs, self._loads, [], input_ended=True, now=datetime.now(UTC)
        )

    def first_decided(self) -> tuple[int, Verdict] | None:
        """The number of blocks after which the whole endpoint has its verdict, and which."""
        for number in range(1, len(self.blocks) + 1):
            verdict = self.decided(number)[0].verdict
            if verdict is not Verdict.HOLD:
                return number, verdict
        return None

    def seconds(self, number: int) -> float:
        """What the first blocks took, each until the next one began."""
        lengths = (each.next_started_at - each.started_at for each in self.times[:number] if each.next_started_at)
        return sum(length.total_seconds() for length in lengths)

    def planned(self, number: int) -> dict[str, Any]:
        """What a plan says after so many blocks."""
        looks = endpoint_looks(
            self.cut(number), self._own.policy, self._configs, self._loads, self.decided(number), input_ended=True
        )
        own = plan_endpoint(
            self.name, looks, self._own.policy, sample_rate=self._own.rule.sample_rate, capacity_per_s=None,
            costs=session_costs(self.times[:number]),
        )  # fmt: skip
        whole, first = own.slices[0], own.hypotheses[0]
        assert whole.shadow_time is not None
        assert own.costs is not None
        return {
            "device_seconds_per_session": own.costs.at("", whole.concurrency).seconds,
            "sessions": first.num_clusters,
            "sessions_to_come": first.clusters_median,
            "device_seconds_spent": whole.shadow_time.so_far_s,
            "device_seconds_to_come": whole.shadow_time.median_s,
            "device_seconds_to_come_p90": whole.shadow_time.late_s,
        }


def story_document(own: Story) -> dict[str, Any] | None:
    """The figures of one endpoint; None where it was not decided."""
    found = own.first_decided()
    if found is None:
        return None
    number, verdict = found
    measured_s, num_sessions = own.seconds(number), own.planned(number)["sessions"]
    plans = []
    for part in PARTS:
        blocks = max(round(part * number), 1)
        planned = own.planned(blocks)
        to_come = planned["device_seconds_to_come"]
        total = None if to_come is None else planned["device_seconds_spent"] + to_come
        share = None if total is None else ratio(total, measured_s)
        same = ratio(num_sessions * planned["device_seconds_per_session"], measured_s)
        shares = {"planned_over_measured": share, "same_sessions_over_measured": same}
        plans.append({"part": part, "blocks": blocks, **planned, **shares})
    return {
        "endpoint": own.name,
        "verdict": verdict.value,
        "blocks": number,
        "sessions": num_sessions,
        "device_seconds_measured": measured_s,
        "plans": plans,
    }


def main() -> None:
    """Print the figures and keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    config = load_config(arguments.config)
    with Store.open(config.database_url) as store:
        configs = store.fingerprints()
        found = [story_document(Story(store, name, own, configs)) for name, own in config.endpoints.items()]
    document = {"endpoints": [own for own in found if own is not None]}
    for own in document["endpoints"]:
        seconds = own["device_seconds_measured"]
        print(f"{own['endpoint']}: {own['verdict']} after {own['blocks']} blocks, {seconds:.1f} s of the device")
        for each in own["plans"]:
            foreseen = each["planned_over_measured"]
            print(f"  after {each['blocks']:4d} blocks ({each['part']:.0%}): planned / measured",
                  "never" if foreseen is None else f"{foreseen:.2f}",
                  f"; of the same sessions {each['same_sessions_over_measured']:.2f}")  # fmt: skip
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
