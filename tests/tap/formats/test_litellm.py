"""Payloads that litellm itself logged."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from shadowspec.tap.admission import Admitted
from shadowspec.tap.formats import MessageFormat, open_message
from shadowspec.tap.openai import parse_request, parse_response
from shadowspec.tap.sources import RawRecord
from shadowspec.types import FunnelCounter, Intervention
from tests.builders.opened_messages import formats_of
from tests.tap.formats.samples import message, opened, record_of, refused_later
from tests.tap.mirror import RULE, admission, first_only

Payloads = dict[str, dict[str, Any]]
RULES = (first_only(replace(RULE, served_models=("model-a",))),)


def fate(payload: dict[str, Any]) -> tuple[FunnelCounter, str | None]:
    """Where the payload's record ends."""
    (opened,) = open_message(message(payload), MessageFormat.LITELLM)
    decided = admission(*RULES).admit(opened).record
    return decided.counter, decided.reason


def test_a_logged_chat_is_the_request_that_was_made(litellm_payloads: Payloads) -> None:
    payload = litellm_payloads["chat"]
    record = record_of(payload)
    assert record.model == "model-a"
    request = parse_request(record)
    assert [(m["role"], m["content"]) for m in request.messages] == [("user", "Why is the sky blue?")]
    assert (request.sampling.temperature, request.max_tokens, request.sampling.seed) == (0.8, 20, 3)
    assert request.sampling.stop == ("\n\n",)
    assert record.session() == "session-2"  # from the client's metadata
    assert record.user_id() == "end-user-1"
    assert record.tenant_id() == "team-1"
    assert record.request_identity() == payload["litellm_call_id"]
    assert record.client_annotation("tier") == "pro"  # the client's word: no label unless the endpoint says so
    assert record.client_annotation("prompt_class") == "chat"
    assert record.annotation("tier") is None
    assert record.event_time(0).timestamp() == pytest.approx(payload["startTime"], abs=1e-5)
    logged = parse_response(record).logged
    assert logged is not None
    assert (logged.finish_reason, logged.num_output_tokens) == ("stop", 20)


def test_auto_takes_litellm_s_payloads_for_nothing_else(litellm_payloads: Payloads) -> None:
    for payload in litellm_payloads.values():
        assert formats_of(payload, ()) == [MessageFormat.LITELLM]
        assert opened(payload) == opened(payload, format=MessageFormat.LITELLM)


def test_a_session_is_believed_only_where_the_client_named_it(litellm_payloads: Payloads) -> None:
    assert record_of(litellm_payloads["correlated"]).session() == "session-3"
    assert record_of(litellm_payloads["plain"]).session() is None  # its trace id is litellm's own invention


def test_the_router_s_name_is_the_endpoint_and_the_deployment_s_the_model(litellm_payloads: Payloads) -> None:
    record = record_of(litellm_payloads["routed"])
    assert (record.endpoint, record.model) == ("public-chat", "model-a")
    renamed = {**litellm_payloads["routed"]}
    renamed["response"] = {**renamed["response"], "model": "public-chat"}
    assert fate(renamed)[0] is FunnelCounter.MEASURED


def test_an_answer_of_another_model_is_refused(litellm_payloads: Payloads) -> None:
    payload = {**litellm_payloads["routed"]}
    payload["response"] = {**payload["response"], "model": "fallback-model"}
    assert fate(payload) == (FunnelCounter.UNSUPPORTED, "other_model")


def test_a_text_completion_s_prompt_is_text(litellm_payloads: Payloads) -> None:
    request = parse_request(record_of(litellm_payloads["text"]))
    assert (request.is_chat, request.text, request.max_tokens) == (False, "Once upon", 5)


@pytest.mark.parametrize("name", ["chat", "plain", "streamed", "tools", "text", "routed", "correlated", "extras"])
def test_ordinary_calls_are_measured(litellm_payloads: Payloads, name: str) -> None:
    payload = litellm_payloads[name]
    if name != "text":
        assert payload["call_type"] == "completion"
    assert fate(payload) == (FunnelCounter.MEASURED, None)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("failed", "failed_request"),
        ("cached", "cache_hit"),
        ("redacted", "redacted"),
        ("redacted_later", "redacted"),
        ("cut_in_the_middle", "truncated"),
        ("cut_at_the_end", "truncated"),
        ("embedding", "embeddings"),
        ("pictures", "other_call"),
        ("image", "image_content"),
        ("several", "several_choices"),
    ],
)
def test_what_cannot_be_measured_says_why(litellm_payloads: Payloads, name: str, reason: str) -> None:
    assert fate(litellm_payloads[name]) == (FunnelCounter.UNSUPPORTED, reason)


