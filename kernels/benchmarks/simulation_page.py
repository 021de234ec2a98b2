"""`python -m kernels.benchmarks.simulation_page RESULTS.json DOCS` writes the page and the picture of a simulation."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from kernels.benchmarks.harness import RESULTS, sections
from kernels.benchmarks.simulation_picture import picture
from shadowspec.simulate.naive import NAIVE_GATES
from shadowspec.simulate.results import WorldResult, definition_of, read_results
from shadowspec.simulate.summary import broken_promises, summarise
from shadowspec.simulate.world_tables import DASH, WorldTable, tables_of
from shadowspec.simulate.worlds import WORLDS

PAGE, PICTURE = "simulation.md", "images/simulation.svg"
OFTEN = 0.05  # a false ENABLE in more of the runs than the promise allows
# Tables of the terminal that the results file holds world by world.
OMITTED = "Share that other gates would have enabled"
# Figures that repeat a cell of a table of the page.
REPEATED = ("ENABLE at", "DISABLE at", "alarm after", "false ENABLE over 8 slices", "AR(1) .9: false ENABLE")
NULLS, EFFECTS = "Where nothing may be enabled", "Where there is an effect"
COLUMNS_LEFT_OUT = ("runs", "held as dependent")

_TEXTS = sections("simulation.md")
_NOTES = {
    "Other gates where nothing may be enabled": "`shadowspec/simulate/naive.py` has their sources.",
    "Power": (
        "`within blocks` is the larger of two sizes. One is 1.5 times the smallest size at which every required test "
        "can pass. The other is 2.5 times the size of a test at the same level with one look at the end."
    ),
}


def markdown(table: WorldTable) -> str:
    """The table in Markdown; the first column left, the others right."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = ["---"] + ["---:"] * (len(table.heads) - 1)
    return "\n".join([line(table.heads), line(rule), *(line(row) for row in table.rows)])


def naive_table(results: Mapping[str, WorldResult]) -> WorldTable:
    """Of each naive gate: in how many null worlds, of those that test what it reads, it would often have enabled."""
    nulls = [summary for summary in map(summarise, results.values()) if summary.world.kind == "null" and summary.naive]
    rows = []
    for gate in NAIVE_GATES:
        asked = [summary for summary in nulls if gate.name in summary.naive]
        worlds = [summary for summary in asked if summary.world.reads in ("", gate.reads)]
        rates = [rate.value for summary in worlds if (rate := summary.naive[gate.name]).value is not None]
        high = sum(rate > OFTEN for rate in rates)
        span = f"{min(rates):.0%} to {max(rates):.0%}" if rates else DASH
        rows.append((f"`{gate.name}` (reads {gate.reads}): {gate.title}", f"{high} of {len(rates)}", span))
    heads = ("gate", f"worlds with over {OFTEN:.0%} false ENABLE", "false ENABLE, lowest to highest")
    return WorldTable("Other gates where nothing may be enabled", heads, tuple(rows))


def shortened(table: WorldTable) -> WorldTable:
    """The table without the columns and figures that the page leaves out, each interval as one word."""
    # Where there is an effect, every DISABLE of an endpoint that gains is a false one.
    left_out = COLUMNS_LEFT_OUT + (("false DISABLE",) if table.title.startswith(EFFECTS) else ())
    columns = [column for column, head in enumerate(table.heads) if head not in left_out]
    kept = (row for row in table.rows if not row[0].startswith(REPEATED))
    heads, *rows = (tuple(_short(line[column]) for column in columns) for line in (table.heads, *kept))
    return WorldTable(table.title, heads, tuple(rows))


def _short(cell: str) -> str:
    """The cell, its intervals without a space."""
    return re.sub(r"\[([\d.]+), ([\d.]+)\]", "[\\1\u2013\\2]", cell)


def null_worlds(table: WorldTable) -> str:
    """The worlds of a table with a false verdict as a table, the others as a list."""
    some = tuple(row for row in table.rows if any(not cell.startswith(("0.0%", DASH)) for cell in row[1:]))
    parts = [markdown(WorldTable(table.title, table.heads, some))] if some else []
    clean: dict[str, list[str]] = {}
    for row in table.rows:
        if row not in some:
            clean.setdefault(row[1], []).append(f"`{row[0].split(':')[0]}`")
    parts += [f"Every rate of these worlds is {rate}: {', '.join(names)}." for rate, names in clean.items()]
    return "\n\n".join(parts)


def early_stops() -> str:
    """What stopping early saves."""
    found = json.loads((RESULTS / "early_stops.json").read_text(encoding="utf-8"))
    by_truth: dict[tuple[float, float], list[str]] = {}
    for row in found["futile"]:
        saved = 1.0 - row["futile_units"] / row["units"]
        cells = (f"{row['units']:.0f}", f"{row['futile_units']:.0f}", f"{saved:.0%}")
        by_truth.setdefault((row["speedup"], row["slowed"]), []).extend(cells)
    heads = (
        "speedup, slowed",
        *("units, noise .1", "with `futile`", "saved", "units, noise .25", "with `futile`", "saved"),
    )
    body = markdown(
        WorldTable("", heads, tuple((f"{x:.2f}x, {slowed:.0%}", *cells) for (x, slowed), cells in by_truth.items()))
    )
    return _TEXTS["early"].format(
        repetitions=f"{found['repetitions']:,}",
        given_up=f"{max(row['futile_lost'] for row in found['futile']):.1%}",
        table=body,
    )


