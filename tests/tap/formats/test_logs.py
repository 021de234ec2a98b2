"""Logs that people have: twenty calls of each are read as their source reads them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shadowspec.app.try_out.sample import UnknownFormatError, read_sample
from shadowspec.errors import ConfigError, RecordError, UsageError
from shadowspec.tap.endpoints import EndpointRule
from shadowspec.tap.formats import FieldMap, MessageFormat, Opened, open_message, propose
from shadowspec.tap.joining import DEFAULT_WINDOW, Joiner
from shadowspec.tap.kafka.kafka_settings import KafkaSettings
from shadowspec.tap.openai import parse_request, parse_response, response_of
from shadowspec.tap.reading import Reader, Reading
from shadowspec.tap.records import MirroredRecord, order_time
from shadowspec.tap.responses import response_text
from shadowspec.tap.routing import NO_HINTS
from tests.fakes import endpoint_rule
from tests.tap.formats.log_samples import (
    ANSWER,
    LOGS,
    NUM_CALLS,
    OWN,
    OWN_MAP,
    RECORDED,
    answer,
    batch_output,
    body,
    dynamo,
    format_of,
    guidellm_row,
    sglang,
    sharegpt,
    time_of,
)
from tests.tap.formats.samples import message, record_of, refusal
from tests.tap.mirror import admission

ALL_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "stop")
UNLOGGED: dict[str, tuple[str, ...]] = {  # by the tool itself, as docs/formats.md says
    MessageFormat.LANGFUSE: ("top_k", "min_p", "stop"),
    MessageFormat.ROW: ALL_SAMPLING,
    MessageFormat.APIM: ALL_SAMPLING,
    MessageFormat.VERTEX: ("min_p",),  # Gemini's API has none
    "openinference": ("top_k", "min_p"),
    "traceloop": ("top_k", "min_p", "seed", "stop"),
}
UNANSWERED = (MessageFormat.BATCH, MessageFormat.BODY, MessageFormat.AIPERF, "guidellm rows")
UNTIMED = (*UNANSWERED, MessageFormat.ROW)


def records_of(log: str) -> list[MirroredRecord]:
    """The calls of a log, in its order."""
    joiner = Joiner(DEFAULT_WINDOW)
    settled: list[Opened] = []
    for offset, document in enumerate(LOGS[log], start=1):
        for opened in open_message(message(document, offset=offset), MessageFormat.AUTO):
            settled += [opened] if opened.half is None else joiner.add(opened.key, opened.half)
    assert all(each.error is None for each in settled)
    return [opened.record for opened in settled + joiner.drain() if opened.record is not None]


def record_at(log: str, number: int) -> MirroredRecord:
    return records_of(log)[number]


def sent_to(log: str, number: int) -> dict[str, Any]:
    """The body of a call, as far as its log has it."""
    asked = {"role": "user", "content": f"Why is the sky blue? ({number})"}
    if log == MessageFormat.AIPERF:  # started with these parameters
        return {"messages": [asked], "stream": False, "temperature": 0.3, "top_k": 20, "seed": 7}
    if log == MessageFormat.GUIDELLM:
        parts = [{"type": "text", "text": asked["content"]}]
        given = {"max_completion_tokens": 5 + number, "ignore_eos": True, "temperature": 0.3, "seed": 7}
        return {"messages": [{"role": "user", "content": parts}], **given}
    if log == "guidellm rows":
        return {"messages": [asked], "max_completion_tokens": 5 + number, "ignore_eos": True}
    sent = body(number)
    unlimited = log == MessageFormat.LANGFUSE and number == 7  # logged as no limit
    for name in (*UNLOGGED.get(log, ()), *(["max_tokens"] if unlimited else [])):
        del sent[name]
    return sent


@pytest.mark.parametrize("log", LOGS)
def test_prompts_and_sampling_of_twenty_calls_are_the_source_s(log: str) -> None:
    assert len(records_of(log)) == NUM_CALLS
    for number, record in enumerate(records_of(log)):
        expected = parse_request(MirroredRecord(request=sent_to(log, number)))
        read = parse_request(record)
        assert read.sampling == expected.sampling, number
        assert read.max_tokens == expected.max_tokens
        assert (record.model or "model-a").endswith("model-a")
        if log == MessageFormat.SGLANG:
            assert read.prompt_token_ids == (1, 2, 3)
        else:
            assert read.messages == expected.messages


@pytest.mark.parametrize("log", [log for log in LOGS if log not in UNANSWERED])
def test_answers_of_twenty_calls_are_read(log: str) -> None:
    for record in records_of(log):
        record.check_served()
        parse_response(record)
        assert response_text(response_of(record)) == ANSWER


@pytest.mark.parametrize("log", LOGS)
def test_a_log_is_read_alike_under_its_format_s_name(log: str) -> None:
    for document in LOGS[log]:
        named = open_message(message(document), format_of(log))
        found = open_message(message(document), MessageFormat.AUTO)
        assert [each.half for each in named] == [each.half for each in found]
        assert [str(each.error) for each in named] == [str(each.error) for each in found]
        assert [each.record and each.record.request for each in named] == [
            each.record and each.record.request for each in found
        ]


def requests_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    requests: list[dict[str, Any]] = report["benchmarks"][0]["requests"]["successful"]
    return requests


def test_sessions_of_aiperf_are_the_source_s() -> None:
    assert [record.session() for record in records_of(MessageFormat.AIPERF)] == [
        f"session-{number // 2}" for number in range(NUM_CALLS)
    ]


def in_otlp(document: dict[str, Any]) -> tuple[datetime, dict[str, Any]]:
    """When a document's span began, and its attributes of text."""
    (span,) = document["resourceSpans"][0]["scopeSpans"][0]["spans"]
    began = datetime.fromtimestamp(int(span["startTimeUnixNano"]) / 1e9, UTC)
    return began, {each["key"]: each["value"].get("stringValue") for each in span["attributes"]}


