"""When a job is due: as cron says it, in its time zone, without a gap and without a repeat."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.errors import ConfigError
from shadowspec.scheduler.cron import Cron
from shadowspec.scheduler.jobs import due_periods, first_period
from shadowspec.types import Period

BERLIN = ZoneInfo("Europe/Berlin")
MONDAY = datetime(2026, 3, 2, tzinfo=UTC)
CRONS = st.sampled_from(
    ["0 8 * * *", "*/7 * * * *", "30 2 * * *", "0 0 1 * *", "15 */5 * * mon-fri", "0 9 * * 0", "*/13 * * * * *"]
)
ZONES = st.sampled_from([ZoneInfo(name) for name in ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu")])
MOMENTS = st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC))


def due(expression: str, after: datetime, until: datetime, zone: ZoneInfo = BERLIN) -> list[str]:
    found = Cron(expression, zone).due_within(after, until, at_most=10_000)
    return [f"{each.astimezone(zone):%a %d %H:%M}" for each in found]


@pytest.mark.parametrize(
    ("field", "days"),
    [
        ("0", "Sun"),
        ("7", "Sun"),
        ("1", "Mon"),
        ("1-5", "Mon Tue Wed Thu Fri"),
        ("0-2", "Mon Tue Sun"),
        ("5-7", "Fri Sat Sun"),
        ("0,3", "Wed Sun"),
        ("mon-wed", "Mon Tue Wed"),
        ("sun-tue", "Mon Tue Sun"),
        ("0-7", "Mon Tue Wed Thu Fri Sat Sun"),
        ("0-4/2", "Tue Thu Sun"),
        ("*/2", "Tue Thu Sat Sun"),
        ("*/3", "Wed Sat Sun"),
        ("*", "Mon Tue Wed Thu Fri Sat Sun"),
    ],
)
def test_days_of_the_week_are_those_of_cron(field: str, days: str) -> None:
    found = due(f"0 8 * * {field}", MONDAY, MONDAY + timedelta(days=7))
    assert [each[:3] for each in found] == days.split()


def test_an_hour_that_comes_twice_or_never() -> None:
    october, march = datetime(2026, 10, 24, 12, tzinfo=UTC), datetime(2026, 3, 28, 12, tzinfo=UTC)
    two_days = timedelta(days=2)
    assert due("30 2 * * *", october, october + two_days) == ["Sun 25 02:30", "Mon 26 02:30"]
    assert due("30 2 * * *", march, march + two_days) == ["Sun 29 03:00", "Mon 30 02:30"]
    assert due("30 30 2 * * *", october, october + two_days) == ["Sun 25 02:30", "Mon 26 02:30"]  # with seconds
    assert len(due("0 * * * *", october, october + timedelta(days=1))) == 24
    again = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)  # the second 02:10 of that night
    assert due("30 2 * * *", again, again + two_days) == ["Mon 26 02:30"]


@pytest.mark.parametrize(
    ("expression", "zone", "after", "days", "times"),
    [
        ("0 0 * * *", "Europe/Berlin", "2026-03-28T12:00", 3, ["Sun 29 00:00", "Mon 30 00:00", "Tue 31 00:00"]),
        ("0 0 1 * *", "Europe/Berlin", "2026-03-02T00:00", 61, ["Wed 01 00:00", "Fri 01 00:00"]),
        ("0 0 * * mon", "Europe/Berlin", "2026-03-28T12:00", 9, ["Mon 30 00:00", "Mon 06 00:00"]),
        ("@daily", "America/New_York", "2027-03-14T12:00", 1, ["Mon 15 00:00"]),
        ("@daily", "Africa/Cairo", "2026-04-22T12:00", 3, ["Thu 23 00:00", "Fri 24 01:00", "Sat 25 00:00"]),
        ("15 0 * * *", "America/Havana", "2026-03-07T12:00", 2, ["Sun 08 01:00", "Mon 09 00:15"]),
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", 2, ["Sun 04 02:30", "Mon 05 02:15"]),
    ],
)
def test_no_day_is_lost_where_the_clock_changes(
    expression: str, zone: str, after: str, days: int, times: list[str]
) -> None:
    place = ZoneInfo(zone)
    start = datetime.fromisoformat(after).replace(tzinfo=place).astimezone(UTC)
    assert due(expression, start, start + timedelta(days=days), place) == times


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("0 8 * *", "must have 5 fields"),
        ("61 * * * *", "cannot be read"),
        ("0 8 * * 9", "0 to 7"),
        ("0 8 * * fri-mon", "smaller end"),
        ("*/0 * * * *", "bad minute"),
        *((f"0 8 * {month} *", "nothing that cron knows") for month in ("feb#", "last+1", "2/2")),
        *((f"0 8 {day} * *", "nothing that cron knows") for day in ("L", "LW", "1-", "15w")),
        *(
            (f"0 8 * * {day}", "nothing that cron knows")
            for day in ("1#2", "fri#1", "5L", "fri!", "1?", "1-", "1-5;2", "mon-wed-fri", "mon/2", "2/2", "\u0663")
        ),
        ("0 8 * * day", "cannot be read"),
        ("0 8 * * someday", "nothing that cron knows"),
        ("0 8 1 * 1", "write two jobs"),
        ("0 0 31 2 *", "never due"),
    ],
)
def test_what_cannot_be_meant_is_refused(expression: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Cron(expression, BERLIN)


@settings(max_examples=25, deadline=None)
@given(CRONS, ZONES, MOMENTS)
def test_the_last_time_and_the_next_one_leave_nothing_between(
    expression: str, zone: ZoneInfo, moment: datetime
) -> None:
    cron = Cron(expression, zone)
    last, following = cron.last_until(moment), cron.next_after(moment)
    assert following is not None
    assert last <= moment < following
    assert cron.next_after(last) == following
    assert cron.last_until(last) == last


@settings(max_examples=25, deadline=None)
@given(
    CRONS,
    ZONES,
    MOMENTS,
    st.lists(st.tuples(st.timedeltas(timedelta(0), timedelta(hours=20)), st.floats(0, 1)), max_size=3),
    st.integers(1, 9),
)
def test_periods_follow_each_other_without_a_gap(
    expression: str, zone: ZoneInfo, moment: datetime, steps: list[tuple[timedelta, float]], catch_up: int
) -> None:
    """However rarely somebody looks, and however long the gate takes, each report begins where the last one ended."""
    cron = Cron(expression, zone)
    last = first_period("job", cron, moment)
    for step, lag in steps:
        moment += min(step, timedelta(minutes=20)) if expression.count(" ") == 5 else step
        periods = due_periods(cron, last, moment, catch_up)
        assert len(periods) <= catch_up
        assert [each.due_at for each in periods] == cron.due_within(last.due_at, moment, at_most=catch_up)
        for each in periods:
            assert each.since == last.until
            until = each.due_at if each is not periods[-1] else each.due_at + lag * (moment - each.due_at)
            last = Period(each.job, each.due_at, each.since, max(until, each.since))
        assert cron.due_within(last.due_at, moment, at_most=10_000) == []
        if periods:
            moment = max(moment, last.until or moment)
