"""The parser of server-sent events, against a second reading of the standard."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shadowspec.types.server_sent_events import EventParser, NotEventsError, events_of

LINES = st.one_of(
    st.sampled_from(["", "", "data", "data:", "data: x", "data:y", "data:  z", ":", ": comment", "event: e", "id: 1"]),
    st.text("daté: \u2028\u2029\u0085\v\f\x1c", max_size=12).map(lambda text: f"data:{text}"),
    st.text("ab:", max_size=4),
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])
STREAMS = st.lists(st.tuples(LINES, ENDS), max_size=12).map(lambda lines: ": begun\n" + "".join(map("".join, lines)))


def standard(text: str) -> list[str]:
    """The data of a stream's events: the standard's grammar, event by event.  The end of the stream ends an event."""
    lines = re.sub("\r\n|\r", "\n", text.removeprefix("\ufeff")).split("\n")
    events: list[list[str]] = [[]]
    for line in lines:
        if line == "":
            events.append([])
        elif match := re.fullmatch(r"data(?:: ?(.*))?", line, re.DOTALL):
            events[-1].append(match[1] or "")
    return ["\n".join(data) for data in events if data]


@given(STREAMS)
def test_the_events_are_those_of_the_standard(text: str) -> None:
    assert events_of(text) == standard(text)
    assert events_of("\ufeff" + text) == standard(text)


@given(STREAMS, st.lists(st.integers(0, 200), max_size=6))
@example("data: a\r\ndata: b\r\n\r\n", [8])
def test_pieces_change_nothing(text: str, cuts: list[int]) -> None:
    parser, places = EventParser(), [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[begin:end] for begin, end in pairwise(places)]
    assert [*(data for piece in pieces for data in parser.feed(piece)), *parser.end()] == standard(text)
    assert parser.num_waiting == 0


@pytest.mark.parametrize("text", ["{}", '{"data": 1}', "date: x", "<html>\ndata: x\n\n", "Data: x\n\n"])
def test_a_text_that_begins_otherwise_is_no_stream(text: str) -> None:
    with pytest.raises(NotEventsError):
        events_of(text)


def test_what_waits_is_bounded_by_who_reads() -> None:
    parser = EventParser()
    assert parser.feed("data: abc\ndata\nda") == []
    assert parser.num_waiting == len(" abc") + 1 + 1 + len("da")