@pytest.mark.parametrize("log", [log for log in LOGS if log not in UNTIMED])
def test_times_and_sessions_are_the_source_s(log: str) -> None:
    documents = requests_of(LOGS[log][0]) if log == MessageFormat.GUIDELLM else LOGS[log]
    documents = documents[::3] if log == MessageFormat.APIM else documents
    for number, (document, record) in enumerate(zip(documents, records_of(log), strict=True)):
        if log in ("openinference", "traceloop"):
            began, attributes = in_otlp(document)
            assert abs(record.event_time(0) - began) < timedelta(milliseconds=1)
            place = "" if log == "openinference" else "traceloop.association.properties."
            names = ("session.id", "user.id") if not place else (f"{place}session_id", f"{place}user_id")
            assert (record.session(), record.user_id()) == tuple(attributes[name] for name in names)
            assert (record.session(), record.tenant_id()) == (f"session-{number % 4}", "my-app")
        elif log == MessageFormat.GUIDELLM:
            assert record.event_time(0).timestamp() == pytest.approx(document["info"]["timings"]["request_start"])
            assert record.session() == document["info"]["conversation_id"]
            assert record.request_identity() == document["request_id"]
        elif log == "apim gateway":
            assert (record.event_time(0), record.session()) == (time_of(number), f"session-{number % 4}")
            assert (record.tenant_id(), record.request_identity()) == ("team-blue", f"corr-{number}")
        elif log == MessageFormat.DYNAMO:
            assert (record.event_time(0), record.session()) == (time_of(number), f"session-{number % 4}")
        elif log == MessageFormat.LITELLM:
            assert record.event_time(0) == datetime.fromisoformat(document["startTime"])
            given = json.loads(document["proxy_server_request"])
            assert record.session() == (given.get("litellm_session_id") or given["metadata"]["session_id"])
            assert document["session_id"] != record.session()  # a trace, which LiteLLM makes of each call
            assert (record.model, record.endpoint, record.user_id()) == ("org/model-a", "public-chat", given["user"])
        elif log == MessageFormat.LANGFUSE:
            assert record.event_time(0).isoformat() == f"2026-11-29T10:00:{number:02}.250000+00:00"
            assert (record.session(), record.user_id()) == (f"session-{number % 4}", f"u-{number % 3}")
        else:
            assert record.event_time(0) == time_of(number)


