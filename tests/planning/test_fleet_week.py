"""`plan --fleet` beside a simulated worker: a small fleet of `kernels/benchmarks/fleet_week.py`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kernels.benchmarks.fleet_week import SimulatedEndpoint, compare, plan_after, simulate

CALM = SimulatedEndpoint("e00", 20.0, 0.0, (0.6, 0.4), (4,), 60.0, None)
FLEET = [
    CALM,
    replace(CALM, name="e01", peak_s=43_200.0, loads=(4, 8), block_s=1_800.0),
    replace(CALM, name="e02", per_hour=10.0, slice_shares=(1.0,), block_s=500.0, pair=0),
]
SEED = 3


@pytest.mark.slow
def test_a_plan_of_two_days_foresees_the_device_hours_and_waits_of_the_next(tmp_path: Path) -> None:
    """One device is too few, and holds up the pair too; the plan's number takes everything in."""
    folders = [tmp_path / name for name in ("planning", "enough")]
    for folder in folders:
        folder.mkdir()
    plan, taken = plan_after(FLEET, folders[0], SEED, num_devices=1, days=2)
    devices, pair = plan.groups
    assert taken == pytest.approx(2.0 / max(devices.busy_share, 1.0), rel=0.1)
    assert devices.busy_share > 0.8
    assert [row.waits for row in plan.endpoints] == [True, True, devices.busy_share > 1.0]
    assert (devices.engines_needed, pair.engines_needed) == (2, 1)
    week, _, taken = simulate(FLEET, folders[1], SEED, num_devices=2, days=4)
    assert taken == pytest.approx(4.0, abs=0.05)
    found = compare(plan, week, 4)
    assert found["planned_over_simulated"] == pytest.approx(1.0, abs=0.15)
    for group in found["groups"]:
        assert group["planned_over_simulated"] == pytest.approx(1.0, abs=0.15)
