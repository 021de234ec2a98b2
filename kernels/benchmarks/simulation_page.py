"""`python -m kernels.benchmarks.simulation_page RESULTS.json DOCS` writes the page and the picture of a simulation."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from kernels.benchmarks.simulation_picture import picture
from shadowspec.simulate.naive import NAIVE_GATES
from shadowspec.simulate.results import read_results
from shadowspec.simulate.summary import broken_promises, summarise
from shadowspec.simulate.tables import Table, tables_of

PAGE, PICTURE = "simulation.md", "images/simulation.svg"

_HEAD = """\
# Error rates of the gate

Written by `kernels/benchmarks/simulation_page.py` from `kernels/benchmarks/results/simulation.json`; do not edit.

The gate promises that the chance of any false ENABLE at an endpoint is at most alpha (5%). The promise holds for any
number of looks and for any traffic. `shadowspec simulate` tests it in worlds whose truth is known.

- A **world** draws sessions, blocks and outcomes from a seeded generator. The simulation times sessions
  and fills blocks as the tap does. The result is the rows that the worker would have stored.
- The **production gate decides**: `run_gate` folds the rows from a store in memory and decides, as it does over a
  database. A look takes place whenever a unit enters. The gate's capital paths show the looks at which a verdict, a
  restart of a test or an alarm is possible. At these looks, and at the last one, the simulation runs the gate, and the
  gate's decision is the outcome. A test compares this with runs at every look.
- In **`several_devices`** no look is skipped. Each device has a partition and writes to a real store after each of its
  blocks, and `run_gate` folds and decides after every sixth block. Blocks must enter in the order of their newest
  events. In the order of their commits, the gate would enable falsely in half of the draws.
- **Boundary worlds** lie exactly on a threshold: the null is true, and no other null is harder. Most have one
  hypothesis, which has all of alpha. Its first run uses nine tenths, 4.5%. An endpoint with the default of 8
  declared hypotheses is tested at 2.25%.
- **Negative controls** are worlds in which version 1 of the rules decides and must fail. They show the purpose of each
  rule of version 2.
- In **`three_candidates`** the requests are those of the second of three candidates, whose blocks run in the order that
  the engine draws. In **`retries`** the slow requests are those answered at a later attempt. Their controls have the
  rows of earlier versions. These held arms in the order as configured, with the baseline first or last, and slow
  requests without the time of the failed attempts.
- In **`equal_totals`** no other test passes, so that a proof of a lower total time counts as a false ENABLE.
- In **steered worlds** (`steered_...`) the verdicts set the sampling rates, as they do in the worker. The next
  measurements then depend on the decisions before. These worlds take long: each has a tenth of the repetitions. No
  naive gate runs there. An alarm where nothing changes counts as a false DISABLE.
- The figures below are of **{repetitions} repetitions** of each world. The interval beside a rate shows their
  precision: 100 repetitions without a false verdict bound its rate at 3.6%, 2,000 at .2%.
- **Intervals** in brackets are Clopper and Pearson's, 95%, in percent.
- **Naive gates** see every request of the same runs, timed or not. A gate that reads acceptance is blind to latency,
  and the other way round. Its blind ENABLEs count all the same, because it would have enabled.

Repeat it with `shadowspec simulate` (2,000 repetitions of each world; with `--out FILE` only those that it lacks),
`shadowspec simulate --quick`, or `shadowspec simulate --world NAME --repetitions N`. It exits with 4 if a rate
contradicts the promise: if the upper end of a world's interval is above 1.2 alpha. With fewer than 1,000 repetitions
the upper end is that of all null worlds together (of 300 or more). Then a world's lower end may not be above alpha.

![False ENABLE by world]({picture})
"""
_NOTES = {
    "Power": (
        "`within blocks` is the larger of two sizes. One is 1.5 times the smallest size at which every required test "
        "can pass. The other is 2.5 times the size of a test at the same level with one look at the end."
    ),
    "Share that other gates would have enabled where nothing may be": (
        "`*`: the gate does not test the quantity that is wrong in that world. `rolling_mean` stays at nothing because "
        "a short window soon falls below its threshold by chance. Then it is off for ever: the next table shows the "
        "price."
    ),
}


def markdown(table: Table) -> str:
    """The table in Markdown; the first column left, the others right."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = ["---"] + ["---:"] * (len(table.heads) - 1)
    return "\n".join([line(table.heads), line(rule), *(line(row) for row in table.rows)])


def page(path: Path) -> str:
    """The page in Markdown, from a file of results."""
    results = read_results(path)
    environment = json.loads(path.read_text(encoding="utf-8"))["environment"]
    numbers = sorted({result.repetitions for result in results.values()})
    repetitions = f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"
    parts = [_HEAD.format(picture=PICTURE, repetitions=repetitions)]
    for table in tables_of(results):
        parts.append(f"## {table.title}\n\n{markdown(table)}\n")
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
