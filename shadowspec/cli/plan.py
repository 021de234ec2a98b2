"""`shadowspec plan`: the time to a verdict, the sampling rate, and the size of the shadow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Annotated

import typer
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from shadowspec.app.endpoint_plans import SizingPair, plan_document, plan_endpoints
from shadowspec.app.fleet_plans import DECIDE_WITHIN_S, plan_fleet
from shadowspec.cli.console import print_json, results
from shadowspec.cli.fleet_view import print_fleet, range_end
from shadowspec.cli.options import ConfigOption, EndpointOption, JsonOption
from shadowspec.cli.screen_view import print_screen
from shadowspec.config import find_config, load_config
from shadowspec.errors import UsageError
from shadowspec.gate.verdict.figure_texts import title_of_test
from shadowspec.planning.forecasts import HypothesisPlan
from shadowspec.planning.plans import EndpointPlan, ShadowTime, SlicePlan
from shadowspec.planning.sizing import MAX_BUSY, devices_needed
from shadowspec.reports.content.endpoint_rows import basis_notes, endpoint_rows
from shadowspec.reports.content.notes import REHEARSAL_NOTE
from shadowspec.reports.content.screen_rows import FirstScreen
from shadowspec.text import distinct_slices, parse_duration, plural, sentence, slice_title, span_text
from shadowspec.types import Verdict

UNKNOWN = "unknown before the first session"


def plan(
    endpoint: EndpointOption = None,
    capacity: Annotated[
        float | None,
        typer.Option("--capacity", min=0.0, help="Requests per second that the shadow can measure; default: no limit."),
    ] = None,
    decide_within: Annotated[
        str | None,
        typer.Option(
            "--decide-within", metavar="TIME", help="Also size a shadow that decides in this time, such as 36h."
        ),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", min=0.0, help="Requests per second to size for; default: the mirrored rate."),
    ] = None,
    fleet: Annotated[
        bool,
        typer.Option(
            "--fleet", help="Show the cost of all endpoints, and the devices that they need; --decide-within: 7d."
        ),
    ] = False,
    config_path: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how much evidence is still needed, when slices are decided, the costs of that, and how to sample.

    The plan decides and writes nothing. It simulates future traffic from the evidence so far.
    """
    config = load_config(find_config(config_path))
    if capacity == 0.0:
        raise UsageError("--capacity must be above 0: a shadow without capacity decides nothing")
    if rate is not None and (decide_within is None or endpoint is None or rate == 0.0):
        raise UsageError("--rate must be above 0 and needs --endpoint and --decide-within")
    within_s = None if decide_within is None else parse_duration(decide_within).total_seconds()
    if fleet:
        if endpoint is not None or capacity is not None:
            raise UsageError("--fleet plans all endpoints at the measured rates: leave out --endpoint and --capacity")
        document = plan_fleet(config, within_s or DECIDE_WITHIN_S)
        if as_json:
            print_json(document)
        else:
            print_fleet(document)
        return
    planned = plan_endpoints(config, endpoint, capacity)
    sizings = [] if within_s is None else planned.sizings(within_s, rate)
    if as_json:
        print_json(plan_document(planned, sizings, within_s))
        return
    decisions = [plan.decision for of_endpoint in planned.plans for plan in of_endpoint.hypotheses]
    print_screen(
        FirstScreen(
            endpoint_rows(
                decisions,
                actions={key: text for of_endpoint in planned.plans for key, text in _actions(of_endpoint)},
            ),
            notes=(*basis_notes(decisions), *([REHEARSAL_NOTE] if planned.is_rehearsal else [])),
            more="More: `shadowspec plan --verbose` shows slices, simulated outcomes, costs and sampling rates.",
        ),
        lambda: (part for of_endpoint in planned.plans for part in _details(of_endpoint)),
    )
    if within_s is not None:
        _print_sizing(sizings, within_s)


def _actions(plan: EndpointPlan) -> Iterator[tuple[tuple[str, str, int], str]]:
    """The evidence and the time that each undecided candidate of a whole endpoint needs, by candidate and load."""
    waits = {part.concurrency: part for part in plan.slices if not part.slice_key}
    for planned in plan.hypotheses:
        if planned.hypothesis.slice_key:
            continue
        load, candidate = planned.hypothesis.concurrency, planned.hypothesis.config.config.name
        key, wait = (plan.endpoint, candidate, load), waits[load]
        if planned.is_open:
            parts = _needed(planned), f"decided in {_describe_wait(wait)}, in simulated outcomes {_ends(planned)}"
            yield key, " ".join(map(sentence, parts))
        elif planned.verdict is not Verdict.HOLD:
            yield key, "Decided: no more evidence is needed."


