"""Databases of version 0.1.0: after the upgrade every decision, bound, override and explanation is what it was.

A verdict in force stays.  An undecided run ends: the next one goes by the current rules, at a part of what is left of
alpha.
"""

from __future__ import annotations

import itertools
import json
import lzma
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shadowspec.gate.run.gate_run import run_gate
from shadowspec.gate.run.recompute import explain
from shadowspec.gate.verdict.effective_decisions import effective_decisions
from shadowspec.reports.rendering import decision_document
from shadowspec.store import Store
from shadowspec.store.admin import schema
from shadowspec.types import Decision, Trial, Verdict
from shadowspec.types.decision_documents import shown_details
from tests.gate.feeding import Feed, assert_same_value
from tests.gate.run.test_trials import OTHER, POLICY, changing, with_fingerprint
from tests.gate.worlds import CONFIG, ENDPOINT, START, World, noisy_run

RELEASED = Path(__file__).parents[1] / "data" / "released" / "0.1.0"
DATABASES = ("demo", "standing", "history")
LATER = START + timedelta(days=30)  # when the expected file's last gate run was
# The simulated endpoint of `standing` and `history`; the gate looked after each of these blocks.
WORLD = World(
    360,
    slices=("prompt_class=code", "prompt_class=sql"),
    make_run=changing(
        (130, noisy_run()),
        (270, noisy_run(speedup=1.0)),
        (290, noisy_run()),
        (360, with_fingerprint(noisy_run(), OTHER.fingerprint)),
    ),
)
LOOKS = (40, 90, 130, 150, 200, 270, 290, 320, 360)


@pytest.fixture
def expected() -> dict[str, Any]:
    with lzma.open(RELEASED / "expected.json.xz") as file:
        found: dict[str, Any] = json.load(file)
    return found


def unpacked(name: str, folder: Path) -> str:
    """URL of the released database, upgraded to the code's revision."""
    path = folder / f"{name}.db"
    path.write_bytes(lzma.decompress((RELEASED / f"{name}.db.xz").read_bytes()))
    url = f"sqlite:///{path}"
    schema.upgrade(url)
    return url


def document(decision: Decision) -> dict[str, Any]:
    """The decision as `--json` shows it, with its details."""
    return {**decision_document(decision), "all_details": shown_details(decision)}


def assert_as_released(decision: Decision, released: dict[str, Any], *, but: frozenset[str] = frozenset()) -> None:
    """Every figure of 0.1.0 is there and equal; a later version may add to them."""
    mine = document(decision)
    for name, value in released.items():
        if name == "speculation_config":  # a field that came later has its default
            assert {key: mine[name][key] for key in value} == value
        elif name not in but:
            assert_same_value(mine[name], value, f"{decision.slice_key} {name}")


@pytest.mark.representative("demo")
@pytest.mark.parametrize("name", DATABASES)
def test_an_upgrade_changes_no_decision_bound_or_explanation(
    name: str, tmp_path: Path, expected: dict[str, Any]
) -> None:
    released = expected[name]
    with Store.open(unpacked(name, tmp_path)) as store:
        for number, stored in released["decisions"].items():
            explanation = explain(store, int(number))
            assert_as_released(explanation.stored, stored)
            assert explanation.differences == ()
            was = released["explanations"][number]
            folded = explanation.num_folds, explanation.num_records, explanation.num_runs
            assert folded == (was["num_folds"], was["num_records"], was["num_runs"])
            # Of the figures of that version the sentence of the reason is not compared: its code is.
            assert explanation.num_figures >= was["num_figures"] - 1, "a figure is no longer compared"
        assert sorted(decision.decision_id or 0 for decision in store.latest_decisions()) == released["latest"]


@pytest.mark.parametrize("name", DATABASES)
def test_an_upgrade_keeps_overrides_rollouts_and_what_they_leave_of_the_verdicts(
    name: str, tmp_path: Path, expected: dict[str, Any]
) -> None:
    released = expected[name]
    with Store.open(unpacked(name, tmp_path)) as store:
        overrides = store.overrides()
        assert [
            {
                "override_id": each.override.override_id,
                "endpoint": each.override.endpoint,
                "slice_key": each.override.slice_key,
                "concurrency": each.override.concurrency,
                "verdict": each.override.verdict.value,
                "reason": each.override.reason,
                "author": each.override.author,
                "created_at": each.override.created_at.isoformat(),
                "expires_at": each.override.expires_at and each.override.expires_at.isoformat(),
                "cleared_by": each.clearing and each.clearing.author,
            }
            for each in overrides
        ] == released["overrides"]
        in_force = effective_decisions(store.latest_decisions(), overrides, LATER)
        assert {str(each.decision_id): each.verdict.value for each in in_force} == released["standing_verdicts"]
        assert [
            {
                "endpoint": each.endpoint,
                "concurrency": each.concurrency,
                "stage": each.stage.value,
                "share": each.share,
                "reason_code": each.reason_code,
            }
            for each in store.rollouts()
        ] == released["rollouts"]


