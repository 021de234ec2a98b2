"""A record dated years ahead, from the file to the decision: it moves no watermark, no span and no age."""

from __future__ import annotations

from datetime import timedelta

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.store import Store
from shadowspec.types import FunnelCounter
from tests.builders.workspace import NOON, Workspace, record, write_traffic


def test_a_record_of_the_future_lengthens_no_span_and_hides_no_staleness(workspace: Workspace) -> None:
    workspace.migrate()
    ahead = record(5) | {"timestamp": (NOON + timedelta(days=3_650)).isoformat(), "session_id": "ahead"}
    traffic = write_traffic(
        workspace.folder / "traffic.jsonl", [*map(record, range(5)), ahead, *map(record, range(6, 12))]
    )
    assert workspace.run("run", str(traffic)).code == 0
    parts = {"entry_clusters": 2, "timed_positions": 1, "min_span_s": 0.0, "window_s": 0.0, "memory_budget_share": None}
    policy = GatePolicy(**parts, max_evidence_age_s=3_600.0)  # type: ignore[arg-type]
    now = NOON + timedelta(days=1)
    with Store.open("sqlite:///shadow.db") as store:
        assert sum(number for key, number in store.funnel().items() if FunnelCounter.MALFORMED in key) == 1
        decisions = run_endpoint_gate(store, "letters", policy, now=now).decisions
    assert decisions
    for decision in decisions:
        assert decision.evidence.span_s <= 11.0
        assert decision.evidence.newest_record is not None
        assert decision.evidence.newest_record <= NOON + timedelta(seconds=11)
        assert decision.reason_code == "stale_data"
