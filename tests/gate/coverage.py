"""Coverage over time of every sequence: in which share of many paths the truth is outside at any look at all.

`python -m tests.gate.coverage` prints the table for 1,000 paths of 5,000 units; the tests run the same worlds.
The modules under test are arguments, so that a sabotaged copy can be put to the same question.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from shadowspec.gate.evidence import quantiles
from shadowspec.gate.stats import betting, drift

Floats = np.ndarray
Draw = Callable[[np.random.Generator, int], tuple[Floats, Floats]]  # unit sums and weights of one path

LEVEL = 0.05
CLIP = math.log(2.0)
RARE = 0.02  # share of blocks at the worst value
MARGIN = math.log(1.05)
PATHS_AT_ONCE = 50  # what is vectorised stays within some tens of megabytes


@dataclass(frozen=True)
class World:
    """Units whose mean is known: `truth`, between `lowest` and `highest`."""

    truth: float
    lowest: float
    highest: float
    draw: Draw


def lag_one_autocorrelation(values: Floats) -> float:
    """r1 of `values` [n] in their order; 0 at zero variance."""
    if float(np.ptp(values)) < 1e-12:
        return 0.0
    centred = values - values.mean()
    return float((centred[:-1] * centred[1:]).sum() / (centred**2).sum())


def log_mean_statistic(detector: drift.Detector) -> float:
    """Natural logarithm of the mean of a detector's statistics."""
    return float(np.logaddexp.reduce(detector.log_statistics) - math.log(len(detector.log_statistics)))


def quantile_bounds(
    values: Sequence[float], probability: float, level: float, module: ModuleType = quantiles
) -> quantiles.QuantileBounds:
    """The exact bounds of `values`, by the ranks that the module gives."""
    ordered, ranks = sorted(values), module.quantile_ranks(len(values), probability, level)
    lower, upper = (None if rank is None else ordered[rank - 1] for rank in (ranks.lower, ranks.upper))
    return quantiles.QuantileBounds(ordered[ranks.estimate - 1], lower, upper)


