"""A block through two servers: one run per own request, arms one after the other, and what each fault leaves behind."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs

from shadowspec.errors import ModelError, ServiceUnavailableError
from shadowspec.gate.policy import NEAR_TIE_LOGIT
from shadowspec.servers.answer_parity import ReportedPlace, read_places
from shadowspec.servers.connecting import connect
from shadowspec.servers.engines.vllm import DETAILED
from shadowspec.servers.server_settings import Waits
from shadowspec.types import (
    Arm,
    ArmOrder,
    Parity,
    ServedMemory,
)
from shadowspec.types.settings import EngineSettings
from tests.builders.server_blocks import CONFIG, block, connected, prompt, sampled, settings, told_score
from tests.identities import check_identities
from tests.servers.fake_server import FakeServer, after, killed, running, silent, status, well


@pytest.fixture
def servers() -> Iterator[tuple[FakeServer, FakeServer]]:
    pair = FakeServer(tells_queue=True, tells_cached=True), FakeServer(3, tells_queue=True, tells_cached=True)
    with running(*pair):
        yield pair


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowspec.servers.client.FIRST_RETRY_S", 0.01)


def test_every_own_request_has_a_run_with_counts_and_times(servers: tuple[FakeServer, FakeServer]) -> None:
    engine = connected(servers)
    result = engine.measure(block(5, fillers=1))
    assert [run.key.offset for run in result.runs] == [0, 1, 2, 3, 4]
    full = ServedMemory(48_768, 48_768, 47.625, 47.625, "vllm")
    assert result.memory == {engine.configs[0].fingerprint: full}
    for run, request in zip(result.runs, result.block.requests, strict=True):
        assert run.failure is None
        assert run.fingerprint == engine.configs[0].fingerprint
        assert run.counts is not None
        check_identities(run.counts)
        assert run.counts.num_output_tokens == request.sampling.max_tokens
        assert run.counts.num_prompt_tokens == len(request.prompt_token_ids)
        for timing in (run.baseline, run.speculative):
            assert timing is not None
            assert timing.queue_ms == 0.25
            assert timing.prefill_ms > 0.0
            assert timing.decode_ms > 0.0
            assert 0.0 < (timing.longest_gap_ms or 0.0) <= timing.decode_ms
            assert 1.0 <= (timing.concurrency or 0.0) <= 2.0 + 1e-9
        assert run.parity is not None
        assert run.parity.first_divergence is None
        assert run.served is not None
        assert (run.served.counts_source, run.served.num_retries) == ("response", 0)
        assert (run.served.baseline_cached_tokens, run.served.speculative_cached_tokens) == (0, 0)
    assert [server.most_in_flight for server in servers] == [2, 2]
    assert [len(server.bodies) for server in servers] == [6, 6]
    salts = [body["cache_salt"] for server in servers for body in server.bodies]
    assert len(set(salts)) == len(salts), "a prompt may be found in a server's prefix cache"
    asked = [[body | {"cache_salt": ""} for body in server.bodies] for server in servers]
    base, spec = (sorted(rows, key=repr) for rows in asked)  # two at a time reach a server in any order
    assert base == spec


@pytest.mark.parametrize("first", list(Arm))
def test_arms_run_one_after_the_other_in_the_order_drawn(
    servers: tuple[FakeServer, FakeServer], monkeypatch: pytest.MonkeyPatch, first: Arm
) -> None:
    from shadowspec.servers import measure_servers as measure

    engine, order, run = connected(servers), [], measure.run_conversations

    async def watched(client: Any, *args: Any, **named: Any) -> Any:
        order.append(client.name.split()[0])
        found = await run(client, *args, **named)
        order.append("end")
        return found

    monkeypatch.setattr(measure, "run_conversations", watched)
    engine.measure(block(4, first=first))
    second = Arm.SPECULATIVE if first is Arm.BASELINE else Arm.BASELINE
    assert order == [first, "end", second, "end"]


def test_the_baseline_of_a_tenth_of_the_blocks_answers_twice(servers: tuple[FakeServer, FakeServer]) -> None:
    engine = connected(servers)
    first = engine.measure(structs.replace(block(3), repeats_baseline=True))
    second = engine.measure(block(3, first=Arm.SPECULATIVE))
    assert [len(server.bodies) for server in servers] == [9, 6]
    for run in first.runs:
        assert run.order is not None
        assert (run.order.baseline_ran_after, run.order.speculative_ran_after) == (None, Arm.BASELINE)
        assert (run.order.baseline_repeat_ms or 0.0) > 0.0
    for run in second.runs:
        assert run.order == ArmOrder(Arm.SPECULATIVE, Arm.SPECULATIVE)


def test_blocks_of_a_new_size_are_warmed_up_once(servers: tuple[FakeServer, FakeServer]) -> None:
    engine = connect(settings(servers), [CONFIG], EngineSettings(), requests_per_slot=1, default_sampling={})
    for server in servers:
        server.bodies.clear()
    engine.measure(block(2))
    assert [len(server.bodies) for server in servers] == [6, 6]
    assert [body["max_tokens"] for body in servers[0].bodies] == [8] * 4 + [10, 11]
    engine.measure(block(2))
    assert len(servers[0].bodies) == 8


def test_a_server_s_queue_is_shown_and_stays_in_the_judged_time(servers: tuple[FakeServer, FakeServer]) -> None:
    servers[0].tells_queue = False
    servers[1].queue_ms = 1e6  # more than the whole answer took: what is taken out would show
    run = connected(servers).measure(block(1)).runs[0]
    assert run.baseline is not None
    assert run.speculative is not None
    assert (run.baseline.queue_ms, run.speculative.queue_ms) == (0.0, 1e6)
    assert run.speculative.prefill_ms > 0.0


def saying(**metrics: Any) -> Any:
    """An answer that says this of its drafts."""
    return after(lambda events: [each if each == "[DONE]" else each | {"metrics": metrics} for each in events])


def at_depth(width: int, *, says_so: bool = True) -> Any:
    """An answer of a server that drafts so many tokens in a step, of which the first is accepted."""

    async def behave(server: FakeServer, body: dict[str, Any], writer: Any) -> None:
        events = FakeServer(width, tells_queue=True, tells_cached=True).events(body)
        if not says_so:
            del events[-1]["metrics"]["speculative_decoding"]["num_spec_tokens"]
        await after(lambda _: [*events, "[DONE]"])(server, body, writer)

    return behave


SHORT = Waits(connect_s=1.0, first_token_s=0.5, token_s=0.3, total_s=3.0)  # where one is to be given up, and only there
FAULTS = [  # in which arm, what its server does, the failure, and whether a request is sent once only
    (0, killed(0), "baseline_unreachable", False),
    (1, killed(3), "speculative_cut_off", False),
    (1, status(500), "speculative_http_500", False),
    (0, status(429), "baseline_http_429", False),
    (1, silent(2), "speculative_token_timeout", True),
    (0, silent(0), "baseline_first_token_timeout", True),
    (1, after(lambda events: ["not json"]), "speculative_garbage", True),
    (1, saying(), "speculative_no_acceptance", True),
    (1, saying(speculative_decoding={"num_spec_steps": 9}), "speculative_uncountable", True),
    (1, at_depth(2), "speculative_other_depth", True),
    (1, at_depth(4), "speculative_other_depth", True),
    (1, at_depth(2, says_so=False), "speculative_other_depth", True),
    (0, at_depth(2), "baseline_speculates", True),
    (0, saying(speculative_decoding={"num_spec_steps": 3}), "baseline_speculates", True),
]


@pytest.mark.parametrize(
    ("arm", "behaviour", "failure", "is_once"), FAULTS, ids=[f"{place} {each[2]}" for place, each in enumerate(FAULTS)]
)
def test_a_request_that_fails_in_one_arm_fails_its_run_and_no_other(
    servers: tuple[FakeServer, FakeServer],
    caplog: pytest.LogCaptureFixture,
    arm: int,
    behaviour: Any,
    failure: str,
    is_once: bool,
) -> None:
    short = SHORT if failure.endswith("_timeout") else Waits()
    engine = connected(servers, waits=short)
    servers[arm].script.extend([behaviour, behaviour])
    with caplog.at_level(logging.WARNING):
        result = engine.measure(block(3, load=1))
    assert [run.failure for run in result.runs] == [failure, failure if is_once else None, None]
    failed = result.runs[0]
    assert (failed.counts, failed.baseline, failed.speculative, failed.parity) == (None, None, None, None)
    assert result.runs[2].counts is not None
    assert failure in caplog.text


@pytest.mark.parametrize("level", ["detailed", "none"])
@pytest.mark.parametrize(
    ("arm", "depth", "failure"),
    [(1, 2, "speculative_other_depth"), (1, 0, "speculative_other_depth"), (0, 3, "baseline_speculates")],
)
def test_a_server_that_drafts_otherwise_in_the_middle_of_a_block_has_no_runs_there(
    servers: tuple[FakeServer, FakeServer], arm: int, depth: int, failure: str, level: str
) -> None:
    """By its answers or by its page; before the next block the run ends."""
    for server in servers:
        server.level = level
    engine = connected(servers)

    async def restarted(server: FakeServer, body: dict[str, Any], writer: Any) -> None:
        await well(server, body, writer)
        server.num_speculative_tokens, server.per_pos = depth, []

    servers[arm].script.append(restarted)
    assert {run.failure for run in engine.measure(block(4, load=1)).runs} == {failure}
    with pytest.raises(ServiceUnavailableError, match=f"it now drafts {depth} tokens in a step"):
        engine.measure(block(1))


def test_a_server_that_became_another_one_in_the_middle_of_a_block_has_no_runs_there(
    servers: tuple[FakeServer, FakeServer],
) -> None:
    engine = connected(servers)

    async def updated(server: FakeServer, body: dict[str, Any], writer: Any) -> None:
        server.version = "0.33.0"
        await well(server, body, writer)

    servers[1].script.append(updated)
    assert {run.failure for run in engine.measure(block(2)).runs} == {"speculative_other_server"}


def test_a_server_killed_in_the_middle_leaves_failed_runs_and_the_block_ends(
    servers: tuple[FakeServer, FakeServer],
) -> None:
    engine = connected(servers)
    servers[1].script.extend([killed(2)] * 12)
    result = engine.measure(block(6))
    assert {run.failure for run in result.runs} <= {"speculative_cut_off", "speculative_unreachable"}


def test_attempts_that_came_to_nothing_are_counted_and_in_the_judged_time(
    servers: tuple[FakeServer, FakeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shadowspec.servers.client.FIRST_RETRY_S", 0.5)
    engine = connected(servers)
    servers[0].script.append(status(503))
    servers[1].script.append(killed(2))
    runs = engine.measure(block(2, load=1)).runs
    assert [run.served.num_retries for run in runs if run.served is not None] == [2, 0]
    assert [run.counts.num_output_tokens for run in runs if run.counts is not None] == [10, 11]
    for arm_timing in (runs[0].baseline, runs[0].speculative):
        assert arm_timing is not None
        assert arm_timing.end_to_end_ms > arm_timing.prefill_ms > arm_timing.queue_ms > 500.0


def test_outputs_that_part_are_seen_and_the_baseline_is_asked_again(servers: tuple[FakeServer, FakeServer]) -> None:
    engine = connected(servers)
    servers[1].lost_token = 4
    found = engine.measure(block(1)).runs[0].parity
    assert found == Parity(first_divergence=4, divergence_gap=0.5, rerun_differs=False)
    asked = servers[0].bodies[-2]  # before the rerun
    body = servers[0].bodies[0]
    assert asked["prompt"] == body["prompt"] + servers[0].output(body)[:4]
    assert (asked["max_tokens"], asked["temperature"], asked["logprobs"]) == (1, 0.0, 2)
    assert "logprobs" not in body


def test_a_gap_of_one_step_of_the_servers_type_is_that_step(servers: tuple[FakeServer, FakeServer]) -> None:
    """vLLM in bfloat16 gave 0.12500011920928955: log probabilities are rounded to float32."""
    engine = connected(servers)
    servers[1].lost_token = 4
    servers[0].top_logprobs = (-0.2000000476837158, -0.32500016689300537)
    found = engine.measure(block(1)).runs[0].parity
    assert found is not None
    assert found.divergence_gap == NEAR_TIE_LOGIT["bfloat16"]


@pytest.mark.parametrize("unknown", ["not told", "penalty", "minimum"])
def test_how_far_from_a_tie_outputs_part_may_stay_unknown(servers: tuple[FakeServer, FakeServer], unknown: str) -> None:
    """What servers tell is before penalties and minimum length."""
    engine = connected(servers)
    servers[1].lost_token = 4
    servers[0].tells_logprobs = unknown != "not told"
    changes = {"penalty": {"presence_penalty": 0.5}, "minimum": {"min_tokens": 5}}.get(unknown, {})
    replace = structs.replace(prompt(0), sampling=structs.replace(prompt(0).sampling, **changes))
    found = engine.measure(structs.replace(block(1), requests=(replace,))).runs[0].parity
    assert found == Parity(first_divergence=4, divergence_gap=None, rerun_differs=False)


def test_sampled_outputs_of_both_arms_are_scored_by_the_baseline(servers: tuple[FakeServer, FakeServer]) -> None:
    """Outside the timed arms, each arm's own output."""
    engine = connected(servers)
    servers[1].lost_token = 4
    found = engine.measure(sampled()).runs[0].parity
    outputs = [server.output(server.bodies[0]) for server in servers]
    asked = servers[0].scored[-2:]
    assert [each["prompt"] for each in asked] == [servers[0].bodies[0]["prompt"] + each for each in outputs[::-1]]
    assert {each["prompt_logprobs"] for each in asked} == {1}, "one token says it all at temperature 1"
    assert len(servers[1].scored) == 0
    assert len(servers[0].bodies) == 1
    assert found is not None
    assert (found.z_tokens, found.baseline_z_tokens, found.first_divergence) == (11, 11, None)
    assert found.z_sum == pytest.approx(told_score(servers[0].bodies[0], outputs[1]), abs=1e-4)
    assert found.baseline_z_sum == pytest.approx(told_score(servers[0].bodies[0], outputs[0]), abs=1e-4)
    assert found.z_sum != found.baseline_z_sum
    assert found.z_error == pytest.approx(0.0, abs=1e-4)