@pytest.mark.parametrize(
    ("name", "intervention"),
    [
        ("rewritten", Intervention.REWRITTEN),
        ("masked", Intervention.REWRITTEN),
        ("rejected", Intervention.REJECTED),
        ("looked_at", None),
        ("prompt_masked", None),
        ("on_both_sides", None),
    ],
)
def test_what_guardrails_did_with_the_answer(
    litellm_payloads: Payloads, name: str, intervention: Intervention | None
) -> None:
    payload = litellm_payloads[name]
    (opened,) = open_message(message(payload), MessageFormat.LITELLM)
    decided = admission(*RULES).admit(opened)
    assert isinstance(decided, Admitted), decided.record
    assert decided.prompt.intervention is intervention
    (entry,) = payload["guardrail_information"]
    older = payload | {"guardrail_information": {**entry, "guardrail_status": "blocked"}}
    record = record_of(older, format=MessageFormat.LITELLM)
    assert (record.annotations.get("intervention") is None) == (entry["guardrail_mode"] != "post_call")


def test_a_prompt_that_was_rejected_never_reached_the_model(litellm_payloads: Payloads) -> None:
    assert fate(litellm_payloads["prompt_rejected"]) == (FunnelCounter.UNSUPPORTED, "failed_request")


@pytest.mark.parametrize(
    "entry", [None, 3, "guard", [], {}, {"guardrail_mode": {"default": "post_call"}, "guardrail_status": ["blocked"]},
              {"guardrail_mode": [{}, "post_call"], "guardrail_status": {}, "masked_entity_count": {"a": "b"}}]
)  # fmt: skip
def test_guardrails_of_any_form_are_no_error(litellm_payloads: Payloads, entry: Any) -> None:
    for found in (entry, [entry, entry]):
        assert fate(litellm_payloads["chat"] | {"guardrail_information": found}) == (FunnelCounter.MEASURED, None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: p | {"messages": None}, "no_payload"),
        (lambda p: {k: v for k, v in p.items() if k not in {"messages", "response"}}, "no_payload"),
        (lambda p: p | {"messages": [{"role": "user", "content": "Story... (truncated 512 chars)"}]}, "truncated"),
        (lambda p: p | {"metadata": {**p["metadata"], "is_silent_experiment": True}}, "silent_experiment"),
        (lambda p: p | {"model_parameters": {"tools": [{"x": "y (litellm_truncated skipped 9 chars"}]}}, "truncated"),
    ],
)
def test_operators_settings_that_hide_the_prompt(
    litellm_payloads: Payloads, change: Callable[[dict[str, Any]], dict[str, Any]], reason: str
) -> None:
    record = record_of(change(dict(litellm_payloads["chat"])))
    assert refused_later(record) == ("unsupported", reason)


def test_a_redacted_answer_alone_does_no_harm(litellm_payloads: Payloads) -> None:
    payload = {**litellm_payloads["chat"], "response": {"text": "redacted-by-litellm"}}
    record = record_of(payload)
    assert record.response is None
    record.check_served()
    assert fate(payload) == (FunnelCounter.MEASURED, None)


def test_parameters_of_extra_body_count_where_they_are_logged(litellm_payloads: Payloads) -> None:
    payload = {**litellm_payloads["chat"], "model_parameters": {"extra_body": {"top_k": 5, "guided_regex": "a+"}}}
    assert record_of(payload).request["top_k"] == 5
    assert fate(payload) == (FunnelCounter.UNSUPPORTED, "grammar")
    # litellm 1.106 leaves them out: the log of a call with top_k and min_p shows neither.
    assert litellm_payloads["extras"]["model_parameters"] == {}


def test_an_array_and_ndjson_hold_several_records(litellm_payloads: Payloads) -> None:
    names = ["chat", "failed", "text"]
    payloads = [litellm_payloads[name] for name in names]
    lines = b"\n".join(json.dumps(payload).encode() for payload in payloads)
    for value in (payloads, lines, lines + b"\n", lines.replace(b"\n", b"\r\n\r\n")):
        found = open_message(message(value), MessageFormat.LITELLM)
        assert [each.key.item for each in found] == [0, 1, 2]
        assert [each.record.request_identity() for each in found if each.record] == [
            payload["litellm_call_id"] for payload in payloads
        ]


def test_one_bad_item_spoils_no_other(litellm_payloads: Payloads) -> None:
    good = json.dumps(litellm_payloads["plain"]).encode()
    found = open_message(message(good + b"\n{broken\n" + b"7\n" + good), MessageFormat.LITELLM)
    assert [each.error.reason if each.error else None for each in found] == [None, "not_json", "not_an_object", None]
    assert all(isinstance(each.key.item, int) for each in found)
    found = open_message(message(b"[" + good + b", null, {}]"), MessageFormat.LITELLM)
    assert [each.error.reason if each.error else None for each in found] == [None, "not_an_object", "not_litellm"]


def test_every_message_of_litellm_is_recognised(litellm_payloads: Payloads) -> None:
    for payload in litellm_payloads.values():
        raw: RawRecord = message(payload)
        assert open_message(raw, MessageFormat.AUTO) == open_message(raw, MessageFormat.LITELLM)
