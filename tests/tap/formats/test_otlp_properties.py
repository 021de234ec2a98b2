"""Telemetry of any content: both signals give one request, and no document raises or shows its text."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shadowspec.tap.formats import MessageFormat, open_message
from tests.builders.otlp import EVENT, attributes, event, logs, span, traces
from tests.tap.formats.samples import message, record_of

SECRET = "xsecretx"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
PARTS = st.fixed_dictionaries({"type": st.just("text"), "content": TEXT}) | st.fixed_dictionaries(
    {
        "type": st.just("tool_call"),
        "id": TEXT,
        "name": TEXT,
        "arguments": st.dictionaries(TEXT, st.integers(-99, 99) | TEXT, max_size=2),
    }
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant"]), "parts": st.lists(PARTS, min_size=1, max_size=3)}
    ),
    min_size=1,
    max_size=4,
)
ASKED = st.fixed_dictionaries(
    {"gen_ai.operation.name": st.just("chat"), "gen_ai.request.model": st.just("m"), "gen_ai.input.messages": MESSAGES},
    optional={
        "gen_ai.request.temperature": st.floats(0, 2),
        "gen_ai.request.max_tokens": st.integers(1, 2**31),
        "gen_ai.request.stop_sequences": st.lists(TEXT, max_size=2),
    },
)
BROKEN = st.sampled_from(
    [
        {},
        None,
        [],
        SECRET,
        {"stringValue": SECRET},
        {"arrayValue": SECRET},
        {"kvlistValue": {"values": [SECRET]}},
        {"kvlistValue": {"values": [{"key": 1, "value": {"stringValue": SECRET}}]}},
        {"arrayValue": {"values": [{"stringValue": SECRET}, {SECRET: 1}]}},
        {"intValue": SECRET},
        {"doubleValue": SECRET},
        {SECRET: SECRET},
    ]
)
NAMES = st.sampled_from(
    [
        "gen_ai.operation.name",
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.system_instructions",
        "gen_ai.tool.definitions",
        "gen_ai.response.finish_reasons",
        "gen_ai.request.choice.count",
        "gen_ai.usage.output_tokens",
        "session.id",
        "error.type",
    ]
)


@given(ASKED, st.randoms())
def test_event_and_span_give_one_request(asked: dict[str, Any], generator: Any) -> None:
    shuffled = attributes(asked)
    generator.shuffle(shuffled)
    of_event = record_of(logs({"eventName": EVENT, "timeUnixNano": "1700000400000000000", "attributes": shuffled}))
    as_text = {**asked, "gen_ai.input.messages": json.dumps(asked["gen_ai.input.messages"])}
    of_span = record_of(traces(span(attributes=attributes(as_text))))
    assert of_event.request == of_span.request
    texts = [part["content"] for each in asked["gen_ai.input.messages"] for part in each["parts"] if "content" in part]
    assert [text for each in of_event.request["messages"] for text in _texts(each["content"])] == texts
    calls = [part["name"] for each in asked["gen_ai.input.messages"] for part in each["parts"] if "name" in part]
    assert calls == [
        call["function"]["name"] for each in of_event.request["messages"] for call in each.get("tool_calls", ())
    ]


def _texts(content: Any) -> list[str]:
    if content is None:
        return []
    return [content] if isinstance(content, str) else [part["text"] for part in content]


@given(st.dictionaries(NAMES, VALUES), st.booleans())
def test_attributes_of_any_value_end_as_one_record_or_refusal(values: dict[str, Any], is_span: bool) -> None:
    record = span(attributes=attributes(values)) if is_span else event()
    record["attributes"] = [*record["attributes"], *attributes(values)]
    assert len(open_message(message((traces if is_span else logs)(record)), MessageFormat.AUTO)) == 1


@given(st.lists(st.tuples(NAMES, BROKEN), max_size=4), st.integers(0, 3))
def test_a_broken_record_affects_no_other_and_shows_no_text(broken: list[tuple[str, Any]], place: int) -> None:
    record = {**event(), "attributes": [{"key": key, "value": value} for key, value in broken]}
    records = [event() for _ in range(3)]
    records.insert(place, record)
    opened = open_message(message(logs(*records)), MessageFormat.OTLP)
    assert [each.key.item for each in opened] == [0, 1, 2, 3]
    assert all(each.record is not None for at, each in enumerate(opened) if at != place)
    assert SECRET not in str(opened[place].error)
    assert SECRET not in repr(opened[place])


@given(st.dictionaries(st.sampled_from(["resourceLogs", "resourceSpans", "request", "started_at"]), VALUES, min_size=1))
def test_any_document_ends_as_refusals(document: dict[str, Any]) -> None:
    for each in open_message(message(document), MessageFormat.AUTO):
        assert each.record is None
