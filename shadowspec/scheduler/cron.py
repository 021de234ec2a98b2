"""Times at which a job is due, by a cron expression in a time zone.

Five fields as cron has them, or six with the seconds first.  APScheduler reads 0 as Monday, and takes a day of the
month and a day of the week as both required, where cron means either: days of the week are handed to it by name,
and both at once are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

from apscheduler.triggers.cron import CronTrigger

from shadowspec.errors import ConfigError
from shadowspec.scheduler.job_settings import JobSettings

FIELDS = ("second", "minute", "hour", "day", "month", "day_of_week")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat", "sun")
LONGEST_GAP = timedelta(days=366 * 8)  # 29 February to the next across a century
SHORTEST_REACH = timedelta(minutes=2)

_NUMBER = re.compile(r"(?<![A-Za-z0-9/])\d+")
_SPECIAL = {"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *"}


class Cron:
    """One expression in one zone.

    Raises:
        ConfigError: it cannot be read, or is never due.
    """

    def __init__(self, expression: str, zone: tzinfo) -> None:
        fields = _SPECIAL.get(expression.strip(), expression).split()
        if len(fields) not in (5, 6):
            raise ConfigError(f"cron {expression!r} must have 5 fields, or 6 with the seconds first")
        by_name = dict(zip(FIELDS, fields if len(fields) == 6 else ["0", *fields], strict=True))
        if by_name["day"] not in ("*", "?") and by_name["day_of_week"] not in ("*", "?"):
            raise ConfigError(
                f"cron {expression!r} names a day of the month and a day of the week: cron means either, others mean "
                "both; write two jobs"
            )
        by_name = {name: "*" if value == "?" else value for name, value in by_name.items()}
        try:
            by_name["day_of_week"] = _named_days(by_name["day_of_week"])
            self._trigger: Any = CronTrigger(**by_name, timezone=zone)
        except ValueError as error:
            raise ConfigError(f"cron {expression!r} cannot be read: {error}") from error
        self.expression = expression
        # As cron does: an expression that names its hours fires once in the night whose hour comes twice.
        self._comes_twice = by_name["hour"].startswith("*")
        if self.next_after(datetime.now(UTC)) is None:
            raise ConfigError(f"cron {expression!r} is never due")

    def next_after(self, moment: datetime) -> datetime | None:
        """The first time after the moment, UTC; None without one."""
        moment = moment.astimezone(UTC)  # sums of local times forget which of two equal hours they are in
        while True:
            fire_time: datetime | None = self._trigger.get_next_fire_time(None, moment + timedelta(microseconds=1))
            if fire_time is None:
                return None
            if not fire_time.fold or self._comes_twice:
                return fire_time.astimezone(UTC)
            moment = fire_time.astimezone(UTC)

    def last_until(self, moment: datetime) -> datetime:
        """The last time up to and including the moment, UTC."""
        if times := self.due_within(moment - 2 * LONGEST_GAP, moment, at_most=1):
            return times[0]
        raise ConfigError(f"cron {self.expression!r} is never due")

    def due_within(self, after: datetime, until: datetime, *, at_most: int) -> list[datetime]:
        """The last `at_most` times after the one moment up to and including the other, UTC, oldest first."""
        reach = SHORTEST_REACH
        while True:  # from the end, further and further back, because the earlier times may be very many
            start = max(after, until - reach)
            times = list(self._every(start, until))
            if len(times) >= at_most or start == after:
                return times[-at_most:]
            reach *= 8

    def _every(self, after: datetime, until: datetime) -> Iterator[datetime]:
        next_after = self.next_after(after)
        while next_after is not None and next_after <= until:
            yield next_after
            next_after = self.next_after(next_after)


def crons_of(path: Path, jobs: Mapping[str, JobSettings]) -> dict[str, Cron]:
    """The expression of each job that has one.

    Raises:
        ConfigError: one cannot be read; the message names file and key.
    """
    crons = {}
    for name, job in jobs.items():
        if job.cron is None:
            continue
        try:
            crons[name] = Cron(job.cron, job.zone)
        except ConfigError as error:
            raise ConfigError(f"{path}: schedule.jobs.{name}.cron: {error}") from error
    return crons


def _named_days(field: str) -> str:
    """The days of the week by name; 0 and 7 are Sunday."""
    if re.fullmatch(r"\*(/\d+)?", field):
        return field
    if any(int(number) >= len(DAYS) for number in _NUMBER.findall(field)):
        raise ValueError("days of the week are 0 to 7")
    named = _NUMBER.sub(lambda match: DAYS[int(match[0])], field)
    parts = []
    for part in named.split(","):
        days, _, step = part.partition("/")
        first, _, last = days.lower().partition("-")
        if first == "sun" and last not in ("", "sun"):  # a week begins on Monday here
            if step:
                raise ValueError("days in steps from Sunday on: name each of them")
            part = f"sun,mon-{last}"
        parts.append(part)
    return ",".join(parts)
