"""Blocks through two servers that answer as TensorRT-LLM: the same runs as through vLLM, or why there are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec import structs

from shadowspec.errors import ConfigError, ModelError
from shadowspec.quality.custom_scores import Scorer
from shadowspec.servers.connecting import connect
from shadowspec.servers.engines import ENGINES
from shadowspec.servers.probing import counts_source, probe_both, remarks
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.step_counts import OtherDepthError, UncountableError
from shadowspec.servers.stream import Completion
from shadowspec.types import (
    ConstraintForm,
    ConstraintKind,
    Contract,
    OutputConstraint,
    OutputContract,
    Parity,
    SamplingParameters,
    SpeculationConfig,
    VerifyRule,
)
from tests.builders.server_blocks import COLD, CONFIG, block, connected, settings
from tests.servers.fake_server import FakeServer, after, running
from tests.servers.fake_tensorrt_llm import FakeTensorRtLlm

Servers = tuple[FakeTensorRtLlm, FakeTensorRtLlm]
ENGINE = ENGINES["tensorrt-llm"]("1.4.0rc1")


@pytest.fixture
def servers() -> Iterator[Servers]:
    pair = FakeTensorRtLlm(), FakeTensorRtLlm(3)
    with running(*pair):
        yield pair


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowspec.servers.client.FIRST_RETRY_S", 0.01)


def test_runs_are_those_that_the_same_steps_give_through_vllm(servers: Servers) -> None:
    engine = connected(servers)
    found = engine.measure(block(5)).runs
    with running(*(others := (FakeServer(), FakeServer(3)))):
        expected = connected(others).measure(block(5)).runs
    assert [run.counts for run in found] == [run.counts for run in expected]
    assert [run.parity for run in found] == [Parity()] * 5
    assert {run.served.counts_source for run in found if run.served is not None} == {"speculative_decoding"}
    assert engine.configs[0].engine == "tensorrt_llm/1.4.0rc1"
    assert servers[0].bodies[0]["detokenize"] is False


def in_last(**changes: Any) -> Callable[[list[Any]], list[Any]]:
    """Changes of the counts in the last event with a choice."""

    def changed(events: list[Any]) -> list[Any]:
        *rest, last, usage, done = events
        (choice,) = last["choices"]
        counts = choice["speculative_decoding"] | changes
        return [*rest, last | {"choices": [choice | {"speculative_decoding": counts}]}, usage, done]

    return changed


@pytest.mark.parametrize(
    ("changes", "failure"),
    [
        ({"num_spec_steps": 99}, "uncountable"),
        ({"total_accepted_draft_tokens": 99}, "uncountable"),
        ({"total_draft_tokens": 1}, "uncountable"),
        ({"acceptance_histogram": [1, "x"]}, "uncountable"),
        ({"acceptance_histogram": [9, 9, 9, 9]}, "uncountable"),
        ({"num_spec_tokens": None}, "uncountable"),
        ({"num_spec_tokens": 4}, "other_depth"),
        ({"acceptance_histogram": [1, 0, 0]}, "other_depth"),
    ],
)
def test_counts_that_contradict_themselves_are_not_used(
    servers: Servers, changes: dict[str, Any], failure: str
) -> None:
    engine = connected(servers)
    servers[1].script.append(after(in_last(**changes)))
    failures = [run.failure for run in engine.measure(block(2, load=1)).runs]
    assert failures == [f"speculative_{failure}", None]


def answer(tokens: int, sizes: tuple[int, ...], **counts: Any) -> Completion:
    return Completion(tuple(range(tokens)), sizes, "", "length", tokens, 0.0, 0.1, 0.2, speculation=counts)


def test_an_answer_is_counted_by_the_formulas_of_its_histogram() -> None:
    """The documented example of AIPerf: 20 steps, of which 8 accepted none, 6 accepted 2, and 6 all 3."""
    given = answer(51, (1, *[1] * 8, *[3] * 6, *[4] * 6), acceptance_rate=0.5, total_accepted_draft_tokens=30,
                   total_draft_tokens=60, num_spec_steps=20, acceptance_histogram=[8, 0, 6, 6],
                   num_spec_tokens=3)  # fmt: skip
    found = ENGINE.count(given, 5, 3, drafts_always=True)
    assert found.is_sure
    assert found.counts.num_accepted_tokens_per_pos == (12, 12, 6)
    assert (found.counts.num_drafts, found.counts.num_draft_tokens, found.counts.num_accepted_tokens) == (20, 60, 30)


def test_one_token_needs_no_counts_and_more_do() -> None:
    assert ENGINE.count(answer(1, (1,)), 5, 3, drafts_always=True).counts.num_drafts == 0
    with pytest.raises(UncountableError, match="per_request_spec_decode_stats: true is not set"):
        ENGINE.count(answer(2, (1, 1)), 5, 3, drafts_always=True)


def test_a_deeper_histogram_is_another_depth() -> None:
    given = answer(2, (1, 1), num_spec_steps=1, acceptance_histogram=[1, 0, 0, 0, 0], num_spec_tokens=4)
    with pytest.raises(OtherDepthError, match="drafts 4 tokens in a step, and 3"):
        ENGINE.count(given, 5, 3, drafts_always=True)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"has_schedule": True}, "start it without draft_len_schedule"),
        ({"has_stats": False}, "does not report that it speculates; start .*per_request_spec_decode_stats: true"),
        ({"has_stats": False, "has_metrics": True}, "start TensorRT-LLM's PyTorch backend with per_request"),
        ({"num_speculative_tokens": 0, "has_metrics": True}, "the speculative server does not speculate"),
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


def test_a_baseline_that_speculates_is_refused_by_its_metrics(servers: Servers) -> None:
    servers[0].num_speculative_tokens, servers[0].has_stats, servers[0].has_metrics = 3, False, True
    with pytest.raises(ModelError, match="the baseline server speculates"):
        connected(servers)


def method(name: str) -> SpeculationConfig:
    return SpeculationConfig("k3", "t", None, name, 3, VerifyRule.SERVER, backend="openai", speculative_config="{}")


def test_a_method_whose_steps_may_have_no_draft_is_refused(servers: Servers) -> None:
    with pytest.raises(ModelError, match="does not count steps without a draft, which NGram has"):
        counts_source(method("NGram"), *probe_both(settings(servers)))


def test_the_method_that_its_metrics_name_is_compared(servers: Servers) -> None:
    servers[1].has_metrics = True
    probes = probe_both(settings(servers))
    assert counts_source(method("eagle3"), *probes).name == "speculative_decoding"
    with pytest.raises(ModelError, match="method is 'mtp', and the speculative server says that it drafts by 'Eagle3'"):
        counts_source(method("mtp"), *probes)


def test_doctor_says_what_the_server_does_not_report(servers: Servers) -> None:
    found = remarks(*probe_both(settings(servers)))
    assert any("use_relaxed_acceptance_for_thinking" in each and "use_dynamic_tree" in each for each in found)
    assert any("capacity of the KV caches is not reported" in each for each in found)


def test_a_contract_is_not_judged_without_a_text(servers: Servers) -> None:
    asked = block(1)
    with_contract = structs.replace(asked.requests[0], contract=OutputContract(Contract.JSON))
    (run,) = connected(servers).measure(structs.replace(asked, requests=(with_contract,))).runs
    assert run.failure is None
    assert run.flags is not None
    assert (run.flags.contract, run.flags.speculative_validity) == (None, None)


def test_constraints_and_scores_need_a_text_that_it_does_not_return(servers: Servers) -> None:
    constraint = OutputConstraint(ConstraintKind.JSON_OBJECT, ConstraintForm.JSON_OBJECT)
    asked = ServerRequest((5,), SamplingParameters(max_tokens=1), 0, constraint=constraint)
    assert ENGINE.lacking(asked) == "constraint"
    scorer = Scorer({"own": lambda output: 1.0})
    with pytest.raises(ConfigError, match="scores: TensorRT-LLM returns token ids without their text"):
        connect(settings(servers), [CONFIG], COLD, requests_per_slot=3, default_sampling={}, scorer=scorer)
