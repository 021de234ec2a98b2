"""Admission: each session is timed once, by chance that depends on nothing but ids and the secret."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from shadowspec import demo
from shadowspec.gate.policy import GatePolicy
from shadowspec.model_folder.plain_tokenizer import load_plain_tokenizer
from shadowspec.tap.admission import Admission, Admitted
from shadowspec.tap.endpoints import EndpointRule, Load, MatchRule
from shadowspec.tap.formats import MessageFormat, open_message
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.reading import Reading
from shadowspec.tap.routing import NO_HINTS, Routing
from shadowspec.tap.sources import RawRecord
from shadowspec.types import FunnelCounter, RecordKey, StoredRecord
from tests.tap.mirror import RULE, START, ByteTokenizer, admission, admit, chat, fates, first_only, raw

# A chi-square this unlikely under the promise fails; seeds are fixed, so a pass stays a pass.
LEVEL = 1e-3
YEARS = timedelta(days=10_000)  # no unit of a test ends within it, but by a chance of one in a million
DAY_S = 86_400
TWO_SLICES = {"code": "def f(x):\n    return x\n", "chat": "Why is the sky blue?"}


def session_records(num_sessions: int, length: int, **changes: Any) -> list[dict[str, Any]]:
    """Sessions of `length` requests each, interleaved, a second apart."""
    return [
        chat(
            session_id=f"session-{session}", timestamp=START + turn * num_sessions + session,
            request_id=f"request-{session}-{turn}", response_id=None, **changes,
        )
        for turn in range(length)
        for session in range(num_sessions)
    ]  # fmt: skip


def stored(records: list[Any], *rules: EndpointRule) -> list[StoredRecord]:
    return [fate.record for fate in fates(records, *rules)]


def reasons(records: list[Any], *rules: EndpointRule) -> Counter[str | None]:
    return Counter(record.reason for record in stored(records, *rules))


def test_each_session_is_timed_once_at_a_uniform_position() -> None:
    rule = replace(RULE, timed_positions=4, forget_unit_after=YEARS)
    records = stored(session_records(400, 5), rule)
    timed = [record for record in records if record.counter is FunnelCounter.MEASURED]
    assert len(timed) == len({record.session_hash for record in timed}) == 400
    positions = Counter(record.session_position for record in timed)
    assert set(positions) == {1, 2, 3, 4}
    assert stats.chisquare([positions[i] for i in range(1, 5)]).pvalue > LEVEL
    rest = {(record.counter, record.reason) for record in records if record.counter is not FunnelCounter.MEASURED}
    assert rest == {(FunnelCounter.SAMPLED_OUT, "not_timed")}


def test_a_session_that_ends_before_its_position_gives_nothing() -> None:
    timed = reasons(session_records(400, 1), replace(RULE, timed_positions=2))[None]
    assert stats.binomtest(timed, 400, 0.5).pvalue > LEVEL


def test_positions_count_usable_requests_alone() -> None:
    unusable = [chat(session_id="session-0", status=500), chat(session_id="session-0", request_n=2), b"{"]
    records = stored([*unusable, *session_records(1, 3)], first_only(RULE))
    assert [record.session_position for record in records] == [None, None, None, 1, 2, 3]
    assert records[3].counter is FunnelCounter.MEASURED


def test_sampling_is_by_session_and_slice_at_the_rate() -> None:
    rule = replace(RULE, sample_rate=0.3, forget_unit_after=YEARS)
    by_slice: dict[str, dict[str | None, bool]] = defaultdict(dict)
    for name, text in TWO_SLICES.items():
        messages = [{"role": "user", "content": text}]
        for record in stored(session_records(400, 2, request_messages=messages), rule):
            assert record.sampling_rate == 0.3
            is_in = record.reason != "not_sampled"
            assert by_slice[name].setdefault(record.session_hash, is_in) == is_in  # one fate for the whole session
    kept = {name: sum(fates.values()) for name, fates in by_slice.items()}
    for count in kept.values():
        assert stats.binomtest(count, 400, 0.3).pvalue > LEVEL
    # One draw for all slices of a session, so that it can be made before a body says which slice it is.
    assert by_slice["code"] == by_slice["chat"]


def test_draws_are_independent_of_each_other() -> None:
    """Sampling, position, load and another endpoint's draws of one session: all pairs uncorrelated."""
    keyed = KeyedHash(b"x" * 16)
    draws = [
        (
            keyed.uniform("sample", "a", f"session:{i}"),
            float(keyed.choice("timed_position", 4, "a", f"session:{i}")),
            keyed.uniform("load", "a", f"session:{i}"),
            keyed.uniform("load", "b", f"session:{i}"),
        )
        for i in range(3_000)
    ]
    columns = list(zip(*draws, strict=True))
    for left in range(4):
        for right in range(left):
            assert stats.pearsonr(columns[left], columns[right]).pvalue > LEVEL / 6
    assert stats.kstest(columns[0], "uniform").pvalue > LEVEL


