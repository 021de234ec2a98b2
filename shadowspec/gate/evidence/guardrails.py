"""Optional guardrails: further figures that must not get worse, on the same betting machinery.

No guardrail is required by default: each is computed, and then required, where the policy sets its margin or limit.  A
failed guardrail gives HOLD, never DISABLE.  Units are blocks: sums over the measured requests divided by n_max; of task
sets they are documents.  A request to which a figure does not apply has weight 0; a block of only such requests is no
unit.  A request whose figure is missing counts as the worst.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from shadowspec.gate.evidence.quantiles import PROBABILITIES, LatencyHistogram, QuantileBounds, quantile_ranks
from shadowspec.gate.evidence.series import BettingTest, UnitValues, is_missing, unit_series
from shadowspec.gate.evidence.units import BlockUnit
from shadowspec.gate.policy import GatePolicy
from shadowspec.metrics import ratio, time_per_output_token_ms
from shadowspec.types import ACCEPTANCE_KEPT, ArmTiming, Dependence, Evaluation, PairedScore, Run, TestResult

COST_CLIP = 4.0  # a request's cost per token is clipped at this multiple of the limit
COST_STEP = 1.02  # bounds of the cost over the limit are powers of this
COST_TOKENS = 256  # a request's weight in the cost per token is capped at this number of output tokens
MS_PER_HOUR = 3_600_000.0
TOKENS_PER_PRICE = 1_000_000

# Figures of quality that a run carries for both arms (`Run.scores`): by policy key, its name there.
SCORES = {"validity_margin": "structured_validity", "score_margin": "score"}
TASK_SCORE = "task_score"  # of the documents of task sets (`Evaluation`), under `task_margin`
DOCUMENT = "document"  # its unit

Score = tuple[float, float] | None  # value and weight in [0, 1]; None: missing
_Group = tuple[Sequence[Score], int]  # the scores of a unit, and how many a full one has
UNKNOWN = QuantileBounds(estimate=0.0, lower=None, upper=None)  # of no request
_NOT_APPLICABLE: Score = (0.0, 0.0)


def guardrail_tests(
    blocks: Sequence[BlockUnit], policy: GatePolicy, documents: Sequence[PairedScore] = ()
) -> list[BettingTest]:
    """The betting tests of the guardrails that the policy sets; `documents` are those of task sets."""
    tests = []
    if policy.ttft_margin is not None:
        tests.append(_time_test("ttft", blocks, lambda timing: timing.prefill_ms, policy.ttft_margin, policy))
    if policy.tpot_margin is not None:
        tests.append(_time_test("tpot", blocks, time_per_output_token_ms, policy.tpot_margin, policy))
    if policy.max_cost_per_million_tokens is not None:
        tests.append(cost_test(blocks, policy))
    for key, name in SCORES.items():
        margin = getattr(policy, key)
        if margin is not None:
            tests.append(score_test(name, blocks, margin))
    if policy.is_upgrade and policy.acceptance_margin is not None:
        tests.append(acceptance_kept_test(blocks, policy.acceptance_margin))
    if policy.task_margin is not None:
        tests.append(task_test(documents, policy.task_margin))
    return tests


def quantile_results(latencies: LatencyHistogram, policy: GatePolicy, level: float) -> list[TestResult]:
    """Marginal p95 and p99 of end-to-end time, where the policy sets their margin.

    Passed when the upper bound of the speculative arm's quantile is at most 1 + margin times the lower bound of the
    baseline's, each at half the level.  They do not limit a single request's slowdown: the tail test does.
    """
    margins = {"p95": policy.p95_margin, "p99": policy.p99_margin}
    return [_quantile_result(name, latencies, margin, level) for name, margin in margins.items() if margin is not None]


def cost_test(blocks: Sequence[BlockUnit], policy: GatePolicy) -> BettingTest:
    """Cost per output token of the speculative arm over the policy's limit.

    A request at load b holds 1/b of the device for its end-to-end time, and that time has the configured price.
    """
    limit, price = policy.max_cost_per_million_tokens or math.nan, policy.device_price_per_hour or 0.0
    totals = {f"{arm}_{what}": 0.0 for arm in ("baseline", "speculative") for what in ("device_ms", "tokens")}
    for unit in blocks:
        for run in (measured.run for measured in unit.runs if not is_missing(measured.run)):
            for name, arm in (("baseline", run.baseline), ("speculative", run.speculative)):
                if arm is not None:
                    totals[f"{name}_device_ms"] += arm.end_to_end_ms / unit.block.concurrency
                    totals[f"{name}_tokens"] += arm.num_output_tokens

    def cost(device_ms: float, num_tokens: float) -> float | None:
        per_token = ratio(device_ms * price / MS_PER_HOUR, num_tokens)
        return None if per_token is None else per_token * TOKENS_PER_PRICE

    def score(unit: BlockUnit, run: Run) -> Score:
        arm = run.speculative
        if is_missing(run) or arm is None:
            return None
        value = cost(arm.end_to_end_ms / unit.block.concurrency, arm.num_output_tokens)
        if value is None:
            return None
        weight = min(arm.num_output_tokens, COST_TOKENS) / COST_TOKENS
        return weight * min(value / limit, COST_CLIP), weight

    test = _test("cost", blocks, score, 0.0, COST_CLIP, below=1.0)
    return replace(
        test,
        growth=COST_STEP,
        totals=totals,
        figures={"max_cost_per_million_tokens": limit, "device_price_per_hour": price},
        describe=lambda totals: {
            f"{arm}_cost_per_million_tokens": cost(totals[f"{arm}_device_ms"], totals[f"{arm}_tokens"])
            for arm in ("baseline", "speculative")
        },
    )


def score_test(name: str, blocks: Sequence[BlockUnit], margin: float) -> BettingTest:
    """Mean of speculative less baseline of a score from 0 to 1: structured output's validity, or the user's score."""

    def score(_: BlockUnit, run: Run) -> Score:
        if name not in run.scores:
            return None
        pair = run.scores[name]
        return _NOT_APPLICABLE if pair is None else _difference(pair)

    return _difference_test(name, _groups(blocks, score), "block", margin)


def stream_test(blocks: Sequence[BlockUnit], margin: float) -> BettingTest:
    """The same mean of whole streams (1) and broken ones (0), over chats that servers answered; always required."""

    def score(_: BlockUnit, run: Run) -> Score:
        if run.stream is not None:
            return _difference(run.stream.wholeness)
        return None if is_missing(run) else _NOT_APPLICABLE

    whole = _difference_test("stream", _groups(blocks, score), "block", margin)
    return replace(whole, regime="chat", best=0.0)  # that the baseline breaks streams is nothing to plan with


def acceptance_kept_test(blocks: Sequence[BlockUnit], margin: float) -> BettingTest:
    """The same mean of requests' acceptance at the first position, of those in which both deployments drafted.

    It may be of no request, and so is not required: a loss beyond the margin refuses an upgrade, and both means stay
    with the decision.
    """
    pairs = [run.scores[ACCEPTANCE_KEPT] for unit in blocks for run in (measured.run for measured in unit.runs)
             if not is_missing(run) and run.scores.get(ACCEPTANCE_KEPT) is not None]  # fmt: skip
    totals = {
        "num_drafting": len(pairs),
        "baseline_acceptance": math.fsum(pair.baseline or 0.0 for pair in pairs if pair is not None),
        "speculative_acceptance": math.fsum(pair.speculative or 0.0 for pair in pairs if pair is not None),
    }
    return replace(
        score_test(ACCEPTANCE_KEPT, blocks, margin),
        is_required=False,
        disables=True,
        totals=totals,
        describe=lambda totals: {
            name: ratio(totals[name], totals["num_drafting"]) for name in totals if name != "num_drafting"
        },
    )


def task_test(documents: Sequence[PairedScore], margin: float) -> BettingTest:
    """The same mean over documents of task sets, each of which is a unit."""
    return _difference_test(TASK_SCORE, (([_difference(pair)], 1) for pair in documents), DOCUMENT, margin)


def first_scores(evaluations: Iterable[Evaluation], fingerprint: str) -> list[PairedScore]:
    """The scores of a config's documents, in the order of their evaluations and in that of their hashes within one.

    A document that was evaluated again counts once, with its first result: otherwise repetition would be evidence.
    """
    first: dict[tuple[str, str], PairedScore] = {}
    for evaluation in evaluations:
        if evaluation.fingerprint == fingerprint:
            for document, pair in sorted(evaluation.documents.items()):
                first.setdefault((evaluation.task, document), pair)
    return list(first.values())


def _difference_test(name: str, groups: Iterable[_Group], unit: str, margin: float) -> BettingTest:
    return _grouped_test(name, groups, -1.0, 1.0, unit, above=-margin)


def _difference(pair: PairedScore) -> Score:
    if pair.baseline is None or pair.speculative is None:
        return None
    return pair.speculative - pair.baseline, 1.0


@lru_cache
def min_quantile_units(probability: float, level: float) -> int:
    """Smallest number of values of which the upper bound of this quantile is finite."""
    high = 1
    while quantile_ranks(high, probability, level).upper is None:
        high *= 2
    return 1 + bisect_left(
        range(1, high), True, key=lambda total: quantile_ranks(total, probability, level).upper is not None
    )


def _time_test(
    name: str,
    blocks: Sequence[BlockUnit],
    time_of: Callable[[ArmTiming], float | None],
    margin: float,
    policy: GatePolicy,
) -> BettingTest:
    """Clipped log(baseline / speculative) of a latency, which may be worse by a factor of at most 1 + margin."""
    clip = policy.log_speedup_clip

    def score(_: BlockUnit, run: Run) -> Score:
        if is_missing(run) or run.baseline is None or run.speculative is None:
            return None
        base, spec = time_of(run.baseline), time_of(run.speculative)
        if base is None or spec is None:
            return _NOT_APPLICABLE  # a single output token has no time between tokens
        times = ratio(base, spec)
        return (min(max(math.log(times), -clip), clip), 1.0) if times else None

    return _test(name, blocks, score, -clip, clip, above=-math.log1p(margin), is_log=True)


def _test(
    name: str,
    blocks: Sequence[BlockUnit],
    score: Callable[[BlockUnit, Run], Score],
    lowest: float,
    highest: float,
    *,
    above: float | None = None,
    below: float | None = None,
    is_log: bool = False,
) -> BettingTest:
    groups = _groups(blocks, score)
    return _grouped_test(name, groups, lowest, highest, "block", above=above, below=below, is_log=is_log)


def _groups(blocks: Iterable[BlockUnit], score: Callable[[BlockUnit, Run], Score]) -> Iterator[_Group]:
    return (([score(unit, measured.run) for measured in unit.runs], unit.block.n_max) for unit in blocks)


def _grouped_test(
    name: str,
    groups: Iterable[_Group],
    lowest: float,
    highest: float,
    unit: str,
    *,
    above: float | None = None,
    below: float | None = None,
    is_log: bool = False,
) -> BettingTest:
    """A test whose units are the scores of each group over the size of a full one."""
    units, rows, num_missing = [], [], 0
    for row, (scores, n_max) in enumerate(groups):
        known = [pair for pair in scores if pair is not None]
        missing = len(scores) - len(known)
        value, weight = sum(value for value, _ in known), sum(weight for _, weight in known)
        num_missing += missing
        if weight + missing > 0.0:
            rows.append(row)
            units.append(
                UnitValues(
                    lower=((value + missing * lowest) / n_max, (weight + missing) / n_max),
                    upper=((value + missing * highest) / n_max, (weight + missing) / n_max),
                    observed=(value / n_max, weight / n_max),
                )
            )
    return BettingTest(
        name,
        unit_series(units, lowest, highest),
        unit,
        best=highest if below is None else lowest,
        above=above,
        below=below,
        is_log=is_log,
        num_missing=num_missing,
        rows=np.array(rows, dtype=np.intp),
    )


def _quantile_result(name: str, latencies: LatencyHistogram, margin: float, level: float) -> TestResult:
    probability = PROBABILITIES[name]
    base = latencies.bounds("baseline", probability, level / 2.0) or UNKNOWN
    spec = latencies.bounds("speculative", probability, level / 2.0) or UNKNOWN
    lower = ratio(spec.lower or 0.0, base.upper) if base.upper else None
    upper = ratio(spec.upper, base.lower) if spec.upper and base.lower else None
    is_passed = upper is not None and upper <= 1.0 + margin
    is_failed = lower is not None and lower > 1.0 + margin
    smallest = min_quantile_units(probability, level / 2.0)
    return TestResult(
        name=name,
        outcome="pass" if is_passed else "fail" if is_failed else "open",
        estimate=ratio(spec.estimate, base.estimate) if spec.estimate and base.estimate else None,
        lower=lower,
        upper=upper,
        threshold=1.0 + margin,
        alpha=level,
        unit="block",
        num_units=latencies.num_units,
        min_units=smallest,
        units_needed=smallest - latencies.num_units if latencies.num_units < smallest else None,
        dependence=Dependence(latencies.autocorrelation),
        figures={
            "baseline_ms": base.estimate if latencies.num_units else None,
            "speculative_ms": spec.estimate if latencies.num_units else None,
        },
    )