def test_a_batch_s_output_is_joined_to_its_input() -> None:
    joiner, opened = Joiner(DEFAULT_WINDOW), []
    lines = [*LOGS[MessageFormat.BATCH], *map(batch_output, reversed(range(NUM_CALLS)))]
    for offset, line in enumerate(lines):
        (half,) = open_message(message(line, offset=offset), MessageFormat.AUTO)
        assert half.half is not None
        opened += joiner.add(half.key, half.half)
    assert joiner.num_waiting == 0
    assert len(opened) == NUM_CALLS
    for joined in opened:
        assert joined.record is not None
        parse_response(joined.record)
        number = joined.record.request["seed"]
        assert joined.record.request == body(number)
        assert response_text(response_of(joined.record)) == ANSWER


def test_a_failed_line_of_a_batch_is_a_failed_call() -> None:
    joiner = Joiner(DEFAULT_WINDOW)
    failed = batch_output(0) | {"response": None, "error": {"code": "batch_expired"}}
    for offset, line in enumerate((LOGS[MessageFormat.BATCH][0], failed)):
        (half,) = open_message(message(line, offset=offset), MessageFormat.AUTO)
        assert half.half is not None
        opened = joiner.add(half.key, half.half)
    assert opened[0].record is not None
    with pytest.raises(RecordError, match="failed_request"):
        opened[0].record.check_served()


def test_rows_of_sharegpt_are_the_rows_of_messages() -> None:
    for number in range(NUM_CALLS):
        first, second = record_of(sharegpt(number)), record_at(MessageFormat.ROW, number)
        assert (first.request, first.response, first.is_unsampled) == (second.request, second.response, True)


def test_sglang_s_own_prefix_is_skipped_and_other_events_are_none() -> None:
    line = b"[2026-11-29 10:00:00] " + json.dumps(sglang(1)).encode()
    assert record_of(line).request == record_at(MessageFormat.SGLANG, 1).request
    assert refusal({**sglang(1), "event": "request.received"}) == ("unsupported", "other_event")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sampling_params": None}, "no_payload"),  # level 0
        ({"input_ids": None, "text": None}, "no_payload"),  # level 1
        ({"input_ids": [1, "...", 2]}, "no_payload"),  # level 2 of a long prompt
        ({"input_ids": None, "text": "a" * 1_024 + "..." + "b" * 1_024}, "no_payload"),
    ],
)
def test_what_lower_levels_of_sglang_s_log_leave_out_is_refused(changes: dict[str, Any], reason: str) -> None:
    document = sglang(1)
    document["obj"] |= changes
    with pytest.raises(RecordError, match=reason):
        record_of(document).check_served()


def test_an_unlimited_output_of_sglang_is_bounded_by_the_context_alone() -> None:
    document = sglang(1)
    document["obj"]["sampling_params"]["max_new_tokens"] = None
    read = parse_request(record_of(document))
    assert (read.max_tokens, read.prompt_token_ids) == (None, (1, 2, 3))
    del document["obj"]["sampling_params"]["max_new_tokens"]
    assert parse_request(record_of(document)).max_tokens == 128


@pytest.mark.parametrize(("kind", "reason"), [("request_end", "only_hashes"), ("tool_end", "other_event")])
def test_other_events_of_dynamo_hold_no_request(kind: str, reason: str) -> None:
    line = dynamo(1)
    line["event"]["event_type"] = kind
    assert refusal(line) == refusal(line["event"]) == ("unsupported", reason)
    assert record_of(dynamo(1)["event"]).request == body(1)  # as standard error has it


