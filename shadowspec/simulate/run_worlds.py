"""Runs worlds: repetitions spread over processes, results kept after each world so that a run can be taken up."""

from __future__ import annotations

import math
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import scipy

from shadowspec.gc_control import gc_paused
from shadowspec.simulate.repetition import Repetition, repeat, seed_of
from shadowspec.simulate.results import WorldResult, definition_of, read_results, tally, write_results
from shadowspec.simulate.world import World
from shadowspec.simulate.worlds import WORLDS

CHUNK = 20  # repetitions that a process does at a time

Advanced = Callable[[str, int], None]  # world, repetitions newly done


def run_worlds(
    worlds: Iterable[World],
    repetitions: int,
    seed: int,
    jobs: int,
    out: Path | None = None,
    advanced: Advanced = lambda world, done: None,
) -> dict[str, WorldResult]:
    """Results by world, in the order of `worlds`.

    Repetition i of a world has the same draws whatever else is run.  With `out`, worlds that the file already
    holds, defined as now and at this seed and number of repetitions, are taken from it, and each world is written
    when it is done.

    Raises:
        InputError: `out` is not a file of results.
    """
    known = read_results(out) if out else {}
    results: dict[str, WorldResult] = {}
    with _workers(jobs) as submit:
        for world in worlds:
            before = known.get(world.name)
            asked = (repetitions, seed, definition_of(world))
            if before is not None and (before.repetitions, before.seed, before.definition) == asked:
                results[world.name] = before
                advanced(world.name, repetitions)
                continue
            started = time.monotonic()
            done: dict[int, Repetition] = {}
            for chunk in submit(world.name, seed, repetitions):
                done.update(chunk)
                advanced(world.name, len(chunk))
            ordered = [done[index] for index in range(repetitions)]
            results[world.name] = tally(world, seed, ordered, time.monotonic() - started)
            if out:
                every = {**known, **results}
                write_results(out, {name: every[name] for name in WORLDS if name in every}, environment())
    return results


def repeat_chunk(world_name: str, seed: int, first: int, last: int) -> dict[int, Repetition]:
    """The repetitions from `first` up to `last`, by their index."""
    world = WORLDS[world_name]
    with gc_paused():
        return {index: repeat(world, seed_of(world, seed, index)) for index in range(first, last)}


def environment() -> dict[str, str]:
    """What the results depend on besides the seed."""
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
    }


Submit = Callable[[str, int, int], Iterator[Mapping[int, Repetition]]]


@contextmanager
def _workers(jobs: int) -> Iterator[Submit]:
    """Chunks as they are done, in this process with one job and in processes of their own with more."""
    if jobs == 1:
        yield lambda name, seed, total: (repeat_chunk(name, seed, *bounds) for bounds in _chunks(total))
        return
    # Spawned: a fork would copy the threads' locks of whoever calls.
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:

        def submit(name: str, seed: int, total: int) -> Iterator[Mapping[int, Repetition]]:
            futures = [pool.submit(repeat_chunk, name, seed, *bounds) for bounds in _chunks(total)]
            return (future.result() for future in as_completed(futures))

        yield submit
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupted run does not go on to its end


def _chunks(total: int) -> list[tuple[int, int]]:
    return [(first * CHUNK, min(total, (first + 1) * CHUNK)) for first in range(math.ceil(total / CHUNK))]
