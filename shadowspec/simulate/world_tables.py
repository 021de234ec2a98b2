"""The results as tables: plain rows of text, which the terminal and the documentation both show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shadowspec.simulate.discoveries import FLEET_RULE
from shadowspec.simulate.naive import NAIVE_GATES
from shadowspec.simulate.repetition import BLOCK_UNITS
from shadowspec.simulate.results import WorldResult, num_times
from shadowspec.simulate.summary import Share, Stopping, Summary, is_beyond, share, stopping, summarise
from shadowspec.simulate.world import SpreadWorld
from shadowspec.simulate.worlds import MANY_ENDPOINTS, NULL_WORLDS
from shadowspec.types import Verdict

DASH = "\u2013"
BLIND = " *"  # after the share of a gate that is blind to the fault of that world


@dataclass(frozen=True, slots=True)
class WorldTable:
    """A title, column heads and rows of text."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables_of(results: Mapping[str, WorldResult]) -> list[WorldTable]:
    """Null worlds, effects, naive gates, and the figures that the design quotes; those that have any row."""
    summaries = [summarise(result) for result in results.values()]
    spread = [summary for summary in summaries if isinstance(summary.world, SpreadWorld)]
    nulls = [summary for summary in summaries if summary.world.kind == "null" and summary not in spread]
    effects = [summary for summary in summaries if summary.world.kind == "effect"]
    tables = [
        WorldTable(
            "Where nothing may be enabled: share of runs with any false verdict, every look counted",
            ("world", "runs", "false ENABLE", "false DISABLE", "held as dependent"),
            tuple(_null_row(summary) for summary in nulls),
        ),
        WorldTable(
            "Where there is an effect",
            ("world", "runs", "ENABLE", "blocks to it", "DISABLE", "blocks to it", "false DISABLE"),
            tuple(_effect_row(summary) for summary in effects),
        ),
        WorldTable(
            "Evidence spread over days, where nothing may be enabled: one block of each hour, and hours as units",
            ("world", "runs", "false ENABLE", "false DISABLE", "false ENABLE with blocks as units", "promised"),
            tuple(_spread_row(summary) for summary in spread),
        ),
        WorldTable(
            f"{MANY_ENDPOINTS.num_endpoints} endpoints, {MANY_ENDPOINTS.num_gains} of which gain",
            ("enabled by", "runs", "false share of ENABLEs", "false ENABLEs in a run", "share of gains enabled"),
            tuple(_endpoints_rows(results)),
        ),
        WorldTable("Power", ("world", "level", "within blocks", "power"), tuple(_power_rows(summaries))),
        WorldTable(
            "Share that other gates would have enabled where nothing may be",
            ("world", *(gate.name for gate in NAIVE_GATES)),
            tuple(_naive_row(summary) for summary in nulls if summary.naive),
        ),
        WorldTable(
            "Share that other gates would have enabled where ENABLE is right",
            ("world", *(gate.name for gate in NAIVE_GATES)),
            tuple(_naive_row(s) for s in effects if s.naive and s.world.wrong_to_enable == ()),
        ),
        WorldTable(
            "Alarms after ENABLE", ("world", "alarmed", "blocks from the change"), tuple(_alarm_rows(summaries))
        ),
        WorldTable(
            "Figures of single tests and of verdicts (median/90%)",
            ("figure", "measured"),
            tuple((line.what, line.measured) for line in quoted_figures(results) if line.measured),
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


def _spread_row(summary: Summary) -> tuple[str, ...]:
    return (
        f"{summary.world.name}: {summary.world.title}",
        f"{summary.repetitions:,}",
        percent(summary.false_enable),
        percent(summary.false_disable),
        percent(summary.naive[BLOCK_UNITS]),
        "no: beyond a window" if is_beyond(summary.world) else "yes",
    )


def _endpoints_rows(results: Mapping[str, WorldResult]) -> list[tuple[str, ...]]:
    """By rule: the mean of the false share with two standard errors, and the means of counts."""
    result = results.get(MANY_ENDPOINTS.name)
    if result is None:
        return []
    rows: list[tuple[str, ...]] = []
    total = result.repetitions
    for rule, found in result.discoveries.items():
        mean = found.false_shares / total
        variance = max(found.squared_shares / total - mean**2, 0.0)
        at = f" at {MANY_ENDPOINTS.rate:.0%}" if rule == FLEET_RULE else ""
        rows.append(
            (
                rule + at,
                f"{total:,}",
                f"{mean:.1%} \u00b1 {2.0 * math.sqrt(variance / total):.1%}",
                f"{found.false / total:.2f}",
                f"{found.true / (total * MANY_ENDPOINTS.num_gains):.1%}",
            )
        )
    return rows


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


@dataclass(frozen=True, slots=True)
class Quoted:
    """One figure: the quantity and the value measured (None: not run)."""

    what: str
    measured: str | None


def quoted_figures(results: Mapping[str, WorldResult]) -> list[Quoted]:
    """Every figure."""
    return [
        *(_size(results, *line) for line in _SIZES),
        *(_verdict(results, *line) for line in _VERDICTS),
        Quoted("false ENABLE in single-hypothesis worlds of independent units", _single(results)),
        Quoted("false ENABLE over 8 slices and their endpoint, 5%", _rate(results, "eight_slices")),
        Quoted("AR(1) .9: crossings of the speedup test by itself", _format_crossed(results, "ar1_nine", "speedup")),
        Quoted("AR(1) .9: false ENABLE of the gate", _rate(results, "ar1_nine")),
        Quoted("false DISABLE at speedup 1.15 or better", _false_disables(results)),
        Quoted("false DISABLE in single-hypothesis worlds of independent units", _single(results, Verdict.DISABLE)),
        Quoted("alarm after a fall from 1.3 to 1.0, blocks (median/90%)", _alarm(results)),
    ]


_SIZES = (
    ("speedup 1.15, blocks", "sizes_115", "speedup"),
    ("speedup 1.3, blocks", "sizes_130", "speedup"),
    ("speedup 1.6, blocks", "sizes_160", "speedup"),
    ("tail with 0% slowed, blocks", "sizes_115", "tail"),
    ("tail with 2% slowed, blocks", "sizes_130", "tail"),
    ("tail with 5% slowed, blocks", "sizes_160", "tail"),
    ("acceptance .55, clusters of one request", "sizes_115", "acceptance"),
    ("acceptance .65, clusters of one request", "sizes_130", "acceptance"),
    ("acceptance .75, clusters of one request", "sizes_160", "acceptance"),
    ("z of unbiased output, clusters of one request", "sizes_115", "parity_sampled"),
)
_VERDICTS = (
    ("ENABLE at speedup 1.15, 2% slowed, blocks", "minimum_effect", "enable"),
    ("ENABLE at speedup 1.3, none slowed, blocks", "speedup_130_slowed_0", "enable"),
    ("ENABLE at speedup 1.3, 2% slowed, blocks", "speedup_130_slowed_2", "enable"),
    ("ENABLE at speedup 1.3, 5% slowed, blocks", "speedup_130_slowed_5", "enable"),
    ("DISABLE at speedup 1.0, blocks", "no_speedup", "disable"),
    ("DISABLE at speedup 0.9, blocks", "slowdown", "disable"),
)
_FASTER = (
    "minimum_effect",
    "speedup_130_slowed_0",
    "speedup_130_slowed_2",
    "speedup_130_slowed_5",
    "sizes_115",
    "sizes_130",
    "sizes_160",
)
_SEVERAL = ("eight_slices", "twenty_slices", "steered_sampling", "fingerprint_change")


def format_stopping(at: Stopping) -> str:
    """Median/90%, as the design writes them; "never" for a quantile that was not reached."""
    return "/".join("never" if value is None else str(value) for value in (at.median, at.ninety))


def _size(results: Mapping[str, WorldResult], what: str, name: str, test: str) -> Quoted:
    result = results.get(name)
    if result is None or test not in result.tests:
        return Quoted(what, None)
    return Quoted(what, format_stopping(stopping(result.tests[test].passed_units, result.repetitions)))


def _verdict(results: Mapping[str, WorldResult], what: str, name: str, verdict: str) -> Quoted:
    result = results.get(name)
    if result is None:
        return Quoted(what, None)
    blocks = result.enable_blocks if verdict == "enable" else result.disable_blocks
    return Quoted(what, format_stopping(stopping(blocks, result.repetitions)))


def _rate(results: Mapping[str, WorldResult], name: str) -> str | None:
    result = results.get(name)
    return None if result is None else _percent(result.false_enables, result.repetitions)


def _format_crossed(results: Mapping[str, WorldResult], name: str, test: str) -> str | None:
    result = results.get(name)
    return None if result is None else _percent(num_times(result.tests[test].passed_units), result.repetitions)


def _single(results: Mapping[str, WorldResult], verdict: Verdict = Verdict.ENABLE) -> str | None:
    worlds = [w for w in NULL_WORLDS if w.name not in _SEVERAL and not w.may_be_dependent and w.name in results]
    if verdict is Verdict.ENABLE:
        rates = [results[w.name].false_enables / results[w.name].repetitions for w in worlds]
    else:  # where the truth is at the promise or above
        asked = [results[w.name] for w in worlds if w.wrong_to_disable != ()]
        rates = [result.false_disables / result.repetitions for result in asked]
    return f"{100 * min(rates):.1f} to {100 * max(rates):.1f}%" if rates else None


def _false_disables(results: Mapping[str, WorldResult]) -> str | None:
    faster = [results[name] for name in _FASTER if name in results]
    if not faster:
        return None
    return f"{sum(result.false_disables for result in faster)} in {sum(result.repetitions for result in faster):,}"


def _alarm(results: Mapping[str, WorldResult]) -> str | None:
    result = results.get("decay")
    if result is None or not result.enable_blocks:
        return None
    return format_stopping(stopping(result.alarm_blocks, num_times(result.enable_blocks)))


def _percent(count: int, total: int) -> str:
    rate = share(count, total)
    return f"{100 * (rate.value or 0.0):.1f}% [{100 * rate.lower:.1f}, {100 * rate.upper:.1f}]"
