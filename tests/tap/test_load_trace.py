"""Traces of arrivals: three published forms, broken rows by line, and what records get of them."""

from __future__ import annotations

import gzip
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.app.try_out.sample import read_sample
from shadowspec.errors import InputError, NoDataError, ShadowSpecError
from shadowspec.tap.formats import MessageFormat, open_message
from shadowspec.tap.load_trace import ArrivalTimes, LoadTrace, read_trace
from shadowspec.tap.records import EARLIEST
from shadowspec.tap.sources import RawRecord
from shadowspec.types import RecordKey
from tests.builders.workspace import record, write_traffic

# The first rows as they are published: Azure 2023 and 2024, BurstGPT 1 and with sessions, Mooncake's conversations.
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"
    "2023-11-16 18:17:04.0319600,3180,8\r\n2023-11-16 18:17:04.0781490,110,27"
)
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
    "2024-05-10 00:00:00.017335+00:00,2399,6\n"
)
BURSTGPT = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
    "45,ChatGPT,1087,230,1317,Conversation log\n118,GPT-4,417,276,693,Conversation log\n"
)
BURSTGPT_SESSIONS = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "0.5,same,1,GPT-4,100,10,110,Conversation log\n10.5,other,1,GPT-4,200,0,200,API log\n"
)
MOONCAKE = "".join(
    json.dumps({"timestamp": time, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]}) + "\n"
    for time in (0, 0, 10535, 27482)
)
TRACES = {
    "Azure": (AZURE, "Azure", [0.0, 0.052, 0.098189]),
    "Azure 2024": (AZURE_2024, "Azure", [0.0, 0.007405]),
    "BurstGPT": (BURSTGPT, "BurstGPT", [0.0, 40.0, 113.0]),
    "BurstGPT with sessions": (BURSTGPT_SESSIONS, "BurstGPT", [0.0, 10.0]),
    "Mooncake": (MOONCAKE, "Mooncake", [0.0, 0.0, 10.535, 27.482]),
}


def written(folder: Path, text: str, name: str = "trace") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return str(path)


@pytest.mark.parametrize("name", TRACES)
def test_a_trace_is_read_as_it_is_published(tmp_path: Path, name: str) -> None:
    text, kind, seconds = TRACES[name]
    trace = read_trace(written(tmp_path, text))
    assert trace.kind == kind
    assert list(trace.seconds) == pytest.approx(seconds, abs=1e-5)
    packed = tmp_path / "trace.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + text.encode()))
    again = read_trace(str(packed))
    assert list(again.seconds) == list(trace.seconds)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (AZURE.replace("2023-11-16 18:17:04.0319600,3180", "secret,3180"), "line 3: has no time of a row of Azure's"),
        (AZURE.replace("04.0781490", "03.0"), "line 4: is earlier than the row before it; sort the rows by time"),
        (BURSTGPT.replace("45,ChatGPT", "nan,ChatGPT"), "line 3: has no time of a row of BurstGPT's trace; fix"),
        (BURSTGPT.replace("45,ChatGPT", "secret"), "line 3: has no time"),
        (BURSTGPT + '"secret', "line 5: has no time"),
        (MOONCAKE + '{"timestamp": "secret", "input_length": 1}', "line 5: has no time of a row of Mooncake's trace"),
        (MOONCAKE + f'{{"timestamp": 1{"0" * 400}, "input_length": 1}}', "line 5: has no time"),
        (MOONCAKE + '{"timestamp": true, "input_length": 1}', "line 5: has no time"),
        (MOONCAKE + '{"timestamp": 99999, "secret": 1}', "line 5: has no time"),
        (BURSTGPT + "99999999,GPT-4,417,276,693,API log\n", "spans more than 366 days; give times in BurstGPT's unit"),
        ("secret,text\n1,2\n", "line 1: no row or header of a trace; give a trace of Azure"),
        (json.dumps(record(0, prompt="secret")), "line 1: no row or header of a trace"),
        ("\ufeff", "line 1: no row or header of a trace"),
    ],
)
def test_a_broken_row_is_named_with_its_line_and_a_remedy(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError) as raised:
        read_trace(written(tmp_path, text))
    assert words in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("text", [AZURE.partition("\r")[0], AZURE[:76], "Timestamp,Request tokens\n1,2\n1,3\n"])
