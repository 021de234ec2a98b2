"""The betting tests of latency: speedup, the ratio of total times beside it, and the slowed share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from shadowspec.gate.evidence import carry_over
from shadowspec.gate.evidence.pair_noise import bin_totals, centers
from shadowspec.gate.evidence.series import BettingTest, Blocks, TimedBlocks, add_times, block_series
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.stats.betting import Floats, Sums, UnitSeries
from shadowspec.metrics import ratio
from shadowspec.types import REPEAT_EVERY, Figure

TIME_CAP_BLOCKS = 10  # the hypothesis's first blocks set the cap on a block's total time and then do not count
TIME_CAP_FACTOR = 4.0
CACHED_TOKENS = ("num_cached_prompt_tokens", "baseline_cached_tokens", "speculative_cached_tokens")
MAX_TIME_RATIO = 8.0  # where the search for the upper bound of the ratio of total times ends
TIME_RATIO_STEP = 1.02  # its bounds are powers of this, from 1 / MAX_TIME_RATIO on: five of them to 10%


def speedup_test(blocks: Blocks, policy: GatePolicy) -> BettingTest:
    """Clipped log(baseline / speculative end-to-end time) of a request; blocks, sums over n_max."""
    timed, clip = add_times(blocks), policy.log_speedup_clip
    logs = timed.log_speedups
    return BettingTest(
        "speedup",
        block_series(timed, np.clip(logs, -clip, clip), -clip, clip),
        "block",
        best=clip,
        above=policy.log_min_speedup,
        is_log=True,
        batch_errors=6.5,
        disables=True,
        num_missing=int(timed.is_missing.sum()),
        totals={
            "num_clipped": int((np.abs(logs) > clip).sum()),
            "num_timed": int((~np.isnan(logs)).sum()),
            **_cached_tokens(timed),
            **carry_over.order_totals(timed, clip),
        },
        figures={"log_speedup_clip": clip},
        describe=lambda totals: {
            "clipped_share": ratio(totals["num_clipped"], totals["num_timed"]),
            **_cached_shares(totals),
            **carry_over.describe(totals),
        },
    )


def total_time_test(
    blocks: Blocks,
    policy: GatePolicy,
    before: Mapping[str, float] | None = None,
    by_unit: Callable[[Floats], Floats] = lambda by_block: by_block,
) -> BettingTest:
    """Ratio of total times, baseline over speculative: the device time that an operator pays for.

    Times are capped at TIME_CAP_FACTOR times the mean baseline time of the first TIME_CAP_BLOCKS blocks, in both arms
    alike: otherwise a long block of two equal arms would look as if speculation had saved time.  In units of the cap
    either time lies from 0 to 1, so that at the lower side base - theta * spec is no less than -theta, and at the upper
    side theta * spec - base no less than -1.
    `before` are the totals of the hypothesis's earlier blocks.  Where units are windows, `by_unit` sums over their
    blocks, weighted by the traffic that each represents.  What may be slower by a margin, as a second deployment, may
    take as much longer in total.
    """
    timed, past = add_times(blocks), before or {}
    base = by_unit(timed.sum_by_block(np.where(timed.is_missing, 0.0, timed.baseline_ms)))
    spec = by_unit(timed.sum_by_block(np.where(timed.is_missing, 0.0, timed.speculative_ms)))
    num_missing = by_unit(timed.sum_by_block(timed.is_missing))
    num_cap_blocks = min(len(base), TIME_CAP_BLOCKS - int(past.get("num_cap_blocks", 0)))
    cap_times = base[:num_cap_blocks][num_missing[:num_cap_blocks] == 0.0]
    totals: dict[str, float] = {
        "num_cap_blocks": num_cap_blocks,
        "num_cap_times": len(cap_times),
        "cap_total_ms": float(cap_times.sum()),
    }
    cap_ms = _cap_ms({name: past.get(name, 0) + value for name, value in totals.items()})
    first = len(base) if cap_ms is None else num_cap_blocks
    base, spec, num_missing = base[first:], spec[first:], num_missing[first:]
    totals |= {"baseline_total_ms": float(base.sum()), "speculative_total_ms": float(spec.sum())}
    base, spec = base / (cap_ms or 1.0), spec / (cap_ms or 1.0)
    has_missing, capped_base, capped_spec = num_missing > 0.0, np.minimum(base, 1.0), np.minimum(spec, 1.0)
    series = UnitSeries(
        lower=Sums(capped_base, np.where(has_missing, 1.0, capped_spec)),
        upper=Sums(np.where(has_missing, 1.0, capped_base), capped_spec),
        observed=Sums(capped_base, capped_spec),  # as the bounds: an uncapped estimate could lie outside of them
        lowest=0.0,
        highest=MAX_TIME_RATIO,
        upper_worst=1.0,
    )
    return BettingTest(
        "total_time",
        series,
        "block",
        best=MAX_TIME_RATIO,
        above=min(1.0, policy.min_speedup),
        is_required=policy.objective == "both",
        growth=TIME_RATIO_STEP,
        num_missing=int(num_missing.sum()),
        totals=totals,
        figures={"objective": policy.objective},
        describe=_total_times,
    )


def tail_test(blocks: Blocks, policy: GatePolicy, before: Mapping[str, float] | None = None) -> BettingTest:
    """Share of requests slowed by more than `tail_margin` beyond pair noise; blocks, sums over n_max.

    Noise slows a request where a typical one, sped up by the center c (`pair_noise`), would be slowed by it: where
    log(baseline / baseline) < -log(1 + tail_margin) - c.  Each side takes it out in its way, and bets on values that
    are no less than their worst:

    - Upper (to pass): u = share slowed - REPEAT_EVERY * [the baseline ran twice] * share of its pairs that are slowed,
      in the mean of both orders.  A hash draws one block in REPEAT_EVERY for that, whatever it holds, so that E[u |
      past] is the slowed share less that of noise.  theta - u >= theta - 1 as without noise: the credit only gains.
    - Lower (to fail): u = share slowed - share sped up by as much beyond the center.  Noise of pairs is as likely
      either way, the arms' order included, so that E[u | past] <= theta where noise and a share theta of slow requests
      explain the slowed ones; u - theta >= -1 - theta.  It needs no repeat.

    While the center is unknown there is no credit, and no bet at the lower side.  `before` are the totals of the
    hypothesis's earlier blocks.
    """
    timed, slow_log, clip = add_times(blocks), -math.log1p(policy.tail_margin), policy.log_speedup_clip
    logs, repeats, known_centers = timed.log_speedups, timed.repeat_logs, centers(timed, before or {})
    center = known_centers[timed.places]
    is_known, is_repeated = ~np.isnan(logs), ~np.isnan(repeats + center)
    is_slowed = np.where(is_known, logs < slow_log, np.nan)
    is_sped_up = np.where(is_known, logs > 2.0 * center - slow_log, np.nan)
    by_noise = 0.5 * (repeats < slow_log - center) + 0.5 * (-repeats < slow_log - center)  # none where NaN
    credit = REPEAT_EVERY * timed.sum_by_block(by_noise) / timed.n_max
    smallest = np.full(len(timed.units), np.inf)
    np.minimum.at(smallest, timed.places, np.where(is_known, np.clip(logs, -clip, clip), -clip))
    plain = block_series(timed, is_slowed, 0.0, 1.0)
    beyond = block_series(timed, is_slowed - is_sped_up, -1.0, 1.0, dependence=smallest)
    has_center = ~np.isnan(known_centers)
    return BettingTest(
        "tail",
        replace(
            beyond,
            lower=Sums(beyond.lower.values * has_center, beyond.lower.weights * has_center),
            upper=Sums(plain.upper.values - credit, plain.upper.weights),
            observed=Sums(plain.observed.values - credit, plain.observed.weights),
            uncredited=plain.upper,
        ),
        "block",
        best=0.0,
        below=policy.tail_share,
        shown_from=0.0,
        disables=True,
        num_missing=int(timed.is_missing.sum()),
        totals={
            "num_slowed": int(np.nansum(is_slowed)),
            "num_judged": int(is_known.sum()),
            "num_repeated": int(is_repeated.sum()),
            "slowed_by_noise": float(by_noise.sum()),
            **bin_totals(timed),
        },
        figures={"tail_margin": policy.tail_margin},
        describe=_tail_figures,
    )


def _tail_figures(totals: Mapping[str, float]) -> Mapping[str, Figure]:
    """With the share of the baseline's repeats that noise alone slows; None where nothing was repeated."""
    return {
        "num_slowed": totals["num_slowed"],
        "slowed_share": ratio(totals["num_slowed"], totals["num_judged"]),
        "num_repeated": totals["num_repeated"],
        "noise_share": ratio(totals["slowed_by_noise"], totals["num_repeated"]),
    }


