"""`shadowspec plan`: how much longer, with which sampling rate, and on how large a shadow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from shadowspec.app.console import print_json, progress_bar, results
from shadowspec.cli.options import ConfigOption, JsonOption
from shadowspec.types import parse_slice_key

if TYPE_CHECKING:
    from shadowspec.planning.forecasts import HypothesisPlan
    from shadowspec.planning.plans import EndpointPlan, ShadowTime, SlicePlan
    from shadowspec.planning.sizing import Sizing

Pair = tuple["Sizing", "Sizing"]  # by the median of the futures, by 90% of them

UNKNOWN = "unknown: no session is in evidence yet"


def plan(
    endpoint: Annotated[str | None, typer.Option("--endpoint", "-e", help="Plan this endpoint alone.")] = None,
    capacity: Annotated[
        float | None,
        typer.Option("--capacity", min=0.0, help="Requests that the shadow measures per second; default: it keeps up."),
    ] = None,
    decide_within: Annotated[
        str | None,
        typer.Option("--decide-within", help="Say how large a shadow decides within this time, such as 36h or 7d."),
    ] = None,
    traffic: Annotated[
        float | None,
        typer.Option("--traffic", min=0.0, help="Requests per second to size for; default: those that were mirrored."),
    ] = None,
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how much evidence open tests still want, what is decided by when, what it costs, and how to sample.

    Nothing is decided and nothing is written. What is to come is drawn from what was seen so far.
    """
    from shadowspec.config import find_config, load_config
    from shadowspec.errors import ConfigError, NoDataError, UsageError
    from shadowspec.planning.plans import plan_stored
    from shadowspec.planning.sizing import size_endpoint, stored_costs, stored_traffic
    from shadowspec.store import Store
    from shadowspec.text import parse_duration

    config = load_config(find_config(config_path))
    if endpoint is not None and endpoint not in config.endpoints:
        known = ", ".join(config.endpoints) or "none"
        raise ConfigError(f"{config.path}: no endpoint {endpoint!r} is configured (configured: {known})")
    if capacity == 0.0:
        raise UsageError("--capacity must be above 0: a shadow that measures nothing decides nothing")
    if traffic is not None and (decide_within is None or endpoint is None or traffic == 0.0):
        raise UsageError("--traffic is that of one endpoint, above 0: it goes with --endpoint and --decide-within")
    within_s = None if decide_within is None else parse_duration(decide_within).total_seconds()
    with Store.open(config.database_url) as store:
        measured = store.endpoints()
        names = [name for name in config.endpoints if name in measured and endpoint in (None, name)]
        costs = stored_costs(store, names)
        plans = []
        with progress_bar() as bar:
            task = bar.add_task("planning", total=len(names), detail="")
            for place, name in enumerate(names):
                bar.update(task, completed=place, detail=name)
                rule, policy = config.endpoints[name].rule, config.endpoints[name].policy
                plans.append(
                    plan_stored(
                        store, name, policy,
                        sample_rate=rule.sample_rate, capacity_per_s=capacity, costs=costs[name],
                    )
                )  # fmt: skip
        mirrored = {endpoint_plan.endpoint: stored_traffic(store, endpoint_plan.endpoint) for endpoint_plan in plans}
    if not plans:
        raise NoDataError("nothing has been measured yet: run `shadowspec run FILE.jsonl` first")
    document: dict[str, Any] = {
        "plans": [plan_document(endpoint_plan, mirrored[endpoint_plan.endpoint]) for endpoint_plan in plans]
    }
    sizings = []
    if within_s is not None:
        for endpoint_plan in plans:
            asked = {"mirrored_per_s": mirrored[endpoint_plan.endpoint], "requests_per_s": traffic}
            median, late = (
                size_endpoint(endpoint_plan, within_s, **asked, is_late=is_late) for is_late in (False, True)
            )
            sizings.append((median, late))
        document["sizing"] = _sizing_document(sizings, within_s)
    if as_json:
        print_json(document)
        return
    for endpoint_plan in plans:
        _print(endpoint_plan)
    if within_s is not None:
        _print_sizing(sizings, within_s)


