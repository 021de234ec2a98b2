"""The first screen of a fleet: the changes of a day, the endpoints that need somebody, and the costs."""

from __future__ import annotations

import math
from dataclasses import replace

from shadowspec.reports.content.changes import Change, ChangeKind
from shadowspec.reports.pages.board import build_board
from shadowspec.reports.pages.fleet_digest import SHOWN, digest
from shadowspec.types import Verdict
from tests.builders.board_values import decision, sums, values
from tests.reports.worlds import NOW


def change(endpoint: str, kind: ChangeKind, slice_key: str = "") -> Change:
    return Change(NOW, kind, endpoint, slice_key, 4, "HOLD", "it said so")


def test_what_matters_most_comes_first_and_the_rest_is_counted() -> None:
    names = [f"endpoint-{number}" for number in range(SHOWN + 2)]
    judged = [decision(name, reason_code="undecidable") for name in names]
    judged += [decision("last", verdict=Verdict.DISABLE, reason_code="parity_fault")]
    judged += [decision("calm", verdict=Verdict.HOLD, reason_code="too_few_units")]
    given = values(judged)
    changes = [
        change("chat", ChangeKind.VERDICT, "a=1"),
        change("chat", ChangeKind.ROLLOUT),
        change("chat", ChangeKind.VERDICT),
        change("sql", ChangeKind.ALARM),
        *(change("chat", ChangeKind.ADVICE) for _ in range(SHOWN)),
    ]
    found = digest(build_board(given, (), NOW), given, changes)
    assert [endpoint.name for endpoint in found.asking] == ["last", "chat", *names[: SHOWN - 2]]
    assert found.num_asking == len(names) + 1 + 1, "the endpoint that was never measured asks for that"
    kinds = [shown.kind for shown in found.changes]
    assert kinds == [ChangeKind.ALARM, ChangeKind.VERDICT, ChangeKind.ROLLOUT, ChangeKind.ADVICE]
    assert found.num_changes == len(changes)
    mine = digest(build_board(given, (), NOW), given, changes, lambda name: name == "sql")
    assert (mine.num_asking, [shown.endpoint for shown in mine.changes]) == (0, ["sql"])


def test_measuring_costs_both_arms_of_seven_days_and_the_baseline_of_several_candidates_once() -> None:
    figures = {
        "num_timed": 2, "timed_weight": 2.0, "baseline_decode_ms": 4_000.0, "speculative_decode_ms": 2_000.0,
        "baseline_num_output_tokens": 100, "speculative_num_output_tokens": 100,
    }  # fmt: skip
    one, old = sums("chat", "a=1", 0, **figures), sums("chat", "a=1", 8, **figures)
    other = replace(one, fingerprint="f" * 64)
    for days, device_s in (([one], 1.5), ([one, old], 1.5), ([one, other], 2.0)):  # at a load of 4
        given = values([decision(verdict=Verdict.ENABLE)], days, price=3.6)
        cost = digest(build_board(given, (), NOW), given, ()).cost
        assert math.isclose(cost.measuring_s, device_s)
        assert cost.price is not None
        assert math.isclose(cost.price, device_s * 0.001)
    assert cost.num_enabled == 1
    assert cost.enabled is not None
    assert cost.enabled.saved_share == 0.5
    unpriced = values([decision(verdict=Verdict.HOLD)], [one])
    cost = digest(build_board(unpriced, (), NOW), unpriced, ()).cost
    assert (cost.price, cost.enabled, cost.num_enabled) == (None, None, 0)
