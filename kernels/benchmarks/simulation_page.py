"""`python -m kernels.benchmarks.simulation_page RESULTS.json DOCS` writes the page and the picture of a simulation."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernels.benchmarks.harness import sections
from kernels.benchmarks.simulation_picture import picture
from shadowspec.simulate.naive import NAIVE_GATES
from shadowspec.simulate.results import WorldResult, read_results
from shadowspec.simulate.summary import broken_promises, summarise
from shadowspec.simulate.tables import DASH, Table, tables_of

PAGE, PICTURE = "simulation.md", "images/simulation.svg"
OFTEN = 0.05  # a false ENABLE in more of the runs than the promise allows
# Tables of the terminal that the results file holds world by world.
OMITTED = "Share that other gates would have enabled"
COLUMNS_LEFT_OUT = ("runs", "held as dependent")

_TEXTS = sections("simulation.md")
_NOTES = {
    "Power": (
        "`within blocks` is the larger of two sizes. One is 1.5 times the smallest size at which every required test "
        "can pass. The other is 2.5 times the size of a test at the same level with one look at the end."
    ),
}


def markdown(table: Table) -> str:
    """The table in Markdown; the first column left, the others right."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = ["---"] + ["---:"] * (len(table.heads) - 1)
    return "\n".join([line(table.heads), line(rule), *(line(row) for row in table.rows)])


def naive_table(results: Mapping[str, WorldResult]) -> Table:
    """Of each naive gate: in how many null worlds, of those that test what it reads, it would often have enabled."""
    nulls = [summary for summary in map(summarise, results.values()) if summary.world.kind == "null" and summary.naive]
    rows = []
    for gate in NAIVE_GATES:
        worlds = [summary for summary in nulls if summary.world.reads in ("", gate.reads)]
        rates = [rate.value for summary in worlds if (rate := summary.naive[gate.name]).value is not None]
        high = sum(rate > OFTEN for rate in rates)
        span = f"{min(rates):.0%} to {max(rates):.0%}" if rates else DASH
        rows.append((f"`{gate.name}`", f"{high} of {len(rates)}", span))
    heads = ("gate", f"worlds with over {OFTEN:.0%} false ENABLE", "false ENABLE, lowest to highest")
    return Table("Other gates where nothing may be enabled", heads, tuple(rows))


def without_columns(table: Table) -> Table:
    """The table without the columns that the page leaves out."""
    columns = [column for column, head in enumerate(table.heads) if head not in COLUMNS_LEFT_OUT]
    heads, *rows = (tuple(line[column] for column in columns) for line in (table.heads, *table.rows))
    return Table(table.title, heads, tuple(rows))


def page(path: Path) -> str:
    """The page in Markdown, from a file of results."""
    results = read_results(path)
    environment = json.loads(path.read_text(encoding="utf-8"))["environment"]
    numbers = sorted({result.repetitions for result in results.values()})
    repetitions = f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"
    parts = [_TEXTS["head"].format(picture=PICTURE, repetitions=repetitions)]
    for table in (*tables_of(results), naive_table(results)):
        if table.title.startswith(OMITTED):
            continue
        parts.append(f"## {table.title}\n\n{markdown(without_columns(table))}\n")
        if table.title in _NOTES:
            parts.append(_NOTES[table.title] + "\n")
    broken = broken_promises(results.values())
    verdict = (
        "No world contradicts the gate's promise."
        if not broken
        else "Broken:\n\n" + "\n".join(f"- {sentence}" for sentence in broken)
    )
    parts.append(f"## Against the promise\n\n{verdict}\n")
    listed = [f"- `{gate.name}` (reads {gate.reads}): {gate.title}. Source: {gate.source}." for gate in NAIVE_GATES]
    parts.append("\n".join(["## The other gates\n", *listed, ""]))
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