def test_dynamo_s_extension_is_dropped_only_where_it_changes_no_output() -> None:
    line = dynamo(1)
    request = line["event"]["payload"]["request"]
    request["nvext"] = {"greed_sampling": True, "session_control": {"session_id": "s-1"}}
    line["event"]["payload"]["http_request_headers"] = None
    assert (record_of(line).request["temperature"], record_of(line).session()) == (0.0, "s-1")
    request["nvext"] = {"use_raw_prompt": True}
    with pytest.raises(RecordError, match="unknown_parameter"):
        parse_request(record_of(line))
    line["event"]["payload"] |= {"payload_complete": False, "response": None}
    with pytest.raises(RecordError, match="failed_request"):
        record_of(line).check_served()


def test_a_request_that_guidellm_did_not_keep_or_that_failed_is_no_call() -> None:
    report = LOGS[MessageFormat.GUIDELLM][0]
    sent = requests_of(report)[0]
    with pytest.raises(RecordError, match="no_payload"):
        record_of(sent | {"request_args": None}).check_served()
    assert refusal(sent | {"request_args": "{"}) == ("malformed", "invalid:request_args")
    failed = {"benchmarks": [{"requests": {"successful": [], "errored": [sent], "incomplete": []}}]}
    with pytest.raises(RecordError, match="failed_request"):
        record_of(failed).check_served()


@pytest.mark.parametrize("name", ["timestamp", "response", "model", "prompt_1", "messages"])
def test_a_row_with_more_than_a_turn_is_none_of_guidellm_s(name: str) -> None:
    assert refusal(guidellm_row(1) | {name: [], "x": 1}, format=MessageFormat.GUIDELLM)[1] == "not_guidellm"


def test_a_row_s_system_prompt_and_picture_are_not_lost() -> None:
    row = guidellm_row(1) | {"system_prompt": "Be brief."}
    assert record_of(row).request["messages"][0] == {"role": "system", "content": "Be brief."}
    with pytest.raises(RecordError, match="image_content"):
        parse_request(record_of(row | {"image": "x.png"}))


def test_a_broken_body_of_a_session_affects_no_other() -> None:
    session = LOGS[MessageFormat.AIPERF][0]["data"][0]
    opened = open_message(message({"data": [session, {"payloads": [3]}, session]}), MessageFormat.AUTO)
    assert [each.error is None for each in opened] == [True, True, False, True, True]
    assert refusal({"data": [{"payloads": []}]}) == ("malformed", "empty")


def test_spend_logs_without_stored_prompts_are_refused() -> None:
    row = LOGS[MessageFormat.LITELLM][0] | {"proxy_server_request": "{}", "response": "{}"}
    with pytest.raises(RecordError, match="no_payload"):
        record_of(row).check_served()


def test_a_generation_without_parameters_is_marked() -> None:
    generation = LOGS[MessageFormat.LANGFUSE][0]
    assert not record_of(generation).is_unsampled
    assert record_of(generation | {"model_parameters": "{}"}).is_unsampled
    tools = json.dumps({"messages": body(0)["messages"], "tools": []})
    assert record_of(generation | {"input": tools, "model_parameters": None}).is_unsampled
    assert refusal(generation | {"type": "SPAN"}) == ("unsupported", "other_call")


# what logs lack


def readings(documents: list[Any], rule: EndpointRule) -> list[Reading]:
    opened: list[Opened] = []
    for offset, document in enumerate(documents, start=1):
        opened += open_message(message(document, offset=offset), MessageFormat.AUTO)
    reader: Reader = admission(rule).reader
    return reader.read((record, NO_HINTS) for record in opened)


