"""How the figures of a report on a span of time are written, in every format alike."""

from __future__ import annotations

from datetime import datetime

from shadowspec.reports.period.model import ChangeKind, Need, SimulatedRate
from shadowspec.reports.words import title_of_test
from shadowspec.words import DASH, age, moment, number, percent, plural

KIND_TITLE = {
    ChangeKind.ALARM: "Alarm",
    ChangeKind.OVERRIDE_SET: "Override",
    ChangeKind.VERDICT: "Verdict",
    ChangeKind.ALARM_CLEARED: "Alarm over",
    ChangeKind.OVERRIDE_CLEARED: "Override cleared",
    ChangeKind.OVERRIDE_EXPIRED: "Override expired",
    ChangeKind.ROLLOUT: "Rollout",
    ChangeKind.FINGERPRINT: "Config",
    ChangeKind.ADVICE: "Advice",
    ChangeKind.NEW: "New",
}
FOR_EVER = "not within max_clusters"


def wanted_text(need: Need) -> str:
    """How many more measured sessions it takes."""
    if need.is_planned:
        if need.clusters_median is None:
            return FOR_EVER
        late = FOR_EVER if need.clusters_late is None else f"{need.clusters_late:,.0f}"
        return f"{need.clusters_median:,.0f} sessions / {late}"
    return DASH if need.clusters_needed is None else f"about {plural(need.clusters_needed, 'session')}"


def tests_text(need: Need) -> str:
    """The tests that are still open, each with what it wants."""
    return ", ".join(
        f"{title_of_test(name)}: " + ("cannot be said" if wanted is None else f"about {plural(wanted, unit)}")
        for name, unit, wanted in need.open_tests
    )


def days_text(need: Need) -> str:
    """When it is decided in half and in 90% of its futures, at the rate at which sessions come now."""
    if need.days_median is None:
        return DASH
    late = DASH if need.days_late is None else f"{number(need.days_late, 1)}"
    return f"{number(need.days_median, 1)} / {late} days"


def ends_text(need: Need) -> str:
    """The shares of the futures that end in either word."""
    if need.enable_share is None or need.disable_share is None:
        return DASH
    return f"ENABLE {percent(need.enable_share, 0)}, DISABLE {percent(need.disable_share, 0)}"


def before_text(value: datetime | None, end: datetime) -> str:
    """A moment, and how long before the end it was."""
    return DASH if value is None else f"{moment(value)} ({age(end - value)} before)"


def simulated_text(rate: SimulatedRate | None) -> str:
    """The simulated rate of false ENABLEs against what the policy promises."""
    if rate is None:
        return "not simulated"
    outdated = f"; {plural(rate.num_outdated, 'world')} changed since" if rate.num_outdated else ""
    return (
        f"{rate.num_false:,} of {rate.num_repetitions:,} in {plural(rate.num_worlds, 'world')} "
        f"(at most {percent(rate.upper, 2)}; promised {percent(rate.alpha, 0)}); worst {percent(rate.worst_rate)}: "
        f"{rate.worst_world}{outdated}"
    )
