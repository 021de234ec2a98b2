"""Databases of version 0.1.0: after the upgrade every decision, bound, override and explanation is what it was."""

from __future__ import annotations

import itertools
import json
import lzma
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shadowspec.cli.decisions import decision_document
from shadowspec.gate.run.gate_run import run_gate
from shadowspec.gate.run.recompute import explain
from shadowspec.gate.verdict.effective_decisions import effective_decisions
from shadowspec.store import Store
from shadowspec.store.admin import schema
from shadowspec.types import Decision
from shadowspec.types.decision_documents import shown_details
from tests.gate.feeding import Feed, assert_same_value
from tests.gate.worlds import CONFIG, ENDPOINT, START, World, noisy_run
from tests.test_gating_trials import OTHER, POLICY, changing, with_fingerprint

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
            assert explanation.num_figures >= was["num_figures"], "a figure is no longer compared"
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


@pytest.mark.parametrize("name", ["standing", "history"])
def test_a_gate_run_after_the_upgrade_decides_as_the_released_gate_did(
    name: str, tmp_path: Path, expected: dict[str, Any]
) -> None:
    with Store.open(unpacked(name, tmp_path)) as store:
        decisions = run_gate(store, {ENDPOINT: POLICY}, now=LATER)
    released = expected[name]["next_look"]
    assert len(decisions) == len(released) > 0
    for decision, item in zip(decisions, released, strict=True):
        assert_as_released(decision, item)


def test_evidence_begun_before_the_upgrade_goes_on_to_the_released_verdicts(
    tmp_path: Path, expected: dict[str, Any]
) -> None:
    """An endpoint enabled by 0.1.0 gets its alarm, its next run and its new fingerprint as 0.1.0 decided them."""
    with Store.open(unpacked("standing", tmp_path)) as store, Store.open(_empty(tmp_path)) as scratch:
        feed = Feed(scratch, WORLD.evidence(), (CONFIG, OTHER))
        feed.write_blocks(0, 200)  # what the released database has
        feed.store = store
        decisions = []
        for number, (start, stop) in enumerate(itertools.pairwise(LOOKS), start=1):
            if stop > 200:
                feed.write_blocks(start, stop, is_last=stop == LOOKS[-1])
                decisions += run_gate(store, {ENDPOINT: POLICY}, now=START + timedelta(days=number))
    by_number = sorted((int(number), item) for number, item in expected["history"]["decisions"].items())
    released = [item for _, item in by_number[-len(decisions) :]]
    assert {decision.reason_code for decision in decisions} > {"drift", "changed_fingerprint"}
    for decision, item in zip(decisions, released, strict=True):
        assert_as_released(decision, item, but=frozenset({"decision_id"}))


def _empty(folder: Path) -> str:
    url = f"sqlite:///{folder / 'scratch.db'}"
    schema.upgrade(url)
    return url
