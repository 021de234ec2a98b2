"""The spans of time that a report may be asked for by a name or by two moments."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from shadowspec.errors import UsageError

DAY: Final = timedelta(days=1)
NAMED: Final = ("day", "week")


def last_whole(name: str, now: datetime, zone: tzinfo) -> tuple[datetime, datetime]:
    """The last whole day, or the last whole week from Monday on, of a time zone; in UTC, the end left out."""
    if name not in NAMED:
        raise UsageError(f"there is no span {name!r}: there are {', '.join(NAMED)}")
    today = now.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
    end = today if name == "day" else today - DAY * today.weekday()
    start = end - (DAY if name == "day" else 7 * DAY)
    return _utc(start, zone), _utc(end, zone)


def moment_of(text: str, zone: tzinfo, what: str) -> datetime:
    """An ISO 8601 moment in UTC; without an offset it is of the zone.

    Raises:
        UsageError: it is written otherwise.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{what} must be a date or a time as 2026-03-02 or 2026-03-02T09:30Z, not {text!r}") from error
    return _utc(found, zone) if found.tzinfo is None else found.astimezone(UTC)


def _utc(local: datetime, zone: tzinfo) -> datetime:
    return local.replace(tzinfo=zone).astimezone(UTC)
