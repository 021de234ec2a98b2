"""The results as tables: plain rows of text, which the terminal and the documentation both show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shadowspec.simulate.naive import NAIVE_GATES
from shadowspec.simulate.quoted import format_stopping, quoted_figures
from shadowspec.simulate.results import WorldResult
from shadowspec.simulate.summary import Share, Summary, summarise

DASH = "\u2013"
BLIND = " *"  # after the share of a gate that is blind to the fault of that world


@dataclass(frozen=True, slots=True)
class Table:
    """A title, column heads and rows of text."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables_of(results: Mapping[str, WorldResult]) -> list[Table]:
    """Null worlds, effects, naive gates, and the figures that the design quotes; those that have any row."""
    summaries = [summarise(result) for result in results.values()]
    nulls = [summary for summary in summaries if summary.world.kind == "null"]
    effects = [summary for summary in summaries if summary.world.kind == "effect"]
    tables = [
        Table(
            "Where nothing may be enabled: share of runs with any false verdict, every look counted",
            ("world", "runs", "false ENABLE", "false DISABLE", "held as dependent"),
            tuple(_null_row(summary) for summary in nulls),
        ),
        Table(
            "Verdicts of the rules before (version 1) in worlds that are there for their faults",
            ("world", "runs", "false ENABLE", "false DISABLE", "held as dependent"),
            tuple(_null_row(summary) for summary in summaries if summary.world.kind == "control"),
        ),
        Table(
            "Where there is an effect",
            ("world", "runs", "ENABLE", "blocks to it", "DISABLE", "blocks to it", "false DISABLE"),
            tuple(_effect_row(summary) for summary in effects),
        ),
        Table("Power", ("world", "level", "within blocks", "power"), tuple(_power_rows(summaries))),
        Table(
            "Share that other gates would have enabled where nothing may be",
            ("world", *(gate.name for gate in NAIVE_GATES)),
            tuple(_naive_row(summary) for summary in nulls if summary.naive),
        ),
        Table(
            "Share that other gates would have enabled where ENABLE is right",
            ("world", *(gate.name for gate in NAIVE_GATES)),
            tuple(_naive_row(s) for s in effects if s.naive and s.world.wrong_to_enable == ()),
        ),
        Table("Alarms after ENABLE", ("world", "alarmed", "blocks from the change"), tuple(_alarm_rows(summaries))),
        Table(
            "Version 1 of the rules, and measurements of this one (median/90%)",
            ("figure", "version 1", "measured"),
            tuple((line.what, line.says, line.measured) for line in quoted_figures(results) if line.measured),
        ),
    ]
    return [table for table in tables if table.rows]


def percent(rate: Share) -> str:
    """A share with its interval, as in `1.2% [0.4, 2.8]`."""
    if rate.value is None:
        return DASH
    return f"{100 * rate.value:.1f}% [{100 * rate.lower:.1f}, {100 * rate.upper:.1f}]"


def _null_row(summary: Summary) -> tuple[str, ...]:
    world = summary.world
    may_disable = world.wrong_to_disable is None or bool(world.wrong_to_disable)
    return (
        f"{world.name}: {world.title}",
        f"{summary.repetitions:,}",
        percent(summary.false_enable),
        percent(summary.false_disable) if may_disable else DASH,
        percent(summary.dependent),
    )


def _effect_row(summary: Summary) -> tuple[str, ...]:
    return (
        f"{summary.world.name}: {summary.world.title}",
        f"{summary.repetitions:,}",
        percent(summary.enabled),
        format_stopping(summary.enable_blocks) if summary.enabled.count else DASH,
        percent(summary.disabled),
        format_stopping(summary.disable_blocks) if summary.disabled.count else DASH,
        percent(summary.false_disable) if summary.world.wrong_to_disable != () else DASH,
    )


def _power_rows(summaries: Sequence[Summary]) -> list[tuple[str, ...]]:
    return [
        (
            s.world.name,
            f"{s.level:g}",
            str(s.limit_blocks),
            percent(s.power),
        )
        for s in summaries
        if s.power is not None
    ]


def _naive_row(summary: Summary) -> tuple[str, ...]:
    cells = []
    for gate in NAIVE_GATES:
        rate = summary.naive[gate.name]
        blind = BLIND if summary.world.reads not in ("", gate.reads) else ""
        cells.append(DASH if rate.value is None else f"{100 * rate.value:.0f}%{blind}")
    return (summary.world.name, *cells)


def _alarm_rows(summaries: Sequence[Summary]) -> list[tuple[str, ...]]:
    return [
        (s.world.name, percent(s.alarmed), format_stopping(s.alarm_blocks))
        for s in summaries
        if s.alarmed is not None and s.alarm_blocks is not None
    ]