def test_what_is_known_of_a_score_within_bounds_says_how_far_apart_they_lie(
    servers: tuple[FakeServer, FakeServer],
) -> None:
    """The same outputs at another temperature; more tokens say more."""
    found = {}
    for number in (30, 60):
        for server in servers:
            server.max_logprobs = number
        found[number] = connected(servers, score_logprobs=number).measure(sampled(temperature=0.6)).runs[0].parity
    narrow, wide = found[60], found[30]
    assert narrow is not None
    assert wide is not None
    assert (narrow.z_error or 0.0) < (wide.z_error or 0.0)
    assert abs((narrow.z_sum or 0.0) - (wide.z_sum or 0.0)) <= (narrow.z_error or 0.0) + (wide.z_error or 0.0)


UNSCORED: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [  # of the request, the server, the settings
    ({"presence_penalty": 0.5}, {}, {}),
    ({"min_tokens": 2}, {}, {}),
    ({"temperature": 0.6}, {}, {"score_logprobs": 1}),
    ({}, {}, {"score_logprobs": 0}),
    ({"temperature": 0.6}, {"max_logprobs": 19}, {}),
    ({}, {"max_logprobs": 0}, {}),
    ({}, {"reported": lambda reported: None}, {}),
    ({}, {"reported": lambda reported: reported[1:]}, {}),
    ({}, {"reported": lambda reported: [None, *({**each, "5": {}} for each in reported[1:])]}, {}),
    ({}, {"reported": lambda reported: [None, *({**each, "500": {"logprob": -9.0}} for each in reported[1:])]}, {}),
    ({}, {"reported": lambda reported: [None, *({"500": {"logprob": -9.0}} for _ in reported[1:])]}, {}),
    ({}, {"reported": lambda reported: [None, *({n: {"logprob": 0.1} for n in each} for each in reported[1:])]}, {}),
    ({}, {"reported": lambda reported: [None, *({n: {"logprob": True} for n in each} for each in reported[1:])]}, {}),
    (
        {"temperature": 0.6},
        {
            "reported": lambda reported: [None, *({n: {"logprob": -0.1} for n in each} for each in reported[1:])]
        },  # more than all
        {},
    ),
]


