"""`shadowspec simulate`: the gate's error rates, beside those of other gates."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from shadowspec.app.progress_bar import notes, progress_bar
from shadowspec.cli.console import print_json, require_folder_of, results
from shadowspec.cli.options import JsonOption
from shadowspec.errors import NoDataError, UsageError
from shadowspec.simulate.results import WorldResult
from shadowspec.simulate.run_worlds import environment, run_worlds
from shadowspec.simulate.summary import broken_promises
from shadowspec.simulate.world_tables import BLIND, tables_of
from shadowspec.simulate.worlds import QUICK_WORLDS, WORLDS
from shadowspec.text import suggestion
from shadowspec.types.extras import require_extra
from shadowspec.types.public_documents import PublicDocument

FULL_REPETITIONS, QUICK_REPETITIONS = 2_000, 60


class SimulateDocument(PublicDocument, frozen=True, kw_only=True):
    """The results of `simulate --json`, by world."""

    seed: int
    repetitions: int
    environment: Mapping[str, str]
    broken_promises: Sequence[str]
    worlds: Mapping[str, WorldResult]


def simulate(
    quick: Annotated[
        bool, typer.Option("--quick", help="A few worlds and repetitions: under a minute on two cores.")
    ] = False,
    world: Annotated[
        list[str] | None, typer.Option("--world", "-w", metavar="NAME", help="Only this world; repeat it for several.")
    ] = None,
    repetitions: Annotated[
        int | None, typer.Option("--repetitions", "-n", min=1, help="Repetitions of each world (2,000; quick: 60).")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of every draw.")] = 1,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Processes; default: one per processor.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Store results in this JSON file; repetitions in it are not run again."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the gate in simulated worlds whose truth is known, after every unit, and count its errors.

    The rows pass through the gate's ingestion and tests. Exit code 4: an error rate contradicts the gate's promise.
    """
    require_folder_of(out)
    names = world or (QUICK_WORLDS if quick else tuple(WORLDS))
    unknown = [name for name in names if name not in WORLDS]
    if unknown:
        raise UsageError(
            f"--world {unknown[0]}: is not a known world{suggestion(unknown[0], WORLDS)} (known: {', '.join(WORLDS)})"
        )
    require_extra("the simulation", "simulate")
    total = repetitions or (QUICK_REPETITIONS if quick else FULL_REPETITIONS)
    with progress_bar() as bar:
        task = bar.add_task("simulating", total=total * len(names), detail="")

        def advance(name: str, done: int) -> None:
            bar.update(task, advance=done, detail=name)

        simulated = run_worlds([WORLDS[name] for name in names], total, seed, jobs or os.cpu_count() or 1, out, advance)
    broken = broken_promises(simulated.values())
    if as_json:
        print_json(
            SimulateDocument(
                seed=seed,
                repetitions=total,
                environment=environment(),
                broken_promises=broken,
                worlds=simulated,
            )
        )
    else:
        for table in tables_of(simulated):
            drawn = Table(title=table.title, title_justify="left", caption_justify="left")
            for head in table.heads:
                drawn.add_column(head, overflow="fold")
            if any(cell.endswith(BLIND) for row in table.rows for cell in row):
                drawn.caption = "* that gate does not test the quantity that is wrong in that world"
            for row in table.rows:
                drawn.add_row(*row)
            results.print(drawn)
    if broken:
        raise NoDataError("the gate broke its promise: " + "; ".join(broken))
    notes.print("no world contradicts the gate's promise")
