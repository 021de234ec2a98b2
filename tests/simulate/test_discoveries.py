"""Many endpoints in the simulation: what the gates enable, and what e-BH admits of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from shadowspec.simulate.discoveries import ALONE_RULE, FLEET_RULE, Discoveries, draw_discoveries
from shadowspec.simulate.repetition import Repetition
from shadowspec.simulate.results import add_results, read_results, tally, write_results
from shadowspec.simulate.world_tables import tables_of
from shadowspec.simulate.worlds import MANY_ENDPOINTS


@pytest.mark.parametrize(("rate", "num_admitted"), [(0.1, 2), (1e-9, 0)])
def test_endpoints_that_gain_are_found_at_the_rate_over_all_too(rate: float, num_admitted: int) -> None:
    world = replace(
        MANY_ENDPOINTS,
        arrivals=replace(MANY_ENDPOINTS.arrivals, num_sessions=400),
        no_gain=replace(MANY_ENDPOINTS.effects, slowed=0.3),
        num_endpoints=6,
        num_gains=2,
        rate=rate,
    )
    found = draw_discoveries(world, np.random.SeedSequence(5))
    assert found == {ALONE_RULE: Discoveries(2, 0), FLEET_RULE: Discoveries(num_admitted, 0)}


def test_the_false_share_is_the_mean_over_draws_and_adds_up(tmp_path: Path) -> None:
    draws = [Discoveries(10, 2), Discoveries(0, 0), Discoveries(3, 1)]
    done = [Repetition((), {}, {ALONE_RULE: found, FLEET_RULE: Discoveries(found.true, 0)}) for found in draws]
    parts = [tally(MANY_ENDPOINTS, 1, part, 1.0) for part in (done[:1], done[1:])]
    write_results(tmp_path / "results.json", {MANY_ENDPOINTS.name: add_results(*parts)}, {})
    (table,) = tables_of(read_results(tmp_path / "results.json"))
    share = (2 / 12 + 0.0 + 1 / 4) / 3
    assert [row[1:] for row in table.rows] == [
        ("3", f"{share:.1%} \u00b1 12.0%", "1.00", "43.3%"),
        ("3", "0.0% \u00b1 0.0%", "0.00", "43.3%"),
    ]