def test_production_refuses_what_has_no_time_and_a_trial_takes_it_in_order() -> None:
    documents = [*LOGS[MessageFormat.BODY], body(0)]
    rule = endpoint_rule(name="any", served_models=("model-a",))
    assert {reading.error and reading.error.reason for reading in readings(documents, rule)} == {"no_timestamp"}
    trial = endpoint_rule(name="any", served_models=("model-a",), is_trial=True)
    read = readings(documents, trial)
    assert [reading.event_time for reading in read] == [order_time(reading.key) for reading in read]
    assert sorted(reading.event_time for reading in read if reading.event_time) == [each.event_time for each in read]
    # The last begins as the first does: a turn of its conversation, as far as the log says.
    assert len({reading.session_hash for reading in read}) == NUM_CALLS
    assert read[0].session_hash == read[-1].session_hash


def test_production_refuses_what_has_no_sampling_parameters() -> None:
    timed = LOGS[MessageFormat.LANGFUSE][0] | {"model_parameters": None}
    rule = endpoint_rule(name="any", served_models=("model-a",))
    assert [reading.error and reading.error.reason for reading in readings([timed], rule)] == ["no_sampling"]


# a log of one's own


def test_a_map_reads_a_log_of_one_s_own() -> None:
    field_map = FieldMap.parse_option(OWN_MAP)
    (opened,) = open_message(message(OWN), field_map)
    assert opened.record is not None
    assert opened.record.request == body(3)
    assert opened.record.session() == "c-1"
    assert opened.record.event_time(0) == datetime.fromisoformat("2026-11-29T10:00:00+00:00")
    parse_response(opened.record)
    assert response_text(response_of(opened.record)) == ANSWER


def test_pointers_and_dotted_paths_lead_into_texts() -> None:
    nested = {"a.b": 1, "call": {"in": [json.dumps({"x": body(3)})]}, "t": json.dumps({"at": "2026-11-29"})}
    for path in ("call.in.0.x", "/call/in/0/x"):
        (opened,) = open_message(message(nested), FieldMap.parse({"request": path, "time": "t.at", "id": "a.b"}))
        assert opened.record is not None
        assert (opened.record.request, opened.record.request_identity()) == (body(3), "1")


def test_a_parameter_that_no_path_names_is_not_lost_in_silence() -> None:
    flat = {**body(3), "ts": 1_795_946_400}
    (opened,) = open_message(message(flat), FieldMap.parse({"messages": "messages", "model": "model"}))
    assert opened.error is not None
    assert opened.error.reason.startswith("unmapped:")
    (opened,) = open_message(
        message({"turns": body(3)["messages"], "model": "m"}), FieldMap.parse({"request": "turns"})
    )
    assert opened.record is not None
    assert opened.record.is_unsampled


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (OWN, "request=body,time=ts,response=answer"),
        ({"req": body(1), "created_at": "2026-11-29T10:00:00Z", "session_id": "s"},
         "request=req,time=created_at,session=session_id"),
        ({"turns": body(1)["messages"], "model": "m", "date": "2026-11-29"}, "messages=turns,model=model,time=date"),
        ({**body(1), "ts": 1_795_946_400},
         "messages=messages,max_tokens=max_tokens,min_p=min_p,model=model,seed=seed,stop=stop,"
         "temperature=temperature,top_k=top_k,top_p=top_p,time=ts"),
    ],
)  # fmt: skip
def test_a_map_is_proposed_and_reads_the_line(document: dict[str, Any], expected: str) -> None:
    assert refusal(document) == ("malformed", "unknown_format")
    proposed = propose([document])
    assert str(proposed) == expected
    assert proposed == FieldMap.parse_option(expected)
    (opened,) = open_message(message(document), proposed)
    assert opened.record is not None
    assert opened.record.request["messages"]


