"""Constraints on an output, which a server enforces by a mask over its vocabulary.

The text of a schema or a grammar comes from the request.  It travels with the request to the servers and is stored
nowhere: a slice label records only the kind of constraint.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from msgspec import Struct

OUTPUT_CONSTRAINT: Final = "output_constraint"  # the slice label; requests without a constraint do not have it
UNCONSTRAINED: Final = "none"  # the label's value where `slice_by` names it and there is no constraint


class ConstraintKind(StrEnum):
    """The clients' name of it: the value of the slice label."""

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    GRAMMAR = "grammar"  # a regular expression, a choice, a context-free grammar or a structural tag
    TOOL = "tool"  # a forced call, or a tool whose arguments have to fit its schema


class ConstraintForm(StrEnum):
    """The forms that the servers' grammar backends accept."""

    JSON_OBJECT = "json_object"  # any JSON object
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"  # context-free, in EBNF as the grammar backends read it
    STRUCTURAL_TAG = "structural_tag"  # JSON schemas between tags


class OutputConstraint(Struct, frozen=True):
    """The restriction of one request's output.

    `text` is the schema as JSON, the regular expression, the grammar, the choices as a JSON array or the structural tag
    as JSON; "" of a JSON object.  `tool_name` is the one tool that a request forces, whose arguments the schema is of.
    """

    kind: ConstraintKind
    form: ConstraintForm
    text: str = ""
    tool_name: str | None = None

    def __repr__(self) -> str:  # without its text
        return f"OutputConstraint({self.kind!r}, {self.form!r})"
