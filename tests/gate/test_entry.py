"""Entry: a slice takes a part of alpha with a share of its endpoint's traffic, and never by a few odd requests."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from shadowspec.gate.evidence.entry import RECENT_DAYS, RecentRequests
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.slice_rules import covering_decision
from shadowspec.types import Decision
from tests.builders.production_gate import gated
from tests.gate.oracle import decide_endpoint
from tests.gate.worlds import CONFIG, START, World, noisy_run

POLICY = GatePolicy(window_s=0.0, max_hypotheses=4, min_span_s=0.0)  # the whole endpoint and three slices
CHAT, CODE, SQL = (f"prompt_class={name}" for name in ("chat", "code", "sql"))
ODD = tuple(f"prompt_class={name}" for name in ("creative", "maths", "translation"))
BLOCKS_PER_DAY = 108

# By block of four sessions, each of its own: a week of chat and code; in one hour of the eighth day a client's odd
# requests, 40 sessions in each of three slices; then SQL, a tenth of the traffic.
WEEK = (CHAT, CODE) * (BLOCKS_PER_DAY * 7 // 2)
ATTACK = ODD * (2 * POLICY.entry_clusters // 4)
AFTERWARDS = ((CHAT, CODE) * 4 + (CHAT, SQL)) * 27
TRAFFIC = (*WEEK, *ATTACK, *AFTERWARDS)


def decided(policy: GatePolicy, blocks: tuple[str, ...] = TRAFFIC) -> dict[str, Decision]:
    evidence = World(len(blocks), slices=blocks, gap_s=200.0, untimed=0, make_run=noisy_run()).evidence()
    decisions = gated(evidence, policy)
    expected = decide_endpoint(evidence, policy, {CONFIG.fingerprint: CONFIG}, [4], [], input_ended=True, now=START)
    assert [(row.slice_key, row.level, row.reason_code, row.reason) for row in decisions] == [
        (row.slice_key, row.level, row.reason_code, row.reason) for row in expected
    ]
    return {row.slice_key: row for row in decisions}


def test_a_client_with_odd_requests_takes_no_level_from_a_slice_that_comes_later() -> None:
    decisions = decided(POLICY)
    for name in ODD:
        odd = decisions[name]
        assert odd.evidence.counts.num_closed_clusters == 2 * POLICY.entry_clusters
        assert (odd.level, odd.reason_code, odd.run) == (None, "small_slice", None)
        assert odd.reason.startswith("The slice has 1.")
        assert "and needs 2.0%. The endpoint's verdict covers it" in odd.reason
        assert covering_decision(odd, decisions[""]) is decisions[""]
    assert all(decisions[name].level is not None for name in ("", CHAT, CODE, SQL))


def test_without_a_share_the_client_would_have_had_the_last_level() -> None:
    decisions = decided(replace(POLICY, entry_share=0.0))
    assert decisions[SQL].reason_code == "no_level_left"


def test_a_slice_that_has_entered_stays_when_its_share_falls() -> None:
    decisions = decided(POLICY, ((CHAT, SQL) * 10 + (CHAT, CODE) * 1_000))
    sql = decisions[SQL]
    assert sql.level is not None
    assert (sql.evidence.counts.recent_share or 0.0) < POLICY.entry_share


@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from("xyz"), st.integers(1, 8)), max_size=40),
    st.integers(0, 40),
)
def test_recent_requests_are_those_of_seven_days_however_they_are_counted(
    clusters: list[tuple[int, str, int]], cut: int
) -> None:
    in_parts = RecentRequests()
    clusters.sort()
    for part in (clusters[:cut], clusters[cut:]):
        counting = in_parts.counting()
        for day, slice_key, number in part:
            counting.add(slice_key, START + timedelta(days=day, hours=5), number)
        in_parts = counting.result()
    newest = max((day for day, *_ in clusters), default=0)
    recent = [(name, number) for day, name, number in clusters if day > newest - RECENT_DAYS]
    total = sum(number for _, number in recent)
    for name in "xyz":
        own = sum(number for slice_key, number in recent if slice_key == name)
        assert in_parts.share_of(name) == (own / total if total else None)
    assert in_parts.share_of("") == (1.0 if total else None)
    assert len(in_parts.by_day) <= RECENT_DAYS