FOREIGN = {"recv_ms": 1_796_000_001_657, "acct": "u0", "upstream_payload": body(1), "upstream_reply": answer(1)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "request=upstream_payload,time=recv_ms,user=acct,response=upstream_reply"),
        ({"upstream_reply": json.dumps(answer(1))},
         "request=upstream_payload,time=recv_ms,user=acct,response=upstream_reply"),
        ({"upstream_reply": 'data: {"choices": []}\n\ndata: [DONE]\n'},
         "request=upstream_payload,time=recv_ms,user=acct,response=upstream_reply"),
        ({"recv_ms": 1_796_000_001_657_000}, "request=upstream_payload,time=recv_ms,user=acct,response=upstream_reply"),
        ({"recv_ms": 1_796_000_001_657, "acct": None, "meta": {"chatId": "c-1"}},
         "request=upstream_payload,time=recv_ms,session=/meta/chatId,response=upstream_reply"),
        ({"recv_ms": None, "acct": 12, "call": {"t": "2026-11-29T10:00:00Z", "end": "2026-11-29T10:00:02Z"}},
         "request=upstream_payload,time=/call/t,user=acct,response=upstream_reply"),
        ({"recv_ms": 1657, "acct": "-", "upstream_reply": {"status": "ok"}, "user_agent": "curl"},
         "request=upstream_payload"),
        ({"acct": None, "conv": "c0"},
         "request=upstream_payload,time=recv_ms,session=conv,response=upstream_reply"),
        ({"recv_ms": 1_296_000_001, "acct": "", "code": "20261129"},
         "request=upstream_payload,response=upstream_reply"),
    ],
)  # fmt: skip
def test_parts_are_proposed_by_their_values_and_people_by_their_names(changes: dict[str, Any], expected: str) -> None:
    document = {**FOREIGN, **changes}
    assert refusal(document) == ("malformed", "unknown_format")
    proposed = propose([document])
    assert str(proposed) == expected
    (opened,) = open_message(message(document), FieldMap.parse_option(expected))
    assert opened.record is not None


@pytest.mark.parametrize(
    ("first", "later", "expected"),
    [
        ({"end_ms": 1_796_000_002_000, "x": 1_796_000_001_000}, 1000, "x"),  # its name says that it is the end
        ({"x": 1_796_000_002_000, "recv": 1_796_000_001_000}, 1000, "recv"),
        ({"y": 1_796_000_002_000, "x": 1_796_000_001_000}, 1000, "y"),
        ({"recv": 1_796_000_002_000, "ts": 1_796_000_001}, 1, "ts"),
        ({"build": 1_796_000_002_000}, 0, None),  # the same in every line
        ({"recv": 1_796_000_002_000}, 0, "recv"),
    ],
)
def test_of_several_times_the_likeliest_beginning_is_proposed(
    first: dict[str, int], later: int, expected: str | None
) -> None:
    lines = [
        {"payload": body(1), **{name: value + number * later for name, value in first.items()}} for number in range(3)
    ]
    proposed = propose(lines)
    assert proposed is not None
    assert proposed.places.get("time") == (None if expected is None else (expected,))


def test_of_two_unnamed_times_the_one_that_rises_is_proposed() -> None:
    times = [1_796_000_002, 1_796_000_001, 1_796_000_003]
    proposed = propose([{"payload": body(1), "a": value, "b": 1_796_000_000 + at} for at, value in enumerate(times)])
    assert proposed is not None
    assert proposed.places["time"] == ("b",)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, r"=upstream_reply\. No session was recognised, so a user's requests of a day count as one session; if"),
        ({"acct": None}, r"No session or user was recognised, so requests of the same 10 minutes \(without times, of"),
        ({"thread": "t"}, "session=thread,user=acct,response=upstream_reply$"),
    ],
)
def test_the_error_says_what_follows_where_no_session_is_recognised(
    changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(UnknownFormatError, match=told):
        read_sample(written(tmp_path / "own.jsonl", [{**FOREIGN, **changes}]))


@pytest.mark.parametrize("document", [{}, {"a": 1}, [], "x", None, {"messages": 3}, {"Why is the sky blue?": {}}])
def test_nothing_is_proposed_where_no_request_is_seen(document: Any) -> None:
    assert propose([document]) is None


@pytest.mark.parametrize("text", ["", "request", "colour=x,request=y", "time=ts", "request="])
def test_a_map_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="map: "):
        FieldMap.parse_option(text)