@pytest.mark.parametrize(("request_changes", "server_changes", "changes"), UNSCORED)
def test_what_is_not_known_of_sampled_outputs_stays_unknown(
    servers: tuple[FakeServer, FakeServer],
    request_changes: dict[str, Any],
    server_changes: dict[str, Any],
    changes: dict[str, Any],
) -> None:
    """That they differ says nothing."""
    engine = connected(servers, **changes)
    for name, value in server_changes.items():
        setattr(servers[0], name, value)
    run = engine.measure(sampled(**request_changes)).runs[0]
    assert (run.failure, run.parity) == (None, Parity())


def test_a_last_token_that_no_server_takes_is_left_out(servers: tuple[FakeServer, FakeServer]) -> None:
    """One token has to be generated after what is scored."""
    for server in servers:
        server.max_model_len = 15  # of a prompt of 4 tokens and 11 others
    found = connected(servers).measure(sampled()).runs[0].parity
    assert found is not None
    assert (found.z_tokens, found.baseline_z_tokens) == (10, 10)


def test_among_equally_likely_tokens_the_lowest_counts_whichever_was_drawn() -> None:
    """Else those that draw either of two would score above zero."""
    tied = {4: math.log(0.4), 9: math.log(0.4), 2: math.log(0.1)}
    for drawn, is_likeliest in ((4, True), (9, False), (2, False)):
        (place,) = read_places([tied], [drawn], 3 if drawn != 2 else 2)
        assert place.is_likeliest is is_likeliest
    outside = {9: math.log(0.4), 4: math.log(0.4)}
    (place,) = read_places([outside], [4], 1)
    assert place == ReportedPlace((math.log(0.4),), is_likeliest=False), (
        "what was drawn stands beside the one that was asked for"
    )


