"""The betting tests of outputs: acceptance, greedy near-ties, and the teacher-forced z of sampled output."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from shadowspec.gate.evidence.series import (
    BettingTest,
    Blocks,
    TimedBlocks,
    UnitValues,
    add_times,
    is_missing,
    sums_of,
    unit_series,
)
from shadowspec.gate.evidence.units import MeasuredRun
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.stats.betting import Floats, Sums, UnitSeries
from shadowspec.metrics import ratio
from shadowspec.types import Figure, SpeculationCounts

JUDGED_WORDS = {
    "first_position_acceptance_rate": "first token accepted",
    "draft_acceptance_rate": "drafted tokens accepted",
}


class RunGroup(Protocol):
    """Runs that are scored together: those of a cluster, or one run where windows are the units."""

    @property
    def runs(self) -> Sequence[MeasuredRun]: ...


def acceptance_test(clusters: Sequence[RunGroup], policy: GatePolicy) -> BettingTest:
    """Acceptance rate of the policy's metric; clusters, weight min(D, S) / S."""
    cap = policy.max_scored_steps
    sums = np.array([_accepted_in(unit, policy) for unit in clusters], dtype=np.float64).reshape(-1, 3)
    accepted, scored, missing = sums.T
    series = UnitSeries(
        lower=capped_rates(accepted, scored + missing * cap, cap),
        upper=capped_rates(accepted + missing * cap, scored + missing * cap, cap),
        observed=capped_rates(accepted, scored, cap),
        lowest=0.0,
        highest=1.0,
    )
    return BettingTest(
        "acceptance",
        series,
        "cluster",
        best=1.0,
        above=policy.floor,
        is_required=not policy.is_upgrade,
        num_missing=int(missing.sum()),
        figures={"metric": policy.acceptance_metric, "judged": JUDGED_WORDS[policy.acceptance_metric]},
    )


def near_tie_test(blocks: Blocks, policy: GatePolicy, *, by_request: bool = False) -> BettingTest:
    """Greedy requests whose output differs, less those whose baseline differs from itself; one request a unit.

    The baseline is rerun only where the arms differ; elsewhere the difference is 0, on the safe side.  Turns of one
    session depend on each other: in blocks of conversations the unit is the block, its sum over its full size, unless
    `by_request` asks for requests.
    """
    timed, values, places, num_differing = add_times(blocks), [], [], 0
    columns_of = zip(timed.runs, timed.is_missing.tolist(), timed.places.tolist(), strict=True)
    for measured, is_without, place in columns_of:
        if not measured.is_greedy:
            continue
        places.append(place)
        parity = None if is_without else measured.run.parity
        if parity is None or (parity.first_divergence is not None and parity.rerun_differs is None):
            values.append(math.nan)
        elif parity.first_divergence is None:
            values.append(0.0)
        else:
            num_differing += 1
            values.append(float(not parity.rerun_differs))
    scores = np.array(values, dtype=np.float64)
    is_known, every = ~np.isnan(scores), np.ones_like(scores)
    num_missing = int((~is_known).sum())
    low, high = np.where(is_known, scores, 0.0), np.where(is_known, scores, 1.0)
    columns, rows = [low, high, every, is_known.astype(np.float64)], np.array(places, dtype=np.intp)
    if not by_request and any(unit.block.max_turns > 1 for unit in timed.units):
        columns, rows = [_over_blocks(column, places, timed) for column in columns], np.unique(rows)
    low, high, every, known = columns
    series = UnitSeries(
        lower=Sums(low, every), upper=Sums(high, every), observed=Sums(low, known), lowest=0.0, highest=1.0
    )
    return BettingTest(
        "parity_near_ties",
        series,
        "request",
        best=0.0,
        below=policy.parity_margin,
        is_required=policy.judges_parity,
        regime="greedy",
        num_missing=num_missing,
        totals={"num_differing": num_differing},
        describe=dict,
        rows=rows,
    )


def _over_blocks(values: Floats, places: Sequence[int], blocks: TimedBlocks) -> Floats:
    """Sums over n_max of the blocks in which there are any, [requests] to [blocks]."""
    sums = np.bincount(places, values, minlength=len(blocks.units)) / blocks.n_max
    return sums[np.unique(places)].astype(np.float64)