def plan_document(plan: EndpointPlan, requests_per_s: float | None) -> dict[str, Any]:
    """A plan as --json shows it; null is "not within max_clusters" or "cannot be said"."""
    return {
        "endpoint": plan.endpoint,
        "capacity_per_s": plan.capacity_per_s,
        "sample_rate": plan.sample_rate,
        "recommended_sample_rate": plan.recommended_sample_rate,
        "requests_per_s": requests_per_s,
        "session_cost": None
        if plan.costs is None
        else {
            "device_seconds": plan.costs.overall.seconds,
            "num_blocks": plan.costs.overall.num_blocks,
            "source": plan.costs.overall.source.value,
        },
        **_time_document(plan.shadow_time),
        "slices": [_slice_document(each) for each in plan.slices],
        "hypotheses": [_hypothesis_document(each) for each in plan.hypotheses],
    }


def _slice_document(plan: SlicePlan) -> dict[str, Any]:
    return {
        "slice": parse_slice_key(plan.slice_key),
        "load": {"concurrency": plan.concurrency},
        "clusters_median": plan.clusters_median,
        "clusters_p90": plan.clusters_late,
        "clusters_per_s": plan.clusters_per_s,
        "seconds_median": plan.seconds_median,
        "seconds_p90": plan.seconds_late,
        "starting_rate": plan.starting_rate,
        **_time_document(plan.shadow_time),
    }


def _time_document(shadow: ShadowTime | None) -> dict[str, Any]:
    return {
        "device_seconds_so_far": None if shadow is None else shadow.so_far_s,
        "device_seconds_median": None if shadow is None else shadow.median_s,
        "device_seconds_p90": None if shadow is None else shadow.late_s,
    }


def _sizing_document(sizings: Sequence[Pair], within_s: float) -> dict[str, Any]:
    from shadowspec.planning.sizing import devices_needed

    return {
        "decide_within_s": within_s,
        "devices_median": devices_needed(median for median, _ in sizings),
        "devices_p90": devices_needed(late for _, late in sizings),
        "endpoints": [
            {
                "endpoint": median.endpoint,
                "requests_per_s": median.requests_per_s,
                "median": _size_document(median),
                "p90": _size_document(late),
            }
            for median, late in sizings
        ],
    }


def _size_document(sizing: Sizing) -> dict[str, Any]:
    return {
        "sample_rate": sizing.sample_rate,
        "busy_devices": sizing.busy_devices,
        "too_slow": [
            {"slice": parse_slice_key(each.slice_key), "load": {"concurrency": each.concurrency}}
            for each in sizing.too_slow
        ],
    }


def _hypothesis_document(plan: HypothesisPlan) -> dict[str, Any]:
    return {
        "slice": parse_slice_key(plan.hypothesis.slice_key),
        "load": {"concurrency": plan.hypothesis.concurrency},
        "config": plan.hypothesis.config.config.name,
        "fingerprint": plan.hypothesis.config.fingerprint,
        "verdict": plan.verdict.value,
        "is_open": plan.is_open,
        "note": plan.note,
        "clusters_median": plan.clusters_median,
        "clusters_p90": plan.clusters_late,
        "clusters_per_s": plan.clusters_per_s,
        "seconds_median": plan.seconds_median,
        "seconds_p90": plan.seconds_late,
        "enable_share": plan.enable_share,
        "disable_share": plan.disable_share,
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
            for test in plan.tests
        ],
    }


