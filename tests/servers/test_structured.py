"""Constrained outputs through two servers: what each is sent, and whether both arms keep what was asked for."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs

from shadowspec.quality.custom_scores import load_scorer
from shadowspec.servers.connecting import connect
from shadowspec.servers.engines.sglang import constraint_parameters
from shadowspec.servers.engines.vllm import guided_fields, structured_fields
from shadowspec.servers.server_checks import TRIAL_WORD
from shadowspec.types import (
    ConstraintForm,
    ConstraintKind,
    Contract,
    OutputConstraint,
    OutputContract,
    PairedScore,
    Parity,
    SamplingParameters,
    ShadowPrompt,
    Validity,
)
from shadowspec.types.failures import failure_counts
from tests.builders.server_blocks import COLD, CONFIG, block, connected, prompt, settings
from tests.servers.fake_server import FakeServer, after, raw, running, status
from tests.servers.fake_sglang import FakeSglang

CANARY = "canary_field"
SCHEMA = {
    "type": "object",
    "properties": {CANARY: {"type": "string"}, "days": {"type": "integer"}},
    "required": [CANARY],
}
JSON_SCHEMA = OutputConstraint(ConstraintKind.JSON_SCHEMA, ConstraintForm.JSON_SCHEMA, json.dumps(SCHEMA))
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
AS_JSON = OutputContract(Contract.JSON, schema=SCHEMA)
BOTH = Parity()


@pytest.fixture
def servers() -> Iterator[tuple[FakeServer, FakeServer]]:
    pair = FakeServer(), FakeServer(3)
    with running(*pair):
        yield pair


def asking(
    line: int, constraint: OutputConstraint = JSON_SCHEMA, contract: OutputContract | None = AS_JSON, **sampling: Any
) -> ShadowPrompt:
    parameters = SamplingParameters(temperature=0.0, **({"max_tokens": 60} | sampling))
    return structs.replace(prompt(line), sampling=parameters, constraint=constraint, contract=contract)


def asked(number: int, **changes: Any) -> Any:
    return structs.replace(block(number), requests=tuple(asking(line, **changes) for line in range(number)))


def test_a_schema_is_enforced_and_held_in_both_arms(
    servers: tuple[FakeServer, FakeServer], caplog: pytest.LogCaptureFixture
) -> None:
    engine = connect(
        settings(servers),
        [CONFIG],
        COLD,
        requests_per_slot=3,
        default_sampling={},
        scorer=load_scorer(["contract_valid"]),
    )
    for server in servers:
        server.bodies.clear()
    with caplog.at_level(logging.DEBUG):
        engine.measure(asked(1))
        servers[1].spoils = 2
        runs = engine.measure(asked(4)).runs
    assert [run.failure for run in runs] == [None] * 4
    assert {run.finish_reason for run in runs} == {"stop"}
    assert [run.flags.contract for run in runs] == [Contract.JSON] * 4
    assert [run.flags.baseline_validity for run in runs] == [Validity.VALID] * 4
    spoiled = [run for run in runs if run.flags.speculative_validity is Validity.INVALID]
    assert len(spoiled) == 2, "the last brace is missing"
    assert {run.scores["structured_validity"] for run in runs} == {PairedScore(1.0, 1.0), PairedScore(1.0, 0.0)}
    counted = failure_counts(runs)
    assert (counted["looked_at"], counted["draft_context_unknown"]) == (4, 4)
    assert (counted["json_baseline_valid"], counted["json_speculative_valid"]) == (4, 2)
    assert counted["json_speculative_invalid"] == 2
    assert CANARY not in caplog.text + repr(runs) + repr(asking(0))
    for server in servers:
        trials = [body for body in server.bodies if body["structured_outputs"] == {"choice": [TRIAL_WORD]}]
        assert len(trials) == 1, "each server is asked once whether it enforces"
        assert all(body["structured_outputs"] == {"json": SCHEMA} for body in server.bodies if body not in trials)


def test_requests_without_constraint_send_nothing_new(servers: tuple[FakeServer, FakeServer]) -> None:
    connected(servers).measure(block(3))
    assert [len(server.bodies) for server in servers] == [3, 3]
    assert not any("structured_outputs" in body for server in servers for body in server.bodies)


def test_an_output_that_is_cut_is_unfinished(servers: tuple[FakeServer, FakeServer]) -> None:
    (run,) = connected(servers).measure(asked(1, max_tokens=9)).runs
    assert run.finish_reason == "length"
    assert (run.flags.baseline_validity, run.flags.speculative_validity) == (Validity.UNFINISHED,) * 2


def test_parity_is_known_where_outputs_are_equal_and_nothing_is_read_off_unmasked_probabilities(
    servers: tuple[FakeServer, FakeServer],
) -> None:
    engine = connected(servers)
    assert engine.measure(asked(1)).runs[0].parity == BOTH
    for server in servers:
        server.bodies.clear()
    servers[1].lost_token = 3
    (run,) = engine.measure(asked(1)).runs
    assert run.parity == Parity(3, 0.75, rerun_differs=False), "the gap after the mask, from the request sent once more"
    asked_for = [body for body in servers[0].bodies if "logprobs" in body]
    assert [(body["logprobs"], body["structured_outputs"]) for body in asked_for] == [(2, {"json": SCHEMA})]
    servers[0].tells_logprobs = False
    assert engine.measure(asked(1)).runs[0].parity == Parity(3, None, rerun_differs=False)
    servers[0].tells_logprobs = True
    penalised = asked(1, presence_penalty=0.5)
    assert engine.measure(penalised).runs[0].parity == Parity(3, None, rerun_differs=False)
    servers[1].lost_token = None
    sampled = structs.replace(asking(0), sampling=SamplingParameters(temperature=1.0, max_tokens=60))
    (run,) = engine.measure(structs.replace(block(1), requests=(sampled,))).runs
    assert run.parity == BOTH, "a sampled output has no score: the log probabilities of a prompt know no mask"
    assert not servers[0].scored[1:], "none was asked for but by the look at the server"


def test_a_step_whose_draft_the_grammar_forbids_is_a_plain_step(servers: tuple[FakeServer, FakeServer]) -> None:
    """vLLM with async scheduling reports it as a step that drafted 0 tokens."""

    def emptied(events: list[Any]) -> list[Any]:
        said = events[-2]["metrics"]["speculative_decoding"]
        said["per_step_drafted"] = [3 if accepted else 0 for accepted in said["per_step_accepted"]]
        said["num_draft_tokens"] = sum(said["per_step_drafted"])
        return events

    engine = connected(servers)
    (usual,) = engine.measure(asked(1)).runs
    servers[1].script.append(after(emptied))
    (run,) = engine.measure(asked(1)).runs
    assert (usual.failure, run.failure) == (None, None)
    assert usual.counts is not None
    assert run.counts is not None
    num_empty = usual.counts.acceptance_histogram[0]
    assert num_empty > 0
    assert run.counts.acceptance_histogram == (0, *usual.counts.acceptance_histogram[1:])
    assert (run.counts.num_plain_steps, run.counts.num_drafts) == (num_empty, usual.counts.num_drafts - num_empty)
    assert run.counts.num_accepted_tokens_per_pos == usual.counts.num_accepted_tokens_per_pos


@pytest.mark.parametrize("arm", [0, 1])
def test_a_server_that_enforces_nothing_is_not_measured_as_if_it_did(
    servers: tuple[FakeServer, FakeServer], caplog: pytest.LogCaptureFixture, arm: int
) -> None:
    servers[arm].enforces = False
    engine = connected(servers)
    with caplog.at_level(logging.WARNING):
        runs = [*engine.measure(asked(2)).runs, *engine.measure(asked(2)).runs]
    assert {run.failure for run in runs} == {f"{('baseline', 'speculative')[arm]}_unconstrained"}
    assert len(servers[arm].bodies) == 1
    assert caplog.text.count("does not restrict its answers to a grammar") == 1
    assert [run.failure for run in engine.measure(block(2)).runs] == [None, None]


def test_a_server_that_refuses_the_trial_is_known_not_to_enforce_and_one_that_is_busy_is_asked_again(
    servers: tuple[FakeServer, FakeServer],
) -> None:
    engine = connected(servers)
    servers[0].script.append(status(400))
    assert engine.measure(asked(1)).runs[0].failure == "baseline_unconstrained"
    engine = connected(servers)
    servers[0].script.extend([raw(b""), status(503)])
    with pytest.raises(Exception, match="503"):
        engine.measure(asked(1))
    assert engine.measure(asked(1)).runs[0].failure is None


FORMS = [
    (ConstraintForm.JSON_OBJECT, "", OutputContract(Contract.JSON)),
    (ConstraintForm.JSON_SCHEMA, json.dumps(SCHEMA), AS_JSON),
    (ConstraintForm.REGEX, "7{1,5}", OutputContract(Contract.GRAMMAR, pattern="7{1,5}")),
    (ConstraintForm.CHOICE, '["yes", "no"]', OutputContract(Contract.GRAMMAR, choices=("yes", "no"))),
    (ConstraintForm.GRAMMAR, 'root ::= "yes"', None),
    (
        ConstraintForm.STRUCTURAL_TAG,
        json.dumps({
            "type": "structural_tag",
            "structures": [{
                "begin": '<tool_call>{"name": "weather", "arguments": ', "schema": SCHEMA, "end": "}</tool_call>",
            }],
            "triggers": ["<tool_call>"],
        }),
        OutputContract(Contract.TOOL_CALL, (TOOL,), is_required=False),
    ),
]  # fmt: skip


@pytest.mark.representative(
    "json_schema-0.10.1",
    "json_schema-0.32.0",
    "structural_tag-0.32.0",
    "grammar-0.32.0",
    "choice-0.32.0",
    "regex-0.32.0",
    "json_object-0.32.0",
)
@pytest.mark.parametrize("version", ["0.32.0", "0.10.1"])
@pytest.mark.parametrize(("form", "text", "contract"), FORMS, ids=[form for form, _, _ in FORMS])
def test_vllm_is_asked_in_the_words_of_its_version(
    form: ConstraintForm, text: str, contract: OutputContract | None, version: str
) -> None:
    pair = FakeServer(version=version), FakeServer(3, version=version)
    constraint = OutputConstraint(ConstraintKind.GRAMMAR, form, text)
    with running(*pair):
        (run,) = connected(pair).measure(asked(1, constraint=constraint, contract=contract, max_tokens=200)).runs
    assert run.failure is None
    assert run.flags.baseline_validity is run.flags.speculative_validity
    assert run.flags.baseline_validity is (None if contract is None else Validity.VALID)


@pytest.mark.parametrize(("form", "text", "contract"), FORMS, ids=[form for form, _, _ in FORMS])
def test_sglang_is_asked_in_its_sampling_parameters(
    form: ConstraintForm, text: str, contract: OutputContract | None
) -> None:
    pair = FakeSglang(), FakeSglang(3)
    if form in (ConstraintForm.CHOICE, ConstraintForm.JSON_OBJECT):
        contract = None  # the fake knows of a grammar only whether it has one
    constraint = OutputConstraint(ConstraintKind.GRAMMAR, form, text)
    with running(*pair):
        (run,) = connected(pair).measure(asked(1, constraint=constraint, contract=contract, max_tokens=200)).runs
    assert run.failure is None
    assert run.flags.speculative_validity is (None if contract is None else Validity.VALID)


def test_the_fields_of_each_engine() -> None:
    choice = OutputConstraint(ConstraintKind.GRAMMAR, ConstraintForm.CHOICE, json.dumps(['a"b', "ü\n"]))
    anything = OutputConstraint(ConstraintKind.JSON_OBJECT, ConstraintForm.JSON_OBJECT)
    assert structured_fields(JSON_SCHEMA) == {"structured_outputs": {"json": SCHEMA}}
    assert structured_fields(anything) == {"structured_outputs": {"json_object": True}}
    assert guided_fields(JSON_SCHEMA) == {"guided_json": SCHEMA}
    assert guided_fields(choice) == {"guided_choice": ['a"b', "ü\n"]}
    assert guided_fields(anything) == {"response_format": {"type": "json_object"}}
    assert constraint_parameters(JSON_SCHEMA) == {"json_schema": json.dumps(SCHEMA)}
    assert constraint_parameters(anything) == {"json_schema": '{"type": "object"}'}
    assert constraint_parameters(choice) == {"ebnf": 'root ::= "a\\"b" | "ü\\n"'}


def test_a_named_call_is_its_arguments_by_vllm_and_an_array_by_sglang() -> None:
    named = OutputConstraint(ConstraintKind.TOOL, ConstraintForm.JSON_SCHEMA, json.dumps(SCHEMA), "weather")
    contract = OutputContract(Contract.TOOL_CALL, (TOOL,), is_arguments=True)
    for pair in ((FakeServer(), FakeServer(3)), (FakeSglang(), FakeSglang(3))):
        with running(*pair):
            (run,) = connected(pair).measure(asked(1, constraint=named, contract=contract, max_tokens=200)).runs
        assert (run.failure, run.flags.contract) == (None, Contract.TOOL_CALL)
        assert (run.flags.baseline_validity, run.flags.speculative_validity) == (Validity.VALID, Validity.VALID)
    schema = json.loads(constraint_parameters(named)["json_schema"])
    assert (schema["type"], schema["items"]["properties"]["name"]["enum"]) == ("array", ["weather"])