def test_loads_are_drawn_in_proportion_to_their_shares() -> None:
    rule = replace(first_only(RULE), loads=(Load(1, 1.0), Load(4, 2.0), Load(16, 5.0)))
    drawn = Counter(f.concurrency for f in fates(session_records(800, 1), rule) if isinstance(f, Admitted))
    expected = [800 * share / 8 for share in (1, 2, 5)]
    assert stats.chisquare([drawn[b] for b in (1, 4, 16)], expected).pvalue > LEVEL


def test_without_a_session_the_user_is_timed_once_and_without_a_user_the_ten_minutes() -> None:
    rule = first_only(RULE)
    by_user = [chat(session_id=None, user="u", timestamp=START + 400 * i, response_id=None) for i in range(6)]
    assert reasons(by_user, rule) == {None: 1, "not_timed": 5}
    by_time = [chat(session_id=None, timestamp=START + 100 * i, response_id=None) for i in range(12)]
    assert reasons(by_time, rule) == {None: 2, "not_timed": 10}


def test_an_endpoints_sessions_are_its_own() -> None:
    other = replace(RULE, name="other", match=MatchRule(endpoint="other"))
    records = [chat(response_id=None), chat(endpoint="other", response_id=None)]
    assert reasons(records, first_only(other), first_only(RULE)) == {None: 2}


def test_rules_are_tried_in_order_and_all_their_globs_must_match() -> None:
    narrow = replace(RULE, name="narrow", match=MatchRule(model="model-a", path="/v1/chat/*", endpoint="x?"))
    names = [
        record.endpoint
        for record in stored([chat(endpoint="x1"), chat(endpoint="y1"), chat(endpoint="x1", path=None)], narrow, RULE)
    ]
    assert names == ["narrow", "chat", "chat"]


def test_a_duplicate_has_the_same_id_and_body_at_the_same_endpoint() -> None:
    """A response's id is one only where there is no request's: servers number answers from small spaces."""
    records = [
        chat(request_id="r1", response_id="a"),
        chat(request_id="r1", response_id="b"),
        chat(request_id="r2", response_id="a"),
        chat(response_id="a"),
        chat(response_id="a"),
    ]
    decided = stored(records, first_only(RULE))
    assert [record.counter is FunnelCounter.DUPLICATE for record in decided] == [False, True, False, False, True]
    assert decided[3].session_position == 3  # duplicates do not count
    elsewhere = replace(first_only(RULE), name="other", match=MatchRule(endpoint="other"))
    twice = [chat(request_id="r1"), chat(request_id="r1", endpoint="other")]
    assert reasons(twice, elsewhere, first_only(RULE)) == {None: 2}


NO_IDS = [
    "",
    " ",
    "-",
    "undefined",
    "NULL",
    "None",
    "(null)",
    "nil",
    "<nil>",
    "NaN",
    "0" * 32,
    f"{'0' * 32}/{'0' * 16}",
]


