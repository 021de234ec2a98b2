"""A request's demands on its output: the constraint that servers enforce, and the contract that it must satisfy.

A request states a constraint in one of five ways: `response_format`; vLLM's `structured_outputs`; its older `guided_*`
fields; SGLang's `regex`, `ebnf` and `json_schema`; a forced tool call, or strict tools.  The schemas of tool calls
follow the servers: vLLM and SGLang write an array of calls where any tool is required.  Where one is named, vLLM writes
only its arguments, and SGLang such an array (`shadowspec.servers`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from shadowspec.tap.parameters import CONSTRAINING, malformed_error, unsupported_error
from shadowspec.types import ConstraintForm, ConstraintKind, Contract, OutputConstraint, OutputContract

NO_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}  # of a tool that states none
ANY_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object"}  # of a tool that is not strict, beside one that is
_FORMS: Final[Mapping[str, ConstraintForm]] = {  # by their names in structured_outputs
    "json": ConstraintForm.JSON_SCHEMA,
    "json_object": ConstraintForm.JSON_OBJECT,
    "regex": ConstraintForm.REGEX,
    "choice": ConstraintForm.CHOICE,
    "grammar": ConstraintForm.GRAMMAR,
    "structural_tag": ConstraintForm.STRUCTURAL_TAG,
}
_FIELDS: Final[Mapping[str, ConstraintForm]] = {  # fields of the request itself
    "guided_json": ConstraintForm.JSON_SCHEMA,
    "guided_regex": ConstraintForm.REGEX,
    "guided_choice": ConstraintForm.CHOICE,
    "guided_grammar": ConstraintForm.GRAMMAR,
    "json_schema": ConstraintForm.JSON_SCHEMA,
    "regex": ConstraintForm.REGEX,
    "ebnf": ConstraintForm.GRAMMAR,
    "structural_tag": ConstraintForm.STRUCTURAL_TAG,
}
_BACKEND: Final = ("disable_fallback", "_backend", "_backend_was_auto")  # choose the library, not the constraint
_KINDS: Final[Mapping[ConstraintForm, ConstraintKind]] = {
    ConstraintForm.JSON_OBJECT: ConstraintKind.JSON_OBJECT,
    ConstraintForm.JSON_SCHEMA: ConstraintKind.JSON_SCHEMA,
}


class ToolCallFormat(StrEnum):
    """How a model writes its tool calls, as servers' parsers are called."""

    HERMES = "hermes"  # Hermes, Qwen 2.5 and 3: <tool_call>{"name": ..., "arguments": {...}}</tool_call>


class AskedOutput(Struct, frozen=True):
    """`asks_for_json`: a format of JSON is asked for, whether it is enforced or not."""

    constraint: OutputConstraint | None = None
    contract: OutputContract | None = None
    asks_for_json: bool = False


_NOTHING_ASKED: Final = AskedOutput()


def refuse_constraints(body: Mapping[str, Any], *, is_enforced: bool) -> None:
    """Refuse a chat or completion body whose output an engine would have to constrain.

    Raises:
        RecordError: unsupported ("grammar", "forced_tool_choice"), or malformed.
    """
    if any(body.get(name) is not None for name in CONSTRAINING):
        raise unsupported_error("grammar")
    kind = _format_kind(body)
    if kind not in (None, "text") and (is_enforced or kind not in ("json_object", "json_schema")):
        raise unsupported_error("grammar")
    if body.get("tool_choice") not in (None, "auto", "none"):
        raise unsupported_error("forced_tool_choice")
    tools = body.get("tools")
    if any(_is_strict(tool) for tool in (tools if isinstance(tools, list) else ())):  # no list: refused with the body
        raise unsupported_error("grammar")