def _cached_tokens(blocks: TimedBlocks) -> dict[str, float]:
    """Prompt tokens of whole conversations, and those in each server's prefix cache, where both report them."""
    if all(unit.block.max_turns == 1 for unit in blocks.units):
        return {}
    tokens = [(m.run.counts.num_prompt_tokens, *m.run.served.cached_tokens) for m in blocks.runs
             if m.run.counts and m.run.served and m.run.served.cached_tokens]  # fmt: skip
    sums = np.array(tokens, dtype=np.int64).reshape(-1, 3).sum(axis=0)
    return dict(zip(CACHED_TOKENS, map(int, sums), strict=True))


def _cached_shares(totals: Mapping[str, float]) -> dict[str, Figure]:
    """Of prompts that were measured in whole conversations; nothing of others."""
    if (tokens := totals.get(CACHED_TOKENS[0])) is None:
        return {}
    shares = {name: ratio(totals[name], tokens) for name in CACHED_TOKENS[1:]}
    return {name.replace("_tokens", "_share"): share for name, share in shares.items()}


def _cap_ms(totals: Mapping[str, float]) -> float | None:
    """The cap on a block's total time; None until it is set, and for ever where no time of the first blocks is known.

    A block that comes later is judged under the cap of the first ones, so that the sums before it need not change.
    """
    if totals.get("num_cap_blocks", 0) < TIME_CAP_BLOCKS:
        return None
    mean_ms = ratio(totals["cap_total_ms"], totals["num_cap_times"])
    return TIME_CAP_FACTOR * mean_ms if mean_ms else None


def _total_times(totals: Mapping[str, float]) -> Mapping[str, Figure]:
    return {
        "baseline_total_ms": totals["baseline_total_ms"],
        "speculative_total_ms": totals["speculative_total_ms"],
        "cap_ms": _cap_ms(totals),
    }
