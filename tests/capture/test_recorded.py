"""What the adapters in the real components put on a topic (record.py) is read without loss."""

from __future__ import annotations

import re

import pytest

from shadowspec.tap.formats import MessageFormat, open_message
from shadowspec.tap.openai import parse_request, parse_response
from shadowspec.tap.records import MirroredRecord
from shadowspec.tap.sources import read_records
from tests.capture.record import CALLS, COMPONENTS, EXAMPLES, HERE, ROOT
from tests.tap.formats.samples import record_of

RECORDED = HERE / "recorded"
REQUEST_ONLY = ("envoy-mirror", "nginx")
FORMATS = dict.fromkeys(COMPONENTS, MessageFormat.OPENAI) | {"litellm": MessageFormat.LITELLM}
TELEMETRY = ("otlp-events", "otlp-spans")  # tests/tap/formats/test_otlp.py compares their records


def records(name: str, format: MessageFormat) -> list[MirroredRecord]:
    opened = [each for raw in read_records(str(RECORDED / f"{name}.jsonl")) for each in open_message(raw, format)]
    assert [each.error for each in opened] == [None] * len(opened)
    return [each.record for each in opened if each.record is not None]


def test_every_recording_is_of_a_component() -> None:
    assert {path.stem for path in RECORDED.iterdir()} == {*COMPONENTS, *TELEMETRY}


@pytest.mark.parametrize("is_recognised", [True, False])
@pytest.mark.parametrize("name", COMPONENTS)
def test_every_call_is_a_record(name: str, is_recognised: bool) -> None:
    found = records(name, MessageFormat.AUTO if is_recognised else FORMATS[name])
    assert len(found) == len(CALLS)
    for record, (path, body, headers) in zip(found, CALLS, strict=True):
        record.check_served()
        sent = record_of({"timestamp": 1, "path": f"/v1/{path}", "request": {"model": "chat", **body}})
        expected, read = parse_request(sent), parse_request(record)
        assert (read.is_chat, read.text, read.messages) == (expected.is_chat, expected.text, expected.messages)
        assert read.sampling == expected.sampling
        assert record.request_path == f"/v1/{path}"
        assert (record.session(), record.user_id()) == (headers.get("x-session-id"), headers.get("x-user-id"))
        assert record.event_time(0).year >= 2026
        logged = parse_response(record).logged
        assert (logged is None) == (name in REQUEST_ONLY)
        assert logged is None or logged.finish_reason in ("stop", "length")
    identities = {record.request_identity() for record in found}
    assert identities == {None} if name == "vllm" else len(identities) == len(CALLS)


@pytest.mark.parametrize("name", TELEMETRY)
def test_every_call_in_telemetry_is_a_record(name: str) -> None:
    assert len(records(name, MessageFormat.AUTO)) == len(records(name, MessageFormat.OTLP)) == 4


def test_no_recording_holds_a_key() -> None:
    for path in RECORDED.iterdir():
        assert not re.search(r"sk-|bearer", path.read_text(), re.IGNORECASE)


def test_the_page_links_and_quotes_the_examples() -> None:
    page = (ROOT / "docs" / "capture.md").read_text()
    examples = [path for path in EXAMPLES.iterdir() if path.is_file()]
    assert set(re.findall(r"\]\((capture/[^)]+)\)", page)) == {f"capture/{path.name}" for path in examples}
    lines = {line.strip() for path in examples for line in path.read_text().splitlines()}
    quoted = re.findall(r"```(?:yaml|nginx)\n(.*?)```", page, re.DOTALL)
    assert len(quoted) == 3
    assert [line for block in quoted for line in block.splitlines() if line.strip() not in lines] == []
