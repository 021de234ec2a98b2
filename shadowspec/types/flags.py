"""Possible faults of one request: the contract of its output, production's treatment of it, and the flags of its run.

A flag is a number, a truth or one word of a fixed list; it never contains text of a prompt or an output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any


class Contract(StrEnum):
    """The form in which an endpoint's client code reads its outputs."""

    JSON = "json"
    TOOL_CALL = "tool_call"
    SQL = "sql"
    GRAMMAR = "grammar"  # the request's: a regular expression or a choice


@dataclass(frozen=True, slots=True)
class OutputContract:
    """The required form of one request's output.

    `tools` are those that the request offers, in OpenAI's form.  `is_required`: an output without a call breaks a
    contract of tool calls; otherwise the model was free to answer in plain text.  `dialect` is that of SQL, by
    sqlglot's name (None: any that sqlglot reads).  `schema` is the JSON schema to satisfy; `pattern` or `choices`
    restrict the whole text under a contract of a grammar.  `is_arguments`: the text may be only the arguments of the
    single tool, as servers write a call that the request forces.
    """

    kind: Contract
    tools: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    is_required: bool = True
    dialect: str | None = None
    schema: Mapping[str, Any] | None = field(default=None, repr=False)
    pattern: str | None = field(default=None, repr=False)
    choices: tuple[str, ...] = field(default=(), repr=False)
    is_arguments: bool = False

    @property
    def may_be_marked(self) -> bool:
        """Whether an output may hold tool calls, which special tokens mark."""
        return self.kind is Contract.TOOL_CALL or bool(self.tools)


class Validity(IntEnum):
    """Whether an output keeps its contract.  One that was cut at its token limit is neither valid nor invalid."""

    INVALID = 0
    VALID = 1
    UNFINISHED = 2


class Intervention(StrEnum):
    """The action of a layer behind the model on its output in production.  The shadow's outputs pass no such layer."""

    FILTERED = "filtered"  # withheld, in part or whole: finish_reason content_filter and its dialects
    REWRITTEN = "rewritten"  # delivered otherwise than it was generated
    REJECTED = "rejected"  # the call was failed because of it


@dataclass(frozen=True, slots=True)
class RunFlags:
    """The flags of one run; None where a flag is not defined, and on runs measured before flags existed.

    `is_early_rejection`: the draft was rejected from the start (`shadowspec.types.failures`); None of too few steps.
    `is_beyond_draft_context`: prompt and output are longer than the draft model's context; False without a model.
    `contract`: the output's required form, where the contract applied to either arm's output, with the validity of each
    (None: it did not apply to that arm's, which was a plain-text answer).
    """

    is_early_rejection: bool | None = None
    is_beyond_draft_context: bool | None = None
    contract: Contract | None = None
    baseline_validity: Validity | None = None
    speculative_validity: Validity | None = None
    intervention: Intervention | None = None

    @classmethod
    def judge(
        cls,
        contract: OutputContract | None,
        baseline: Validity | None,
        speculative: Validity | None,
        *,
        is_early_rejection: bool | None,
        is_beyond_draft_context: bool | None = None,
        intervention: Intervention | None,
    ) -> RunFlags:
        """Of a run whose outputs were held against a contract (None: against none), which may apply to neither."""
        applies = contract is not None and (baseline is not None or speculative is not None)
        return cls(
            is_early_rejection=is_early_rejection,
            is_beyond_draft_context=is_beyond_draft_context,
            contract=contract.kind if contract is not None and applies else None,
            baseline_validity=baseline,
            speculative_validity=speculative,
            intervention=intervention,
        )


NO_FLAGS = RunFlags()