def days_to_verdict() -> str:
    """Days to the verdicts of production, of one slice and of eight, and the device time of the rule before."""
    found = json.loads((RESULTS / "days_to_verdict.json").read_text(encoding="utf-8"))
    columns: dict[str, None] = {}
    rows: dict[tuple[float, float], list[str]] = {}
    for cell in found["cells"]:
        columns[_column_of(cell)] = None
        rows.setdefault((cell["speedup"], cell["noise"]), []).append(_verdict_of(cell))
    heads = ("speedup, noise", *columns)
    body = markdown(
        WorldTable(
            "", heads, tuple((f"{speedup:.2f}x, {noise}", *cells) for (speedup, noise), cells in sorted(rows.items()))
        )
    )
    blocks = {
        is_before: median(
            24.0 * cell["enable_days"] * (found["blocks_an_hour"] if is_before else 1)
            for cell in found["cells"]
            if cell["is_before"] is is_before and cell["num_slices"] == 1 and cell["slowed"] == 0.02
            if cell["enable_days"] is not None
        )
        for is_before in (False, True)
    }
    return (
        _TEXTS["days"]
        .format(
            repetitions=max(cell["draws"] for cell in found["cells"]),
            of_slices=min(cell["draws"] for cell in found["cells"]),
            blocks_an_hour=found["blocks_an_hour"],
            before=blocks[True],
            after=blocks[False],
            table=body,
        )
        .rstrip()
        + "\n"
    )


def _column_of(cell: Mapping[str, Any]) -> str:
    if cell["num_slices"] > 1:
        whole = f"{cell['num_slices']} slices"
        return f"endpoint of {whole}" if cell["of"] == "endpoint" else f"each of {whole}"
    return f"{cell['slowed']:.0%} slowed" + (", before" if cell["is_before"] else "")


def _verdict_of(cell: Mapping[str, Any]) -> str:
    """The usual verdict, its share and day, and the day before it on which tests passed or the HOLD was futile."""
    shares = {verdict: cell[f"{verdict}_share"] for verdict in ("enable", "disable")}
    verdict = max(shares, key=lambda name: shares[name])
    if not shares[verdict]:
        return f"HOLD ({cell['futile_days']:g})" if cell["futile_days"] is not None else "HOLD"
    before = cell["days" if verdict == "enable" else "futile_days"]
    said = DASH if before is None else f"{before:g}"
    share = "" if shares[verdict] == 1.0 else f"{shares[verdict]:.0%} "
    return f"{share}{verdict.upper()} {cell[f'{verdict}_days']:g} ({said})"


def alarm_delays() -> str:
    """Units to the alarm, beside CUSUM."""
    found = json.loads((RESULTS / "alarm_delays.json").read_text(encoding="utf-8"))
    rows = tuple(
        (row["change"], *(f"{row[f'{name}_median']:g}/{row[f'{name}_high']:g}" for name in ("detector", "cusum")))
        for row in found["rows"]
    )
    return (
        _TEXTS["delays"]
        .format(repetitions=found["repetitions"], table=markdown(WorldTable("", ("change", "detector", "CUSUM"), rows)))
        .rstrip()
        + "\n"
    )


def odd_worlds() -> str:
    """The worlds that no field of the simulation's has."""
    found = json.loads((RESULTS / "odd_worlds.json").read_text(encoding="utf-8"))
    rows = tuple(
        (
            row["title"],
            str(row["repetitions"]),
            f"{row['false_enables'] / row['repetitions']:.1%} [{100 * row['lower']:.1f}\u2013{100 * row['upper']:.1f}]",
            f"{row['true_enables'] / row['repetitions']:.0%}" if row["has_right"] else DASH,
        )
        for row in found["worlds"]
    )
    heads = ("world", "runs", "false ENABLE", "runs with a true one")
    return _TEXTS["odd"].format(table=markdown(WorldTable("", heads, rows))).rstrip() + "\n"


def page(path: Path) -> str:
    """The page in Markdown, from a file of results."""
    results = read_results(path)
    environment = json.loads(path.read_text(encoding="utf-8"))["environment"]
    numbers = sorted({result.repetitions for result in results.values()})
    repetitions = f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"
    parts = [_TEXTS["head"].format(picture=PICTURE, repetitions=repetitions)]
    outdated = sum(result.definition != definition_of(WORLDS[name]) for name, result in results.items())
    if outdated:
        parts.append(
            f"{outdated} of the {len(results)} worlds ran under an earlier definition of the world, its policy or the "
            "gate's rules; `shadowspec simulate` runs them again.\n"
        )
    for table in (*tables_of(results), naive_table(results)):
        if table.title.startswith(OMITTED):
            continue
        body = null_worlds(shortened(table)) if table.title.startswith(NULLS) else markdown(shortened(table))
        parts.append(f"## {table.title}\n\n{body}\n")
        if table.title in _NOTES:
            parts.append(_NOTES[table.title] + "\n")
    parts += [alarm_delays(), odd_worlds(), days_to_verdict(), early_stops()]
    broken = broken_promises(results.values())
    verdict = (
        "No world contradicts the gate's promise."
        if not broken
        else "Broken:\n\n" + "\n".join(f"- {sentence}" for sentence in broken)
    )
    parts.append(f"## Against the promise\n\n{verdict}\n")
    seeds = sorted({result.seed for result in results.values()})
    where = ", ".join(f"{name} {value}" for name, value in environment.items())
    parts.append(f"Seed {', '.join(map(str, seeds))}; {where}.\n")
    return "\n".join(parts)


def write_page(results: Path, folder: Path) -> None:
    """Write the page and its picture into a folder of documentation."""
    (folder / PICTURE).parent.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(page(results), encoding="utf-8")
    drawn = picture([summarise(result) for result in read_results(results).values()])
    (folder / PICTURE).write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    write_page(Path(sys.argv[1]), Path(sys.argv[2]))