def z_test(clusters: Sequence[RunGroup], policy: GatePolicy) -> BettingTest:
    """Mean teacher-forced z = 1[y = argmax] - target(argmax) of sampled requests; clusters, weight by tokens.

    A cluster of T tokens weighs min(T, parity_tokens) / parity_tokens, and its value is its mean z times that, clipped
    to plus or minus `z_clip`.  For a short cluster this is its sum over parity_tokens, which one or two tokens cannot
    bring to the clip, so it is unbiased; for a longer one it is the mean.  Where z is known only within an error, each
    bound takes its worse end.

    So y = value - theta * weight is least at -z_clip (weight 0) or -z_clip - theta (weight 1).  A request without any
    z counts as the worse of these for the null in question.
    """
    units, baseline, rows, num_missing = [], [], [], 0
    # Against any theta of the range the worst value there is: see `worst_values`.
    worst = (1.5 * policy.z_clip, 0.5)
    unclipped: list[tuple[float, float]] = []
    for row, unit in enumerate(clusters):
        sampled = [measured.run for measured in unit.runs if not measured.is_greedy]
        if not sampled:
            continue
        known = [run.parity for run in sampled if not is_missing(run) and run.parity and run.parity.z_sum is not None]
        rows.append(row)
        is_known = len(known) == len(sampled)
        num_missing += len(sampled) - len(known)
        z_sum, num_tokens = sum(p.z_sum or 0.0 for p in known), sum(p.z_tokens or 0 for p in known)
        error = sum(p.z_error or 0.0 for p in known)
        units.append(
            UnitValues(
                lower=_clipped_z(z_sum - error, num_tokens, policy) if is_known else (-worst[0], worst[1]),
                upper=_clipped_z(z_sum + error, num_tokens, policy) if is_known else worst,
                observed=_clipped_z(z_sum, num_tokens, policy),
            )
        )
        unclipped.append(_weighed_z(z_sum, num_tokens, policy))
        baseline.append(
            _clipped_z(
                sum(p.baseline_z_sum or 0.0 for p in known), sum(p.baseline_z_tokens or 0 for p in known), policy
            )
        )
    noise, plain = sums_of(baseline), sums_of(unclipped)
    totals = {
        "baseline_z_sum": float(noise.values.sum()),
        "baseline_z_weight": float(noise.weights.sum()),
        "baseline_z_clusters": int((noise.weights > 0).sum()),
        "z_sum": float(plain.values.sum()),
        "z_weight": float(plain.weights.sum()),
    }
    return BettingTest(
        "parity_sampled",
        unit_series(units, -policy.z_clip, policy.z_clip, has_light_extremes=True),
        "cluster",
        best=0.0,
        above=-policy.z_bound,
        below=policy.z_bound,
        is_required=policy.judges_parity,
        disables=policy.judges_parity,
        regime="sampled",
        num_missing=num_missing,
        totals=totals,
        describe=_z_figures,
        unclipped="z_unclipped",
        rows=np.array(rows, dtype=np.intp),
    )


def _z_figures(totals: Mapping[str, float]) -> Mapping[str, Figure]:
    """The noise floor and the mean that was not clipped, which may contradict the clipped one."""
    return {
        "baseline_z": ratio(totals["baseline_z_sum"], totals["baseline_z_weight"]),
        "baseline_z_clusters": totals["baseline_z_clusters"],
        "z_unclipped": ratio(totals["z_sum"], totals["z_weight"]),
    }


def _accepted_in(unit: RunGroup, policy: GatePolicy) -> tuple[int, int, int]:
    """Accepted and scored of a cluster's runs, and of how many of them nothing is known."""
    accepted = scored = missing = 0
    for measured in unit.runs:
        counts = measured.run.counts
        if counts is None or is_missing(measured.run):
            missing += 1
        else:
            pair = _accepted_of(counts, policy)
            accepted, scored = accepted + pair[0], scored + pair[1]
    return accepted, scored, missing


def _accepted_of(counts: SpeculationCounts, policy: GatePolicy) -> tuple[int, int]:
    if policy.acceptance_metric == "draft_acceptance_rate":
        return counts.num_accepted_tokens, counts.num_draft_tokens
    return counts.num_first_accepted, counts.num_drafts


def capped_rates(accepted: Floats, scored: Floats, cap: int) -> Sums:
    """The rates with their weights; where nothing was scored both are 0."""
    weights = np.minimum(scored, cap) / cap
    rates = np.divide(accepted, scored, out=np.zeros_like(scored), where=scored > 0.0)
    return Sums(weights * rates, weights)


def _clipped_z(z_sum: float, num_tokens: int, policy: GatePolicy) -> tuple[float, float]:
    value, weight = _weighed_z(z_sum, num_tokens, policy)
    return min(max(value, -policy.z_clip), policy.z_clip), weight


def _weighed_z(z_sum: float, num_tokens: int, policy: GatePolicy) -> tuple[float, float]:
    """A cluster's mean z times its weight, and the weight."""
    weight = min(num_tokens, policy.parity_tokens) / policy.parity_tokens
    return weight * (ratio(z_sum, num_tokens) or 0.0), weight