def _rare_slowdowns(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    gain = (MARGIN + RARE * CLIP) / (1.0 - RARE)
    return np.where(rng.random(n) < RARE, -CLIP, gain), np.ones(n)


def _short_blocks(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """Blocks of 1 to 4 requests of 4; in the short ones requests gain, in the full ones they lose."""
    sizes = np.where(rng.random(n) < 0.8, 1, 4)  # as many requests in short blocks as in full ones
    effects = np.where(sizes == 1, MARGIN + 0.1, MARGIN - 0.1)
    noise = rng.uniform(-0.2, 0.2, n)
    return sizes / 4.0 * (effects + noise), sizes / 4.0


def _acceptance(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    steps = rng.integers(5, 100, n)
    weights = np.minimum(steps, 64) / 64.0
    return weights * rng.binomial(steps, rng.beta(0.4 * 2.3, 0.6 * 2.3, n)) / steps, weights


def _shares(share: float, size: int) -> Draw:
    return lambda rng, n: (rng.binomial(size, share, n) / size, np.ones(n))


def _z(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    weights = rng.integers(8, 65, n) / 64.0
    return weights * np.where(rng.random(n) < 0.55, 0.2, -0.2), weights


BETTING = {
    "speedup": World(MARGIN, -CLIP, CLIP, _rare_slowdowns),
    "speedup, short blocks": World(MARGIN, -CLIP, CLIP, _short_blocks),
    "tail": World(0.10, 0.0, 1.0, _shares(0.10, 4)),
    "acceptance": World(0.40, 0.0, 1.0, _acceptance),
    "parity, near ties": World(0.05, 0.0, 1.0, _shares(0.05, 1)),
    "parity, sampled": World(0.02, -0.2, 0.2, _z),
}


def betting_misses(module: ModuleType, world: World, num_paths: int, num_units: int, seed: int = 1) -> list[float]:
    """Share of paths that ever reject the true mean, lower and upper bound, each at LEVEL."""
    rng, missed = np.random.default_rng(seed), [0, 0]
    for _ in range(num_paths):
        sums = module.Sums(*world.draw(rng, num_units))
        series = module.UnitSeries(sums, sums, sums, world.lowest, world.highest)
        for index, side in enumerate(("lower", "upper")):
            path = module.log_capital_path(series.ratios(side, world.truth))
            missed[index] += module.is_rejected(float(path.max()), LEVEL)
    return [count / num_paths for count in missed]


def quantile_misses(module: ModuleType, probability: float, num_paths: int, num_units: int, seed: int = 3) -> float:
    """Share of paths on which the true quantile ever lies outside its two-sided bounds at LEVEL."""
    rng, missed = np.random.default_rng(seed), 0
    allowed = np.array([allowed_counts(module, n, probability) for n in range(1, num_units + 1)])
    for size in _chunks(num_paths):
        counts = (rng.random((size, num_units)) <= probability).cumsum(axis=1)
        missed += int(((counts < allowed[:, 0]) | (counts > allowed[:, 1])).any(axis=1).sum())
    return missed / num_paths


def allowed_counts(module: ModuleType, num_values: int, probability: float) -> tuple[int, int]:
    """How many of so many values may lie at or below a quantile within its bounds: least and most.

    Below the value of the lower rank r lie r - 1 values at most; at or above that of the upper one r at least.
    """
    ranks = module.quantile_ranks(num_values, probability, LEVEL)
    return ranks.lower or 0, num_values if ranks.upper is None else ranks.upper - 1


def mean_run_length(module: ModuleType, wanted: float, num_paths: int, num_units: int, seed: int = 4) -> float:
    """Mean number of units to a false alarm of the e-SR detector while its promise just holds, cut at `num_units`."""
    rng, total = np.random.default_rng(seed), 0
    detector = module.Detector(promise=MARGIN, best=CLIP)
    for size in _chunks(num_paths):
        draws = [_rare_slowdowns(rng, num_units) for _ in range(size)]
        values, weights = (np.array(parts) for parts in zip(*draws, strict=True))
        paths = module.log_statistic_paths(detector, values, weights)
        mean = np.logaddexp.reduce(paths, axis=-2) - math.log(paths.shape[-2])
        alarmed = mean >= math.log(wanted)
        first = np.where(alarmed.any(axis=1), alarmed.argmax(axis=1) + 1, num_units)
        total += int(first.sum())
    return total / num_paths


def _chunks(num_paths: int) -> Iterator[int]:
    while num_paths > 0:
        yield min(PATHS_AT_ONCE, num_paths)
        num_paths -= PATHS_AT_ONCE


def table(num_paths: int, num_units: int) -> dict[str, object]:
    """Every sequence's share of paths with a miss; the run length beside the one promised."""
    misses: dict[str, object] = {}
    for name, world in BETTING.items():
        lower, upper = betting_misses(betting, world, num_paths, num_units)
        misses |= {f"betting, {name}, lower": lower, f"betting, {name}, upper": upper}
    for probability in (0.5, 0.95, 0.99):
        misses[f"quantile {probability}"] = quantile_misses(quantiles, probability, num_paths, num_units)
    return {
        "num_paths": num_paths,
        "num_units": num_units,
        "level": LEVEL,
        "share_of_paths_that_ever_miss": misses,
        "e_sr_mean_run_length": {
            str(wanted): mean_run_length(drift, wanted, num_paths, num_units) for wanted in (100, 1_000)
        },
    }


def main() -> None:
    """The table of 1,000 paths x 5,000 units as JSON."""
    started = time.perf_counter()
    result = table(1_000, 5_000)
    print(json.dumps(result | {"seconds": round(time.perf_counter() - started, 1)}, indent=2))


if __name__ == "__main__":
    sys.exit(main())
