"""Constrained outputs: what servers are asked to enforce, which slice such requests are in, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from shadowspec.tap.asked_output import ToolCallFormat
from shadowspec.types import (
    OUTPUT_CONSTRAINT,
    ConstraintForm,
    ConstraintKind,
    Contract,
    FunnelCounter,
    OutputConstraint,
    OutputContract,
    parse_slice_key,
)
from tests.builders.admitted import CANARY, SERVED, admitted
from tests.tap.mirror import RULE, chat, fates, first_only, messages, responses

HERMES = replace(SERVED, tool_call_format=ToolCallFormat.HERMES)
SCHEMA = {
    "type": "object",
    "properties": {CANARY: {"type": "string"}, "days": {"type": "integer"}},
    "required": [CANARY],
}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA, "strict": True}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
OTHER = {"type": "function", "function": {"name": "time"}}
STRICT = {"type": "function", "function": TOOL["function"] | {"strict": True}}  # type: ignore[operator]
TAGS = {"structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}], "triggers": ["<a>"]}


def refusal(record: dict[str, Any], rule: Any = SERVED) -> tuple[str, str | None]:
    decided = fates([record], rule)[0].record
    return decided.counter.value, decided.reason


KIND, FORM = ConstraintKind, ConstraintForm


@pytest.mark.parametrize(
    ("fields", "kind", "form", "text"),
    [
        ({"response_format": {"type": "json_object"}}, KIND.JSON_OBJECT, FORM.JSON_OBJECT, ""),
        ({"response_format": JSON_SCHEMA}, KIND.JSON_SCHEMA, FORM.JSON_SCHEMA, json.dumps(SCHEMA)),
        ({"response_format": {"type": "structural_tag"} | TAGS}, KIND.GRAMMAR, FORM.STRUCTURAL_TAG, None),
        ({"structured_outputs": {"json": SCHEMA}}, KIND.JSON_SCHEMA, FORM.JSON_SCHEMA, json.dumps(SCHEMA)),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, KIND.JSON_SCHEMA, FORM.JSON_SCHEMA, json.dumps(SCHEMA)),
        ({"structured_outputs": {"json_object": True, "regex": None}}, KIND.JSON_OBJECT, FORM.JSON_OBJECT, ""),
        ({"structured_outputs": {"regex": "[0-9]+", "disable_fallback": True}}, KIND.GRAMMAR, FORM.REGEX, "[0-9]+"),
        ({"structured_outputs": {"choice": ["a", "b"]}}, KIND.GRAMMAR, FORM.CHOICE, '["a", "b"]'),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, KIND.GRAMMAR, FORM.GRAMMAR, 'root ::= "a"'),
        ({"structured_outputs": {"structural_tag": json.dumps(TAGS)}}, KIND.GRAMMAR, FORM.STRUCTURAL_TAG, None),
        ({"guided_json": SCHEMA, "guided_decoding_backend": "x"}, KIND.JSON_SCHEMA, FORM.JSON_SCHEMA, None),
        ({"guided_regex": "a"}, KIND.GRAMMAR, FORM.REGEX, "a"),
        ({"guided_choice": ["a"]}, KIND.GRAMMAR, FORM.CHOICE, '["a"]'),
        ({"guided_grammar": "g"}, KIND.GRAMMAR, FORM.GRAMMAR, "g"),
        ({"json_schema": json.dumps(SCHEMA)}, KIND.JSON_SCHEMA, FORM.JSON_SCHEMA, None),
        ({"regex": "a"}, KIND.GRAMMAR, FORM.REGEX, "a"),
        ({"ebnf": "g"}, KIND.GRAMMAR, FORM.GRAMMAR, "g"),
        ({"tools": [TOOL], "tool_choice": "required"}, KIND.TOOL, FORM.JSON_SCHEMA, None),
    ],
)
def test_servers_are_asked_for_what_the_request_asked_for(
    fields: dict[str, Any], kind: ConstraintKind, form: ConstraintForm, text: str | None
) -> None:
    record = chat()
    record["request"] |= fields
    prompt = admitted(record)
    constraint = prompt.constraint
    assert constraint is not None
    assert (constraint.kind, constraint.form) == (kind, form)
    assert text is None or constraint.text == text
    assert prompt.labels[OUTPUT_CONSTRAINT] == kind.value
    assert refusal(record, first_only(RULE))[0] == "unsupported", "the in-process engine takes it"


def test_constrained_requests_are_slices_of_their_own_and_others_keep_their_slices() -> None:
    plain, asked = chat(), chat(request_response_format=JSON_SCHEMA)
    in_process, through_servers = (fates([plain], rule)[0].record for rule in (first_only(RULE), SERVED))
    assert in_process == through_servers
    assert OUTPUT_CONSTRAINT not in (through_servers.labels or {})
    constrained = fates([asked], SERVED)[0].record
    assert constrained.slice_key == "prompt_class=structured,sampling_regime=high,output_constraint=json_schema"
    named = replace(SERVED, slice_by=(OUTPUT_CONSTRAINT, "sampling_regime"))
    keys = [fates([each], named)[0].record.slice_key or "" for each in (plain, asked)]
    assert [parse_slice_key(key)[OUTPUT_CONSTRAINT] for key in keys] == ["none", "json_schema"]
    assert [key.count(OUTPUT_CONSTRAINT) for key in keys] == [1, 1]


def test_what_an_output_has_to_be_follows_from_its_constraint() -> None:
    def contract(rule: Any = SERVED, **fields: Any) -> OutputContract | None:
        record = chat()
        record["request"] |= fields
        return admitted(record, rule).contract

    assert contract(response_format={"type": "json_object"}) == OutputContract(Contract.JSON)
    assert contract(response_format=JSON_SCHEMA, tools=[TOOL]) == OutputContract(Contract.JSON, schema=SCHEMA)
    assert contract(regex="[a-z]") == OutputContract(Contract.GRAMMAR, pattern="[a-z]")
    assert contract(guided_choice=["a", "b"]) == OutputContract(Contract.GRAMMAR, choices=("a", "b"))
    assert contract(ebnf="root ::= x") is None, "nothing here reads grammars"
    assert contract(tools=[TOOL, OTHER], tool_choice="required") == OutputContract(Contract.TOOL_CALL, (TOOL, OTHER))
    assert contract(HERMES, tools=[STRICT]) == OutputContract(Contract.TOOL_CALL, (STRICT,), is_required=False)
    named = {"type": "function", "function": {"name": "weather"}}
    assert contract(tools=[OTHER, TOOL], tool_choice=named) == OutputContract(
        Contract.TOOL_CALL, (TOOL,), is_arguments=True
    )
    configured = replace(SERVED, contracts={"": OutputContract(Contract.SQL)})
    assert contract(configured, response_format=JSON_SCHEMA) == OutputContract(Contract.SQL)


def test_forced_calls_have_the_schemas_that_servers_make_of_them() -> None:
    shared = {"$defs": {"word": {"type": "string"}}}
    first, second = (
        {
            "type": "function",
            "function": {"name": name, "parameters": {"properties": {"a": {"$ref": "#/$defs/word"}}} | shared},
        }
        for name in ("f", "g")
    )
    constraint = admitted(chat(request_tools=[first, second], request_tool_choice="required")).constraint
    assert constraint is not None
    schema = json.loads(constraint.text)
    assert (schema["type"], schema["minItems"], schema["$defs"]) == ("array", 1, shared["$defs"])
    calls = schema["items"]["anyOf"]
    assert [call["properties"]["name"]["enum"] for call in calls] == [["f"], ["g"]]
    assert [call["properties"]["parameters"] for call in calls] == [{"properties": {"a": {"$ref": "#/$defs/word"}}}] * 2
    named = {"type": "function", "function": {"name": "weather"}}
    forced = admitted(chat(request_tools=[OTHER, TOOL], request_tool_choice=named)).constraint
    assert forced == OutputConstraint(KIND.TOOL, FORM.JSON_SCHEMA, json.dumps(SCHEMA), "weather")
    other = first["function"] | {"name": "h", "parameters": {"$defs": {"word": {"type": "integer"}}}}  # type: ignore[operator]
    clash = chat(request_tools=[first, {"type": "function", "function": other}], request_tool_choice="required")
    assert refusal(clash) == ("unsupported", "conflicting_definitions")


def test_strict_tools_are_asked_for_between_the_marks_of_the_targets_calls() -> None:
    record = chat(request_tools=[STRICT, OTHER])
    assert refusal(record) == ("unsupported", "strict_tools")
    constraint = admitted(record, HERMES).constraint
    assert constraint is not None
    assert (constraint.kind, constraint.form) == (KIND.TOOL, FORM.STRUCTURAL_TAG)
    tags = json.loads(constraint.text)
    assert tags["triggers"] == ["<tool_call>"]
    assert [tag["schema"] for tag in tags["structures"]] == [SCHEMA, {"type": "object"}]
    assert tags["structures"][0]["begin"] == '<tool_call>\n{"name": "weather", "arguments": '
    assert admitted(chat(request_tools=[STRICT], request_tool_choice="none"), SERVED).constraint is None
    assert admitted(chat(request_tools=[TOOL]), SERVED).constraint is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "several_constraints"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "several_constraints"),
        ({"response_format": JSON_SCHEMA, "tools": [TOOL], "tool_choice": "required"}, "several_constraints"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}}, "grammar_option"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "forced_tool_choice"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "forced_tool_choice"),
    ],
)
def test_what_servers_are_not_asked_for_is_refused(fields: dict[str, Any], reason: str) -> None:
    record = chat()
    record["request"] |= fields
    assert refusal(record) == ("unsupported", reason)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}}, "response_format"),
        ({"structured_outputs": "json"}, "structured_outputs"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": 1}}, "structured_outputs"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", 1]}, "guided_choice"),
        ({"regex": ""}, "regex"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {}}], "tool_choice": "required"}, "tools"),
    ],
)
def test_a_constraint_that_cannot_be_read_is_malformed(fields: dict[str, Any], place: str) -> None:
    record = chat()
    record["request"] |= fields
    assert refusal(record) == ("malformed", f"invalid:request.{place}")


def test_the_other_apis_ask_for_the_same() -> None:
    wanted = OutputConstraint(KIND.JSON_SCHEMA, FORM.JSON_SCHEMA, json.dumps(SCHEMA))
    in_responses = responses()
    in_responses["request"]["text"] = {"format": {"type": "json_schema", "name": "w", "schema": SCHEMA}}
    in_messages = messages(output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    assert admitted(in_responses).constraint == admitted(in_messages).constraint == wanted
    tool = {"name": "weather", "input_schema": SCHEMA}
    forced = messages(tools=[tool], tool_choice={"type": "tool", "name": "weather"})
    assert admitted(forced).constraint == OutputConstraint(KIND.TOOL, FORM.JSON_SCHEMA, json.dumps(SCHEMA), "weather")
    flat = {"type": "function", "name": "weather", "parameters": SCHEMA}
    required = admitted(responses(tools=[flat], tool_choice="required")).constraint
    assert required == admitted(messages(tools=[tool], tool_choice={"type": "any"})).constraint
    assert required == admitted(chat(request_tools=[TOOL], request_tool_choice="required")).constraint
    assert fates([in_responses], first_only(RULE))[0].record.counter is FunnelCounter.UNSUPPORTED
