"""Entries of Kong's log plugins, written after its documentation and source."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shadowspec.tap.formats import MessageFormat, open_message
from tests.tap.formats.samples import ANSWER, REQUEST, TIME, kong_entry, message, record_of, refusal, refused_later


def ai(**proxy: Any) -> dict[str, Any]:
    """The entry's `ai` with changes to the parts of `proxy`."""
    base = kong_entry()["ai"]["proxy"]
    return {"proxy": {name: {**base.get(name, {}), **proxy.get(name, {})} for name in {*base, *proxy}}}


def test_an_entry_is_the_call_that_went_upstream() -> None:
    record = record_of(kong_entry())
    assert (record.request, record.response) == (REQUEST, ANSWER)
    assert (record.endpoint, record.model) == ("chat-route", "model-a")
    assert record.event_time(0) == TIME
    assert (record.session(), record.user_id(), record.tenant_id()) == ("s-9", "u-9", "team-blue")
    assert record.request_identity() == "2f6946328ffc4946b8c9120704a4a155"
    assert record.request_path == "/v1/chat/completions"
    record.check_served()


def test_a_route_s_path_says_nothing_of_the_call() -> None:
    assert record_of(kong_entry(upstream_uri="/anything")).request_path is None
    assert record_of(kong_entry(upstream_uri=None)).request_path is None
    seen = {**kong_entry()["request"], "uri": "/v1/completions?a=b"}
    assert record_of(kong_entry(upstream_uri=None, request=seen)).request_path == "/v1/completions"


def test_an_entry_without_route_or_consumer() -> None:
    record = record_of(kong_entry(route=None, consumer=None))
    assert (record.endpoint, record.tenant_id()) == ("llm-service", None)


def test_a_body_without_a_model_has_the_configured_one() -> None:
    body = json.dumps({"messages": REQUEST["messages"], "model": None})
    assert record_of(kong_entry(ai=ai(payload={"request": body}))).model == "model-a"


def test_releases_before_3_10_write_under_the_plugin_s_name() -> None:
    new = kong_entry()["ai"]["proxy"]
    for name in ("ai-proxy", "ai-proxy-advanced"):
        old = {"payload": {"request": json.dumps(REQUEST)}, name: {**new, "payload": {"response": json.dumps(ANSWER)}}}
        record = record_of(kong_entry(ai=old))
        assert (record.request, record.response) == (REQUEST, ANSWER)


def test_payloads_may_be_objects_and_answers_streams() -> None:
    record = record_of(kong_entry(ai=ai(payload={"request": REQUEST, "response": ANSWER})))
    assert (record.request, record.response) == (REQUEST, ANSWER)
    stream = 'data: {"model": "model-a", "choices": [{"index": 0, "delta": {"content": "x"}}]}\n\ndata: [DONE]\n'
    answer = record_of(kong_entry(ai=ai(payload={"response": stream}))).response
    assert answer == {"model": "model-a", "choices": [{"index": 0, "text": "x"}]}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ai": None}, "no_payload"),
        ({"ai": {}}, "no_payload"),
        ({"ai": {"proxy": {"meta": {"request_model": "model-a"}}}}, "no_payload"),
        ({"ai": ai(payload={"request": ""})}, "no_payload"),
        ({"ai": ai(meta={"provider_name": "bedrock"})}, "provider_dialect"),
        ({"ai": ai(cache={"cache_status": "Hit"})}, "cache_hit"),
        ({"ai": {**ai(), "ai-semantic-cache": {"cache": {"cache_status": "Hit"}}}}, "cache_hit"),
        ({"response": {"status": 429}}, "failed_request"),
    ],
)
def test_what_cannot_be_measured_says_why(changes: dict[str, Any], reason: str) -> None:
    assert refused_later(record_of(kong_entry(**changes), format=MessageFormat.KONG)) == ("unsupported", reason)


@pytest.mark.parametrize(
    "proxy",
    [
        {"guardrail_triggered": {"block_direction": "AI_GUARDRAIL_BLOCK_OUTPUT", "block_source": "ai-lakera-guard"}},
        {"lakera-guard": {"output_block_reason": "moderated_content", "output_processing_latency": 3}},
    ],
)
def test_an_answer_that_a_guardrail_blocked_was_an_ordinary_one_until_then(proxy: dict[str, Any]) -> None:
    entry = kong_entry(ai=ai(**proxy), response={"status": 400})
    record = record_of(entry, format=MessageFormat.KONG)
    assert record.annotations["intervention"] == "rejected"
    record.check_served()


@pytest.mark.parametrize(
    "proxy",
    [
        {"guardrail_triggered": {"block_direction": "AI_GUARDRAIL_BLOCK_INPUT"}},
        {"lakera-guard": {"input_block_reason": "prompt_attack", "output_block_reason": None}},
    ],
)
def test_a_blocked_prompt_stays_a_failed_request(proxy: dict[str, Any]) -> None:
    entry = kong_entry(ai=ai(**proxy), response={"status": 400})
    assert refused_later(record_of(entry, format=MessageFormat.KONG)) == ("unsupported", "failed_request")


def test_a_missed_cache_is_no_hit() -> None:
    record_of(kong_entry(ai=ai(cache={"cache_status": "Miss"}))).check_served()


@pytest.mark.parametrize("payload", ["{cut", "[]", 3])
def test_a_payload_that_is_no_object_is_malformed(payload: Any) -> None:
    assert refusal(kong_entry(ai=ai(payload={"request": payload}))) == ("malformed", "invalid:ai.proxy.payload.request")
    assert refusal(kong_entry(ai=ai(payload={"response": payload}))) == (
        "malformed",
        "invalid:ai.proxy.payload.response",
    )


def test_http_log_batches_entries() -> None:
    found = open_message(message([kong_entry(), kong_entry(started_at="never"), {}]), MessageFormat.KONG)
    assert [each.key.item for each in found] == [0, 1, 2]
    assert [each.error.reason if each.error else None for each in found] == [None, None, "not_kong"]