def _print(plan: EndpointPlan) -> None:
    table = Table(
        "slice", "load", "config", "verdict", "sessions wanted", "at today's rate", "ends in", "waits longest for",
        title=f"{plan.endpoint}: what open questions still want (median / 90% of futures)", box=None,
    )  # fmt: skip
    for each in plan.hypotheses:
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
    capacity = (
        "a shadow that keeps up" if plan.capacity_per_s is None else f"{plan.capacity_per_s:g} requests per second"
    )
    slices = Table(
        "slice", "load", "decided in", "device time spent", "to come", "start sampling at",
        title=f"with {capacity}", box=None,
    )  # fmt: skip
    for part in plan.slices:
        cells = (
            *(part.slice_key or "(whole endpoint)", str(part.concurrency), _describe_wait(part)),
            *("" if part.shadow_time is None else _span(part.shadow_time.so_far_s), _to_come(part.shadow_time)),
            _rate(part.starting_rate),
        )
        slices.add_row(*map(escape, cells))
    results.print(slices)
    if plan.costs is not None and plan.shadow_time is not None:
        cost = plan.costs.overall
        what = "every arm, parity and audits" if cost.source.value == "blocks" else "the arms alone"
        results.print(
            f"device time of {plan.endpoint}: {cost.seconds:.3g} s a session by {cost.num_blocks} blocks ({what}), "
            f"{_span(plan.shadow_time.so_far_s)} spent, {_to_come(plan.shadow_time)} until all is decided that can be",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
    if plan.recommended_sample_rate is not None:
        now, start = plan.sample_rate, plan.recommended_sample_rate
        text = f"sample_rate of {plan.endpoint}: {now:g} now, {start:.2g} to start with"
        results.print(f"{text}; a rate does not change while a question that it feeds is open", highlight=False)


def _print_sizing(sizings: Sequence[Pair], within_s: float) -> None:
    from shadowspec.planning.sizing import MAX_BUSY, devices_needed

    table = Table(
        "endpoint", "requests per second", "sample_rate", "devices busy", "not in that time",
        title=f"to decide within {_span(within_s)} (median / 90% of futures)", box=None,
    )  # fmt: skip
    for median, late in sizings:
        pairs = (f"{_size(median.sample_rate)} / {_size(late.sample_rate)}",
                 f"{_size(median.busy_devices)} / {_size(late.busy_devices)}",
                 f"{len(median.too_slow)} / {len(late.too_slow)} questions")  # fmt: skip
        table.add_row(*map(escape, (median.endpoint, f"{median.requests_per_s:.3g}", *pairs)))
    results.print(table)
    devices = [devices_needed(item) for item in zip(*sizings, strict=True)]
    results.print(
        f"shadow devices: {_size(devices[0])} / {_size(devices[1])}, busy for at most {MAX_BUSY:.0%} of the time",
        highlight=False,
    )


def _size(value: float | None) -> str:
    return "none does" if value is None else f"{value:.2g}"


def _to_come(shadow: ShadowTime | None) -> str:
    return "" if shadow is None else _spans(shadow.median_s, shadow.late_s)


def _slowest(plan: HypothesisPlan) -> str:
    """The required test that takes longest, and how much it wants."""
    waiting = [test for test in plan.tests if test.is_required and test.median != 0.0]
    if not waiting:
        return plan.note if plan.is_open else ""
    slowest = max(waiting, key=lambda test: float("inf") if test.median is None else test.median)
    assumed = ", by what is typical" if slowest.is_assumed else ""
    return f"{slowest.name}: {_pair(slowest.median, slowest.late)} {slowest.unit}s{assumed}"


def _pair(median: float | None, late: float | None) -> str:
    return f"{_count(median)} / {_count(late)}"


def _count(value: float | None) -> str:
    return "never" if value is None else f"{value:,.0f}"


def _at_rate(plan: HypothesisPlan) -> str:
    return UNKNOWN if plan.clusters_per_s is None else _spans(plan.seconds_median, plan.seconds_late)


def _describe_wait(part: SlicePlan) -> str:
    if part.clusters_late == 0.0:
        return "is decided"
    is_unknown = part.clusters_per_s == 0.0 and part.clusters_median is not None
    return UNKNOWN if is_unknown else _spans(part.seconds_median, part.seconds_late)


def _spans(median: float | None, late: float | None) -> str:
    return f"{_span(median)} / {_span(late)}"


def _span(seconds: float | None) -> str:
    from shadowspec.text import span_text

    return "never" if seconds is None else span_text(seconds)


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.2g}"
