"""Both sides of an enabling, read by the hour: the figures of all its windows, of which few are read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from shadowspec.reports.pages.live_production import NUM_POINTS, Production, around, live_period, live_points
from shadowspec.store.evidence.live_rows import hour_of_window, sum_windows
from shadowspec.types import LiveCounts, LiveHour, LiveWindow, Pool
from tests.store.live_traffic import windows

NOON = datetime(2026, 5, 1, 12, 20, 31, tzinfo=UTC)  # in the midst of an hour
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


class Kept:
    """Windows with their hours, as a store keeps them; `gone` were removed by retention."""

    def __init__(self, windows: Sequence[LiveWindow], gone: Collection[LiveWindow] = ()) -> None:
        self.windows, self.hours = [each for each in windows if each not in gone], sum_windows(windows)
        self.num_read = 0

    def live_hours(self, endpoint: str, since: datetime, until: datetime) -> Sequence[LiveHour]:
        assert endpoint == "chat"
        return [hour for hour in self.hours if since <= hour.hour < until]

    def live_windows(
        self,
        endpoint: str,
        since: datetime | None = None,
        until: datetime | None = None,
        replicas: Collection[str] | None = None,
    ) -> Sequence[LiveWindow]:
        assert endpoint == "chat"
        assert since
        assert until
        found = [
            window for window in self.windows if since <= window.ended_at < until and window.replica in (replicas or ())
        ]
        self.num_read += len(found)
        return found


def without_control(windows: Sequence[LiveWindow]) -> list[LiveWindow]:
    return [each for each in windows if each.pool is not Pool.PLAIN]


def of_windows(windows: Sequence[LiveWindow], enabled_at: datetime, span: timedelta) -> tuple[object, ...]:
    """The moment and both sides, from every window."""
    within = [each for each in windows if enabled_at - span <= each.ended_at < enabled_at + span]
    drafting = [each for each in within if each.counts.num_drafts]
    since = [max(each.began_at, enabled_at) for each in drafting]
    on = enabled_at if any(each.ended_at <= enabled_at for each in drafting) else min(since, default=None)
    moment = on or enabled_at + span
    before = [hour_of_window(each) for each in within if each.ended_at <= moment]
    after = [hour_of_window(each) for each in within if each.began_at >= moment]
    return on, live_period(before), live_period(after)


def sides(found: Production | None) -> tuple[object, ...]:
    assert found is not None
    return found.switched_on, found.before, found.after


@pytest.mark.representative("24-5.5", "3-0.0", "3--30.0")
@pytest.mark.parametrize("drafts_after", [-30.0, -0.1, 0.0, 0.3, 5.5, 100.0])  # hours; never, within the span
@pytest.mark.parametrize("hours", [3, 24])
def test_hours_give_the_figures_of_all_windows(drafts_after: float, hours: int) -> None:
    for seed in range(5):
        drawn = windows(seed, NOON - 30 * HOUR, 60 * HOUR, NOON + drafts_after * HOUR)
        live_windows, kept, span = without_control(drawn), Kept(drawn), hours * HOUR
        found = around(kept, "chat", NOON, span)
        assert sides(found) == of_windows(live_windows, NOON, span)
        assert found is not None
        assert found.before.num_windows > 20
        within = [each for each in live_windows if NOON - span <= each.ended_at < NOON + span]
        start = (NOON - span).replace(minute=0, second=0)
        assert list(found.points) == live_points(map(hour_of_window, within), start, HOUR)
        assert kept.num_read < 150, "windows of a few hours, of 1,400"


def test_a_moment_on_the_hour_cuts_nothing_twice() -> None:
    """Windows that end, begin and lie across the very moment; none is on both sides."""
    noon = NOON.replace(minute=0, second=0)
    windows = [
        LiveWindow("a", "s", noon + start * MINUTE, noon + (start + 10) * MINUTE, False, 0, LiveCounts(num_requests=1))
        for start in range(-120, 120, 10)
    ]
    assert sides(around(Kept(windows), "chat", noon, HOUR)) == of_windows(windows, noon, HOUR)
    across = [
        LiveWindow("b", "s", noon - 90 * MINUTE, noon + 30 * MINUTE, False, 0, LiveCounts(num_drafts=5)),
        LiveWindow("b", "s", noon + 30 * MINUTE, noon + 31 * MINUTE, False, 0, LiveCounts(num_drafts=5)),
    ]
    found = around(Kept([*windows, *across]), "chat", noon, 2 * HOUR)
    assert sides(found) == of_windows([*windows, *across], noon, 2 * HOUR)
    assert found is not None
    assert (found.switched_on, found.before.num_windows, found.after.num_windows) == (noon, 12, 12), (
        "one ends with the time"
    )


def test_nothing_read_is_nothing() -> None:
    assert around(Kept([]), "chat", NOON, HOUR) is None
    old = windows(0, NOON - 30 * HOUR, 10 * HOUR, None)
    assert around(Kept(old), "chat", NOON, HOUR) is None


def test_hours_without_their_windows_still_speak() -> None:
    """All windows are gone but their sums: the hours that are not cut say what they said; a cut one has no side."""
    drawn = windows(1, NOON - 30 * HOUR, 60 * HOUR, NOON + 5.5 * HOUR)
    live_windows, found = without_control(drawn), around(Kept(drawn, gone=drawn), "chat", NOON, 24 * HOUR)
    assert found is not None
    moment = min(each.began_at for each in live_windows if each.counts.num_drafts)
    assert found.switched_on == moment
    whole = sum_windows(live_windows)
    reported = [each for each in whole if NOON - 24 * HOUR <= each.ended_at < NOON + 24 * HOUR]
    assert found.before == live_period(each for each in reported if each.ended_at <= moment)
    assert found.after == live_period(each for each in reported if each.began_at >= moment)
    lost = sum(each.num_windows for each in reported) - found.before.num_windows - found.after.num_windows
    assert 0 < lost <= 30


@pytest.mark.parametrize(("days", "step"), [(1, 1), (3, 2), (7, 4)])
def test_a_line_has_no_more_points_than_it_may(days: int, step: int) -> None:
    live_windows = windows(2, NOON - timedelta(days=8), timedelta(days=16), None, step=30 * MINUTE)
    found = around(Kept(live_windows), "chat", NOON, timedelta(days=days))
    assert found is not None
    begins = [each.began_at for each in found.points]
    assert 2 * days * 24 // step <= len(begins) <= min(NUM_POINTS, 2 * days * 24 // step) + 1
    assert {(each - begins[0]) % (step * HOUR) for each in begins} == {timedelta(0)}
    assert begins[0] == (NOON - timedelta(days=days)).replace(minute=0, second=0)