def _details(plan: EndpointPlan) -> Iterator[RenderableType]:
    """Slices and candidates with their simulated outcomes, and time, cost and rates."""
    several = len(set(map(attrgetter("hypothesis.concurrency", "hypothesis.config.fingerprint"), plan.hypotheses))) > 1
    table = Table("slice", "verdict", "still needed", "in simulated outcomes", title=plan.endpoint, box=None)
    for planned in distinct_slices(plan.hypotheses, attrgetter("hypothesis.slice_key")):
        hypothesis = planned.hypothesis
        candidate = f" ({hypothesis.config.config.name}, load {hypothesis.concurrency})" if several else ""
        name = f"{slice_title(hypothesis.slice_key)}{candidate}"
        table.add_row(*map(escape, (name, planned.verdict.value, _needed(planned), _futures(planned))))
    yield table
    capacity = "" if plan.capacity_per_s is None else f", at {plan.capacity_per_s:g} requests per second"
    slices = Table(
        "slice", "load", "decided in", "device time so far", "still to come", "first sample_rate",
        title=f"{plan.endpoint}: time and cost{capacity}", box=None,
    )  # fmt: skip
    for part in distinct_slices(plan.slices, attrgetter("slice_key")):
        spent = "" if part.shadow_time is None else span_text(part.shadow_time.so_far_s)
        cells = (
            *(slice_title(part.slice_key), str(part.concurrency), _describe_wait(part), spent),
            *(_to_come(part.shadow_time), _rate(part.starting_rate)),
        )
        slices.add_row(*map(escape, cells))
    yield slices
    if plan.costs is not None and plan.shadow_time is not None:
        cost = plan.costs.overall
        what = "all of their work" if cost.source.value == "blocks" else "baseline and speculative decoding only"
        yield (
            f"device time of {plan.endpoint}: {cost.seconds:.3g} s per session by {plural(cost.num_blocks, 'block')} "
            f"({what}); {span_text(plan.shadow_time.so_far_s)} so far, still to come: {_to_come(plan.shadow_time)}"
        )
    if plan.recommended_sample_rate is not None:
        now, start = plan.sample_rate, plan.recommended_sample_rate
        text = f"sample_rate of {plan.endpoint}: {now:g} now, {start:.2g} recommended at the start"
        yield f"{text}; it does not change while a slice is undecided"


def _print_sizing(sizings: Sequence[SizingPair], within_s: float) -> None:
    table = Table(
        "endpoint", "requests per second", "sample_rate", "busy devices", "slices too slow",
        title=f"to decide within {span_text(within_s)} (median / 90% of simulated outcomes)", box=None,
    )  # fmt: skip
    for median, late in sizings:
        pairs = (f"{_size(median.sample_rate)} / {_size(late.sample_rate)}",
                 f"{_size(median.busy_devices)} / {_size(late.busy_devices)}",
                 f"{len(median.too_slow)} / {len(late.too_slow)}")  # fmt: skip
        table.add_row(*map(escape, (median.endpoint, f"{median.requests_per_s:.3g}", *pairs)))
    results.print(table)
    devices = [devices_needed(map(attrgetter("busy_devices"), of_share)) for of_share in zip(*sizings, strict=True)]
    results.print(
        f"shadow devices: {_size(devices[0])} / {_size(devices[1])}, busy for at most {MAX_BUSY:.0%} of the time",
        highlight=False,
    )


def _size(value: float | None) -> str:
    return "impossible" if value is None else f"{value:.2g}"


def _needed(plan: HypothesisPlan) -> str:
    """The gate's estimate, and the test that takes longest."""
    if not plan.is_open:
        return plan.note
    unknown = "ENABLE is not expected" if plan.enable_share < plan.disable_share else "no estimate yet"
    estimate = plan.note or unknown if plan.needed is None else plan.needed.text
    waiting = [test for test in plan.tests if test.is_required and test.median != 0.0]
    if not waiting:
        return estimate
    slowest = max(waiting, key=lambda test: float("inf") if test.median is None else test.median)
    return f"{estimate}; slowest test: {title_of_test(slowest.name)}" + (
        ", assuming typical variance" if slowest.is_assumed else ""
    )


def _futures(plan: HypothesisPlan) -> str:
    """How the simulated futures of an open hypothesis end, and by when."""
    if not plan.is_open:
        return ""
    ends = _ends(plan)
    if plan.clusters_late is None:
        return f"{ends}, else undecided"
    time = "" if plan.seconds_late is None else f" ({span_text(plan.seconds_late)})"
    return f"{ends}; 90% within {plan.clusters_late:,.0f} sessions{time}"


def _ends(plan: HypothesisPlan) -> str:
    return f"ENABLE {plan.enable_share:.0%}, DISABLE {plan.disable_share:.0%}"


def _to_come(shadow: ShadowTime | None) -> str:
    return "" if shadow is None else _range(shadow.median_s, shadow.late_s)


def _describe_wait(part: SlicePlan) -> str:
    if part.clusters_late == 0.0:
        return "decided"
    is_unknown = part.clusters_per_s == 0.0 and part.clusters_median is not None
    return UNKNOWN if is_unknown else _range(part.seconds_median, part.seconds_late)


def _range(median: float | None, late: float | None) -> str:
    """The median time and that of 90% of the futures; None: the futures do not end."""
    if median is None:
        return "not foreseeable"
    return f"{span_text(median)} (90%: {range_end(late)})"


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.2g}"
