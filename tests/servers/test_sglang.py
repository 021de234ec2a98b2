"""Blocks through two servers that speak SGLang's own API: the same runs as through OpenAI's, or why there are none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from shadowspec.errors import ModelError, ServiceUnavailableError
from shadowspec.servers.engines import ENGINES
from shadowspec.servers.probing import probe_both, remarks
from shadowspec.servers.request import ServerRequest
from shadowspec.types import Parity, SamplingParameters
from tests.builders.server_blocks import block, connected, prompt, sampled, settings, told_score
from tests.servers.fake_server import FakeServer, after, running
from tests.servers.fake_sglang import FakeSglang

Servers = tuple[FakeSglang, FakeSglang]
RECORDED = json.loads((Path(__file__).parents[1] / "data" / "sglang" / "answers_0_5_23.json").read_text("utf-8"))


@pytest.fixture
def servers() -> Iterator[Servers]:
    pair = FakeSglang(), FakeSglang(3)
    with running(*pair):
        yield pair


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowspec.servers.client.FIRST_RETRY_S", 0.01)


@pytest.mark.representative("True")
@pytest.mark.parametrize("is_incremental", [False, True])
def test_runs_are_those_that_the_same_steps_give_through_openais_api(servers: Servers, is_incremental: bool) -> None:
    for server in servers:
        server.is_incremental = is_incremental
    engine = connected(servers)
    found = engine.measure(block(5)).runs
    with running(*(others := (FakeServer(), FakeServer(3)))):
        expected = connected(others).measure(block(5)).runs
    assert [run.counts for run in found] == [run.counts for run in expected]
    assert all(run.counts is not None and run.counts.num_accepted_tokens for run in found)
    assert [run.parity for run in found] == [Parity()] * 5
    assert {run.served.counts_source for run in found if run.served is not None} == {"meta_info"}
    assert {run.served.speculative_cached_tokens for run in found if run.served is not None} == {0}
    assert engine.configs[0].engine == "sglang/0.5.23"
    assert engine.configs[0].details["counts_source"] == "meta_info"
    assert engine.configs[0].details["speculative_algorithm"] == "EAGLE3"


def test_every_sampling_parameter_is_sent_so_that_none_is_the_servers_to_choose(servers: Servers) -> None:
    sampling = SamplingParameters(
        temperature=0.7, top_p=0.9, top_k=0, min_p=0.1, repetition_penalty=1.1, presence_penalty=0.2,
        frequency_penalty=0.3, max_tokens=4, min_tokens=2, stop=("x",), stop_token_ids=(9,), ignore_eos=True, seed=7,
    )  # fmt: skip
    engine = connected(servers)
    engine.measure(replace(block(1), requests=(replace(prompt(0), sampling=sampling),)))
    first, second = servers[0].bodies[0], servers[1].bodies[0]
    assert first["sampling_params"] == second["sampling_params"] == {
        "temperature": 0.7, "top_p": 0.9, "top_k": -1, "min_p": 0.1, "repetition_penalty": 1.1,
        "presence_penalty": 0.2, "frequency_penalty": 0.3, "max_new_tokens": 4, "min_new_tokens": 2, "stop": ["x"],
        "stop_token_ids": [9], "ignore_eos": True, "sampling_seed": 7, "skip_special_tokens": True, "n": 1,
    }  # fmt: skip
    assert first["cache_salt"] == first["extra_key"] != second["extra_key"]


def test_sampled_outputs_are_scored_and_greedy_ones_that_part_have_their_gap(servers: Servers) -> None:
    engine = connected(servers)
    servers[1].lost_token = 4
    found = engine.measure(sampled()).runs[0].parity
    assert found is not None
    entry = {"prompt": servers[0].bodies[0]["input_ids"]}
    assert found.z_sum == pytest.approx(told_score(entry, servers[1].output(servers[1].bodies[0])), abs=1e-4)
    assert found.baseline_z_sum == pytest.approx(told_score(entry, servers[0].output(servers[0].bodies[0])), abs=1e-4)
    assert servers[0].scored[-1]["logprob_start_len"] == len(entry["prompt"]) - 1
    greedy = engine.measure(block(1)).runs[0].parity
    assert greedy == Parity(first_divergence=4, divergence_gap=0.5, rerun_differs=False)


@pytest.mark.parametrize(
    "reported",
    [
        lambda top: None,
        lambda top: top[1:],
        lambda top: [None, *([[0.1, 5, None]] for _ in top[1:])],
        lambda top: [None, *([["x"]] for _ in top[1:])],
    ],
)
def test_what_is_told_otherwise_scores_nothing(servers: Servers, reported: Callable[[list[Any]], Any]) -> None:
    engine = connected(servers)
    servers[0].reported = reported
    assert engine.measure(sampled()).runs[0].parity == Parity()


def in_last(**changes: Any) -> Callable[[list[Any]], list[Any]]:
    def changed(events: list[Any]) -> list[Any]:
        *rest, last, done = events
        return [*rest, last | {"meta_info": last["meta_info"] | changes}, done]

    return changed


def other_tokens(events: list[Any]) -> list[Any]:
    first, *rest = events
    return [first | {"output_ids": [99] * len(first["output_ids"])}, *rest]


@pytest.mark.parametrize(
    ("change", "failure"),
    [
        (in_last(num_retractions=1), "speculative_uncountable"),
        (in_last(spec_verify_ct=99), "speculative_uncountable"),
        (in_last(spec_num_proposed_drafts=2), "speculative_other_depth"),
        (in_last(spec_num_correct_drafts=99), "speculative_uncountable"),
        (in_last(spec_correct_drafts_histogram=None), "speculative_uncountable"),
        (in_last(completion_tokens=99), "speculative_miscounted"),
        (in_last(completion_tokens=None), "speculative_miscounted"),
        (in_last(prompt_tokens=99), "speculative_other_prompt"),
        (in_last(finish_reason={"type": "abort", "message": "hush"}), "speculative_unfinished"),
        (in_last(finish_reason=None), "speculative_cut_off"),
        (other_tokens, "speculative_garbage"),
        (lambda events: [{"text": "a"}, *events], "speculative_garbage"),
        (lambda events: [{"error": {"message": "hush"}}, *events], "speculative_server_error"),
    ],
)
def test_an_answer_counts_only_when_it_is_whole(
    servers: Servers, change: Callable[[list[Any]], list[Any]], failure: str
) -> None:
    engine = connected(servers)
    servers[1].script.extend([after(change), after(change)])
    assert [run.failure for run in engine.measure(block(1)).runs] == [failure]


@pytest.mark.parametrize("algorithm", ["FROZEN_KV_MTP", "DFLASH", "DSPARK"])
def test_chains_of_later_algorithms_are_counted_and_blocks_by_the_window_that_is_verified(
    servers: Servers, algorithm: str
) -> None:
    """SGLang reports `speculative_num_steps` 1 for a block, whose window is one token more than it drafts."""
    servers[1].algorithm = algorithm
    found = connected(servers).measure(block(3)).runs
    with running(*(others := (FakeServer(), FakeServer(3)))):
        expected = connected(others).measure(block(3)).runs
    assert [run.counts for run in found] == [run.counts for run in expected]


@pytest.mark.parametrize("caps", [{"spec_cap_length": 3.5}, {"spec_cap_lens_histogram": [0, 1]}])
def test_drafts_that_may_be_verified_in_part_are_not_counted(servers: Servers, caps: dict[str, Any]) -> None:
    engine = connected(servers)
    servers[1].script.append(after(in_last(**caps)))
    assert [run.failure for run in engine.measure(block(2, load=1)).runs] == ["speculative_uncountable", None]


@pytest.mark.parametrize("name", ["single", "acc"])
def test_a_lowered_threshold_of_acceptance_is_refused(servers: Servers, name: str) -> None:
    servers[1].thresholds = (0.9, 1.0) if name == "single" else (1.0, 0.9)
    with pytest.raises(ModelError, match=f"with speculative_accept_threshold_{name} = 0.9 the server also accepts"):
        connected(servers)


@pytest.mark.parametrize(("device", "number"), [("cpu", 1), ("xpu", 1), ("cuda", 0)])
def test_a_device_that_verifies_sampled_requests_as_greedy_ones_is_named(
    servers: Servers, device: str, number: int
) -> None:
    for server in servers:
        server.device = device
    found = [
        each for each in remarks(*probe_both(settings(servers))) if "verifies sampled requests by the arg-" in each
    ]
    assert len(found) == number, "only the speculative server verifies"


def test_queue_times_are_read_where_the_server_tells_them(servers: Servers) -> None:
    for server in servers:
        server.tells_queue = True
    assert remarks(*probe_both(settings(servers))) == []
    run = connected(servers).measure(block(1)).runs[0]
    assert run.baseline is not None
    assert run.baseline.queue_ms == pytest.approx(0.25)


def test_a_baseline_that_begins_to_speculate_is_seen_in_its_answers(servers: Servers) -> None:
    engine = connected(servers)
    servers[0].script.append(after(in_last(spec_verify_ct=2)))
    failures = [run.failure for run in engine.measure(block(2, load=1)).runs]
    assert failures == ["baseline_speculates", None]


def test_an_older_server_is_asked_under_its_older_names(servers: Servers) -> None:
    for server in servers:
        server.info_path = "/get_server_info"
        server.histogram_name = "spec_accept_histogram"
    assert [run.failure for run in connected(servers).measure(block(2)).runs] == [None, None]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"branches": 4}, "a tree"),
        ({"num_draft_tokens": 3}, "leave out --speculative-num-draft-tokens"),
        ({"is_adaptive": True}, "--speculative-adaptive"),
        ({"algorithm": "NGRAM"}, "NGRAM are not supported .it drafts a tree"),
        ({"algorithm": "UNO"}, "UNO are not supported .*two tokens besides"),
        ({"algorithm": "LATER"}, "LATER are not supported; supported: EAGLE, .*DFLASH, DSPARK"),
        ({"algorithm": "DSPARK", "caps": (0, 0, 0, 0, 9)}, "SGLANG_RAGGED_VERIFY_MODE=static"),
        ({"histogram_name": None}, "too old"),
        ({"num_speculative_tokens": 0}, "SGLang with --speculative-algorithm"),
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


def test_a_baseline_that_drafts_by_ngram_is_seen_though_it_reports_0_steps(servers: Servers) -> None:
    servers[0].num_speculative_tokens, servers[0].algorithm = 3, "NGRAM"
    with pytest.raises(ModelError, match=r"the baseline server speculates \(3 tokens\)"):
        connected(servers)


def test_remarks_name_nothing_that_sglang_does_not_have(servers: Servers) -> None:
    found = remarks(*probe_both(settings(servers)))
    assert found == ["queue times are not reported, and so not shown (--enable-metrics)"]


def test_a_recorded_stream_of_sglang_is_read_and_counted() -> None:
    """As version 0.5.23 sent it, with its tokens so far in every event, and its counts in the last."""
    stream = RECORDED["stream"]
    asked = ServerRequest(tuple(stream["prompt"]), SamplingParameters(temperature=0.0, max_tokens=12), 0)
    answer = ENGINES["sglang"].answer_type("speculative", "pair", asked, 0.0)
    assert all(answer.take(json.dumps(event), 0.1) for event in stream["events"])
    found, last = answer.completion(), stream["events"][-1]
    assert found.token_ids == tuple(last["output_ids"])
    assert (found.text, found.finish_reason) == (last["text"], "length")
    assert found.cached_tokens == last["meta_info"]["cached_tokens"]
    assert found.queue_ms == pytest.approx(1e3 * last["meta_info"]["queue_time"])
    counted = ENGINES["sglang"]("0.5.23").count(found, len(stream["prompt"]), RECORDED["K"], drafts_always=True)
    assert counted.is_sure
    assert counted.counts.num_output_tokens == len(found.chunk_sizes) + counted.counts.num_accepted_tokens


def test_the_fake_says_what_the_real_server_said() -> None:
    fake, stream = FakeSglang(4), RECORDED["stream"]
    body = ENGINES["sglang"]("").body_of(ServerRequest((5, 6), SamplingParameters(max_tokens=9), 0), "m", "salt")
    fake.tells_queue = True
    for theirs, ours in ((stream["events"][0], fake.events(body)[0]), (stream["events"][-1], fake.events(body)[-1])):
        assert ours.keys() <= theirs.keys()
        assert ours["meta_info"].keys() <= theirs["meta_info"].keys()
    assert json.loads(fake.info()).keys() <= RECORDED["server_info"].keys()


def test_a_server_that_was_started_otherwise_is_another_one(servers: Servers) -> None:
    engine = connected(servers)
    servers[1].algorithm = "EAGLE"
    with pytest.raises(ServiceUnavailableError, match="its figures would be another config's"):
        engine.measure(block(1))
