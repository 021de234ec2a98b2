"""A second deployment: not slower than a margin by the tests of speculation, and never an ENABLE or a DISABLE."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shadowspec.gate.run.endpoint_look import look_again
from shadowspec.gate.verdict.e_values import fleet_of
from shadowspec.reports.content.endpoint_rows import decision_row
from shadowspec.types import ACCEPTANCE_KEPT, PairedScore, Run, Verdict
from shadowspec.types.served_methods import settings_text
from tests.builders.hypothesis_evidence import POLICY, draw_runs, evidence_of, look, result
from tests.gate.worlds import CONFIG, START

UPGRADE = replace(POLICY, is_upgrade=True)


def paired(first: float, second: float, num_runs: int = 400) -> list[Run]:
    """Runs of equal speed whose deployments accept these shares on average."""
    return [
        replace(run, scores={ACCEPTANCE_KEPT: PairedScore(first, second + 0.05 * (index % 3 - 1))})
        for index, run in enumerate(draw_runs(num_runs, speedup=1.0))
    ]


@pytest.mark.parametrize(
    ("speedup", "code"), [(1.0, "may_replace"), (1.2, "may_replace"), (1 / 1.1, "must_not_replace")]
)
def test_the_margin_decides_and_the_verdict_is_hold(speedup: float, code: str) -> None:
    decision = look(evidence_of(draw_runs(800, speedup=speedup)), UPGRADE)
    assert (decision.verdict, decision.reason_code) == (Verdict.HOLD, code), decision.reason
    assert result(decision, "speedup").threshold == pytest.approx(0.95)
    assert not fleet_of([replace(decision, slice_key="")]).rates, "it is no ENABLE of the fleet"
    assert decision.watch is None


def test_a_deployment_at_the_margin_is_rarely_accepted() -> None:
    looks = [look(evidence_of(draw_runs(200, seed, speedup=0.95)), UPGRADE) for seed in range(40)]
    assert sum(decision.reason_code == "may_replace" for decision in looks) <= 2  # alpha is 5%


def test_total_time_has_the_margin_too() -> None:
    """Else a deployment that is slower by less than the margin would be refused once that is proven."""
    decision = look(evidence_of(draw_runs(6000, speedup=0.97)), UPGRADE)
    total_time = result(decision, "total_time")
    assert (decision.reason_code, total_time.threshold) == ("may_replace", pytest.approx(0.95)), decision.reason
    assert result(look(evidence_of(draw_runs(400))), "total_time").threshold == 1.0


def test_the_next_look_judges_again() -> None:
    first = look(evidence_of(draw_runs(800, speedup=1.0)), UPGRADE)
    assert first.reason_code == "may_replace"
    slower = evidence_of(draw_runs(800, 1, speedup=0.85))
    assert look(slower, UPGRADE, previous=first).reason_code == "must_not_replace"


def test_acceptance_needs_no_floor_and_a_loss_beyond_the_noise_refuses() -> None:
    decision = look(evidence_of(draw_runs(800, speedup=1.0, acceptance=0.1)), UPGRADE)
    assert decision.reason_code == "may_replace", decision.reason
    kept = look(evidence_of(paired(0.7, 0.7)), UPGRADE)
    assert (kept.reason_code, result(kept, ACCEPTANCE_KEPT).outcome) == ("may_replace", "open"), kept.reason
    lost = look(evidence_of(paired(0.7, 0.5)), UPGRADE)
    assert lost.reason_code == "must_not_replace"
    assert "The change in the acceptance is" in lost.reason
    figures = result(lost, ACCEPTANCE_KEPT).figures
    assert (figures["baseline_acceptance"], figures["speculative_acceptance"]) == pytest.approx((0.7, 0.5), abs=1e-3)
    assert look(evidence_of(paired(0.7, 0.5)), POLICY).find_test(ACCEPTANCE_KEPT) is None, "of upgrades only"


@pytest.mark.parametrize(
    ("load", "speedup", "code"),
    [(4, 1.0, "slowdown"), (16, 1.0, "may_replace"), (16, 1 / 1.1, "must_not_replace"), (4, 1.3, "all_tests_pass")],
)
def test_where_a_schedule_drafts_nothing_it_need_only_be_as_fast(load: int, speedup: float, code: str) -> None:
    schedule = {"num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 2**31 - 1, 0]]}
    drafting = replace(CONFIG.config, proposer="mtp", speculative_config=settings_text(schedule))
    config = replace(CONFIG, config=drafting)
    evidence = evidence_of(draw_runs(800, speedup=speedup))
    before = replace(look(evidence), concurrency=load, config=drafting)
    folded = evidence.folded(POLICY)
    decision = look_again(before, folded, config, POLICY).decide(START)
    assert decision.reason_code == code
    assert ("drafts nothing at this load" in decision.reason) is (load == 16)
    assert "second deployment" not in decision.reason
    words = {"may_replace": "NO SLOWER", "must_not_replace": "SLOWER"}
    assert decision_row(decision, name="chat").verdict == words.get(code, decision.verdict)
