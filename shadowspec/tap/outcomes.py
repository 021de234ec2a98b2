"""What a request's output has to be, and what became of production's own: asked of requests to measure alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from shadowspec.tap.endpoints import EndpointRule
from shadowspec.tap.parsed import ParsedRequest
from shadowspec.tap.records import MirroredRecord
from shadowspec.types import Contract, Intervention, LoggedResponse, OutputContract

INTERVENTION: Final = "intervention"  # the annotation by which a mirror, or an adapter, says what was done
# OpenAI's and Azure's, then Bedrock's, Anthropic's, Cohere's, Zhipu's and Gemini's, in lower case.
FILTERING_REASONS: Final = frozenset(
    {
        "content_filter", "content_filtered", "guardrail_intervened", "refusal", "error_toxic", "sensitive", "safety",
        "recitation", "blocklist", "prohibited_content", "spii",
    }
)  # fmt: skip
_BY_NAME: Final = {each.value: each for each in Intervention}


def contract_of(rule: EndpointRule, prompt_class: str, request: ParsedRequest) -> OutputContract | None:
    """What the operator has named for this class of prompts, else what the request asks for; None: nothing.

    Where tools are offered, a call of one of them is right too; asked for by the request alone, so is an answer in
    words, unless JSON is asked for.
    """
    tools = tuple(request.tools or ()) if request.offers_tools else ()
    configured = rule.contracts.get(prompt_class) or rule.contracts.get("")
    if configured is not None:
        return replace(configured, tools=tools) if tools else configured
    if request.asks_for_json:
        return OutputContract(Contract.JSON, tools)
    return OutputContract(Contract.TOOL_CALL, tools, is_required=False) if tools else None


def intervention_of(record: MirroredRecord, logged: LoggedResponse | None) -> Intervention | None:
    """What a layer behind the model did with production's output, as far as the record says."""
    said = record.annotations.get(INTERVENTION) if record.annotations else None
    if isinstance(said, str) and said in _BY_NAME:
        return _BY_NAME[said]
    reason = logged.finish_reason if logged is not None else None
    return Intervention.FILTERED if reason is not None and reason.lower() in FILTERING_REASONS else None