def test_answers_in_a_map_may_be_bodies_messages_or_texts() -> None:
    field_map = FieldMap.parse({"request": "q", "response": "a"})
    stream = 'data: {"choices": [{"index": 0, "delta": {"content": "Rayleigh."}, "finish_reason": "stop"}]}\n\n'
    for given in (answer(1), json.dumps(answer(1)), stream, ANSWER, {"role": "assistant", "content": ANSWER}):
        (opened,) = open_message(message({"q": body(1), "a": given}), field_map)
        assert opened.record is not None
        parse_response(opened.record)
        assert response_text(response_of(opened.record)) == ANSWER


# where files are opened


def written(path: Path, documents: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return str(path)


def test_the_error_of_an_unknown_file_proposes_the_map_that_reads_it(tmp_path: Path) -> None:
    path = written(tmp_path / "own.jsonl", [OWN] * 3)
    with pytest.raises(UnknownFormatError, match="give --map request=body,time=ts,response=answer") as raised:
        read_sample(path)
    assert raised.value.proposal is not None
    sample = read_sample(path, raised.value.proposal)
    assert all(opened.record is not None for opened in sample.opened)
    assert sample.gaps == ()


def test_the_files_of_the_tools_are_read_as_they_stand() -> None:
    for name in ("aiperf", "guidellm"):
        sample = read_sample(str(RECORDED / f"{name}.json"))
        assert [opened.error for opened in sample.opened] == [None] * NUM_CALLS


def test_a_file_without_prompts_says_what_to_do(tmp_path: Path) -> None:
    line = dynamo(1)
    line["event"]["event_type"] = "request_end"
    with pytest.raises(UnknownFormatError, match=r"only_hashes: 1.*DYN_REQUEST_TRACE_RECORDS"):
        read_sample(written(tmp_path / "trace.jsonl", [line]))


def test_a_sample_says_what_its_records_lack(tmp_path: Path) -> None:
    untimed, unsampled = read_sample(written(tmp_path / "rows.jsonl", LOGS[MessageFormat.ROW])).gaps
    assert untimed.startswith("20 of 20 records have no time")
    assert unsampled.startswith("20 of 20 records have no sampling parameters")


@pytest.mark.parametrize("log", LOGS)
def test_a_sample_says_which_parameters_its_log_never_holds(tmp_path: Path, log: str) -> None:
    gaps = read_sample(written(tmp_path / "log.jsonl", LOGS[log])).gaps
    said = [gap for gap in gaps if "never holds" in gap]
    # A row says nothing of sampling, which another gap says; Gemini's API has no `min_p`.
    unsaid = (MessageFormat.ROW, MessageFormat.APIM, MessageFormat.VERTEX)
    names = ("tools",) if log == MessageFormat.APIM else () if log in unsaid else UNLOGGED.get(log, ())
    assert len(said) == bool(names)
    assert all(name in said[0] for name in names)


def test_a_topic_s_map_takes_the_place_of_its_format() -> None:
    settings = KafkaSettings(("localhost:9092",), ("shadow",), map={"request": "body", "time": "ts"})
    assert settings.message_format == FieldMap.parse_option("request=body,time=ts")
    with pytest.raises(ConfigError, match=r"kafka\.map"):
        KafkaSettings(("localhost:9092",), ("shadow",), map={"colour": "x"})
    with pytest.raises(ConfigError, match="exclude each other"):
        KafkaSettings(("localhost:9092",), ("shadow",), map={"request": "body"}, format="otlp")