def test_a_trace_without_two_times_is_no_profile(tmp_path: Path, text: str) -> None:
    with pytest.raises(NoDataError, match="give a longer trace"):
        read_trace(written(tmp_path, text))


def test_standard_input_is_for_records() -> None:
    with pytest.raises(InputError, match="give a file"):
        read_trace("-")


@settings(max_examples=150, deadline=None)
@given(
    base=st.sampled_from([AZURE, BURSTGPT, MOONCAKE]).map(str.encode),
    cuts=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 40), st.binary(max_size=12)), max_size=4),
)
def test_any_bytes_end_as_a_trace_or_as_an_error_without_them(
    tmp_path_factory: pytest.TempPathFactory, base: bytes, cuts: list[tuple[int, int, bytes]]
) -> None:
    for place, length, put in cuts:
        base = base[:place] + put + base[place + length :]
    path = tmp_path_factory.getbasetemp() / "fuzzed"
    path.write_bytes(base)
    try:
        trace = read_trace(str(path))
    except ShadowSpecError as error:
        refusal = str(error)
    else:
        assert list(trace.seconds) == sorted(trace.seconds)
        assert trace.seconds[0] == 0.0 < trace.span_s
        return
    assert str(path) in refusal
    assert "; " in refusal, "a remedy"


def opened(**fields: Any) -> Any:
    value = json.dumps({"request": {"model": "m", "prompt": "a"}, **fields}).encode()
    return open_message(RawRecord(RecordKey("f", 0, 1), value), MessageFormat.AUTO)[0]


def test_records_take_the_times_in_their_order_and_the_trace_repeats() -> None:
    times = ArrivalTimes(LoadTrace("t", "d", "Azure", [0.0, 1.0, 4.0]))
    messages = [opened(timestamp=1.7e9 + number, session_id=f"s-{number}") for number in range(5)]
    for message in (messages[0], opened(request=1), *messages[1:]):  # what is no record takes none
        times.give(message)
    offsets = [message.record.event_time(0) - EARLIEST for message in messages]
    assert offsets == [timedelta(seconds=seconds) for seconds in (0, 1, 4, 6, 7)]
    assert [message.record.session() for message in messages] == [f"s-{number}" for number in range(5)]
    assert times.num_given == 5


def test_a_record_without_a_session_is_of_those_that_open_alike() -> None:
    times = ArrivalTimes(LoadTrace("t", "d", "Azure", [0.0, 1.0]))
    alike, other = (opened(timestamp=1.7e9, request={"model": "m", "prompt": prompt}) for prompt in "ab")
    again, of_user = opened(request={"model": "m", "prompt": "a"}), opened(user="u")
    for message in (alike, other, again, of_user):
        times.give(message)
    assert alike.record.session() == again.record.session() != other.record.session()
    assert (of_user.record.session(), of_user.record.user_id()) == (None, "u")


def test_a_trace_is_not_repeated_for_years() -> None:
    times = ArrivalTimes(LoadTrace("t", "d", "Azure", [0.0, 3e7]))
    times.next_offset()
    times.next_offset()
    with pytest.raises(InputError, match="give a trace with more arrivals"):
        times.next_offset()


def test_a_sample_says_what_follows_from_times_that_are_not_its_own(tmp_path: Path) -> None:
    traffic = str(write_traffic(tmp_path / "t.jsonl", [record(number) for number in range(9)]))
    trace = read_trace(written(tmp_path, BURSTGPT))
    sample = read_sample(traffic, trace=trace)
    times = [message.record.event_time(0) for message in sample.opened if message.record is not None]
    assert (times[-1] - times[0]).total_seconds() == pytest.approx(2 * 169.5 + 113)
    whose, fits, others = sample.gaps
    assert "BurstGPT, 3 arrivals in 113 seconds). So arrivals and concurrency are the trace's" in whose
    assert fits == "the trace is repeated, because 9 records are 3.0 times its arrivals"
    assert "hits of prefix caches and pauses within sessions are not production's" in others
    assert trace.fit(2) == "the last 1 arrival of the trace are not used"
    assert trace.fit(3) == "each arrival of the trace is used once"