def test_without_token_ids_nothing_is_known_of_parity(servers: tuple[FakeServer, FakeServer]) -> None:
    servers[0].returns_token_ids = False
    run = connected(servers).measure(block(1)).runs[0]
    assert run.failure is None
    assert run.parity is None


def test_where_answers_do_not_say_a_second_pass_is_counted_alone(servers: tuple[FakeServer, FakeServer]) -> None:
    """The figures are those that the answers would have given, and the runs say where they come from."""
    reported = connected(servers).measure(block(4)).runs
    servers[1].level = "none"
    engine = connected(servers)
    counted = engine.measure(block(4)).runs
    assert [run.counts for run in counted] == [run.counts for run in reported]
    assert {run.served.counts_source for run in counted if run.served is not None} == {"counters"}
    assert engine.configs[0].details["counts_source"] == "counters"
    assert len(servers[1].bodies) == 8


def together(events: list[Any]) -> list[Any]:
    """All tokens in one chunk, of a server whose only draft was verified somewhere on the way."""
    *chunks, used, done = events
    choices = [each["choices"][0] for each in chunks]
    whole = choices[-1] | {"token_ids": [token for each in choices for token in each["token_ids"]]}
    steps = {"num_spec_steps": 1, "per_step_accepted": [1], "per_step_drafted": [3]}
    return [chunks[0] | {"choices": [whole]}, used | {"metrics": {"speculative_decoding": steps}}, done]


