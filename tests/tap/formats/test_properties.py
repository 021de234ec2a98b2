"""What holds of every adapter, whatever the bytes: properties over changed samples and over noise."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shadowspec.errors import RecordError
from shadowspec.tap.formats import MessageFormat, open_message
from tests.builders.seeds import seeds
from tests.fuzz.mutation import mutated
from tests.fuzz.target import HEADERS, open_and_admit
from tests.tap.formats.samples import message, refusal
from tests.tap.mirror import chat

PROMPT_WORDS = ("sky", "blue", "scatters", "story", "Once upon")  # of the samples' prompts and answers


@pytest.mark.parametrize("format", MessageFormat)
@given(data=st.data())
def test_changed_samples_end_as_records_refusals_or_halves(format: MessageFormat, data: st.DataObject) -> None:
    seed = data.draw(st.sampled_from(seeds(format)))
    generator: Random = data.draw(st.randoms(use_true_random=False))
    for each in open_and_admit(seed[:1] + mutated(seed[1:], generator), format):
        assert each.error is None or not any(word in str(each.error) for word in PROMPT_WORDS)


@pytest.mark.parametrize("format", MessageFormat)
def test_no_sample_shows_its_text(format: MessageFormat) -> None:
    # Of changed samples this cannot be asked: a change may put text where the name of a route stands.
    for seed in seeds(format):
        for each in open_and_admit(seed, format):
            assert not any(word in repr(each) for word in PROMPT_WORDS)


@pytest.mark.parametrize("format", MessageFormat)
@given(data=st.binary(max_size=200))
@example(data=b"")
@example(data=b"\x00")
@example(data=b"\x03[[]]")
@example(data=b"\x04" + b'{"messages":' * 300)
def test_noise_ends_as_a_refusal(format: MessageFormat, data: bytes) -> None:
    for each in open_and_admit(data, format):
        assert each.record is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from([name for given in HEADERS for name, _ in given] + ["CE_ID", "", "x"]),
            st.none() | st.binary(max_size=20) | st.just(b"application/cloudevents+xml"),
        ),
        max_size=8,
    ),
    st.sampled_from([b"{}", b"", b"null", b'{"request": {"model": "m"}}', b'{"messages": []}']),
)
def test_odd_headers_raise_nothing(headers: list[tuple[str, bytes | None]], value: bytes) -> None:
    for format in MessageFormat:
        assert len(open_message(message(value, tuple(headers)), format)) == 1


@pytest.mark.parametrize(
    "record",
    [
        chat(request_tools=7),
        chat(request_messages=[{"role": "user", "content": [{"type": ["text"], "text": "x"}]}]),
        chat(request_messages=[{"role": "user", "content": [{"type": {}, "text": "x"}]}]),
    ],
)
def test_what_the_fuzzers_found(record: dict[str, Any]) -> None:
    (found,) = open_and_admit(b"\x00" + message(record).value, MessageFormat.OPENAI)  # type: ignore[operator]
    assert found.record is not None


def test_a_transport_time_that_no_clock_shows_is_no_time() -> None:
    timeless = chat(timestamp=None)
    for at in (2**62, 10**13 + 1, 1):
        (found,) = open_message(message(timeless, timestamp_ms=at), MessageFormat.OPENAI)
        assert found.record is not None
        with pytest.raises(RecordError, match="invalid:timestamp"):
            found.record.event_time(at)
    assert refusal(chat(headers=[1])) == ("malformed", "invalid:headers")