@pytest.mark.parametrize("name", NO_IDS)
def test_a_placeholder_is_no_id(name: str) -> None:
    """Proxies write one for a header that is missing; all their calls would be one, and of one session."""
    rule = first_only(RULE)
    placed = {"session_id": name, "user": name, "tenant": name, "request_id": name}
    records = [chat(**placed, response_id=name, timestamp=START + 700 * number) for number in range(3)]
    decided = stored(records, rule)
    assert {record.counter for record in decided} == {FunnelCounter.MEASURED}
    hashes = {(record.session_hash, record.user_hash, record.request_id_hash) for record in decided}
    assert hashes == {(None, None, None)}
    headers = {"x-session-id": "s-7", "x-request-id": "r-7"}
    (known,) = stored([chat(**placed, headers=headers)], rule)
    assert None not in (known.session_hash, known.request_id_hash), "the next place that may have one is looked at"
    for place in ("key", "header:sid"):
        message = RawRecord(RecordKey("t", 0, 1), b"", message_key=name.encode(), headers=(("sid", name.encode()),))
        assert Routing(session=place).hints(message, None).session is None


CHANGES = st.sampled_from(
    [{}, {"temperature": 0.5}, {"max_tokens": 21}, {"seed": 1}, {"stop": ["x"]},
     {"messages": [{"role": "user", "content": "Why is it not?"}]}, {"messages": [{"role": "system", "content": ""}]}]
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from(["1", "2", None]), CHANGES), max_size=12))
def test_as_many_records_count_as_there_are_calls(calls: list[tuple[str | None, str | None, dict[str, Any]]]) -> None:
    """Against the rule itself: id and body make a call, a record without an id is one of its own."""
    records, known, num_calls = [], set(), 0
    for request_id, response_id, changes in calls:
        bodies = {f"request_{name}": value for name, value in changes.items()}
        records.append(chat(request_id=request_id, response_id=response_id, **bodies))
        identity = ("request", request_id) if request_id else ("response", response_id) if response_id else None
        call = (identity, json.dumps(changes))
        num_calls += identity is None or call not in known
        known.add(call)
    decided = stored(records, first_only(RULE))
    assert sum(record.counter is not FunnelCounter.DUPLICATE for record in decided) == num_calls


def test_a_time_that_is_still_to_come_is_refused_and_makes_nothing_old() -> None:
    aged = replace(first_only(RULE), max_age=timedelta(seconds=60), forget_unit_after=timedelta(days=2))
    records = [chat(timestamp=START, response_id=None), chat(timestamp="2099-01-01T00:00:00Z", session_id="s-9")]
    first, future, last = stored([*records, chat(timestamp=START + 60, response_id=None)], aged)
    assert (future.counter, future.reason, future.event_time) == (FunnelCounter.MALFORMED, "future:timestamp", None)
    assert (first.session_position, last.session_position) == (1, 2)


@pytest.mark.parametrize(("ahead_s", "is_refused"), [(-3_600, False), (300, False), (301, True)])
def test_no_event_is_later_than_its_message(ahead_s: int, is_refused: bool) -> None:
    message = raw(chat(timestamp=START + ahead_s))
    message = message._replace(key=message.key._replace(timestamp_ms=START * 1_000))
    record = admit(admission(first_only(RULE)), message).record
    assert record.reason == ("future:timestamp" if is_refused else None)
    late = message._replace(key=message.key._replace(timestamp_ms=4_070_908_800_000))  # 2099: no time of a message
    assert admit(admission(first_only(RULE)), late).record.reason is None


def test_old_records_expire_against_the_newest_event_time() -> None:
    records = [chat(timestamp=START + offset, session_id=f"s{offset}", response_id=None) for offset in (0, 100, 39, 40)]
    aged = replace(first_only(RULE), max_age=timedelta(seconds=60))
    assert [record.counter for record in stored(records, aged)][2] is FunnelCounter.EXPIRED
    assert reasons(records, aged)[None] == 3
    assert reasons(records, first_only(RULE))[None] == 4


def key_of(number: int, by: str) -> dict[str, Any]:
    return {"session_id": f"device-{number}"} if by == "session" else {"session_id": None, "user": f"user-{number}"}


