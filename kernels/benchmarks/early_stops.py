"""Rules that stop a hypothesis early or bet towards a deadline: the units that they save, and what they cost.

    make bench NAME=early_stops

Units are windows of four requests.  Speedup and tail are bet on as the gate does it; independence is not judged.  The
paragraphs of the results are on docs/research/simulation.md (`make simulation` writes them).

- `futile`: the opposite bound of a test crosses at 5%.  The gate does this.
- `week`, `fortnight`: futile, or: were the mean at its upper bound of 95%, the capital would reach the level by the end
  of that span with a chance of less than 5%, by a normal law of its logarithm.
- `deadline`: the bet of the Neyman-Pearson test of a fixed size (arXiv 2605.06521), whose capital is the chance, given
  the units so far, that the test rejects.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import ndtri

from kernels.benchmarks import harness
from kernels.benchmarks.harness import options, show, write
from shadowspec.gate.evidence.series import NUM_DISABLING
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.stats.betting import FRACTIONS, WEIGHTS, Floats
from shadowspec.gate.verdict.required_tests import FUTILE_LEVEL
from shadowspec.simulate.effects import SLOWED_LOG
from shadowspec.types import REPEAT_EVERY

RESULTS = harness.RESULTS / "early_stops.json"
POLICY = GatePolicy()
LEVEL = 0.9 * POLICY.alpha / 2.0  # of the whole endpoint's first run
ABOVE = math.log1p(POLICY.margin)
WEEK, FORTNIGHT = 6 * 24, 13 * 24  # windows that count: those of the first day do not
REQUESTS = 4
NOISES = (0.1, 0.25)
_TRUTHS = ((0.95, 0.02), (1.0, 0.02), (1.03, 0.02), (1.05, 0.0), (1.08, 0.02), (1.15, 0.02), (1.3, 0.2))
FUTILE_WORLDS = tuple((speedup, slowed, noise) for noise in NOISES for speedup, slowed in _TRUTHS)
DEADLINE_WORLDS = tuple((speedup, 0.02, noise) for noise in NOISES for speedup in (1.06, 1.07, 1.08, 1.1, 1.15))


class Draws:
    """Unit values of repetitions of one world, each as y / b of a test and side, [repetitions, units]."""

    def __init__(self, speedup: float, slowed: float, noise: float, shape: tuple[int, int], seed: int) -> None:
        rng = np.random.default_rng(seed)
        at = (math.log(speedup) - slowed * SLOWED_LOG) / (1.0 - slowed)
        logs = rng.normal(at, noise, (*shape, REQUESTS))
        logs = np.where(rng.random(logs.shape) < slowed, SLOWED_LOG, logs)
        self.clip = POLICY.clip_for(noise)
        self.values = np.clip(logs, -self.clip, self.clip).mean(axis=2)
        self.passes_speedup = (self.values - ABOVE) / (self.clip + ABOVE)
        self.fails_speedup = (ABOVE - self.values) / (self.clip - ABOVE)

        slow, center, share = -math.log1p(POLICY.tail_margin), max(at, 0.0), POLICY.tail_share
        repeats = rng.normal(0.0, noise, logs.shape)
        by_noise = 0.5 * ((repeats < slow - center) * 1.0 + (-repeats < slow - center)).mean(axis=2)
        credit = REPEAT_EVERY * (rng.random(shape) < 1.0 / REPEAT_EVERY) * by_noise
        self.passes_tail = (share - (logs < slow).mean(axis=2) + credit) / (1.0 - share)
        beyond = ((logs < slow) * 1.0 - (logs > 2.0 * center - slow)).mean(axis=2)
        self.fails_tail = (beyond - share) / (1.0 + share)


def capital(ratios: Floats, weights: tuple[float, ...] = WEIGHTS) -> Floats:
    """The logarithm of the gate's capital after each unit, [repetitions, units]."""
    parts = [
        math.log(weight) + np.log1p(fraction * np.maximum(ratios, -1.0)).cumsum(axis=1)
        for fraction, weight in zip(FRACTIONS.tolist(), weights, strict=True)
        if weight
    ]
    path: Floats = np.logaddexp.reduce(parts)
    return path


def deadline_capital(ratios: Floats, deadline: int) -> Floats:
    """The same of bets towards a deadline, which know the units' standard deviation."""
    sd, path = float(ratios.std()), np.empty_like(ratios)
    logs = np.zeros(len(ratios))
    for place in range(ratios.shape[1]):
        chance = np.clip(LEVEL * np.exp(logs), 1e-300, 1.0 - 1e-9)
        density = np.exp(-0.5 * ndtri(chance) ** 2) / math.sqrt(2.0 * math.pi)
        bets = np.minimum(density / chance / (sd * math.sqrt(deadline - place)), FRACTIONS[-1])
        bets[logs >= -math.log(LEVEL)] = 0.0
        logs = logs + np.log1p(bets * np.maximum(ratios[:, place], -1.0))
        path[:, place] = logs
    return path


