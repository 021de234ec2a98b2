"""The versions of the gate's rules, and all differences between them.

A run of tests uses one version from its first unit to its end, and its decisions carry the number, so that an old
decision is recomputed by the rules that made it.  A change of a verdict's meaning is a flag here and a new version;
`docs/estimators.md` describes each flag.
"""

from __future__ import annotations

from dataclasses import dataclass

# Initial capital on each betting fraction, chosen by simulation for the sizes at which verdicts fall
# (docs/research/simulation.md).
WEIGHTS = (0.05, 0.1, 0.15, 0.7)


@dataclass(frozen=True, slots=True)
class RuleSet:
    """One version of the rules."""

    weights: tuple[float, ...]  # initial capital on each of the betting fractions
    num_disabling_tests: int  # by which a level is divided where any of several bounds may disable
    clips_sums: bool  # z is clipped as a cluster's sum; else as its mean, which biases short outputs
    caps_both_arms: bool  # total times are capped in both arms alike
    counts_failures_in_quantiles: bool  # a failed request is infinitely slow; else it is left out
    folds_lost: bool  # requests that were shed or lost enter the bounds at their worst
    watches_all: bool  # after ENABLE: detectors of tail and score too, faults and memory revoke
    thins_endpoint: bool  # the whole endpoint counts only sessions drawn below its slices' smallest rate
    spans_in_days: bool  # `min_span_s` counts days with evidence; else newest less oldest event
    # Upper 95% limit of r1 below which units pass as independent.  With batches beside it .45 lets no more AR(1) units
    # pass than .35 did without them, and independent units wait less (docs/research/simulation.md).
    wait_autocorrelation: float
    judges_batches: bool  # dependence is judged by the means of batches too; else only at lag 1
    bounds_share_level: bool  # both shown bounds of a test are at its run's level; else an end that only fails is not
    shares_levels: bool  # levels go by the graph of `trial_levels`; else each hypothesis has an equal part


RULE_SETS = {
    1: RuleSet(
        weights=(0.15, 0.2, 0.25, 0.4),
        num_disabling_tests=3,
        clips_sums=False,
        caps_both_arms=False,
        counts_failures_in_quantiles=False,
        folds_lost=False,
        watches_all=False,
        thins_endpoint=False,
        spans_in_days=False,
        wait_autocorrelation=0.35,
        judges_batches=False,
        bounds_share_level=False,
        shares_levels=False,
    ),
    2: RuleSet(
        weights=WEIGHTS,
        num_disabling_tests=4,
        clips_sums=True,
        caps_both_arms=True,
        counts_failures_in_quantiles=True,
        folds_lost=True,
        watches_all=True,
        thins_endpoint=True,
        spans_in_days=True,
        wait_autocorrelation=0.45,
        judges_batches=True,
        bounds_share_level=True,
        shares_levels=True,
    ),
}
CURRENT_RULE_SET = 2