def test_a_run_says_that_its_last_step_is_not_sure(servers: tuple[FakeServer, FakeServer]) -> None:
    engine = connected(servers)
    servers[1].script.append(after(together))
    unsure, sure = engine.measure(block(2, load=1)).runs
    assert unsure.counts is not None
    assert (unsure.counts.num_drafts, unsure.counts.num_plain_steps, unsure.counts.num_accepted_tokens) == (1, 7, 1)
    assert [run.served.counts_source for run in (unsure, sure) if run.served] == ["response_unsure", "response"]


def test_a_window_that_is_shared_is_tried_again_and_then_given_up(servers: tuple[FakeServer, FakeServer]) -> None:
    servers[1].level = "none"
    engine = connected(servers)

    async def disturbed(server: FakeServer, body: dict[str, Any], writer: Any) -> None:
        server.chunks(body)  # somebody else's request
        await after(list)(server, body, writer)

    servers[1].script.extend([after(list), disturbed, after(list)])
    assert engine.measure(block(1)).runs[0].failure is None
    servers[1].script.extend([after(list), disturbed, disturbed, disturbed])
    assert engine.measure(block(1)).runs[0].failure == "speculative_uncountable"


def test_a_server_that_is_away_or_another_one_ends_the_block(servers: tuple[FakeServer, FakeServer]) -> None:
    """Nothing is counted against a draft because its server was down, and no figure of another server is taken."""
    engine = connected(servers)
    servers[0].version = "0.33.0"
    with pytest.raises(ServiceUnavailableError, match=r"it was vllm/0\.32\.0 and is now vllm/0\.33\.0"):
        engine.measure(block(1))
    servers[0].version = "0.32.0"
    servers[1].redirect = "http://elsewhere.example/"
    with pytest.raises(ServiceUnavailableError, match=r"points to elsewhere\.example"):
        engine.measure(block(1))
    with running(gone := FakeServer()):
        pass
    away = settings((servers[0], gone))
    engine._servers[0]._named = away.server_of("draft")
    with pytest.raises(ServiceUnavailableError, match=r"speculative server .* cannot be reached"):
        engine.measure(block(1))
    assert [len(server.bodies) for server in servers] == [0, 0]