def asked_output(
    body: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]],
    *,
    is_enforced: bool,
    tool_call_format: ToolCallFormat | None = None,
    is_sent_whole: bool = False,
) -> AskedOutput:
    """A chat or completion body's demands on its output.

    Args:
        body: the request, in OpenAI's form.
        tools: those that it offers.
        is_enforced: production enforced `response_format`; otherwise it is a contract and no constraint.
        tool_call_format: how the target writes calls (None: not known, so that strict tools are refused).
        is_sent_whole: a server gets the body itself, so that only the kind of the constraint matters here.

    Raises:
        RecordError: malformed, or unsupported: more than one constraint, or one that servers are not asked for.
    """
    if not tools and CONSTRAINING.isdisjoint(body) and not ("response_format" in body or "tool_choice" in body):
        return _NOTHING_ASKED
    if body.get("tool_choice") == "none":
        tools = ()
    if is_sent_whole and tool_call_format is None and any(map(_is_strict, tools)):
        tool_call_format = ToolCallFormat.HERMES  # any: nobody is sent its tags
    constraints = [*_of_fields(body), *_of_tools(body, tools, tool_call_format)]
    wanted = _of_response_format(body)
    if wanted is not None and (is_enforced or wanted.form is ConstraintForm.STRUCTURAL_TAG):
        constraints.append(wanted)
    if len(constraints) > 1 and not is_sent_whole:
        raise unsupported_error("several_constraints")
    constraint = constraints[0] if constraints else None
    asked = constraint or wanted
    return AskedOutput(
        constraint,
        _contract(asked, tools, is_constrained=constraint is not None),
        asks_for_json=asked is not None and asked.kind in _KINDS.values(),
    )


def _contract(
    asked: OutputConstraint | None, tools: Sequence[Mapping[str, Any]], *, is_constrained: bool
) -> OutputContract | None:
    """The contract of the output; None where nothing is known of it."""
    offered = tuple(tools)
    if asked is None:
        return OutputContract(Contract.TOOL_CALL, offered, is_required=False) if offered else None
    if asked.kind is ConstraintKind.TOOL:
        if asked.tool_name is not None:
            named = tuple(tool for tool in offered if _function(tool).get("name") == asked.tool_name)
            return OutputContract(Contract.TOOL_CALL, named, is_arguments=True)
        is_required = asked.form is ConstraintForm.JSON_SCHEMA
        return OutputContract(Contract.TOOL_CALL, offered, is_required=is_required)
    if asked.form is ConstraintForm.REGEX:
        return OutputContract(Contract.GRAMMAR, pattern=asked.text)
    if asked.form is ConstraintForm.CHOICE:
        return OutputContract(Contract.GRAMMAR, choices=tuple(json.loads(asked.text)))
    if asked.kind is ConstraintKind.GRAMMAR:
        return None
    schema = json.loads(asked.text) if asked.text else None
    # Under a mask that allows only this JSON there can be no call beside it.
    return OutputContract(Contract.JSON, () if is_constrained else offered, schema=schema)


def _format_kind(body: Mapping[str, Any]) -> Any:
    response_format = body.get("response_format")
    if response_format is None:
        return None
    if not isinstance(response_format, Mapping):
        raise malformed_error("invalid:request.response_format")
    return response_format.get("type")


def _of_response_format(body: Mapping[str, Any]) -> OutputConstraint | None:
    kind, response_format = _format_kind(body), body.get("response_format") or {}
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return OutputConstraint(ConstraintKind.JSON_OBJECT, ConstraintForm.JSON_OBJECT)
    if kind == "json_schema":
        described = response_format.get("json_schema")
        schema = described.get("schema") if isinstance(described, Mapping) else None
        return _constraint(ConstraintForm.JSON_SCHEMA, schema, "response_format")
    if kind == "structural_tag":
        return _constraint(ConstraintForm.STRUCTURAL_TAG, response_format, "response_format")
    raise unsupported_error("response_format")


def _of_fields(body: Mapping[str, Any]) -> Iterator[OutputConstraint]:
    """The constraints in vLLM's and SGLang's fields."""
    for name, form in _FIELDS.items():
        if (value := body.get(name)) is not None:
            yield _constraint(form, value, name)
    options = body.get("structured_outputs")
    if options is None:
        return
    if not isinstance(options, Mapping):
        raise malformed_error("invalid:request.structured_outputs")
    for name, value in options.items():
        if value is None or value is False or name in _BACKEND:
            continue
        if name not in _FORMS:
            raise unsupported_error("grammar_option")
        yield _constraint(_FORMS[name], value, "structured_outputs")


def _constraint(form: ConstraintForm, value: Any, place: str) -> OutputConstraint:
    """A constraint of one form from its value in a request."""
    text = _READERS[form](value)
    if text is None:
        raise malformed_error(f"invalid:request.{place}")
    return OutputConstraint(_KINDS.get(form, ConstraintKind.GRAMMAR), form, text)


