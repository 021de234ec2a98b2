"""Runs worlds: repetitions spread over processes, results kept after each world so that a run can be resumed."""

from __future__ import annotations

import math
import multiprocessing
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np

from shadowspec.gc_control import gc_paused
from shadowspec.simulate.repetition import Repetition, repeat, seed_of
from shadowspec.simulate.results import WorldResult, add_results, definition_of, read_results, tally, write_results
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

    Repetition i of a world has the same draws in every run.  With `out`, repetitions in the file of a world
    with the same definition and seed count: only the missing ones are run, and each world is written when it is done.
    Of a world that takes long only its `part` of the repetitions is run.  A file with more repetitions keeps them.

    Raises:
        InputError: `out` is not a file of results.
    """
    known = read_results(out) if out else {}
    results: dict[str, WorldResult] = {}
    with _workers(jobs) as submit:
        for world in worlds:
            before = known.get(world.name)
            if before is not None and (before.seed, before.definition) != (seed, definition_of(world)):
                before = None
            first, last = 0 if before is None else before.repetitions, math.ceil(repetitions * world.part)
            advanced(world.name, repetitions - max(0, last - first))
            if before is not None and first >= last:
                results[world.name] = before
                continue
            started = time.monotonic()
            done: dict[int, Repetition] = {}
            for chunk in submit(world.name, seed, first, last):
                done.update(chunk)
                advanced(world.name, len(chunk))
            further = tally(world, seed, [done[index] for index in sorted(done)], time.monotonic() - started)
            results[world.name] = further if before is None else add_results(before, further)
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
    """The environment that the results depend on besides the seed."""
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": version("scipy"),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
    }


Submit = Callable[[str, int, int, int], Iterator[Mapping[int, Repetition]]]


@contextmanager
def _workers(jobs: int) -> Iterator[Submit]:
    """Chunks as they are done, in this process with one job and in separate processes with more."""
    if jobs == 1:
        yield lambda name, seed, first, last: (repeat_chunk(name, seed, *part) for part in _chunks(first, last))
        return
    # Spawned: a fork would copy the locks of the caller's threads.
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:

        def submit(name: str, seed: int, first: int, last: int) -> Iterator[Mapping[int, Repetition]]:
            futures = [pool.submit(repeat_chunk, name, seed, *part) for part in _chunks(first, last)]
            return (future.result() for future in as_completed(futures))

        yield submit
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupted run does not continue to its end


def _chunks(first: int, last: int) -> list[tuple[int, int]]:
    return [(start, min(last, start + CHUNK)) for start in range(first, last, CHUNK)]