def steady_traffic(num_keys: int, per_day: int, days: int, by: str) -> list[tuple[int, int, dict[str, Any]]]:
    """(Day, key, record) of keys that stay in use, at times drawn over each day; in the order of time."""
    draw = random.Random(0)
    times = sorted(
        (day * DAY_S + draw.randrange(DAY_S), key) for day in range(days) for key in range(num_keys)
        for _ in range(per_day)
    )  # fmt: skip
    return [
        (at // DAY_S, key, chat(timestamp=START + at, request_id=f"r{line}", response_id=None, **key_of(key, by)))
        for line, (at, key) in enumerate(times)
    ]


@pytest.mark.parametrize("by", ["user", "session"])
def test_a_key_that_stays_in_use_is_timed_once_a_day(by: str) -> None:
    traffic = steady_traffic(50, 20, 7, by)
    decided = stored([record for _, _, record in traffic], replace(RULE, **GatePolicy().rule_parts()))
    timed = [
        (day, key, record) for (day, key, _), record in zip(traffic, decided, strict=True)
        if record.counter is FunnelCounter.MEASURED
    ]  # fmt: skip
    per_day, per_key = Counter(day for day, *_ in timed), Counter(key for _, key, _ in timed)
    assert all(30 <= per_day[day] <= 70 for day in range(1, 7)), "not only on the first day"
    assert all(6 <= number <= 8 for number in per_key.values())
    assert len({record.unit_key for *_, record in timed}) == len(timed)
    positions = Counter((record.unit_key, record.session_position) for record in decided)
    assert set(positions.values()) == {1}, "a unit's requests are counted from 1"
    hours = Counter(record.event_time.hour // 6 for *_, record in timed if record.event_time)
    assert min(hours[quarter] for quarter in range(4)) > len(timed) / 10, "at every time of the day"


def test_another_day_is_another_draw() -> None:
    """Ten users at a rate of .1 give about ten draws in ten days under each secret; none stays out for ever."""
    rule = replace(RULE, sample_rate=0.1)
    records = [
        chat(timestamp=START + day * DAY_S, request_id=f"r{day}-{key}", response_id=None, **key_of(key, "user"))
        for day in range(10) for key in range(10)
    ]  # fmt: skip
    drawn, users = [], set()
    for number in range(40):
        decided = [fate.record for fate in fates(records, rule, secret=b"secret number %02d" % number)]
        found = {record.user_hash for record in decided if record.reason != "not_sampled"}
        drawn.append(sum(record.reason != "not_sampled" for record in decided))
        users.add(len(found))
    assert stats.binomtest(sum(drawn), 4_000, 0.1).pvalue > LEVEL
    assert min(users) >= 2, "the same user every day would leave whole secrets without any"


def test_loads_and_positions_are_drawn_again_each_day() -> None:
    rule = replace(RULE, timed_positions=4, loads=(Load(1), Load(2)))
    traffic = [record for _, _, record in steady_traffic(1, 20, 60, "user")]
    admitted = [fate for fate in fates(traffic, rule) if isinstance(fate, Admitted)]
    assert {fate.record.session_position for fate in admitted} == {1, 2, 3, 4}
    assert {fate.concurrency for fate in admitted} == {1, 2}


def test_a_unit_is_that_of_its_event_time_in_any_order_of_partitions() -> None:
    records = [chat(timestamp=START + hour * 3_600, request_id=f"r{hour}") for hour in range(0, 96, 3)]
    rule = first_only(RULE)
    in_order = {record.event_time: record.unit_key for record in stored(records, rule)}
    shuffled = random.Random(0).sample(records, len(records))
    assert {record.event_time: record.unit_key for record in stored(shuffled, rule)} == in_order
    assert len(set(in_order.values())) in (4, 5)


def test_a_unit_is_remembered_until_its_late_records_have_come() -> None:
    rule = replace(first_only(RULE), forget_unit_after=timedelta(hours=48))
    first = stored([chat(timestamp=START)], rule)[0].unit_key
    hours = [0, *range(1, 24, 2), 47, 0.5, 49, 0.6]
    decided = stored([chat(timestamp=START + 3_600 * hour, request_id=f"r{hour}") for hour in hours], rule)
    of_first = [record.session_position for record in decided if record.unit_key == first]
    assert of_first[-1] == 1, "two days after its first request nothing of it is left"
    assert of_first[:-1] == list(range(1, len(of_first)))


def test_ids_are_stored_only_as_hashes_under_the_secret() -> None:
    record = chat(
        session_id="a-session", user="a-user", tenant="a-tenant", request_id="a-request", metadata={"tier": "pro"}
    )
    rule = replace(first_only(RULE), labels={"tier": ("pro",)})
    one, other = (fates([record], rule, secret=secret)[0] for secret in (b"1" * 16, b"2" * 16))
    assert isinstance(one, Admitted)
    assert isinstance(other, Admitted)
    for name in ("a-session", "a-user", "a-tenant", "a-request"):
        assert name not in repr(one)
    hashes = {one.prompt.session_hash, one.prompt.user_hash, one.prompt.request_id_hash, one.prompt.labels["tenant"]}
    others = {other.prompt.session_hash, other.prompt.user_hash, other.prompt.request_id_hash}
    assert len(hashes) == 4
    assert not hashes & others
    assert one.prompt.labels["tier"] == "pro"


@pytest.mark.parametrize("value", ["a b", "x=y", "x,y", "", "ä", "gold" * 65, "Gold", 1.5, ["gold"], {"gold": 1}])
def test_a_label_is_a_word_of_the_list_or_other(value: Any) -> None:
    rule = replace(first_only(RULE), labels={"tier": ("gold", "1", "true")}, slice_by=("tier",))
    assert stored([chat(metadata={"tier": value})], rule)[0].slice_key == "tier=other"
    for listed, said in (("gold", "gold"), (1, "1"), (True, "true")):
        assert stored([chat(metadata={"tier": listed})], rule)[0].slice_key == f"tier={said}"


@pytest.mark.parametrize("client_labels", [False, True])
def test_a_client_makes_no_label_and_excludes_no_record_unless_the_endpoint_lets_it(client_labels: bool) -> None:
    """Its metadata still name its session and its user."""
    rule = replace(
        first_only(RULE), labels={"tier": ("gold",)}, slice_by=("tier", "prompt_class"), client_labels=client_labels
    )
    flags = dict.fromkeys(("cache_hit", "truncated", "redacted", "is_silent_experiment", "no_payload"), "true")
    said = {"tier": "gold", "prompt_class": "code", "session_id": "mine", "tenant": "another's", **flags}
    (record,) = stored([chat(session_id=None, request_metadata=said)], rule)
    (own,) = stored([chat(session_id=None, request_metadata={"session_id": "mine"})], rule)
    assert record.counter == own.counter != FunnelCounter.UNSUPPORTED
    assert record.slice_key == ("tier=gold,prompt_class=code" if client_labels else own.slice_key)
    assert record.unit_key == own.unit_key
    assert "tenant" not in record.labels
    (mirrored,) = stored([chat(request_metadata=said, metadata={"tier": "gold"})], rule)
    assert mirrored.labels["tier"] == "gold"


@pytest.mark.parametrize("secret", ["ssn-078-05-1120", "p17-4111-1111-1111-0017", "tell_me_a_story"])
def test_a_name_that_no_api_has_is_counted_and_not_stored(secret: str) -> None:
    assert stored([chat(**{f"request_{secret}": 1})], RULE)[0].reason == "unknown_parameter"
    assert stored([chat(request_mirostat=1)], RULE)[0].reason == "unknown_parameter:mirostat"


def test_labels_of_one_request_are_no_others() -> None:
    rule = replace(RULE, labels={"tier": ("gold",)}, slice_by=("prompt_class", "tier", "tenant"))
    plain, gold, again = stored(
        [
            chat(session_id="a", response_id="1"),
            chat(session_id="b", response_id="2", metadata={"tier": "gold"}, tenant="t"),
            chat(session_id="c", response_id="3"),
        ],
        rule,
    )
    assert plain.labels == again.labels
    assert set(plain.labels) == {"prompt_class", "sampling_regime", "context_bucket"}
    assert plain.slice_key == again.slice_key == "prompt_class=chat,tier=unknown,tenant=unknown"
    assert {**plain.labels, "tier": "gold", "tenant": gold.labels["tenant"]} == gold.labels
    assert gold.slice_key == f"prompt_class=chat,tier=gold,tenant={gold.labels['tenant']}"


def test_a_token_id_is_held_against_the_vocabulary_of_its_own_endpoint() -> None:
    """Where the largest of several is looked for first."""

    class Larger(ByteTokenizer):
        vocabulary_size = 512

    rule = replace(RULE, timed_positions=1)
    rules = [replace(rule, name="small", match=MatchRule(endpoint="small")), replace(rule, name="large")]
    reader = Admission(rules, {"small": ByteTokenizer(), "large": Larger()}, KeyedHash(b"a secret for the tests alone"))
    ends = {}
    for line, (endpoint, token) in enumerate(itertools.product(("small", "large"), (255, 256, 511, 512)), start=1):
        choices = [{"token_ids": [9_999], "prompt_token_ids": [1, token, 2]}]
        record = chat(endpoint=endpoint, session_id=str(line), response_id=str(line), response_choices=choices)
        (opened,) = open_message(raw(record, line), MessageFormat.AUTO)
        ends[endpoint, token] = reader.admit(opened).record.reason
    refused = "token_not_in_vocabulary"
    assert [ends["small", token] for token in (255, 256, 511, 512)] == [None, refused, refused, refused]
    assert [ends["large", token] for token in (255, 256, 511, 512)] == [None, None, None, refused]


def test_texts_that_are_encoded_together_end_as_each_would_alone() -> None:
    """With a real tokenizer, whose ids of all texts of a poll come in one call."""
    tokenizer = load_plain_tokenizer(str(demo.TARGET))
    texts = ["Why is the sky blue?", "", "word " * 20_000, "def f(x):\n    return x\n" * 9, "été"]
    path = {"path": "/v1/completions", "request_messages": None}
    records = [
        *(chat(request_prompt=text, **path) for text in texts),
        chat(request_messages=[{"role": "user", "content": "Why?"}]),
        chat(response_choices=[{"token_ids": [5], "prompt_token_ids": [1, 2]}]),
    ]
    reader = Admission([first_only(RULE)], {RULE.name: tokenizer}, KeyedHash(b"a secret for the tests alone")).reader
    opened = [open_message(raw(record, line), MessageFormat.OPENAI)[0] for line, record in enumerate(records, 1)]

    def seen(readings: Iterable[Reading]) -> list[object]:
        return [reading.error.reason if reading.error else reading.prompt_token_ids for reading in readings]

    together = seen(reader.read([(record, NO_HINTS) for record in opened]))
    assert together == seen(reader.read([(record, NO_HINTS)])[0] for record in opened)
    assert (together[0], together[2]) == (tuple(tokenizer.encode(texts[0])), "longer_than_context")
    assert together[-1] == (1, 2)


def test_the_same_name_as_session_and_as_user_gives_two_hashes() -> None:
    record = stored([chat(session_id="same", user="same")])[0]
    assert record.session_hash != record.user_hash


def test_secret_and_tokenizers_are_required() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        KeyedHash(b"short")
    with pytest.raises(ValueError, match="no tokenizer for chat"):
        Admission([RULE], {"other": ByteTokenizer()}, KeyedHash(b"x" * 16))
    assert "x" * 16 not in repr(KeyedHash(b"x" * 16))


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), rate=st.sampled_from([0.2, 0.7, 1.0]), positions=st.integers(1, 4))
def test_a_second_pass_gives_the_same_fates_and_the_counters_add_up(seed: int, rate: float, positions: int) -> None:
    rng = random.Random(seed)
    records: list[Any] = [
        chat(
            session_id=rng.choice([None, "a", "b", "c", "d"]),
            user=rng.choice([None, "u"]),
            timestamp=START + rng.randrange(5_000),
            request_id=rng.choice([None, "r1", "r2", "r3"]),
            response_id=None,
            request_messages=[{"role": "user", "content": rng.choice(list(TWO_SLICES.values()))}],
            status=rng.choice([None, 200, 503]),
        )
        for _ in range(40)
    ] + [b"junk"]
    rng.shuffle(records)
    rule = replace(RULE, sample_rate=rate, timed_positions=positions, max_age=timedelta(seconds=2_000))
    first, second = fates(records, rule), fates(records, rule)
    assert first == second
    assert sum(Counter(fate.record.counter for fate in first).values()) == len(records)
    timed = [fate for fate in first if isinstance(fate, Admitted) and fate.prompt.session_hash]
    assert len({fate.prompt.session_hash for fate in timed}) == len(timed)
