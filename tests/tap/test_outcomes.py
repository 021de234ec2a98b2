"""What an output has to be and what became of production's own: as the request, the operator and the mirror say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shadowspec.tap.admission import Admitted
from shadowspec.types import Contract, FunnelCounter, Intervention, OutputContract, ShadowPrompt
from tests.tap.mirror import RULE, chat, fate, fates, first_only

TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
JSON_ASKED = {"request_response_format": {"type": "json_object"}, "metadata": {"response_format_enforced": False}}
SQL = OutputContract(Contract.SQL, dialect="postgres")


def admitted(record: Any, **rule_changes: Any) -> ShadowPrompt:
    (decided,) = fates([record], replace(first_only(RULE), **rule_changes))
    assert isinstance(decided, Admitted), decided.record
    return decided.prompt


def test_a_request_asks_for_its_contract() -> None:
    assert admitted(chat()).contract is None
    assert admitted(chat(**JSON_ASKED)).contract == OutputContract(Contract.JSON)
    tools = admitted(chat(request_tools=[TOOL])).contract
    assert tools == OutputContract(Contract.TOOL_CALL, (TOOL,), is_required=False)
    assert "look_up" not in repr(tools), "tools are the client's own text"
    assert admitted(chat(request_tools=[TOOL], request_tool_choice="none")).contract is None
    assert admitted(chat(request_tools=[TOOL], **JSON_ASKED)).contract == OutputContract(Contract.JSON, (TOOL,))


def test_the_operator_s_word_counts_for_the_classes_that_it_names() -> None:
    structured = {"metadata": {"prompt_class": "structured"}}
    by_class = {"structured": SQL}
    assert admitted(chat(**structured), contracts=by_class).contract == SQL
    assert admitted(chat(), contracts=by_class).contract is None
    assert admitted(chat(), contracts={"": SQL}).contract == SQL
    json = OutputContract(Contract.JSON)
    assert admitted(chat(**structured), contracts=by_class | {"": json}).contract == SQL
    assert admitted(chat(**JSON_ASKED), contracts={"": SQL}).contract == SQL
    required = OutputContract(Contract.TOOL_CALL)
    assert admitted(chat(request_tools=[TOOL]), contracts={"": required}).contract == replace(required, tools=(TOOL,))


@pytest.mark.parametrize(
    ("reason", "intervention"),
    [
        ("content_filter", Intervention.FILTERED),
        ("guardrail_intervened", Intervention.FILTERED),
        ("SAFETY", Intervention.FILTERED),
        ("stop", None),
        ("length", None),
        ("tool_calls", None),
        (None, None),
    ],
)
def test_why_an_answer_ended(reason: str | None, intervention: Intervention | None) -> None:
    record = chat(response_choices=[{"finish_reason": reason}])
    assert admitted(record).intervention is intervention
    assert fate(record) == (FunnelCounter.MEASURED, None)


def test_a_mirror_says_what_was_done() -> None:
    for each in Intervention:
        assert admitted(chat(metadata={"intervention": each.value})).intervention is each
    for other in ("none", "Filtered", 3, ["filtered"], {"filtered": True}, True):
        assert admitted(chat(metadata={"intervention": other})).intervention is None
    assert admitted(chat(request_metadata={"intervention": "rewritten"})).intervention is None  # a client


@pytest.mark.parametrize("failed", [{"status": 400}, {"status": "failure"}, {"response_error": {"code": "x"}}])
def test_of_failed_calls_only_those_are_admitted_whose_output_was_rejected(failed: dict[str, Any]) -> None:
    refused = (FunnelCounter.UNSUPPORTED, "failed_request")
    assert fate(chat(**failed)) == refused
    assert fate(chat(**failed, metadata={"intervention": "filtered"})) == refused
    rejected = chat(**failed, metadata={"intervention": "rejected"})
    assert fate(rejected) == (FunnelCounter.MEASURED, None)
    assert admitted(rejected).intervention is Intervention.REJECTED
    assert fate(chat(**failed, cache_hit=True, metadata={"intervention": "rejected"})) == (
        FunnelCounter.UNSUPPORTED,
        "cache_hit",
    )
