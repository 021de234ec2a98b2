"""Constraints on outputs in each engine's syntax."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from shadowspec.types import ConstraintForm, OutputConstraint

STRUCTURED_SINCE: Final = (0, 11)  # the first vLLM whose requests know `structured_outputs`; before: `guided_*`
ANY_OBJECT: Final = '{"type": "object"}'

_STRUCTURED: Final[Mapping[ConstraintForm, str]] = {  # of vLLM's structured_outputs
    ConstraintForm.JSON_OBJECT: "json_object",
    ConstraintForm.JSON_SCHEMA: "json",
    ConstraintForm.REGEX: "regex",
    ConstraintForm.CHOICE: "choice",
    ConstraintForm.GRAMMAR: "grammar",
    ConstraintForm.STRUCTURAL_TAG: "structural_tag",
}
_SGLANG: Final[Mapping[ConstraintForm, str]] = {  # of SGLang's sampling_params
    ConstraintForm.JSON_OBJECT: "json_schema",
    ConstraintForm.JSON_SCHEMA: "json_schema",
    ConstraintForm.REGEX: "regex",
    ConstraintForm.CHOICE: "ebnf",
    ConstraintForm.GRAMMAR: "ebnf",
    ConstraintForm.STRUCTURAL_TAG: "structural_tag",
}


# llama.cpp reads another language of grammars, and knows no regular expressions and no structural tags.
LLAMACPP_FORMS: Final = (ConstraintForm.JSON_OBJECT, ConstraintForm.JSON_SCHEMA, ConstraintForm.CHOICE)


def structured_fields(constraint: OutputConstraint) -> dict[str, Any]:
    """Additional fields of a body of vLLM's /v1/completions."""
    return {"structured_outputs": {_STRUCTURED[constraint.form]: _value(constraint)}}


def guided_fields(constraint: OutputConstraint) -> dict[str, Any]:
    """Additional fields of a body of a vLLM before `STRUCTURED_SINCE`."""
    if constraint.form is ConstraintForm.JSON_OBJECT:
        return {"response_format": {"type": "json_object"}}
    if constraint.form is ConstraintForm.STRUCTURAL_TAG:
        return {"response_format": json.loads(constraint.text)}
    return {f"guided_{_STRUCTURED[constraint.form]}": _value(constraint)}


def sglang_parameters(constraint: OutputConstraint) -> dict[str, Any]:
    """Additional sampling parameters of SGLang's /generate, all of them text."""
    return {_SGLANG[constraint.form]: _SGLANG_TEXTS.get(constraint.form, _text)(constraint)}


def llamacpp_fields(constraint: OutputConstraint) -> dict[str, Any]:
    """Additional fields of a body of llama.cpp's /completion, for a form among `LLAMACPP_FORMS`."""
    if constraint.form is ConstraintForm.CHOICE:
        return {"grammar": _choice_rule(constraint)}
    text = ANY_OBJECT if constraint.form is ConstraintForm.JSON_OBJECT else constraint.text
    return {"json_schema": json.loads(text)}


def _value(constraint: OutputConstraint) -> Any:
    """As vLLM takes it: schemas and choices as values, the rest as text."""
    if constraint.form is ConstraintForm.JSON_OBJECT:
        return True
    is_parsed = constraint.form in (ConstraintForm.JSON_SCHEMA, ConstraintForm.CHOICE)
    return json.loads(constraint.text) if is_parsed else constraint.text


def _text(constraint: OutputConstraint) -> str:
    return constraint.text


def _any_object(_: OutputConstraint) -> str:
    return ANY_OBJECT


def _choice_rule(constraint: OutputConstraint) -> str:
    """The rule of a grammar: one of these texts, quoted as JSON quotes them."""
    return "root ::= " + " | ".join(json.dumps(each, ensure_ascii=False) for each in json.loads(constraint.text))


def _sglang_schema(constraint: OutputConstraint) -> str:
    """The schema; of a call that is named, that of the array of calls in which SGLang expects it."""
    if constraint.tool_name is None:
        return constraint.text
    parameters = json.loads(constraint.text)
    shared = parameters.pop("$defs", None)
    properties = {"name": {"type": "string", "enum": [constraint.tool_name]}, "parameters": parameters}
    call = {"type": "object", "properties": properties, "required": ["name", "parameters"]}
    schema = {"type": "array", "minItems": 1, "items": call}
    return json.dumps(schema | ({} if shared is None else {"$defs": shared}))


_SGLANG_TEXTS: Final[Mapping[ConstraintForm, Callable[[OutputConstraint], str]]] = {
    ConstraintForm.JSON_OBJECT: _any_object,
    ConstraintForm.JSON_SCHEMA: _sglang_schema,
    ConstraintForm.CHOICE: _choice_rule,
}
