"""What a check answers: the rules on traffic, loads, candidates, age and expectations, each at its edge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.errors import NoDataError, UsageError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.e_values import Fleet
from shadowspec.gate.verdict.trial_levels import supersede
from shadowspec.planning.demand import Demand
from shadowspec.rollout.check.answer import Answer, CheckInput, EndpointTerms, Question, Role, answer_document
from shadowspec.rollout.check.judge import judge
from shadowspec.rollout.check.outcome import OnHold, Outcome, exit_code
from shadowspec.rollout.check.plain_text import answer_lines
from shadowspec.rollout.served_decision import DEFAULT_MAX_AGE, Off
from shadowspec.servers.engines import with_engine_rules
from shadowspec.store import Traffic
from shadowspec.text import parse_duration, parse_labels
from shadowspec.types import Decision, EvidenceSummary, Override, Verdict
from tests.rollout.check.worlds import (
    CHAT,
    CODE,
    HOUR,
    NOW,
    check_input,
    config,
    decision,
    fingerprint,
    question,
    traffic,
)


def answer(what: CheckInput, asked: Question | None = None) -> Answer:
    return judge(asked or question(), what, NOW)


@pytest.mark.parametrize("verdict", list(Verdict))
def test_one_hypothesis_answers_with_its_verdict(verdict: Verdict) -> None:
    found = answer(check_input([decision(verdict)]))
    assert found.outcome == verdict.value
    (finding,) = found.findings
    assert finding.reason == f"{verdict.value.lower()} for a reason"
    assert finding.since == NOW - 3 * HOUR
    assert finding.age == 2 * HOUR
    assert finding.traffic_share == 1.0
    assert [each.decision_id for each in finding.decisions] == [104]


@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_trial_policy_promotes_nothing(verdict: Verdict) -> None:
    with pytest.raises(NoDataError, match="speak of this recording only; to promote, run `shadowspec gate`"):
        answer(check_input([replace(decision(verdict), recording_only=True)]))


@pytest.mark.parametrize("verdict", list(Verdict))
def test_an_enable_of_blocks_promotes_nothing(verdict: Verdict) -> None:
    judged = decision(verdict)
    of_blocks = replace(judged, tests=tuple(replace(test, unit="block") for test in judged.tests))
    if verdict is not Verdict.ENABLE:
        assert answer(check_input([of_blocks])).outcome == verdict.value
        return
    with pytest.raises(NoDataError, match=r"are blocks \(window_s = 0\); to promote, remove that"):
        answer(check_input([of_blocks]))


@pytest.mark.parametrize(
    ("outcome", "on_hold", "code"),
    [
        (Outcome.ENABLE, OnHold.FAIL, 0),
        (Outcome.DISABLE, OnHold.PASS, 1),
        (Outcome.HOLD, OnHold.FAIL, 3),
        (Outcome.HOLD, OnHold.WARN, 0),
        (Outcome.HOLD, OnHold.PASS, 0),
        (Outcome.UNUSABLE, OnHold.PASS, 4),
    ],
)
def test_exit_codes_are_those_of_the_contract(outcome: Outcome, on_hold: OnHold, code: int) -> None:
    assert exit_code(outcome, on_hold) == code


# slices


@pytest.mark.parametrize(("weight", "outcome"), [(5.0, Outcome.DISABLE), (4.99, Outcome.ENABLE)])
def test_a_disabled_slice_blocks_from_5_percent_of_the_traffic_on(weight: float, outcome: Outcome) -> None:
    decisions = [decision(), decision("DISABLE", CODE), decision("ENABLE", CHAT)]
    found = answer(check_input(decisions, traffic({CODE: weight, CHAT: 100.0 - weight})))
    assert found.outcome is outcome
    shown = {finding.slice_key: finding for finding in found.findings}
    assert shown[CODE].role is (Role.WATCHED if outcome is Outcome.DISABLE else Role.SHOWN)
    assert shown[CODE].traffic_share == pytest.approx(weight / 100)


def test_a_disabled_slice_of_unknown_traffic_blocks() -> None:
    assert answer(check_input([decision(), decision("DISABLE", CODE)], [])).outcome is Outcome.DISABLE


def test_a_held_slice_does_not_block_an_enabled_endpoint() -> None:
    assert answer(check_input([decision(), decision("HOLD", CODE)])).outcome is Outcome.ENABLE


def test_slices_enabled_under_a_held_endpoint_do_not_enable_it() -> None:
    found = answer(check_input([decision("HOLD"), decision("ENABLE", CODE), decision("ENABLE", CHAT)]))
    assert found.outcome is Outcome.HOLD


def test_labels_choose_every_slice_that_has_them() -> None:
    other = "prompt_class=code,sampling_regime=high"
    decisions = [decision(), decision("ENABLE", CODE), decision("HOLD", other), decision("DISABLE", CHAT)]
    found = answer(check_input(decisions), question(slice_labels={"prompt_class": "code"}))
    assert {finding.slice_key for finding in found.findings} == {CODE, other}
    assert found.outcome is Outcome.HOLD
    only = {"prompt_class": "code", "sampling_regime": "greedy"}
    assert answer(check_input(decisions), question(slice_labels=only)).outcome is Outcome.ENABLE


def test_a_named_slice_counts_however_little_traffic_it_has() -> None:
    decisions = [decision(), decision("DISABLE", CODE), decision("ENABLE", CHAT)]
    rows = traffic({CODE: 0.1, CHAT: 99.9})
    assert answer(check_input(decisions, rows), question(slice_labels=parse_labels([CODE]))).outcome is Outcome.DISABLE


def test_unknown_slices_are_named_with_the_known_ones() -> None:
    what = check_input([decision(), decision("ENABLE", CODE)])
    with pytest.raises(UsageError, match=r"not sliced by 'tier'.*prompt_class, sampling_regime"):
        answer(what, question(slice_labels={"tier": "gold"}))
    with pytest.raises(NoDataError, match=r"prompt_class=maths.*decided: prompt_class=code"):
        answer(what, question(slice_labels={"prompt_class": "maths"}))


# orders of an operator


def order(verdict: str, slice_key: str, *, load: int | None = None, number: int = 7) -> Override:
    return Override(number, "chat", slice_key, load, Verdict(verdict), "incident", "ops", NOW - HOUR)


def under(
    orders: Sequence[Override], decisions: Sequence[Decision], rows: Sequence[Traffic] | None = None
) -> CheckInput:
    """As the command makes it: orders laid over the decisions, and beside them."""
    return check_input(decisions, rows, orders)


@pytest.mark.parametrize("verdict", ["DISABLE", "HOLD"])
@pytest.mark.parametrize("slice_key", ["tier=gold", "prompt_class=maths", "sampling_regime=high,tier=gold"])
def test_an_order_on_slices_that_were_never_seen_blocks(verdict: str, slice_key: str) -> None:
    found = answer(under([order(verdict, slice_key)], [decision(), decision("ENABLE", CODE)]))
    assert found.outcome == verdict
    (blocking,) = found.blocking
    assert (blocking.role, blocking.override_id, blocking.traffic_share) == (Role.ORDERED, 7, None)
    assert blocking.reason == "override 7 by ops: incident"


@pytest.mark.parametrize("verdict", ["DISABLE", "HOLD"])
@pytest.mark.parametrize(("weight", "is_blocked"), [(5.0, True), (4.99, False), (100.0, True)])
@pytest.mark.parametrize("is_decided", [True, False])
def test_an_order_blocks_from_5_percent_of_the_traffic_on(
    verdict: str, weight: float, is_blocked: bool, is_decided: bool
) -> None:
    decisions = [decision(), *([decision("HOLD", CODE)] if is_decided else [])]
    rows = traffic({CODE: weight, CHAT: 100.0 - weight})
    found = answer(under([order(verdict, "prompt_class=code")], decisions, rows))
    assert found.outcome == (verdict if is_blocked else "ENABLE")
    (ordered,) = (finding for finding in found.findings if finding.override_id == 7)
    assert ordered.traffic_share == pytest.approx(weight / 100)
    assert ordered.role is (Role.ORDERED if is_blocked else Role.SHOWN)


def test_orders_that_cover_5_percent_together_block_together() -> None:
    rows = traffic({CODE: 3.0, "prompt_class=sql,sampling_regime=greedy": 3.0, CHAT: 94.0})
    code, sql = order("DISABLE", "prompt_class=code"), order("DISABLE", "prompt_class=sql", number=8)
    assert answer(under([code], [decision()], rows)).outcome is Outcome.ENABLE
    assert answer(under([code, sql], [decision()], rows)).outcome is Outcome.DISABLE
    held = replace(sql, verdict=Verdict.HOLD)
    assert answer(under([code, held], [decision()], rows)).outcome is Outcome.HOLD, "5% are off, and 3% by DISABLE"
    twice = replace(code, override_id=9)
    assert answer(under([code, twice], [decision()], rows)).outcome is Outcome.ENABLE, "the same traffic"


def test_an_order_for_one_load_counts_by_that_load_s_share() -> None:
    dated = EvidenceSummary(newest_evidence=NOW - 2 * HOUR)
    decisions = [decision(load=2), decision(load=32, evidence=dated)]
    rows = traffic({CODE: 50.0, CHAT: 50.0}, load=2)

    def outcome(share: float, asked: Question | None = None, load: int = 32) -> str:
        what = under([order("HOLD", "prompt_class=code", load=load)], decisions, rows)
        return answer(with_shares(what, {2: 1.0 - share, 32: share}), asked).outcome

    assert outcome(0.1) == "HOLD"
    assert outcome(0.09) == "ENABLE"
    assert outcome(0.5, load=64) == "ENABLE", "no load of this endpoint"
    assert outcome(0.5, question(concurrency=2)) == "ENABLE"
    assert outcome(0.01, question(concurrency=32)) == "HOLD"


def test_an_order_on_the_whole_endpoint_counts_where_it_has_no_decision() -> None:
    what = under([order("DISABLE", "")], [decision(load=2)])
    assert not [finding for finding in answer(what).findings if finding.override_id], "its decision says it all"
    only_32 = under([order("DISABLE", "", load=32)], [decision(load=2)])
    assert answer(only_32).outcome is Outcome.ENABLE
    assert answer(with_shares(only_32, {2: 0.5, 32: 0.5})).outcome is Outcome.DISABLE


def test_an_order_counts_for_the_slices_that_are_asked_for() -> None:
    decisions = [decision(), decision("ENABLE", CODE), decision("ENABLE", CHAT)]
    rows = traffic({CODE: 50.0, CHAT: 50.0})

    def outcome(given: Override, **labels: str) -> str:
        return answer(under([given], decisions, rows), question(slice_labels=labels)).outcome

    assert outcome(order("HOLD", "tier=gold"), prompt_class="code") == "HOLD"
    assert outcome(order("DISABLE", "prompt_class=code,tier=gold"), prompt_class="code") == "DISABLE"
    assert outcome(order("DISABLE", "prompt_class=chat"), prompt_class="code") == "ENABLE"
    assert outcome(order("DISABLE", "prompt_class=code"), prompt_class="code") == "DISABLE"


# loads


def test_one_load_is_judged_alone_and_an_unknown_one_refused() -> None:
    what = check_input(
        [decision("ENABLE", load=2), decision("DISABLE", load=32)], load_shares={2: 1.0, 32: 1.0, 64: 1.0}
    )
    assert answer(what, question(concurrency=2)).outcome is Outcome.ENABLE
    assert answer(what, question(concurrency=32)).outcome is Outcome.DISABLE
    assert answer(what, question(concurrency=64)).outcome is Outcome.HOLD
    with pytest.raises(UsageError, match=r"no load 3 .its loads: 2, 32, 64"):
        answer(what, question(concurrency=3))


def test_traffic_is_that_of_the_loads_asked_about() -> None:
    decisions = [decision(load=load) for load in (2, 32)]
    decisions += [decision("DISABLE", CODE, load=2), decision("ENABLE", CHAT, load=2)]
    rows = traffic({CODE: 4.0, CHAT: 96.0}, load=2) + traffic({CODE: 90.0, CHAT: 10.0}, load=32)
    assert answer(check_input(decisions, rows), question(concurrency=2)).outcome is Outcome.ENABLE


@pytest.mark.parametrize(
    ("shares", "outcome"),
    [({2: 1.0, 32: 1.0}, Outcome.DISABLE), ({2: 94.0, 32: 6.0}, Outcome.DISABLE), ({2: 97.0, 32: 3.0}, Outcome.ENABLE)],
)
def test_a_load_blocks_from_5_percent_of_the_traffic_on(shares: dict[int, float], outcome: Outcome) -> None:
    decisions = [decision("ENABLE", load=2), decision("DISABLE", load=32)]
    assert answer(check_input(decisions, load_shares=shares)).outcome is outcome


def test_loads_that_carry_5_percent_together_block_together() -> None:
    decisions = [decision("ENABLE", load=2), *(decision("DISABLE", load=load) for load in (16, 32))]
    what = check_input(decisions, load_shares={2: 94.0, 16: 3.0, 32: 3.0})
    assert answer(what).outcome is Outcome.DISABLE


def test_what_a_small_load_may_cost_is_weighed() -> None:
    """At 3% and half the speed the mean over the loads is not proven: .97 log 1.07 + .03 log .5 < log 1.05."""
    narrow = decision("ENABLE", load=2, speedup=(1.2, 1.07, 1.3))
    slow = decision("DISABLE", load=32, speedup=(0.55, 0.5, 0.6))
    found = answer(check_input([narrow, slow], load_shares={2: 97.0, 32: 3.0}))
    assert found.outcome is Outcome.DISABLE, "every load is decided: it is a schedule, and nothing to wait for"
    assert found.schedule_limit == 2
    speedup = found.findings[0].speedup
    assert speedup is not None
    assert speedup.lower == pytest.approx(math.exp(0.97 * math.log(1.07) + 0.03 * math.log(0.5)))
    assert speedup.estimate == pytest.approx(math.exp(0.97 * math.log(1.2) + 0.03 * math.log(0.55)))
    assert speedup.upper == pytest.approx(math.exp(0.97 * math.log(1.3) + 0.03 * math.log(0.6)))


def test_a_schedule_passes_only_where_it_is_accepted() -> None:
    """On up to 8, off above: nothing is left to decide, whatever the loads weigh."""
    decisions = [decision("ENABLE", load=4), decision("ENABLE", load=8), decision("DISABLE", load=16)]
    for share in (0.1, 1.0, 30.0):
        what = check_input(decisions, load_shares={4: 1.0, 8: 1.0, 16: share})
        found = answer(what)
        assert (found.outcome, found.schedule_limit) == (Outcome.DISABLE if share > 0.1 else found.outcome, 8)
        assert found.outcome is not Outcome.HOLD
        accepted = answer(what, question(accepts_schedule=True))
        assert (accepted.outcome, accepted.schedule_limit) == (Outcome.ENABLE, 8)
        assert answer_lines(accepted)[0].endswith("up to load 8, and off above")
    assert "on up to load 8 and off above: --accept-schedule accepts it" in answer_lines(found)[0]
    assert answer_document(found, OnHold.FAIL).schedule_limit == 8


@pytest.mark.parametrize(
    ("verdicts", "outcome"),
    [
        (("ENABLE", "HOLD", "DISABLE"), Outcome.DISABLE),
        (("DISABLE", "ENABLE", "ENABLE"), Outcome.DISABLE),
        (("ENABLE", "ENABLE", "HOLD"), Outcome.HOLD),
        (("DISABLE", "DISABLE", "DISABLE"), Outcome.DISABLE),
        (("ENABLE", "ENABLE", "ENABLE"), Outcome.ENABLE),
    ],
)
def test_what_is_no_schedule_is_judged_as_ever(verdicts: Sequence[str], outcome: Outcome) -> None:
    decisions = [decision(verdict, load=load) for verdict, load in zip(verdicts, (4, 8, 16), strict=True)]
    found = answer(check_input(decisions), question(accepts_schedule=True))
    assert (found.outcome, found.schedule_limit) == (outcome, None)


def test_a_slice_that_is_off_above_a_load_lowers_the_schedule() -> None:
    decisions = [decision("ENABLE", load=load) for load in (4, 8, 16)]
    decisions += [
        decision(verdict, CODE, load=load) for load, verdict in ((4, "ENABLE"), (8, "DISABLE"), (16, "DISABLE"))
    ]
    what = check_input(decisions, [row for load in (4, 8, 16) for row in traffic({CODE: 1.0, CHAT: 9.0}, load=load)])
    assert answer(what).outcome is Outcome.DISABLE
    found = answer(what, question(accepts_schedule=True))
    assert (found.outcome, found.schedule_limit) == (Outcome.ENABLE, 4)
    assert found.loads is not None


def test_of_two_schedules_the_smaller_limit_counts() -> None:
    """The whole endpoint is on up to 8, one of its slices up to 4: together up to 4."""
    limits = {"": 8, CODE: 4}
    decisions = [
        decision("ENABLE" if load <= limit else "DISABLE", slice_key, load=load)
        for slice_key, limit in limits.items()
        for load in (4, 8, 16)
    ]
    what = check_input(decisions, [row for load in (4, 8, 16) for row in traffic({CODE: 1.0, CHAT: 9.0}, load=load)])
    found = answer(what, question(accepts_schedule=True))
    assert [finding.on_up_to for finding in found.findings] == [8, 4]
    assert (found.outcome, found.schedule_limit) == (Outcome.ENABLE, 4)


def test_an_order_of_the_whole_endpoint_ends_a_schedule() -> None:
    decisions = [decision("ENABLE", load=4), decision("DISABLE", load=16)]
    what = under([order("DISABLE", "")], decisions)
    found = answer(what, question(accepts_schedule=True))
    assert (found.outcome, found.schedule_limit) == (Outcome.DISABLE, None)


def test_production_s_demand_weighs_the_loads_before_the_configuration_does() -> None:
    """Configured evenly, but production is at 16 for one request in fifty."""
    decisions = [decision("ENABLE", load=4), decision("DISABLE", load=16)]
    even = {4: 1.0, 16: 1.0}
    demand = Demand(NOW - HOUR, NOW, {0: 50, 4: 196, 16: 1}, {8: {4: 196}})
    assert answer(check_input(decisions, load_shares=even)).outcome is Outcome.DISABLE
    found = answer(check_input(decisions, load_shares=even, demand=demand))
    assert found.outcome is Outcome.ENABLE
    assert [(load.concurrency, load.share) for load in found.findings[0].loads] == [(4, 0.98), (16, 0.02)]
    far = replace(demand, readings={100: 3})
    assert answer(check_input(decisions, load_shares=even, demand=far)).outcome is Outcome.DISABLE, "as configured"
    assert answer(check_input(decisions, demand=demand), question(concurrency=16)).outcome is Outcome.DISABLE


def test_a_load_that_nobody_judged_is_held_at_the_end_of_the_range() -> None:
    found = answer(check_input([decision("ENABLE", load=2)], load_shares={2: 0.5, 32: 0.5}))
    assert found.outcome is Outcome.HOLD
    assert "not judged at load 32" in found.findings[0].reason
    speedup = found.findings[0].speedup
    assert speedup is not None
    assert speedup.estimate is None
    assert speedup.lower == pytest.approx(math.exp(0.5 * math.log(1.1) - 0.5 * math.log(2.0)))
    assert speedup.upper == pytest.approx(math.exp(0.5 * math.log(1.6) + 0.5 * math.log(2.0)))


def test_loads_without_shares_are_weighed_by_the_traffic_measured() -> None:
    decisions = [decision("ENABLE", load=2), decision("DISABLE", load=32)]
    assert (
        answer(check_input(decisions, traffic({CODE: 97.0}, load=2) + traffic({CODE: 3.0}, load=32))).outcome
        == "ENABLE"
    )
    assert (
        answer(check_input(decisions, traffic({CODE: 94.0}, load=2) + traffic({CODE: 6.0}, load=32))).outcome
        == "DISABLE"
    )


def test_a_current_enable_lasts_whatever_its_fresh_bounds_say() -> None:
    assert answer(check_input([decision("ENABLE", speedup=(1.0, 0.8, 1.2))])).outcome is Outcome.ENABLE


# candidates


def test_the_best_candidate_answers_and_the_others_are_named() -> None:
    decisions = [decision("DISABLE", name="draft"), decision("ENABLE", name="other")]
    found = answer(check_input(decisions))
    assert (found.outcome, found.config_name) == (Outcome.ENABLE, "other")
    assert found.others == (("draft", Outcome.DISABLE),)
    closer = decision("ENABLE", name="draft", speedup=(1.25, 1.2, 1.3))
    assert answer(check_input([closer, decisions[1]])).config_name == "draft"


def test_a_candidate_is_judged_as_a_whole() -> None:
    """The endpoint's verdict with one config and a slice's with another are not put together."""
    decisions = [
        decision("ENABLE", name="draft"),
        decision("DISABLE", CODE, name="draft"),
        decision("HOLD", name="other"),
        decision("ENABLE", CODE, name="other"),
    ]
    found = answer(check_input(decisions))
    assert (found.outcome, found.config_name) == (Outcome.HOLD, "other")


def test_candidates_that_are_no_longer_configured_do_not_count() -> None:
    decisions = [decision("ENABLE", name="draft"), decision("HOLD", name="other")]
    assert answer(check_input(decisions, candidates=["other"])).outcome is Outcome.HOLD
    with pytest.raises(NoDataError, match=r"no configured candidate has been decided yet .third"):
        answer(check_input(decisions, candidates=["third"]))


def test_a_fingerprint_that_took_over_replaces_the_old_one() -> None:
    decisions = [decision("ENABLE", revision="a"), decision("HOLD", revision="b")]
    old, new = traffic({CODE: 50.0}, revision="a", age=5 * HOUR), traffic({CODE: 1.0}, revision="b")
    found = answer(check_input(decisions, old + new))
    assert (found.outcome, found.fingerprints) == (Outcome.HOLD, (fingerprint("draft", "b"),))


def test_a_fingerprint_that_the_gate_has_superseded_does_not_count() -> None:
    new = decision("ENABLE", revision="b")
    old = supersede(decision("ENABLE", revision="a"), new.fingerprint, NOW)
    rows = traffic({CODE: 50.0}, revision="a") + traffic({CODE: 1.0}, revision="b")
    assert answer(check_input([old, new], rows)).fingerprints == (new.fingerprint,)
    unjudged = answer(check_input([old], rows))
    assert unjudged.outcome is Outcome.HOLD
    assert f"is measured with fingerprint {new.fingerprint[:12]} now" in unjudged.findings[0].reason
    back = answer(check_input([old], rows[:1]))
    assert back.outcome is Outcome.HOLD
    assert f"is measured with fingerprint {old.fingerprint[:12]} now" in back.findings[0].reason


def test_a_fingerprint_that_the_gate_has_not_judged_replaces_the_old_one() -> None:
    rows = traffic({CODE: 50.0}, revision="a", age=5 * HOUR) + traffic({CODE: 1.0}, revision="b")
    found = answer(check_input([decision("ENABLE", revision="a")], rows))
    assert (found.outcome, found.fingerprints) == (Outcome.HOLD, (fingerprint("draft", "b"),))
    back = [*traffic({CODE: 1.0}, revision="a", age=HOUR / 2), *rows]
    assert answer(check_input([decision("ENABLE", revision="a")], back)).outcome is Outcome.ENABLE


def test_of_fingerprints_measured_at_the_same_time_the_one_judged_last_counts() -> None:
    decisions = [decision("ENABLE", revision="a", decided_at=NOW - 2 * HOUR), decision("HOLD", revision="b")]
    rows = traffic({CODE: 50.0}, revision="a") + traffic({CODE: 1.0}, revision="b")
    found = answer(check_input(decisions, rows))
    assert (found.outcome, found.fingerprints) == (Outcome.HOLD, (fingerprint("draft", "b"),))
    with pytest.raises(NoDataError, match="no measured config matches the expected one"):
        answer(check_input(decisions, rows), question(expected_fingerprint=fingerprint("draft", "a")))


# what is expected


@pytest.mark.parametrize(
    "expected",
    [
        {"expected_fingerprint": fingerprint("draft")},
        {"expected_fingerprint": fingerprint("draft")[:8]},
        {"model_revision": "weights-a-0123456789"},
        {"model_revision": "weights-a"},
        {"expected_engine": "vllm"},
        {"expected_engine": "vllm/0.32.0"},
    ],
)
def test_what_is_as_expected_is_judged(expected: dict[str, str]) -> None:
    assert answer(check_input([decision()]), question(**expected)).outcome is Outcome.ENABLE


@pytest.mark.parametrize(
    ("expected", "says"),
    [
        ({"expected_fingerprint": fingerprint("other")}, "its fingerprint is 6472616674"),
        ({"expected_fingerprint": fingerprint("draft")[:7]}, "its fingerprint is"),
        ({"model_revision": "weights-b-0123456789"}, "revision is weights-a-0123456789, not weights-b"),
        ({"model_revision": "weight"}, "revision is"),
        ({"expected_engine": "sglang"}, "its engine is vllm/0.32.0, not sglang"),
        ({"expected_engine": "vllm/0.3"}, "its engine is"),
        ({"expected_engine": "vllm 0.33"}, "its engine is vllm/0.32.0, not vllm 0.33"),
        ({"expected_engine": ""}, "its engine is"),
    ],
)
def test_what_is_not_expected_is_refused(expected: dict[str, str], says: str) -> None:
    with pytest.raises(NoDataError, match=says):
        answer(check_input([decision()]), question(**expected))


def test_a_config_of_unknown_details_is_refused_where_they_are_asked_for() -> None:
    with pytest.raises(NoDataError, match="engine is unknown"):
        answer(check_input([decision()], configs={}), question(expected_engine="vllm"))


# age


@pytest.mark.parametrize("verdict", [Verdict.ENABLE, Verdict.HOLD])
def test_stale_evidence_is_refused(verdict: Verdict) -> None:
    found = answer(check_input([decision(verdict)]), question(max_age=timedelta(hours=1, minutes=59)))
    assert found.outcome is Outcome.UNUSABLE
    assert found.findings[0].reason.startswith("Stale: the newest evidence is 2 hours old, the limit 1 hour. ")
    assert answer(check_input([decision(verdict)]), question(max_age=2 * HOUR)).outcome == verdict.value


def test_a_gate_that_has_not_run_is_stale_however_fresh_the_evidence() -> None:
    old = decision(decided_at=NOW - 3 * HOUR)
    found = answer(check_input([old], traffic({CODE: 1.0}, age=HOUR)), question(max_age=2 * HOUR))
    assert found.outcome is Outcome.UNUSABLE
    assert "decided 3 hours ago" in found.findings[0].reason


def test_what_a_decision_rests_on_is_dated_by_the_decision_itself() -> None:
    """Traffic may have been measured since that is not in evidence yet."""
    old_decision = decision(evidence=EvidenceSummary(newest_evidence=NOW - 26 * HOUR))
    found = answer(check_input([old_decision]), question(max_age=25 * HOUR))
    assert (found.outcome, found.findings[0].age) == (Outcome.UNUSABLE, 26 * HOUR)
    assert answer(check_input([old_decision]), question(max_age=26 * HOUR)).outcome is Outcome.ENABLE


def test_no_evidence_is_stale_evidence() -> None:
    assert answer(check_input([decision()], []), question(max_age=HOUR)).outcome is Outcome.UNUSABLE


def test_a_disable_stands_however_old() -> None:
    assert answer(check_input([decision("DISABLE")]), question(max_age=HOUR)).outcome is Outcome.DISABLE


def test_an_endpoint_without_decisions_is_no_data() -> None:
    with pytest.raises(NoDataError, match="nothing has been decided"):
        answer(check_input([]), question())


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("24h", 86_400), ("7d", 604_800), ("1.5w", 907_200)]
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "7", "d", "0h", "-1h", "1y", "1h30m", "1e9d", "9" * 400 + "d", "nan s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="invalid duration"):
        parse_duration(text)


def test_labels() -> None:
    assert parse_labels(["a=1,b=2", "c=x=y"]) == {"a": "1", "b": "2", "c": "x=y"}
    for bad in (["a"], ["=1"], ["a="], ["a=1", "a=2"], ["a=1,"]):
        with pytest.raises(UsageError, match="--slice"):
            parse_labels(bad)


@given(st.text())
def test_parsers_refuse_or_accept_and_never_fall_over(text: str) -> None:
    for parse in (parse_duration, lambda value: parse_labels([value])):
        with suppress(UsageError):
            assert parse(text)


VERDICTS = st.sampled_from(list(Verdict))
NAMES = st.sampled_from(["draft", "other"])


@given(
    st.lists(
        st.tuples(
            VERDICTS, st.sampled_from(["", CODE, CHAT]), st.sampled_from([2, 32]), st.sampled_from(["draft", "other"])
        ),
        min_size=1,
        max_size=12,
        unique_by=lambda each: each[1:],
    ),
    st.lists(st.floats(0.0, 100.0), min_size=2, max_size=2).filter(lambda shares: sum(shares) > 0),
    st.booleans(),
)
def test_nothing_passes_without_a_fresh_enable_at_95_percent_of_the_loads(
    said: list[tuple[Verdict, str, int, str]], shares: list[float], is_stale: bool
) -> None:
    decisions = [decision(verdict, key, load=load, name=name) for verdict, key, load, name in said]
    what = check_input(decisions, load_shares=dict(zip((2, 32), shares, strict=True)))
    found = answer(what, question(max_age=HOUR if is_stale else DEFAULT_MAX_AGE))
    if exit_code(found.outcome, OnHold.FAIL) == 0:
        assert not is_stale
        of_config = [d for d in decisions if d.config.name == found.config_name]
        enabled = {d.concurrency for d in of_config if d.slice_key == "" and d.verdict is Verdict.ENABLE}
        share = sum(share for load, share in zip((2, 32), shares, strict=True) if load in enabled) / sum(shares)
        assert share > 0.95 - 1e-9


def test_an_answer_says_where_the_candidate_drafts_by_another_rule_than_what_serves() -> None:
    """A remark: the outcome is the gate's."""
    inputs = check_input([decision()])
    assert answer(inputs).remarks == ()
    named = [decision(serving_engine="vllm 0.32")]
    found = answer(check_input(named))
    assert found.outcome is Outcome.ENABLE
    (remark,) = found.remarks
    assert "draft_sampling = request, while vllm 0.32's rule is temperature: acceptance does not carry over" in remark
    assert remark in answer_lines(found)
    assert answer_document(found, OnHold.FAIL).remarks == (remark,)
    by_rule = replace(config(), config=with_engine_rules(config().config, "vllm"))
    same = check_input(named, configs={by_rule.fingerprint: by_rule})
    assert answer(same).remarks == ()


def with_shares(inputs: CheckInput, shares: dict[int, float]) -> CheckInput:
    return replace(inputs, terms=replace(inputs.terms, load_shares=shares))


def test_an_enable_that_the_fleet_does_not_admit_is_hold() -> None:
    strict, decisions = EndpointTerms(GatePolicy(fleet_fdr=0.05)), [decision(), decision(slice_key=CODE)]
    for rate, outcome in ((0.06, Outcome.HOLD), (0.05, Outcome.ENABLE)):
        fleet = Fleet({"chat": rate}, 20, 1.0)
        assert answer(check_input(decisions, fleet=fleet, terms=strict)).outcome is outcome
        assert answer(check_input(decisions, fleet=fleet)).outcome is Outcome.ENABLE, "the policy asks for no rate"
    held = answer(check_input(decisions, fleet=Fleet({}, 20, 1.0), terms=strict))
    assert {load.off_because for finding in held.findings for load in finding.loads} == {Off.FLEET}
    wanted = "20 endpoints admits it at a false discovery rate of 1; the limit is 0.05 (fleet_fdr)"
    assert all(wanted in finding.reason for finding in held.findings)
