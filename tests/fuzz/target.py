"""What is fuzzed: messages of every format, metrics pages, streams, Parquet files and the JSON of model folders.

Of a message the first byte chooses the transport's headers, so that the fuzzer finds the bindings; the rest is the
value.  Whatever it holds, the result is a list of records, refusals with a reason, or halves.  Of the others the first
byte chooses the engine, or the file of the folder.  Any exception but the reader's own is a bug.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Final

from shadowspec.backfill.logs import read_log
from shadowspec.demo import DRAFT
from shadowspec.engine.tokenizer import load_tokenizer
from shadowspec.errors import InputError, ModelError, NoDataError, RecordError
from shadowspec.servers.engines import ENGINES
from shadowspec.servers.metrics_page import parse
from shadowspec.tap.admission import Admission, Admitted
from shadowspec.tap.asked_output import ToolCallFormat
from shadowspec.tap.documents import split_message
from shadowspec.tap.endpoints import EndpointRule
from shadowspec.tap.formats import FieldMap, MessageFormat, Opened, open_message, propose
from shadowspec.tap.joining import Joiner
from shadowspec.tap.sources import RawRecord
from shadowspec.types import FunnelCounter, RecordKey
from shadowspec.types.server_sent_events import NotEventsError, events_of
from tests.fakes import endpoint_rule
from tests.tap.formats.log_samples import OWN_MAP
from tests.tap.mirror import RULE, admission, first_only

HEADERS: Final[tuple[tuple[tuple[str, bytes | None], ...], ...]] = (
    (),
    (("content-type", b"application/json"), ("X-Session-Id", b"s"), ("x-session-id", b"\xff"), ("x-user-id", None)),
    (("content-type", b"application/cloudevents+json; charset=UTF-8"),),
    (("content-type", b"application/cloudevents-batch+json"),),
    (
        ("ce_specversion", b"1.0"),
        ("ce_id", b"1"),
        ("ce_source", b"/"),
        ("ce_type", b"org.kubeflow.serving.inference.request"),
        ("ce_metadata", b'{"X-Session-Id": ["a"]}'),
    ),
    (
        ("ce_specversion", b"1.0"),
        ("ce_id", b"1"),
        ("ce_source", b"/"),
        ("ce_type", b"a.response"),
        ("ce_time", b"2023-11-14T22:20:00Z"),
    ),
    (("ce_id", b"1"), ("ce_source", b"/"), ("ce_type", b"another"), ("content-type", b"text/plain")),
)
# Reasons are codes: what a parameter of the request is called may be in one, no text of a prompt can.
REASON: Final = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
WINDOW: Final = timedelta(minutes=5)
ANY_MODEL: Final = ("model-a", "m", "public-chat")
RULES: Final[tuple[EndpointRule, ...]] = (
    replace(
        first_only(endpoint_rule(name="any", served_models=ANY_MODEL, labels={"tier": ("gold",)}, timed_positions=1)),
        takes_constraints=True,
        tool_call_format=ToolCallFormat.HERMES,
    ),
    RULE,
)


def open_and_admit(data: bytes, format: MessageFormat | FieldMap) -> list[Opened]:
    """Run one input; AssertionError where a promise is broken."""
    headers = HEADERS[data[0] % len(HEADERS)] if data else ()
    raw = RawRecord(RecordKey("0" * 64, 0, 1, 1_700_000_400_000), data[1:], headers=headers)
    opened = open_message(raw, format)
    assert opened, "a message was opened to nothing"
    assert [each.key.item for each in opened] == list(range(len(opened)))
    decide, joiner = admission(*RULES), Joiner(WINDOW)
    for each in opened:
        found = [each.record, each.error, each.half]
        assert sum(one is not None for one in found) == 1, "not exactly one of record, error and half"
        for one in [each] if each.half is None else joiner.add(each.key, each.half):
            _admit(decide, one)
    for one in joiner.drain():
        _admit(decide, one)
    assert joiner.num_waiting == 0
    return opened


def read_mapped(data: bytes) -> None:
    """A message by a map, and the map that is proposed for it."""
    open_and_admit(data, FieldMap.parse_option(OWN_MAP))
    with suppress(RecordError):
        proposed = propose(split_message(data[1:]))
        if proposed is not None:
            open_and_admit(data, FieldMap.parse_option(str(proposed)))


def _admit(decide: Admission, opened: Opened) -> None:
    fate = decide.admit(opened)
    assert fate.record.key == opened.key
    assert isinstance(fate, Admitted) is (fate.record.counter is FunnelCounter.MEASURED)
    reason = fate.record.reason
    assert reason is None or REASON.fullmatch(reason), reason


def read_page(data: bytes) -> None:
    """A metrics page, by the names of the engine that the first byte chooses."""
    engine = list(ENGINES.values())[data[0] % len(ENGINES)] if data else next(iter(ENGINES.values()))
    with suppress(ValueError):  # what is no page
        parse(data[1:].decode("utf-8", "replace"), engine.metrics, "m")


def read_stream(data: bytes) -> None:
    """A stream of events, and a logged answer that is one."""
    text = data[1:].decode("utf-8", "replace")
    with suppress(NotEventsError):
        assert sum(map(len, events_of(text))) <= len(text)
    open_and_admit(data[:1] + _answered(text), MessageFormat.OPENAI)


def _answered(stream: str) -> bytes:
    request = {"model": "model-a", "messages": [{"role": "user", "content": "x"}], "stream": True}
    return json.dumps({"timestamp": 1.7e9, "request_body": json.dumps(request), "response_body": stream}).encode()


def read_parquet(data: bytes) -> None:
    """A file of a log, to its end."""
    with tempfile.TemporaryDirectory(prefix="shadowspec-fuzz-") as folder:
        path = Path(folder, "log.parquet")
        path.write_bytes(data[1:])
        with suppress(InputError, NoDataError):
            for raw in read_log(str(path)):
                open_message(raw, MessageFormat.AUTO)


FILES: Final = (
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "chat_template.jinja",
)


@cache
def _folder() -> Path:
    """A copy of a bundled model without its weights."""
    folder = Path(tempfile.mkdtemp(prefix="shadowspec-fuzz-"))
    for path in Path(DRAFT).iterdir():
        if path.suffix in {".json", ".jinja"}:
            shutil.copy(path, folder)
    return folder


def read_model(data: bytes) -> None:
    """A folder of which one file holds the bytes, and a prompt by its tokenizer."""
    path = _folder() / FILES[data[0] % len(FILES) if data else 0]
    before = path.read_bytes() if path.exists() else None
    path.write_bytes(data[1:])
    try:
        with suppress(ModelError, RecordError):
            load_tokenizer(str(_folder())).render_chat([{"role": "user", "content": "x"}], None)
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)


TARGETS: Final[Mapping[str, Callable[[bytes], object]]] = {
    **{format.value: partial(open_and_admit, format=format) for format in MessageFormat},
    "map": read_mapped,
    "page": read_page,
    "stream": read_stream,
    "parquet": read_parquet,
    "model": read_model,
}
