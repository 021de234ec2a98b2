"""The gates that others use, for comparison: each with the defaults that its source publishes.

They see every request of the simulated traffic, in event order, in both arms.  Each answers whether it would
have switched speculation on; none knows of sessions, blocks, or how often it has been asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from shadowspec.gate.policy import GatePolicy
from shadowspec.simulate.effects import Outcomes
from shadowspec.simulate.traffic import Floats, Ints

Z_95 = 1.6449  # one-sided 5%
MIN_REQUESTS_Z = 30  # the usual rule of thumb for a normal mean
MIN_SAMPLES_T = 8
CONFIDENCE_KAYENTA, TOLERANCE_KAYENTA, JUDGEMENTS_ARGO = 0.98, 0.25, 3
MAX_COMPARED = 300  # values of each arm in one Mann-Whitney judgement: its interval needs all pairs
WINDOW_TENSORRT, LENGTH_TENSORRT = 5, 0.6
EMA_SGLANG, WARMUP_SGLANG, INTERVAL_SGLANG, DROP_SGLANG = 0.2, 10, 5, 0.5
STEPS_FLAGGER, FAILED_CHECKS_FLAGGER, LIMIT_FLAGGER_MS = 10, 5, 500.0


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """A naive gate's input, one entry per request; an arm that failed has no entry."""

    at_us: Ints
    log_speedup: Floats
    baseline_ms: Floats
    num_drafts: Ints
    num_accepted: Ints

    @property
    def speculative_ms(self) -> Floats:
        """End-to-end time of the speculative arm."""
        times: Floats = self.baseline_ms * np.exp(-self.log_speedup)
        return times


@dataclass(frozen=True, slots=True)
class NaiveGate:
    """`reads` is the gate's input: "speedup" or "acceptance"; it is blind to anything else."""

    name: str
    title: str
    source: str
    reads: str
    enables: Callable[[Observed, GatePolicy], bool]


def observe(outcomes: Outcomes, at_us: Ints) -> Observed:
    """The outcomes of the requests that went through both arms."""
    kept = ~outcomes.failed
    return Observed(
        at_us[kept],
        outcomes.log_speedup[kept],
        outcomes.baseline_ms[kept],
        outcomes.num_drafts[kept],
        outcomes.num_accepted[kept],
    )


def together(parts: Sequence[Observed]) -> Observed:
    """The observations of several devices, in event order."""
    at_us = np.concatenate([part.at_us for part in parts])
    order = np.argsort(at_us, kind="stable")
    return Observed(
        at_us[order],
        np.concatenate([part.log_speedup for part in parts])[order],
        np.concatenate([part.baseline_ms for part in parts])[order],
        np.concatenate([part.num_drafts for part in parts])[order],
        np.concatenate([part.num_accepted for part in parts])[order],
    )


def naive_z(seen: Observed, policy: GatePolicy) -> bool:
    """One-sided z test of the mean log speedup against the margin at 5%, after every request."""
    return bool(_statistics(seen, policy, MIN_REQUESTS_Z).max(initial=-math.inf) > Z_95)


def fixed_n_t(seen: Observed, policy: GatePolicy) -> bool:
    """Two-sided one-sample t test of log speedup against the margin at 5%, from 8 requests on, asked each time."""
    from scipy.special import stdtrit  # slow to load

    statistics = _statistics(seen, policy, MIN_SAMPLES_T)
    limits = stdtrit(np.arange(MIN_SAMPLES_T, MIN_SAMPLES_T + len(statistics)) - 1, 0.975)
    return bool((statistics > limits).any())


def token_independent(seen: Observed, policy: GatePolicy) -> bool:
    """One-sided binomial test of acceptance against the floor at 5%, tokens as if independent, after every request."""
    drafts, accepted = seen.num_drafts.cumsum(), seen.num_accepted.cumsum()
    spread = np.sqrt(policy.floor * (1.0 - policy.floor) / drafts)
    return bool(((accepted / drafts - policy.floor) / spread > Z_95).any())