def first(is_there: Floats | np.ndarray) -> Floats:
    """The unit at which each repetition is first there, [repetitions]; infinite without one."""
    return np.where(is_there.any(axis=1), is_there.argmax(axis=1) + 1.0, np.inf)


def span_certificate(draws: Draws, span: int, every: int = 6) -> Floats:
    """The unit at which each repetition is given up for the span, [repetitions]."""
    upper = np.full(draws.values.shape, draws.clip)
    for theta in np.arange(ABOVE, draws.clip - 0.01, 0.005)[::-1]:
        is_below = capital((theta - draws.values) / (draws.clip - theta)) >= -math.log(FUTILE_LEVEL)
        upper = np.where(is_below, theta, upper)
    given_up = np.full(len(upper), np.inf)
    for number in range(12, span, every):
        values, rest = draws.values[:, :number], span - number
        shifted = values + (upper[:, number - 1] - values.mean(axis=1))[:, None]
        ratios = np.maximum((shifted - ABOVE) / (draws.clip + ABOVE), -1.0)
        best = np.full(len(upper), -np.inf)
        for fraction, weight in zip(FRACTIONS.tolist(), WEIGHTS, strict=True):
            now = math.log(weight) + np.log1p(fraction * draws.passes_speedup[:, :number]).sum(axis=1)
            growth = np.log1p(fraction * ratios)
            best = np.maximum(best, now + rest * growth.mean(axis=1) + 1.645 * math.sqrt(rest) * growth.std(axis=1))
        given_up = np.where((best < -math.log(LEVEL)) & np.isinf(given_up), number, given_up)
    return given_up


def futile_row(speedup: float, slowed: float, noise: float, repetitions: int) -> dict[str, Any]:
    """Mean units to the end of a hypothesis, two weeks at most, and of those that came to ENABLE the share lost."""
    draws = Draws(speedup, slowed, noise, (repetitions, FORTNIGHT), seed=1)
    wanted, is_long = -math.log(LEVEL), np.arange(1, FORTNIGHT + 1) >= WEEK
    is_passed = (capital(draws.passes_speedup) >= wanted) & (capital(draws.passes_tail) >= wanted)
    enable = first(is_passed & is_long)
    opposite = np.maximum(capital(draws.fails_speedup), capital(draws.fails_tail))
    end = np.minimum(np.minimum(enable, first(opposite >= wanted + math.log(NUM_DISABLING))), FORTNIGHT)
    futile = first(opposite >= -math.log(FUTILE_LEVEL))
    row: dict[str, Any] = {"speedup": speedup, "slowed": slowed, "noise": noise, "units": float(end.mean())}
    spans = {"futile": futile, "week": span_certificate(draws, WEEK), "fortnight": span_certificate(draws, FORTNIGHT)}
    for name, stop in spans.items():
        stop = np.minimum(stop, futile)
        row[f"{name}_units"] = float(np.minimum(end, stop).mean())
        row[f"{name}_lost"] = float(((stop < enable) & np.isfinite(enable)).mean())
    row["enable"] = float(np.isfinite(enable).mean())
    return row


def deadline_row(speedup: float, slowed: float, noise: float, repetitions: int) -> dict[str, Any]:
    """By rule the share whose tests pass within a week, and the median unit at which they do."""
    draws, wanted = Draws(speedup, slowed, noise, (repetitions, WEEK), seed=2), -math.log(LEVEL)
    row: dict[str, Any] = {"speedup": speedup, "slowed": slowed, "noise": noise}
    tests = draws.passes_speedup, draws.passes_tail
    for name, paths in (
        ("mixture", [capital(ratios) for ratios in tests]),
        ("deadline", [deadline_capital(ratios, WEEK) for ratios in tests]),
    ):
        passed = first((paths[0] >= wanted) & (paths[1] >= wanted))
        median = float(np.quantile(passed, 0.5, method="inverted_cdf"))
        row |= {f"{name}_share": float(np.isfinite(passed).mean()), f"{name}_units": median if median < WEEK else None}
    return row


def main() -> None:
    """Draw every world and write the results."""
    parser = options(__doc__, RESULTS.name)
    parser.add_argument("--repetitions", "-n", type=int, default=500)
    arguments = parser.parse_args()
    futile = [futile_row(*world, arguments.repetitions) for world in FUTILE_WORLDS]
    deadlines = [deadline_row(*world, arguments.repetitions) for world in DEADLINE_WORLDS]
    show("Stopping early", futile)
    show("Bets towards a deadline", deadlines)
    write(
        arguments.out, {"repetitions": arguments.repetitions, "level": LEVEL, "futile": futile, "deadlines": deadlines}
    )


if __name__ == "__main__":
    main()
