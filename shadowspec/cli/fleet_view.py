"""What `plan --fleet` prints: a summary with the endpoints that wait longest; with --verbose every endpoint.

In: the plan of the fleet.
Out: text on standard output.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich.markup import escape
from rich.table import Table

from shadowspec.app.fleet_plans import FleetDocument, FleetEndpoint, FleetGroup
from shadowspec.cli.console import is_verbose, results
from shadowspec.text import plural, span_text

MAX_ROWS: Final = 10
MAX_GROUPS: Final = 4
MAX_NAMES: Final = 3
WORST_FIRST: Final = ("waiting", "not foreseeable", "undecided", "without a plan", "decided")


def print_fleet(fleet: FleetDocument) -> None:
    """Print at most 25 lines, but with --verbose a line for each endpoint and each group."""
    rows = sorted(fleet.endpoints, key=_rank)
    groups = sorted(fleet.groups, key=lambda group: (-(group.engines_needed or 0), -group.busy_share))
    is_whole = is_verbose()
    hours = math.fsum(row.device_hours_per_week or 0.0 for row in rows)
    _print(f"{plural(len(rows), 'endpoint')}: {_count(rows)}. Together they take {hours:.3g} device hours a week.\n")
    results.print(_table(fleet, rows if is_whole else rows[:MAX_ROWS], is_whole=is_whole))
    _print("\n".join(_below(fleet, rows, groups, is_whole=is_whole)))


def _print(text: str) -> None:
    results.print(text, markup=False, highlight=False, soft_wrap=True)


def _below(
    fleet: FleetDocument, rows: Sequence[FleetEndpoint], groups: Sequence[FleetGroup], *, is_whole: bool
) -> list[str]:
    """The lines below the table."""
    within = span_text(fleet.decide_within_s)
    hidden = [] if is_whole else rows[MAX_ROWS:]
    lines = []
    if hidden:
        lines.append(f"{plural(len(hidden), 'more endpoint')} not shown: {_count(hidden)}.")
    lines.append("")
    shown = groups if is_whole else groups[:MAX_GROUPS]
    lines += [f"{_describe_group(group, within)}." for group in shown]
    if len(shown) < len(groups):
        lines.append(f"{plural(len(groups) - len(shown), 'more group')} not shown.")
    if late := [row.endpoint for row in rows if row.endpoint in fleet.not_decided]:
        named = late if is_whole else late[:MAX_NAMES]
        more = f" and {len(late) - len(named)} more" if len(named) < len(late) else ""
        lines.append(f"Not decided within {within} by any number of devices: {', '.join(named)}{more}.")
    if any(row.is_rate_assumed or row.is_time_assumed for row in (rows if is_whole else rows[:MAX_ROWS])):
        lines.append(
            "* assumed: the policy's budget of blocks, for as many slices as others have; the others' mean seconds."
        )
    if not is_whole:
        lines.append("More: `shadowspec plan --fleet --verbose` shows every endpoint with its blocks and their time.")
    return lines


def _table(fleet: FleetDocument, rows: Sequence[FleetEndpoint], *, is_whole: bool) -> Table:
    """A line a row; the blocks behind the hours only where everything is shown."""
    waits_s = {name: group.block_wait_s for group in fleet.groups for name in group.endpoints}
    of_blocks = ("measured by", "blocks an hour", "device seconds a block") if is_whole else ()
    table = Table(box=None)
    for name in ("endpoint", *of_blocks, "device hours a week", "decided in (90%)", "waits"):
        table.add_column(name, no_wrap=not is_whole, overflow="fold" if is_whole else "ellipsis")
    for row in rows:
        blocks = (
            row.measured_by,
            _figure(row.blocks_per_hour, row.is_rate_assumed),
            _figure(row.device_seconds_per_block, row.is_time_assumed),
        )
        cells = (
            row.endpoint,
            *(blocks if is_whole else ()),
            _figure(row.device_hours_per_week, row.is_rate_assumed or row.is_time_assumed),
            _decided_in(row),
            _describe_waiting(row, waits_s[row.endpoint]),
        )
        table.add_row(*map(escape, cells))
    return table


def _count(rows: Sequence[FleetEndpoint]) -> str:
    states = Counter(map(_state, rows))
    return ", ".join(f"{states[state]} {state}" for state in WORST_FIRST if states[state])


def _state(row: FleetEndpoint) -> str:
    if row.waits:
        return "waiting"
    if not row.is_planned:
        return "without a plan"
    if row.seconds_p90 is None:
        return "not foreseeable"
    return "undecided" if row.seconds_p90 else "decided"


def _rank(row: FleetEndpoint) -> tuple[int, float]:
    """What waits longest first, then what is decided last."""
    longest = row.verdict_delay_s if row.waits else row.seconds_p90
    return WORST_FIRST.index(_state(row)), -(math.inf if longest is None else longest)


def _figure(value: float | None, is_assumed: bool) -> str:
    return "unknown" if value is None else f"{value:.3g}{'*' if is_assumed else ''}"


def _decided_in(row: FleetEndpoint) -> str:
    if not row.is_planned:
        return "no plan yet"
    return "decided" if row.seconds_p90 == 0.0 else range_end(row.seconds_p90)


def _describe_waiting(row: FleetEndpoint, block_wait_s: float | None) -> str:
    if not row.waits:
        return ""
    if row.verdict_delay_s:
        return f"verdict {span_text(row.verdict_delay_s)} later"
    return "evidence falls behind" if block_wait_s is None else f"each block {span_text(block_wait_s)}"


def _describe_group(group: FleetGroup, within: str) -> str:
    busy = f"{group.measured_by}: {plural(len(group.endpoints), 'endpoint')}, busy {group.busy_share:.0%} of the time"
    if group.engines_needed is None:
        return f"{busy}: nothing is known of their blocks"
    if not group.is_served:
        return f"{busy}: verdicts within {within} need {plural(group.engines_needed, 'device')}"
    needed = group.engines_needed
    return f"{busy}: one pair is {'enough' if needed <= 1 else f'not enough, {needed} are'}"


def range_end(late: float | None) -> str:
    """The time by which something is decided in nine of ten simulated outcomes."""
    return "not foreseeable" if late is None else span_text(late)