def test_a_verdict_in_force_stays_with_its_figures_and_its_detectors(tmp_path: Path, expected: dict[str, Any]) -> None:
    """Its run goes by the rules of 0.1.0 until an alarm or a new fingerprint ends it."""
    with Store.open(unpacked("standing", tmp_path)) as store:
        decisions = run_gate(store, {ENDPOINT: POLICY}, now=LATER)
    released = expected["standing"]["next_look"]
    assert [decision.verdict for decision in decisions] == [Verdict.ENABLE] * 3
    for decision, item in zip(decisions, released, strict=True):
        assert_as_released(decision, item)


def test_an_undecided_run_ends_and_the_next_one_has_a_part_of_what_is_left(
    tmp_path: Path, expected: dict[str, Any]
) -> None:
    """Three hypotheses had a third of alpha each: the endpoint's has used 7/8 of it in three runs, two slices' 3/4."""
    with Store.open(unpacked("history", tmp_path)) as store:
        ended = run_gate(store, {ENDPOINT: POLICY}, now=LATER)
        begun = run_gate(store, {ENDPOINT: POLICY}, now=LATER + timedelta(days=1))
    for decision, item in zip(ended, expected["history"]["next_look"], strict=True):
        assert (decision.verdict, decision.reason_code, decision.ends_run) == (Verdict.HOLD, "changed_rules", True)
        assert_as_released(decision, item, but=frozenset({"reason", "reason_code", "all_details", "clusters_needed"}))
        assert shown_details(decision).items() >= item["all_details"].items()
    left = 0.05 * (1.0 - (7 / 8 + 3 / 4 + 3 / 4) / 3)
    for decision, before, share in zip(begun, ended, (left / 2, left / 4, left / 4), strict=True):
        run = trial_of(decision)
        assert (decision.num_blocks, run.start_blocks) == (0, before.num_blocks), "no unit counts twice"
        assert (run.follows, run.num_restarts, run.num_before) == ("changed_rules",) + (
            trial_of(before).num_restarts + 1,
        ) * 2
        assert (run.share, run.level) == pytest.approx((share, 0.9 * share))
        assert decision.frozen_parameters is not None
        assert decision.frozen_parameters["rule_set"] == 2


def test_an_alarm_of_the_released_detectors_begins_a_run_under_the_new_rules(
    tmp_path: Path, expected: dict[str, Any]
) -> None:
    """An endpoint enabled by 0.1.0 gets its alarm as 0.1.0 decided it; slices stay until the fingerprint changes."""
    looks: list[list[Decision]] = []
    with Store.open(unpacked("standing", tmp_path)) as store, Store.open(_empty(tmp_path)) as scratch:
        feed = Feed(scratch, WORLD.evidence(), (CONFIG, OTHER))
        feed.write_blocks(0, 200)  # what the released database has
        feed.store = store
        for number, (start, stop) in enumerate(itertools.pairwise(LOOKS), start=1):
            if stop > 200:
                feed.write_blocks(start, stop, is_last=stop == LOOKS[-1])
                looks.append(run_gate(store, {ENDPOINT: POLICY}, now=START + timedelta(days=number)))
    alarmed, after, changed, last = looks
    by_number = sorted((int(number), item) for number, item in expected["history"]["decisions"].items())
    released = iter([item for _, item in by_number[-sum(map(len, looks)) :]])
    for decision in (*alarmed, *after):
        item = next(released)
        if decision.slice_key or decision in alarmed:
            assert_as_released(decision, item, but=frozenset({"decision_id"}))
    assert [decision.reason_code for decision in alarmed] == ["drift", "all_tests_pass", "all_tests_pass"]
    # Each had a third of alpha, of which the first run used half.
    left = 0.05 / 2
    assert (after[0].verdict, after[0].reason_code) == (Verdict.DISABLE, "drift"), "until the new run has decided"
    assert (after[0].num_blocks, trial_of(after[0]).start_blocks) == (20, 270)
    assert after[0].level == pytest.approx(0.9 * left / 2)
    levels = [decision.level for decision in changed if decision.fingerprint == OTHER.fingerprint]
    assert levels == pytest.approx([0.1 * left / 2 / 2, 0.9 * left / 4, 0.9 * left / 4])
    assert [decision.level for decision in last] == levels
    every = {
        (decision.slice_key, trial_of(decision).num_restarts): decision.level or 0.0
        for decision in itertools.chain(*looks)
    }
    assert sum(every.values()) <= 0.05


def trial_of(decision: Decision) -> Trial:
    """The run of a decision that has one."""
    assert decision.run is not None
    return decision.run


def _empty(folder: Path) -> str:
    url = f"sqlite:///{folder / 'scratch.db'}"
    schema.upgrade(url)
    return url
