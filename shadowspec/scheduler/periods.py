"""Which periods of a job are due: what its cron expression says, since the last one that is kept.

The truth is in the database and in the expression, never in a timer: whoever leads next finds the same periods.
"""

from __future__ import annotations

from datetime import datetime

from shadowspec.scheduler.cron import Cron
from shadowspec.types import Period


def first_period(job: str, cron: Cron, now: datetime) -> Period:
    """The row that says from when on a job is scheduled; nothing is to be done for it."""
    due_at = cron.last_until(now)
    return Period(job, due_at, since=due_at, until=due_at)


def due_periods(cron: Cron, last: Period, now: datetime, catch_up: int) -> list[Period]:
    """The periods that have become due after the `last` one up to `now`, oldest first; at most `catch_up` of them.

    Each begins where the one before it ends, so that no change goes unreported: the first of them has also what lies
    before it, back to where the last report ended.
    """
    periods = []
    since = last.until or last.due_at
    for due_at in cron.due_within(last.due_at, now, at_most=catch_up):
        periods.append(Period(last.job, due_at, since))
        since = max(since, due_at)  # a gate run that took longer than a period has reported on the next one's time too
    return periods
