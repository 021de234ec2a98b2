"""What is fuzzed: bytes as a message of one format, through opening, joining and admission.

The first bytes choose the transport's headers, so that the fuzzer finds the bindings; the rest is the value.
Whatever it holds, the result is a list of records, refusals with a reason, or halves: any exception is a bug.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from typing import Final

from shadowspec.tap.admission import Admission, Admitted
from shadowspec.tap.asked_output import ToolCallFormat
from shadowspec.tap.endpoints import EndpointRule
from shadowspec.tap.formats import MessageFormat, Opened, open_message
from shadowspec.tap.joining import Joiner
from shadowspec.tap.sources import RawRecord
from shadowspec.types import FunnelCounter, RecordKey
from tests.fakes import endpoint_rule
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


def open_and_admit(data: bytes, format: MessageFormat) -> list[Opened]:
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


def _admit(decide: Admission, opened: Opened) -> None:
    fate = decide.admit(opened)
    assert fate.record.key == opened.key
    assert isinstance(fate, Admitted) is (fate.record.counter is FunnelCounter.MEASURED)
    reason = fate.record.reason
    assert reason is None or REASON.fullmatch(reason), reason