def mann_whitney(seen: Observed, policy: GatePolicy) -> bool:
    """Kayenta's judge on end-to-end time: pass unless the canary is significantly slower by more than tolerated.

    A judgement compares the two arms' values as if unpaired; the canary is too high if the lower confidence
    limit of the shift (Hodges and Lehmann) lies above `tolerance` times the size of the estimated shift.
    Three judgements on a third of the traffic each, all of which must pass.
    """
    for part in np.array_split(np.arange(len(seen.at_us)), JUDGEMENTS_ARGO):
        control, experiment = seen.baseline_ms[part[-MAX_COMPARED:]], seen.speculative_ms[part[-MAX_COMPARED:]]
        if not len(control):
            continue  # no data passes, as there
        shifts = np.subtract.outer(experiment, control).ravel()
        m = n = len(control)
        z = NormalDist().inv_cdf(0.5 + CONFIDENCE_KAYENTA / 2.0)
        place = int(max(0.0, m * n / 2.0 - z * math.sqrt(m * n * (m + n + 1) / 12.0)))
        middle = [(len(shifts) - 1) // 2, len(shifts) // 2]
        ranked = np.partition(shifts, [place, *middle])
        if ranked[place] > TOLERANCE_KAYENTA * abs(float(ranked[middle].mean())):
            return False
    return True


def rolling_mean(seen: Observed, policy: GatePolicy) -> bool:
    """TensorRT-LLM's SpeculationGate: on, until the mean accepted length of the last requests is below a threshold."""
    lengths = seen.num_accepted / seen.num_drafts  # K = 1: accepted tokens to an iteration
    if len(lengths) < WINDOW_TENSORRT:
        return True
    summed = np.concatenate([[0.0], lengths.cumsum()])
    means = (summed[WINDOW_TENSORRT:] - summed[:-WINDOW_TENSORRT]) / WINDOW_TENSORRT
    return bool((means >= LENGTH_TENSORRT).all())


def moving_average(seen: Observed, policy: GatePolicy) -> bool:
    """SGLang's adaptive steps at batch sizes from 32 on: on at the end of the traffic, off where accepted length fell.

    Candidates 0 and 1: an exponential mean of accepted length at or below .5 switches off at the next update; the
    update after that tries again.
    """
    lengths = (seen.num_accepted / seen.num_drafts).tolist()
    average, is_on = 0.0, True
    for count, length in enumerate(lengths, start=1):
        if is_on:
            average = (1.0 - EMA_SGLANG) * average + EMA_SGLANG * length
        if count > WARMUP_SGLANG and (count - WARMUP_SGLANG) % INTERVAL_SGLANG == 0:
            is_on = not is_on or average > DROP_SGLANG
    return is_on


def threshold_checks(seen: Observed, policy: GatePolicy) -> bool:
    """Flagger's built-in check: ten checks of the canary's p99 against 500 ms, and fewer than five failed."""
    times = seen.speculative_ms
    parts = np.array_split(np.arange(len(times)), STEPS_FLAGGER)
    failed = sum(bool(len(part)) and float(np.quantile(times[part], 0.99)) > LIMIT_FLAGGER_MS for part in parts)
    return failed < FAILED_CHECKS_FLAGGER


def _statistics(seen: Observed, policy: GatePolicy, smallest: int) -> Floats:
    """Mean excess over the margin in standard errors, after each request from the `smallest`-th on."""
    excess = seen.log_speedup - math.log1p(policy.margin)
    n = np.arange(1, len(excess) + 1)
    mean = excess.cumsum() / n
    variance = np.maximum((excess**2).cumsum() / n - mean**2, 1e-12) * n / np.maximum(n - 1, 1)
    statistics: Floats = (mean / np.sqrt(variance / n))[smallest - 1 :]
    return statistics


NAIVE_GATES = (
    NaiveGate(
        "naive_z",
        "z test, asked after every request",
        "the practice that Johari, Pekelis and Walsh describe (Peeking at A/B Tests, KDD 2017): 5%, one look too many",
        "speedup",
        naive_z,
    ),
    NaiveGate(
        "fixed_n_t",
        "t test for one look, asked after every request",
        "perfgate-significance 0.15.1: two-tailed t at 5%, from 8 samples on",
        "speedup",
        fixed_n_t,
    ),
    NaiveGate(
        "token_independent",
        "binomial test over tokens",
        "the binomial interval at 95% over vLLM's counters of accepted and draft tokens",
        "acceptance",
        token_independent,
    ),
    NaiveGate(
        "mann_whitney",
        "Mann-Whitney judge",
        "spinnaker/kayenta NetflixACAJudge (confidence .98, tolerance .25), as argo-rollouts' docs/analysis/kayenta.md "
        "runs it (count 3)",
        "speedup",
        mann_whitney,
    ),
    NaiveGate(
        "rolling_mean",
        "rolling mean under a threshold switches off",
        "NVIDIA/TensorRT-LLM SpeculationGate; it has no defaults, so its test's: window 5, threshold 0.6",
        "acceptance",
        rolling_mean,
    ),
    NaiveGate(
        "moving_average",
        "exponential mean with hysteresis",
        "sgl-project/sglang adaptive_spec_params.py: ema_alpha 0.2, warmup 10, interval 5, steps [0, 1]",
        "acceptance",
        moving_average,
    ),
    NaiveGate(
        "threshold_checks",
        "p99 under a threshold, ten checks",
        "fluxcd/flagger docs: request-duration max 500 ms, stepWeight 5 to maxWeight 50, threshold 5",
        "speedup",
        threshold_checks,
    ),
)