def _read_object(value: Any) -> str | None:
    """An object, given as such or as the text of one; its properties stay in their order, in which they are written."""
    try:
        value = json.loads(value) if isinstance(value, str) else value
        return json.dumps(value, allow_nan=False) if isinstance(value, Mapping) else None
    except (ValueError, RecursionError):
        return None


def _read_text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _read_choices(value: Any) -> str | None:
    is_list = isinstance(value, list) and value and all(isinstance(choice, str) for choice in value)
    return json.dumps(value) if is_list else None


def _read_flag(value: Any) -> str | None:
    return "" if value is True else None


_READERS: Final[Mapping[ConstraintForm, Callable[[Any], str | None]]] = {
    ConstraintForm.JSON_OBJECT: _read_flag,
    ConstraintForm.JSON_SCHEMA: _read_object,
    ConstraintForm.REGEX: _read_text,
    ConstraintForm.CHOICE: _read_choices,
    ConstraintForm.GRAMMAR: _read_text,
    ConstraintForm.STRUCTURAL_TAG: _read_object,
}


def _of_tools(
    body: Mapping[str, Any], tools: Sequence[Mapping[str, Any]], tool_call_format: ToolCallFormat | None
) -> Iterator[OutputConstraint]:
    """The constraint of a forced call, or of strict tools that may be called."""
    choice = body.get("tool_choice")
    if choice in (None, "auto", "none"):
        if any(_is_strict(tool) for tool in tools):
            if tool_call_format is None:
                raise unsupported_error("strict_tools")
            text = json.dumps(_hermes_tags(tools))
            yield OutputConstraint(ConstraintKind.TOOL, ConstraintForm.STRUCTURAL_TAG, text)
        return
    if choice == "required":
        yield _forced(_any_call(tools))
        return
    if not isinstance(choice, Mapping) or choice.get("type") != "function":
        raise unsupported_error("forced_tool_choice")
    name = _function(choice).get("name")
    chosen = [tool for tool in tools if _name(tool) == name]
    if not chosen:
        raise malformed_error("invalid:request.tool_choice")
    yield _forced(_parameters(chosen[0]), name)


def _forced(schema: Mapping[str, Any], tool_name: str | None = None) -> OutputConstraint:
    return OutputConstraint(ConstraintKind.TOOL, ConstraintForm.JSON_SCHEMA, json.dumps(schema), tool_name)


def _any_call(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The schema of one call or several; definitions are the whole schema's, where references look for them."""
    if not tools:
        raise malformed_error("invalid:request.tool_choice")
    shared: dict[str, Any] = {}
    calls = []
    for tool in tools:
        parameters = dict(_parameters(tool))
        defined = parameters.pop("$defs", None)
        for name, definition in (defined if isinstance(defined, Mapping) else {}).items():
            if shared.setdefault(name, definition) != definition:
                raise unsupported_error("conflicting_definitions")
        properties = {"name": {"type": "string", "enum": [_name(tool)]}, "parameters": parameters}
        calls.append({"properties": properties, "required": ["name", "parameters"]})
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": calls}}
    return schema | ({"$defs": shared} if shared else {})


def _hermes_tags(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A structural tag in the form that vLLM and SGLang both take: its mark is followed by a call of one tool."""
    structures = [
        {
            "begin": f'<tool_call>\n{{"name": {json.dumps(_name(tool))}, "arguments": ',
            "schema": _parameters(tool) if _is_strict(tool) else ANY_ARGUMENTS,
            "end": "}\n</tool_call>",
        }
        for tool in tools
    ]
    return {"type": "structural_tag", "structures": structures, "triggers": ["<tool_call>"]}


def _function(tool: Any) -> Mapping[str, Any]:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    return function if isinstance(function, Mapping) else {}


def _name(tool: Mapping[str, Any]) -> str:
    name = _function(tool).get("name")
    if not isinstance(name, str):
        raise malformed_error("invalid:request.tools")
    return name


def _parameters(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = _function(tool).get("parameters")
    return parameters if isinstance(parameters, Mapping) and parameters else NO_PARAMETERS


def _is_strict(tool: Any) -> bool:
    return _function(tool).get("strict") is True
