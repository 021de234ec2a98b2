"""Whatever the decisions: nothing is on without an ENABLE that stands, is fresh and is not overridden."""

from __future__ import annotations

import json
from datetime import timedelta

import yaml
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.rollout.export import flagd
from shadowspec.rollout.export.load_schedule import Schedule, endpoint_schedule, engine_schedule, slice_schedules
from shadowspec.servers.engines.llamacpp import LlamaCpp
from shadowspec.servers.engines.sglang import Sglang
from shadowspec.servers.engines.tensorrt_llm import TensorRtLlm
from shadowspec.servers.engines.vllm import Vllm
from shadowspec.types import Decision, SpeculationConfig, Verdict, VerifyRule
from tests.rollout.export.worlds import (
    NOW,
    WEEK,
    decision,
    judged,
    llamacpp_depths,
    llamacpp_flags,
    sglang_depths,
    tensorrt_depths,
    vllm_depths,
)

SLICES = ("", "prompt_class=code", "prompt_class=chat")
LOADS = (1, 2, 4, 7)
LARGEST = 10

configs = st.builds(
    lambda proposer, depth, draft, rule, threshold: SpeculationConfig(
        f"{proposer}-{draft}-{depth}-{threshold}",
        "org/target",
        None if proposer in ("ngram", "suffix") else draft,
        proposer,
        depth,
        rule,
        draft_confidence_threshold=threshold if proposer == "draft_model" else 0.0,
    ),
    st.sampled_from(["draft_model", "ngram", "suffix", "eagle3"]),
    st.integers(1, 5),
    st.sampled_from(["org/a", "org/b"]),
    st.sampled_from([VerifyRule.REJECTION, VerifyRule.GREEDY_DRAFT]),
    st.sampled_from([0.0, 0.0, 0.4]),
)
decisions = st.builds(
    lambda verdict, load, slice_key, of, revision, lower, age_s, code: decision(
        verdict,
        load=load,
        slice_key=slice_key,
        of=of,
        fingerprint=f"{of.name}-{of.verify_rule}-{revision}",
        lower=lower,
        decided_at=NOW - timedelta(seconds=age_s),
        reason_code=code,
    ),
    st.sampled_from([Verdict.ENABLE, Verdict.ENABLE, Verdict.HOLD, Verdict.DISABLE]),
    st.sampled_from(LOADS),
    st.sampled_from(SLICES),
    configs,
    st.integers(1, 2),
    st.one_of(st.none(), st.floats(0.5, 2.0)),
    st.integers(0, 2 * int(WEEK.total_seconds())),
    st.sampled_from(["all_tests_pass", "all_tests_pass", "all_tests_pass", "override"]),
)
worlds = st.lists(decisions, max_size=12, unique_by=lambda d: (d.slice_key, d.concurrency, d.fingerprint))


def allowed(world: list[Decision], slice_key: str) -> dict[int, set[int]]:
    """The depths that any decision allows at each measured load; written from the rule, not from the code."""
    good = [
        d
        for d in world
        if d.slice_key == slice_key
        and d.verdict is Verdict.ENABLE
        and d.reason_code != "override"
        and d.decided_at >= NOW - WEEK
    ]
    if not slice_key:
        harmed = {
            (d.concurrency, d.fingerprint)
            for d in world
            if d.slice_key and (d.verdict is Verdict.DISABLE or d.reason_code == "override")
        }
        good = [d for d in good if (d.concurrency, d.fingerprint) not in harmed]
    return {load: {d.config.num_speculative_tokens for d in good if d.concurrency == load} for load in LOADS}


def assert_allowed(depths: list[int], world: list[Decision], slice_key: str) -> None:
    """Each depth is allowed by the next larger measured load, and between two loads by both of them."""
    permitted = allowed(world, slice_key)
    measured = sorted({d.concurrency for d in world if d.slice_key == slice_key})
    for size, depth in enumerate(depths, 1):
        if depth:
            above = next((load for load in measured if load >= size), None)
            assert above is not None, f"on at batch size {size}, above everything measured"
            assert depth in permitted[above], f"{depth} tokens at batch size {size} have no current decision"
            below = max((load for load in measured if load < size), default=None)
            if size != above and below is not None:
                assert permitted[below], f"on at batch size {size}, between a load that is on and one that is not"


def depths_of(schedule: Schedule) -> list[int]:
    return [schedule.num_speculative_tokens(size) for size in range(1, LARGEST + 1)]


@given(worlds)
def test_nothing_is_on_without_a_decision_that_stands(world: list[Decision]) -> None:
    currents = judged(world, evidence_at=NOW - timedelta(hours=1))
    whole = endpoint_schedule("chat", currents)
    assert_allowed(depths_of(whole), world, "")
    for schedule in slice_schedules("chat", currents):
        assert_allowed(depths_of(schedule), world, schedule.slice_key)

    for_vllm = Vllm().export(whole, "")
    assert_allowed(vllm_depths(json.loads(for_vllm.text), LARGEST, for_vllm.remarks), world, "")
    document = Sglang().export(engine_schedule("chat", currents, Sglang()), "adaptive.json")
    adaptive = document.beside.get(Sglang.beside_suffix)
    flags = yaml.safe_load(document.text)
    assert_allowed(sglang_depths(flags, json.loads(adaptive) if adaptive else None, LARGEST), world, "")
    flags = llamacpp_flags(LlamaCpp().export(engine_schedule("chat", currents, LlamaCpp()), "").text)
    assert_allowed(llamacpp_depths(flags, LARGEST), world, "")
    for keys_are_largest in (False, True):
        for floor in (0, 1):
            read = tensorrt_depths(
                yaml.safe_load(TensorRtLlm().export(whole, "").text),
                LARGEST,
                keys_are_largest=keys_are_largest,
                floor=floor,
            )
            assert_allowed(read, world, "")
    text = flagd.render([(whole, slice_schedules("chat", currents))]).text
    if not any(allowed(world, each)[load] for each in SLICES for load in LOADS):
        assert '"on"' not in json.dumps([flag["targeting"] for flag in json.loads(text)["flags"].values()])


@given(worlds, st.sampled_from(LOADS), configs)
def test_a_single_decision_that_stands_is_on(world: list[Decision], load: int, of: SpeculationConfig) -> None:
    """The other way round: exports are not off for want of courage."""
    off = [d for d in world if d.verdict is Verdict.HOLD and d.concurrency != load and d.decided_at < NOW]
    current = decision(load=load, of=of, number=77, decided_at=NOW)
    schedule = endpoint_schedule("chat", judged([*off, current], evidence_at=NOW - timedelta(hours=1)))
    assert schedule.num_speculative_tokens(load) == of.num_speculative_tokens
    assert schedule.decision_ids == (77,)


@given(worlds)
def test_stale_evidence_switches_everything_off(world: list[Decision]) -> None:
    currents = judged(world, evidence_at=NOW - WEEK - timedelta(seconds=1))
    assert not endpoint_schedule("chat", currents).is_on
    assert not any(each.is_on for each in slice_schedules("chat", currents))


@given(worlds, st.randoms())
def test_the_order_of_decisions_does_not_matter(world: list[Decision], random: object) -> None:
    shuffled = list(world)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = (endpoint_schedule("chat", judged(each)) for each in (world, shuffled))
    assert (one.config, one.ranges, one.expires_at) == (other.config, other.ranges, other.expires_at)
