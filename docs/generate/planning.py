"""How far `plan --fleet` was from a simulated week."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "kernels/benchmarks/results/fleet_week.json"


def fleet_week() -> str:
    """The part of docs/planning.md."""
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    ratios = [group["planned_over_simulated"] for group in found["groups"]]
    planned, low, high = found["planned_over_simulated"], min(ratios), max(ratios)
    return (
        f"Of {len(found['endpoints'])} endpoints a week was simulated with the worker's tap and scheduler. A plan "
        f"after two days foresaw {planned:.2f} times its device hours, {low:.2f} to {high:.2f} times by group "
        "([results](../kernels/benchmarks/results/fleet_week.json)).\n"
    )
