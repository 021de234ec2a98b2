"""Blocks through two servers that speak llama.cpp's own API: runs with the steps that its answers tell, or why not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from shadowspec.errors import ModelError, ServiceUnavailableError
from shadowspec.servers.connecting import connect
from shadowspec.servers.draft_trace import UntraceableError, read_steps
from shadowspec.servers.engines.llamacpp import END_TOKEN, LlamaCpp, longest_draft
from shadowspec.servers.identity import engine_name
from shadowspec.servers.kv_capacity import KvCapacity
from shadowspec.servers.last_step import VerifyStep
from shadowspec.servers.measure_servers import ServerEngine
from shadowspec.servers.probing import TINY, probe_both, remarks, slot_remarks
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.server_profile import ServerGrid, profile_servers
from shadowspec.servers.stream import ServerError
from shadowspec.types import (
    Block,
    ConstraintForm,
    ConstraintKind,
    OutputConstraint,
    Parity,
    SamplingParameters,
    ServedMemory,
    VerifyRule,
)
from tests.builders.llamacpp_fields import COMPARED
from tests.builders.server_blocks import COLD, block, prompt, sampled, settings, told_score
from tests.builders.step_clock import time_by_steps
from tests.identities import check_identities
from tests.servers.fake_llamacpp import FakeLlamaCpp, stepwise
from tests.servers.fake_server import after, running

Servers = tuple[FakeLlamaCpp, FakeLlamaCpp]


@pytest.fixture
def servers() -> Iterator[Servers]:
    pair = FakeLlamaCpp(), FakeLlamaCpp(3)
    with running(*pair):
        yield pair


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowspec.servers.client.FIRST_RETRY_S", 0.01)


def connected(servers: Servers, **changes: Any) -> ServerEngine:
    config = replace(COMPARED, **changes)
    engine = connect(settings(servers), [config], COLD, requests_per_slot=3, default_sampling={})
    for server in servers:
        server.bodies.clear()
    return engine


def asked(sampling: SamplingParameters) -> Block:
    return structs.replace(block(1), requests=(structs.replace(prompt(0), sampling=sampling),))


def test_runs_have_the_steps_that_the_server_made(servers: Servers) -> None:
    engine = connected(servers)
    found = engine.measure(block(5))
    for run, request in zip(found.runs, found.block.requests, strict=True):
        assert run.failure is None
        counts = run.counts
        assert counts is not None
        check_identities(counts)
        body = {"prompt": request.prompt_token_ids, "n_predict": request.sampling.max_tokens}
        steps = servers[1].steps(body)[1:]
        drafting = [(drafted, accepted) for drafted, accepted, _ in steps if drafted]
        assert counts.num_drafts == len(drafting)
        assert counts.num_plain_steps == len(steps) - len(drafting)
        assert counts.num_draft_tokens == sum(drafted for drafted, _ in drafting)
        assert counts.num_accepted_tokens == sum(accepted for _, accepted in drafting)
        assert counts.acceptance_histogram == tuple(
            sum(accepted == number for _, accepted in drafting) for number in range(4)
        )
        assert run.parity == Parity()
        assert run.served is not None
        assert (run.served.counts_source, run.served.speculative_cached_tokens) == ("timings", 0)
    assert engine.configs[0].engine == "llama.cpp/b1-0c1e570"
    assert engine.configs[0].details["fact_max_num_seqs"] == "4"
    assert engine.configs[0].details["max_model_len"] == "1024, 1024"


def test_every_sampling_parameter_is_sent_so_that_none_is_the_servers_to_choose(servers: Servers) -> None:
    sampling = SamplingParameters(
        temperature=0.7, top_p=0.9, top_k=0, min_p=0.1, repetition_penalty=1.1, max_tokens=4, stop=("x",),
        ignore_eos=True, seed=2**40,
    )  # fmt: skip
    connected(servers).measure(asked(sampling))
    body, other = servers[0].bodies[0], servers[1].bodies[0]
    assert body == other
    assert body == {
        "model": "m", "prompt": [2, 3, 4], "n_predict": 4, "stream": True, "return_tokens": True,
        "samplers": ["penalties", "temperature", "min_p", "top_k", "top_p"], "temperature": 0.7, "dynatemp_range": 0.0,
        "top_p": 0.9, "top_k": 0, "min_p": 0.1, "min_keep": 0, "repeat_penalty": 1.1, "repeat_last_n": 7,
        "presence_penalty": 0.0, "frequency_penalty": 0.0, "mirostat": 0, "logit_bias": [], "ignore_eos": True,
        "stop": ["x"], "seed": 2**40 % (2**32 - 1), "backend_sampling": False, "cache_prompt": False,
        "timings_per_token": True,
    }  # fmt: skip


def test_no_connection_is_used_after_an_answer(servers: Servers) -> None:
    """llama.cpp may have ended it without a word."""
    engine = connected(servers)
    before = [server.num_connections for server in servers]
    engine.measure(block(4))
    for server, number in zip(servers, before, strict=True):
        assert server.num_connections - number >= len(server.bodies) == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [("min_tokens", 2), ("stop_token_ids", (9,)), ("presence_penalty", 0.2), ("frequency_penalty", 0.3)],
)
def test_a_parameter_that_llama_cpp_lacks_fails_its_request_by_name(servers: Servers, name: str, value: Any) -> None:
    engine = connected(servers)
    sampling = structs.replace(SamplingParameters(max_tokens=4), **{name: value})
    assert [run.failure for run in engine.measure(asked(sampling)).runs] == [f"baseline_unsupported_{name}"]
    assert servers[0].bodies == [], "it was asked for something else"


@pytest.mark.parametrize(
    ("constraint", "fields"),
    [
        (OutputConstraint(ConstraintKind.JSON_OBJECT, ConstraintForm.JSON_OBJECT), {"json_schema": {"type": "object"}}),
        (
            OutputConstraint(ConstraintKind.JSON_SCHEMA, ConstraintForm.JSON_SCHEMA, '{"type": "array"}'),
            {"json_schema": {"type": "array"}},
        ),
        (
            OutputConstraint(ConstraintKind.GRAMMAR, ConstraintForm.CHOICE, '["yes", "n\\"o"]'),
            {"grammar": 'root ::= "yes" | "n\\"o"'},
        ),
        (OutputConstraint(ConstraintKind.GRAMMAR, ConstraintForm.REGEX, "a+"), None),
        (OutputConstraint(ConstraintKind.GRAMMAR, ConstraintForm.GRAMMAR, 'root ::= "a"'), None),
    ],
)
def test_constraints_are_sent_as_llama_cpp_takes_them_or_refused(
    constraint: OutputConstraint, fields: dict[str, Any] | None
) -> None:
    request = ServerRequest((5, 6), SamplingParameters(max_tokens=4), 1, constraint=constraint)
    assert LlamaCpp().lacking(request) == (None if fields else "constraint")
    if fields:
        assert LlamaCpp().body_of(request, "m", "") == (
            LlamaCpp().body_of(replace(request, constraint=None), "m", "") | fields
        )


def test_sampled_outputs_are_scored_place_by_place_and_greedy_ones_that_part_have_their_gap(servers: Servers) -> None:
    engine = connected(servers)
    servers[1].lost_token = 4
    servers[0].scored.clear()
    found = engine.measure(sampled()).runs[0].parity
    assert found is not None
    ids = servers[0].bodies[0]["prompt"]
    outputs = [server.output(server.bodies[0]) for server in servers]
    assert [each["prompt"] for each in servers[0].scored] == [
        ids + output[:place] for output in outputs[::-1] for place in range(len(output))
    ]
    assert {(each["n_probs"], each["cache_prompt"]) for each in servers[0].scored} == {(1, True)}
    assert found.z_sum == pytest.approx(told_score({"prompt": ids}, outputs[1]), abs=1e-4)
    assert found.baseline_z_sum == pytest.approx(told_score({"prompt": ids}, outputs[0]), abs=1e-4)
    assert engine.measure(block(1)).runs[0].parity == Parity(4, 0.5, rerun_differs=False)


@pytest.mark.representative("<lambda>2")
@pytest.mark.parametrize(
    "reported", [lambda top: [], lambda top: [{"id": "x"}], lambda top: [{"id": 5}], lambda _: [1]]
)
def test_what_is_told_otherwise_scores_nothing(servers: Servers, reported: Callable[[list[Any]], Any]) -> None:
    engine = connected(servers)
    servers[0].reported = reported
    assert engine.measure(sampled()).runs[0].parity == Parity()


def test_tokens_within_a_character_leave_steps_known_and_parity_unknown(servers: Servers) -> None:
    """Of such a token there is no event: its id never comes."""
    engine = connected(servers)
    whole = engine.measure(block(3)).runs
    servers[1].hidden = frozenset({2, 5})
    found = engine.measure(block(3)).runs
    assert [run.counts for run in found] == [run.counts for run in whole]
    assert [run.parity for run in found] == [None] * 3


def in_last(**changes: Any) -> Callable[[list[Any]], list[Any]]:
    return lambda events: [*events[:-2], events[-2] | changes]


@pytest.mark.parametrize(
    ("change", "failure"),
    [
        (in_last(tokens_predicted=99), "speculative_miscounted"),
        (in_last(tokens_predicted=1), "speculative_miscounted"),
        (in_last(tokens_predicted=None), "speculative_garbage"),
        (in_last(tokens_evaluated=99), "speculative_other_prompt"),
        (in_last(stop_type="none"), "speculative_unfinished"),
        (in_last(stop=False), "speculative_cut_off"),
        (in_last(timings=None), "speculative_uncountable"),
        (in_last(timings={"draft_n": 1, "draft_n_accepted": 0}), "speculative_uncountable"),
        (lambda events: [{"content": "a"}, *events[:-1]], "speculative_garbage"),
        (lambda events: [{"error": {"message": "hush"}}, *events[:-1]], "speculative_server_error"),
        (lambda events: events[:-2], "speculative_cut_off"),
    ],
)
def test_an_answer_counts_only_when_it_is_whole(
    servers: Servers, change: Callable[[list[Any]], list[Any]], failure: str
) -> None:
    engine = connected(servers)
    servers[1].script.extend([after(change), after(change)])
    assert [run.failure for run in engine.measure(block(1)).runs] == [failure]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tells_timings": False}, "no timings at each token"),
        ({"num_speculative_tokens": 0}, "llama.cpp with --spec-type"),
        ({"num_speculative_tokens": 4}, "is 3, and the speculative server drafts 4"),
    ],
)
def test_what_cannot_be_counted_is_refused_with_what_is_missing(
    servers: Servers, changes: dict[str, Any], says: str
) -> None:
    for name, value in changes.items():
        setattr(servers[1], name, value)
    with pytest.raises(ModelError, match=says):
        connected(servers)


@pytest.mark.parametrize("has_metrics", [True, False])
@pytest.mark.parametrize(
    ("arm", "depth", "failure"),
    [(1, 2, "speculative_other_depth"), (1, 4, "speculative_other_depth"), (0, 2, "baseline_speculates")],
)
def test_a_server_that_drafts_otherwise_in_mid_run_has_no_runs(
    servers: Servers, arm: int, depth: int, failure: str, has_metrics: bool
) -> None:
    """It says its depth nowhere but in its counts."""
    for server in servers:
        server.has_metrics = has_metrics
    engine = connected(servers)
    for server in servers:  # as after a start
        server.per_pos, server.counters = [], dict.fromkeys(server.counters, 0)
    servers[arm].num_speculative_tokens = depth
    assert {run.failure for run in engine.measure(block(3)).runs} == {failure}


def test_rejection_is_refused_since_llama_cpp_compares(servers: Servers) -> None:
    with pytest.raises(ModelError, match='set verify_rule = "exact_match"'):
        connected(servers, verify_rule=VerifyRule.REJECTION)


def test_a_baseline_that_speculates_is_seen(servers: Servers) -> None:
    servers[0].num_speculative_tokens = 2
    with pytest.raises(ModelError, match=r"the baseline server speculates \(2 tokens\)"):
        connected(servers)


def test_remarks_name_nothing_that_llama_cpp_does_not_have(servers: Servers) -> None:
    assert remarks(*probe_both(settings(servers))) == [
        "queue times are not reported, and so not shown",
        "--ctx-size sets the size of the baseline and the speculative server's KV cache: a draft's weights take "
        "nothing of it, and are not among the displaced tokens",
    ]


def test_a_load_above_the_slots_is_noted(servers: Servers) -> None:
    servers[1].slots = 2
    probes = probe_both(settings(servers))
    assert slot_remarks(2, *probes) == []
    (remark,) = slot_remarks(4, *probes)
    assert remark.startswith("the speculative server serves 2 requests at once, and the largest load is 4")
    assert [each.split()[1] for each in slot_remarks(5, *probes)] == ["baseline", "speculative"]


def test_the_cache_is_that_of_its_slots(servers: Servers) -> None:
    servers[1].slots = 2
    baseline, speculative = probe_both(settings(servers))
    assert baseline.kv_capacity == KvCapacity(4 * 1024, 4.0, (("--ctx-size", "4096"),))
    assert speculative.kv_capacity == KvCapacity(2 * 1024, 2.0, (("--ctx-size", "2048"),))
    (memory,) = connected(servers).measure(block(1)).memory.values()
    assert isinstance(memory, ServedMemory)
    assert (memory.baseline_kv_tokens, memory.speculative_kv_tokens) == (4096, 2048)


def test_a_server_without_its_optional_pages_is_measured_by_what_its_answers_say(servers: Servers) -> None:
    for server in servers:
        server.has_metrics = server.shows_slots = False
    engine = connected(servers)
    assert [run.failure for run in engine.measure(block(2)).runs] == [None, None]
    baseline, _ = probe_both(settings(servers))
    assert baseline.num_speculative_tokens is None


def test_a_server_that_was_started_otherwise_is_another_one(servers: Servers) -> None:
    engine = connected(servers)
    servers[1].slots = 8
    with pytest.raises(ServiceUnavailableError, match="its figures would be another config's"):
        engine.measure(block(1))


def test_its_engine_is_named_as_configurations_name_it(servers: Servers) -> None:
    assert engine_name(servers[0].url) == "llama.cpp"


def test_a_router_has_no_slot_and_is_refused(servers: Servers) -> None:
    servers[1].max_model_len = 0
    with pytest.raises(ServerError, match="/props names no context of a slot"):
        connected(servers)


# The longest draft.


@pytest.mark.parametrize(
    ("metrics", "progress", "slots", "longest"),
    [
        ('llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 7\n'
         'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 3\n', [[1, 0, 0], [2, 1, 1]], None, 2),
        ("llamacpp:spec_decode_num_drafts_total 0\n", [[1, 0, 0], [2, 4, 0], [3, 7, 0]], None, 4),
        (None, [[1, 0, 0], [2, 0, 0]], '[{"speculative": false}]', 0),
        (None, [[1, 0, 0], [2, 0, 0]], '[{"speculative": true}]', None),
        (None, None, None, None),
    ],
)  # fmt: skip
def test_the_longest_draft_is_what_a_server_shows_of_it(
    metrics: str | None, progress: list[list[int]] | None, slots: str | None, longest: int | None
) -> None:
    assert longest_draft(metrics, progress, slots) == longest


def looked_up(history: list[int], size: int, depth: int) -> list[int]:
    """What llama.cpp copies: after the latest occurrence of the last tokens that at least as many others follow."""
    last = history[-size:]
    places = [place for place in range(len(history) - 2 * size) if history[place : place + size] == last]
    return history[places[-1] + size :][:depth] if places else []


@pytest.mark.parametrize(("size", "depth"), [(1, 1), (3, 4), (12, 48), (16, 64)])
def test_a_probe_makes_a_lookup_of_any_usual_size_draft(servers: Servers, size: int, depth: int) -> None:
    probe_both(settings(servers))
    body = servers[1].bodies[0]
    ((token, bias),) = body["logit_bias"]
    assert bias > 100.0, "no model gives another token"
    assert len(looked_up([*body["prompt"], token], size, depth)) == depth
    assert body["prompt"] == list(TINY.prompt_token_ids)


# Steps, from counts of emitted, drafted and accepted tokens.


def traced(*progress: tuple[int, int, int], always: bool = True, ended: str = "limit") -> Any:
    return read_steps(progress, 3, drafts_always=always, is_by_end_token=ended == END_TOKEN)


def test_steps_without_a_draft_are_told_from_those_with_one() -> None:
    found = traced((1, 0, 0), (2, 3, 1), (3, 3, 1), (4, 3, 1), (5, 6, 3), (6, 6, 3), (7, 6, 3), (7, 6, 3), always=False)
    assert found.steps == (VerifyStep(3, 1, 2), VerifyStep(3, 2, 3))
    assert (found.num_plain, found.ends_with_step, found.is_sure) == (1, True, True)
    found = traced((1, 0, 0), (2, 3, 0), (3, 3, 0), always=False)
    assert (found.num_plain, found.ends_with_step) == (1, False)


def test_a_step_cut_at_a_stop_has_emitted_what_came() -> None:
    found = traced((1, 0, 0), (2, 3, 3), (3, 3, 3), ended="word")
    assert found.steps == (VerifyStep(3, 3, 2),)
    assert found.is_sure


def test_hidden_tokens_belong_to_the_steps_that_they_must() -> None:
    rejected = traced((1, 0, 0), (3, 6, 2), (4, 6, 2))
    assert rejected.steps == (VerifyStep(3, 0, 1), VerifyStep(3, 2, 2))
    assert rejected.is_sure
    within = traced((1, 0, 0), (2, 3, 2), (4, 3, 2))
    assert within.steps == (VerifyStep(3, 2, 3),)
    opened = traced((1, 0, 0), (3, 3, 2), (4, 3, 2))
    assert opened.steps == (VerifyStep(3, 2, 3),)
    assert opened.is_sure
    looked_up = traced((1, 0, 0), (3, 3, 2), (4, 3, 2), always=False)
    assert not looked_up.is_sure, "the hidden token may have been a step without a draft"
    several = traced((1, 0, 0), (4, 6, 2))
    assert several.steps == (VerifyStep(3, 0, 1), VerifyStep(3, 2, 2))
    assert not several.is_sure
    assert traced((1, 0, 0), (5, 4, 3)).steps == (VerifyStep(3, 2, 3), VerifyStep(1, 1, 1)), (
        "the rest is the first one's"
    )


def test_an_end_token_may_have_been_drafted_where_the_draft_went_on() -> None:
    """llama.cpp counts it as not accepted, unless it is the draft's last."""
    assert not traced((1, 0, 0), (2, 3, 0), ended="eos").is_sure
    assert traced((1, 0, 0), (2, 3, 2), (3, 3, 2), (4, 3, 2), ended="eos").is_sure
    assert traced((1, 0, 0), (2, 3, 3), (3, 3, 3), (4, 3, 3), ended="eos").is_sure
    assert traced((1, 0, 0), (2, 3, 0), ended="limit").is_sure


