"""Every field of every log with every kind of wrong value: a record or a refusal, and the field's text nowhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from shadowspec.app.try_out.sample import read_sample
from shadowspec.errors import ShadowSpecError
from shadowspec.tap.formats import FieldMap, MessageFormat
from tests.builders.seeds import seeds
from tests.fuzz.target import open_and_admit
from tests.tap.formats.log_samples import LOGS, OWN, OWN_MAP, format_of

SECRET: Final = "a text that nobody may read"
DEEP: Final = "[" * 150 + "]" * 150
TOO_DEEP: Final = "[" * 100_000
# As they are written in JSON, or in what is none.
WRONG: Final = (
    "null", "true", "0", "-1", "1e308", "1e999", "NaN", "1" + "0" * 400, '""', f'"{SECRET}"', '"\\ud800"', "[]", "{}",
    "[null]", f'[["{SECRET}"]]', f'{{"{SECRET}": 1}}', DEEP, TOO_DEEP, '"2026-13-45"', '"\\u0000"',
)  # fmt: skip
NO_DOCUMENT: Final = (MessageFormat.AUTO, MessageFormat.CLOUDEVENTS)  # their first seeds
MARK: Final = "@@here@@"
# Logs, a log of one's own, and of the other formats the first seed that is a message by itself.
SAMPLES: Final = {
    **{format: [json.loads(seeds(format)[0][1:])] for format in MessageFormat if format not in (*LOGS, *NO_DOCUMENT)},
    **LOGS,
    "map": [OWN],
}


def marked(node: Any) -> Iterator[Any]:
    """The document with the mark in place of one value, for each of its values; of a list only the first."""
    yield MARK
    if isinstance(node, dict):
        for name, value in node.items():
            yield from ({**node, name: changed} for changed in marked(value))
    elif isinstance(node, list) and node:
        yield from ([changed, *node[1:]] for changed in marked(node[0]))
    elif isinstance(node, str) and node[:1] in ("{", "["):  # a body as text
        yield from (json.dumps(changed) for changed in marked(json.loads(node)) if changed != MARK)


def wrong(log: str) -> Iterator[bytes]:
    for document in marked(SAMPLES[log][0]):
        text = json.dumps(document)
        for value in WRONG:
            in_text = text.replace(f'\\"{MARK}\\"', json.dumps(value)[1:-1])
            yield in_text.replace(f'"{MARK}"', value).encode()


def formats(log: str) -> tuple[MessageFormat | FieldMap, ...]:
    return (MessageFormat.AUTO, FieldMap.parse_option(OWN_MAP) if log == "map" else format_of(log))


@pytest.mark.parametrize("log", SAMPLES)
def test_a_wrong_value_of_any_field_is_a_record_or_a_refusal(log: str) -> None:
    num_records = num_refused = 0
    for format in formats(log):
        for message in wrong(log):
            for each in open_and_admit(b"\x00" + message, format):
                num_records += each.error is None
                num_refused += each.error is not None
                assert SECRET not in str(each.error), message[:300]
    assert num_records
    assert num_refused


@pytest.mark.parametrize("log", SAMPLES)
def test_a_text_that_is_cut_anywhere_is_a_refusal(log: str) -> None:
    text = json.dumps(SAMPLES[log][0]).encode()
    for end in range(0, len(text), max(1, len(text) // 200)):
        for each in open_and_admit(b"\x00" + text[:end], MessageFormat.AUTO):
            assert (each.record, each.half) == (None, None)


BROKEN: Final[dict[str, bytes]] = {
    "cut": b'{"request": {"model": "m", "prompt": "' + SECRET.encode(),
    "deep": TOO_DEEP.encode(),
    "surrogate": b'{"request": {"model": "m", "prompt": "\\ud800"}}',
    "not UTF-8": b'{"request": "\xff\xfe"}',
    "bytes": bytes(range(256)) * 8,
    "not JSON": SECRET.encode(),
    "number": b"1" + b"0" * 5_000,
    "NaN": b'{"request": {"model": "m", "prompt": "x", "temperature": NaN}}',
    "unknown": json.dumps({SECRET: SECRET}).encode(),
    "gzip": b"\x1f\x8b\x08\x00" + bytes(40),
    "empty list": b"[\n]",
    "cut list": b'[\n{"request": 1},\n',
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_without_a_record_is_refused_with_a_remedy(tmp_path: Path, name: str) -> None:
    path = tmp_path / "traffic.jsonl"
    path.write_bytes(BROKEN[name])
    with pytest.raises(ShadowSpecError) as raised:
        read_sample(str(path))
    text = str(raised.value)
    assert text.startswith(f"{path}: ")
    assert SECRET not in text
    assert "; " in text or "broken gzip" in text, "what to do"