def test_the_fingerprint_names_the_servers_and_changes_with_them(servers: tuple[FakeServer, FakeServer]) -> None:
    first = connected(servers).configs[0]
    assert (first.engine, first.device, first.dtype) == ("vllm/0.32.0", "cpu", "float32")
    assert first.details["baseline_engine"] == "vllm/0.32.0"
    assert connected(servers).configs[0] == first
    servers[0].version = "0.33.0"
    second = connected(servers).configs[0]
    servers[1].version = "0.33.0"
    third = connected(servers).configs[0]
    assert third.engine == "vllm/0.33.0"
    prints = [first, second, third, connected(servers, device="another").configs[0]]
    assert len({each.fingerprint for each in prints}) == 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (({"num_speculative_tokens": 2}, {}), "the baseline server speculates"),
        (({}, {"num_speculative_tokens": 0}), "the speculative server does not speculate"),
        (({}, {"num_speculative_tokens": 0, "has_metrics": False}), "does not report that it speculates"),
        (({}, {"num_speculative_tokens": 5}), "is 3, and the speculative server drafts 5"),
        (({}, {"level": "none", "has_metrics": False}), "does not report that it speculates"),
        (({}, {"level": "summary", "has_metrics": False}), DETAILED),
        (({}, {"level": "none", "returns_token_ids": False}), DETAILED),
    ],
)
def test_servers_that_do_not_fit_are_refused_with_what_is_missing(
    servers: tuple[FakeServer, FakeServer], changes: tuple[dict[str, Any], ...], says: str
) -> None:
    for server, change in zip(servers, changes, strict=True):
        for name, value in change.items():
            setattr(server, name, value)
    with pytest.raises(ModelError, match=says):
        connected(servers)
