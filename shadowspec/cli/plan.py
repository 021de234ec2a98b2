"""`shadowspec plan`: how much longer, and with which sampling rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from shadowspec.cli.console import print_json, results
from shadowspec.cli.options import ConfigOption, JsonOption
from shadowspec.types import parse_slice_key

if TYPE_CHECKING:
    from shadowspec.gate.forecasts import HypothesisPlan
    from shadowspec.gating.plans import EndpointPlan, SlicePlan

UNKNOWN = "unknown: no session is in evidence yet"
MINUTE_S, HOUR_S, DAY_S = 60.0, 3_600.0, 86_400.0


def plan(
    endpoint: Annotated[str | None, typer.Option("--endpoint", "-e", help="Plan this endpoint alone.")] = None,
    capacity: Annotated[
        float | None,
        typer.Option("--capacity", min=0.0, help="Requests that the shadow measures per second; default: it keeps up."),
    ] = None,
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how much evidence open tests still want, what is decided by when, and at which rates to start sampling.

    Nothing is decided and nothing is written. What is to come is drawn from what was seen so far.
    """
    from shadowspec.config import find_config, load_config
    from shadowspec.errors import ConfigError, NoDataError, UsageError
    from shadowspec.gating.plans import plan_stored
    from shadowspec.store import Store

    config = load_config(find_config(config_path))
    if endpoint is not None and endpoint not in config.endpoints:
        known = ", ".join(config.endpoints) or "none"
        raise ConfigError(f"{config.path}: no endpoint {endpoint!r} is configured (configured: {known})")
    if capacity == 0.0:
        raise UsageError("--capacity must be above 0: a shadow that measures nothing decides nothing")
    with Store.open(config.database_url) as store:
        measured = store.endpoints()
        plans = [
            plan_stored(
                store, name, own.policy, sample_rate=own.rule.sample_rate, capacity_per_s=capacity
            )
            for name, own in config.endpoints.items()
            if name in measured and endpoint in (None, name)
        ]  # fmt: skip
    if not plans:
        raise NoDataError("nothing has been measured yet: run `shadowspec run FILE.jsonl` first")
    if as_json:
        print_json({"plans": [plan_document(own) for own in plans]})
        return
    for own in plans:
        _print(own)


def plan_document(own: EndpointPlan) -> dict[str, Any]:
    """A plan as --json shows it; null is "not within max_clusters" or "cannot be said"."""
    return {
        "endpoint": own.endpoint,
        "capacity_per_s": own.capacity_per_s,
        "sample_rate": own.sample_rate,
        "recommended_sample_rate": own.recommended_sample_rate,
        "slices": [_slice_document(each) for each in own.slices],
        "hypotheses": [_hypothesis_document(each) for each in own.hypotheses],
    }


def _slice_document(own: SlicePlan) -> dict[str, Any]:
    return {
        "slice": parse_slice_key(own.slice_key),
        "load": {"concurrency": own.concurrency},
        "clusters_median": own.clusters_median,
        "clusters_p90": own.clusters_late,
        "clusters_per_s": own.clusters_per_s,
        "seconds_median": own.seconds_median,
        "seconds_p90": own.seconds_late,
        "starting_rate": own.starting_rate,
    }


def _hypothesis_document(own: HypothesisPlan) -> dict[str, Any]:
    return {
        "slice": parse_slice_key(own.hypothesis.slice_key),
        "load": {"concurrency": own.hypothesis.concurrency},
        "config": own.hypothesis.config.config.name,
        "fingerprint": own.hypothesis.config.fingerprint,
        "verdict": own.verdict.value,
        "is_open": own.is_open,
        "note": own.note,
        "clusters_median": own.clusters_median,
        "clusters_p90": own.clusters_late,
        "clusters_per_s": own.clusters_per_s,
        "seconds_median": own.seconds_median,
        "seconds_p90": own.seconds_late,
        "enable_share": own.enable_share,
        "disable_share": own.disable_share,
        "tests": [
            {
                "name": test.name,
                "unit": test.unit,
                "num_units": test.num_units,
                "units_median": test.median,
                "units_p90": test.late,
                "passes_share": test.passes_share,
                "is_required": test.is_required,
                "is_assumed": test.is_assumed,
            }
            for test in own.tests
        ],
    }


def _print(own: EndpointPlan) -> None:
    table = Table(
        "slice", "load", "config", "verdict", "sessions wanted", "at today's rate", "ends in", "waits longest for",
        title=f"{own.endpoint}: what open questions still want (median / 90% of futures)", box=None,
    )  # fmt: skip
    for each in own.hypotheses:
        row = (
            each.hypothesis.slice_key or "(whole endpoint)",
            str(each.hypothesis.concurrency),
            each.hypothesis.config.config.name,
            each.verdict.value,
            _pair(each.clusters_median, each.clusters_late) if each.is_open else "",
            _at_rate(each) if each.is_open else "",
            f"ENABLE {each.enable_share:.0%}, DISABLE {each.disable_share:.0%}" if each.is_open else each.note,
            _slowest(each),
        )
        table.add_row(*map(escape, row))
    results.print(table)
    capacity = "a shadow that keeps up" if own.capacity_per_s is None else f"{own.capacity_per_s:g} requests per second"
    slices = Table("slice", "load", "decided in", "start sampling at", title=f"with {capacity}", box=None)
    for part in own.slices:
        cells = (part.slice_key or "(whole endpoint)", str(part.concurrency), _decided(part), _rate(part.starting_rate))
        slices.add_row(*map(escape, cells))
    results.print(slices)
    if own.recommended_sample_rate is not None:
        text = (
            f"sample_rate of {own.endpoint}: {own.sample_rate:g} now, {own.recommended_sample_rate:.2g} to start with"
        )
        results.print(f"{text}; a rate does not change while a question that it feeds is open", highlight=False)


def _slowest(own: HypothesisPlan) -> str:
    """The required test that takes longest, and how much it wants."""
    waiting = [test for test in own.tests if test.is_required and test.median != 0.0]
    if not waiting:
        return own.note if own.is_open else ""
    slowest = max(waiting, key=lambda test: float("inf") if test.median is None else test.median)
    assumed = ", by what is typical" if slowest.is_assumed else ""
    return f"{slowest.name}: {_pair(slowest.median, slowest.late)} {slowest.unit}s{assumed}"


def _pair(median: float | None, late: float | None) -> str:
    return f"{_count(median)} / {_count(late)}"


def _count(value: float | None) -> str:
    return "never" if value is None else f"{value:,.0f}"


def _at_rate(own: HypothesisPlan) -> str:
    return UNKNOWN if own.clusters_per_s is None else _spans(own.seconds_median, own.seconds_late)


def _decided(part: SlicePlan) -> str:
    if part.clusters_late == 0.0:
        return "is decided"
    is_unknown = part.clusters_per_s == 0.0 and part.clusters_median is not None
    return UNKNOWN if is_unknown else _spans(part.seconds_median, part.seconds_late)


def _spans(median: float | None, late: float | None) -> str:
    return f"{_span(median)} / {_span(late)}"


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    for unit_s, name in ((DAY_S, "days"), (HOUR_S, "hours"), (MINUTE_S, "minutes")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.1f} {name}"
    return f"{seconds:.0f} seconds"


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.2g}"