@pytest.mark.parametrize(
    "progress",
    [
        [(1, 0, 0), (2, 3, 4)],  # more accepted than drafted
        [(1, 0, 0), (2, 3, 1), (3, 2, 1)],  # fewer drafted than before
        [(1, 0, 0), (1, 3, 1)],  # a step without a token
        [(1, 0, 0), (2, 3, 2), (3, 6, 2)],  # a step before the one before has ended
        [(1, 0, 0), (2, 6, 1)],  # two steps, one token
    ],
)
def test_counts_that_contradict_themselves_are_no_steps(progress: list[tuple[int, int, int]]) -> None:
    with pytest.raises(UntraceableError):
        traced(*progress)


# What a step costs.


def test_profiles_count_steps_by_what_answers_say(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = FakeLlamaCpp(step_s=0.0), FakeLlamaCpp(3, step_s=0.0)
    grid = ServerGrid(loads=(2,), contexts=(4,), rounds=2)
    for server in pair:
        server.script.extend([stepwise] * 1_000)
    asked = pair[1].steps
    time_by_steps(
        monkeypatch,
        0.004,
        0.008,
        lambda request, _: (
            len(asked({"prompt": request.prompt_token_ids, "n_predict": request.sampling.max_tokens})) - 1
        ),
    )
    with running(*pair):
        found = profile_servers(settings(pair), COMPARED, grid, vocab_size=50, requests_per_slot=4, default_sampling={})
    (place,) = found.places
    assert place.baseline.other_ms == pytest.approx(4.0)
    assert place.speculative.other_ms == pytest.approx(8.0)
    assert place.mean_acceptance_length == pytest.approx(2.5, abs=0.3)
    assert found.num_compared == found.num_same > 0
