"""Worlds in which the fingerprint changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from shadowspec.types import Run
from tests.gate.worlds import CONFIG

OTHER = replace(CONFIG, fingerprint="e" * 64)
MakeRun = Callable[[np.random.Generator, int, str], Run]


def changing(*phases: tuple[int, MakeRun]) -> MakeRun:
    """Runs of the first phase up to that many blocks, then of the next."""

    def draw(rng: np.random.Generator, index: int, block_id: str) -> Run:
        sequence = int(block_id[1:])
        make = next((make for until, make in phases if sequence < until), phases[-1][1])
        return make(rng, index, block_id)

    return draw


def with_fingerprint(make: MakeRun, fingerprint: str) -> MakeRun:
    return lambda rng, index, block_id: replace(make(rng, index, block_id), fingerprint=fingerprint)
