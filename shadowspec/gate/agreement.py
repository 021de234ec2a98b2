"""The betting tests of what is emitted: acceptance, greedy near-ties, and the teacher-forced z of sampled output."""

from __future__ import annotations

from collections.abc import Sequence

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.series import BettingTest, Unit, is_missing, sums_of, unit_series
from shadowspec.gate.units import BlockUnit, ClusterUnit
from shadowspec.metrics import ratio
from shadowspec.types import SpeculationCounts


def acceptance_test(clusters: Sequence[ClusterUnit], policy: GatePolicy) -> BettingTest:
    """Acceptance rate of the policy's metric; clusters, weight min(D, S) / S."""
    cap = policy.max_scored_steps
    units, num_missing = [], 0
    for unit in clusters:
        counted = [_accepted_of(m.run.counts, policy) for m in unit.runs if m.run.counts and not is_missing(m.run)]
        missing = len(unit.runs) - len(counted)
        num_missing += missing
        accepted, scored = sum(a for a, _ in counted), sum(d for _, d in counted)
        units.append(
            Unit(
                lower=_capped_rate(accepted, scored + missing * cap, cap),
                upper=_capped_rate(accepted + missing * cap, scored + missing * cap, cap),
                observed=_capped_rate(accepted, scored, cap),
            )
        )
    return BettingTest(
        "acceptance",
        unit_series(units, 0.0, 1.0),
        "cluster",
        best=1.0,
        above=policy.floor,
        num_missing=num_missing,
        details={"metric": policy.acceptance_metric},
    )


def near_tie_test(blocks: Sequence[BlockUnit], policy: GatePolicy) -> BettingTest:
    """Greedy requests whose output differs, less those whose baseline differs from itself; one request a unit.

    The baseline is rerun only where the arms differ; elsewhere the difference is 0, on the safe side.
    """
    units, num_missing, num_differing = [], 0, 0
    for measured in (m for unit in blocks for m in unit.runs if m.is_greedy):
        parity = None if is_missing(measured.run) else measured.run.parity
        if parity is None or (parity.first_divergence is not None and parity.rerun_differs is None):
            num_missing += 1
            units.append(Unit(lower=(0.0, 1.0), upper=(1.0, 1.0), observed=(0.0, 0.0)))
            continue
        num_differing += parity.first_divergence is not None
        value = (float(parity.first_divergence is not None and not parity.rerun_differs), 1.0)
        units.append(Unit(value, value, value))
    return BettingTest(
        "parity_near_ties",
        unit_series(units, 0.0, 1.0),
        "request",
        best=0.0,
        below=policy.parity_margin,
        num_missing=num_missing,
        details={"num_differing": num_differing},
    )


def z_test(clusters: Sequence[ClusterUnit], policy: GatePolicy) -> BettingTest:
    """Mean teacher-forced z = 1[y = argmax] - target(argmax) of sampled requests; clusters, weight by tokens.

    A cluster's z is pooled over its tokens, clipped to `z_clip` and weighs min(T, parity_tokens) / parity_tokens.
    """
    units, baseline, num_missing = [], [], 0
    for unit in clusters:
        sampled = [measured.run for measured in unit.runs if not measured.is_greedy]
        if not sampled:
            continue
        known = [run.parity for run in sampled if not is_missing(run) and run.parity and run.parity.z_sum is not None]
        is_known = len(known) == len(sampled)
        num_missing += len(sampled) - len(known)
        observed = _clipped_z(sum(p.z_sum or 0.0 for p in known), sum(p.z_tokens or 0 for p in known), policy)
        units.append(
            Unit(
                lower=observed if is_known else (-policy.z_clip, 1.0),
                upper=observed if is_known else (policy.z_clip, 1.0),
                observed=observed,
            )
        )
        baseline.append(
            _clipped_z(
                sum(p.baseline_z_sum or 0.0 for p in known), sum(p.baseline_z_tokens or 0 for p in known), policy
            )
        )
    noise = sums_of(baseline)
    return BettingTest(
        "parity_sampled",
        unit_series(units, -policy.z_clip, policy.z_clip),
        "cluster",
        best=0.0,
        above=-policy.z_bound,
        below=policy.z_bound,
        disables=True,
        num_missing=num_missing,
        details={
            "baseline_z": ratio(float(noise.values.sum()), float(noise.weights.sum())),
            "baseline_z_clusters": int((noise.weights > 0).sum()),
        },
    )


def _accepted_of(counts: SpeculationCounts, policy: GatePolicy) -> tuple[int, int]:
    if policy.acceptance_metric == "draft_acceptance_rate":
        return counts.num_accepted_tokens, counts.num_draft_tokens
    return counts.num_accepted_tokens_per_pos[0], counts.num_drafts


def _capped_rate(accepted: int, scored: int, cap: int) -> tuple[float, float]:
    rate = ratio(accepted, scored)
    weight = min(scored, cap) / cap
    return (0.0, 0.0) if rate is None else (weight * rate, weight)


def _clipped_z(z_sum: float, num_tokens: int, policy: GatePolicy) -> tuple[float, float]:
    mean = ratio(z_sum, num_tokens)
    weight = min(num_tokens, policy.parity_tokens) / policy.parity_tokens
    return (0.0, 0.0) if mean is None else (weight * min(max(mean, -policy.z_clip), policy.z_clip), weight)
