"""Times at which a job is due, by a cron expression in a time zone.

Five fields as cron has them, or six with the seconds first.  CronSim finds the times, as Debian's cron does where the
clock changes; it knows more marks than cron (`#`, `L`), which are refused here, as is a day of the month together with
a day of the week: cron means either, others mean both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

from cronsim import CronSim, CronSimError

from shadowspec.errors import ConfigError
from shadowspec.scheduler.job_settings import JobSettings

LONGEST_GAP = timedelta(days=366 * 8)  # 29 February to the next across a century
SHORTEST_REACH = timedelta(minutes=2)

_SPECIAL = {"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *"}
_VALUE = r"([0-9]+|[A-Za-z]{3})"
_PART = rf"(\*(/[0-9]+)?|{_VALUE}(-{_VALUE}(/[0-9]+)?)?)"
_FIELD = re.compile(f"{_PART}(,{_PART})*")


class Cron:
    """One expression in one zone.

    Raises:
        ConfigError: it cannot be read, or is never due.
    """

    def __init__(self, expression: str, zone: tzinfo) -> None:
        fields = ["*" if field == "?" else field for field in _SPECIAL.get(expression.strip(), expression).split()]
        if len(fields) not in (5, 6):
            raise ConfigError(f"cron {expression!r} must have 5 fields, or 6 with the seconds first")
        if fields[-3] != "*" and fields[-1] != "*":
            raise ConfigError(
                f"cron {expression!r} names a day of the month and a day of the week: cron means either, others mean "
                "both; write two jobs"
            )
        if unknown := [field for field in fields if not _FIELD.fullmatch(field)]:
            raise ConfigError(
                f"cron {expression!r}: {unknown[0]!r} is nothing that cron knows; write *, */STEP, a value, FROM-TO or "
                "FROM-TO/STEP, and commas between them"
            )
        self.expression, self._zone = expression, zone
        self._fields = " ".join(fields)
        # As cron does: a time of day is due once in the night whose hour comes twice, and after a gap that hides it.
        self._names_time = not (fields[-5].startswith("*") or fields[-4].startswith("*"))
        try:
            upcoming = self.next_after(datetime.now(UTC))
        except CronSimError as error:
            raise ConfigError(
                f"cron {expression!r} cannot be read or is never due: {str(error).lower()}. Days of the week are 0 to "
                "7, and a range begins with its smaller end"
            ) from error
        if upcoming is None:
            raise ConfigError(f"cron {expression!r} is never due")

    def next_after(self, moment: datetime) -> datetime | None:
        """The first time after the moment, UTC; None without one."""
        moment = moment.astimezone(UTC)
        times = CronSim(self._fields, moment.astimezone(self._zone))
        if self._names_time and times.fixup_tz is None:  # CronSim does so for five fields in a zone
            times.fixup_tz, times.dt = self._zone, times.dt.replace(tzinfo=None)
        for due_at in times:
            if (due_in_utc := due_at.astimezone(UTC)) > moment:  # else of the first of two equal hours
                return due_in_utc
        return None

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
