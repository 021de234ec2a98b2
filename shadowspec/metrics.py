"""The only place where ratios are formed.  A ratio whose denominator is zero is undefined and is `None`.

Names and denominators are vLLM's.  `mean_acceptance_length` INCLUDES the bonus or recovered token
(TensorRT-LLM's force knob and gpt-fast exclude it).  Every figure here is pooled over the counts given to
it: pool counts first with `pool_counts`, then form one ratio; a mean of requests' ratios is another figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import Final, Protocol

from shadowspec.errors import InputError
from shadowspec.types import ArmTiming, CachedPrompts, SpeculationCounts

MANY_DF: Final = 1_000  # from here on Student's quantiles are an expansion around the normal one
# Its factors of 1, x squared, x to the fourth, ... by the order in 1 / df (Abramowitz, Stegun 26.7.5).
_EXPANSION: Final = (
    (1 / 4, 1 / 4),
    (3 / 96, 16 / 96, 5 / 96),
    (-15 / 384, 17 / 384, 19 / 384, 3 / 384),
    (-945 / 92_160, -1_920 / 92_160, 1_482 / 92_160, 776 / 92_160, 79 / 92_160),
)


class StepCounts(Protocol):
    """Counters of steps, as they were counted (`SpeculationCounts`) or are to be expected (`ExpectedCounts`)."""

    @property
    def num_drafts(self) -> float: ...
    @property
    def num_draft_tokens(self) -> float: ...
    @property
    def num_accepted_tokens(self) -> float: ...
    @property
    def num_accepted_tokens_per_pos(self) -> Sequence[float]: ...


def ratio(numerator: float, denominator: float) -> float | None:
    """numerator / denominator, or None where the denominator is 0."""
    return numerator / denominator if denominator else None


def finite(value: float) -> float | None:
    """The value, or None where it is infinite or not a number."""
    return value if math.isfinite(value) else None


def draft_acceptance_rate(counts: StepCounts) -> float | None:
    """Accepted over drafted tokens; falls with K by itself."""
    return ratio(counts.num_accepted_tokens, counts.num_draft_tokens)


def mean_acceptance_length(counts: StepCounts) -> float | None:
    """1 + accepted / drafts: tokens emitted per propose-and-verify step, bonus or recovered token included.

    Plain steps are none of these steps: `tokens_per_target_pass` counts them.
    """
    accepted = ratio(counts.num_accepted_tokens, counts.num_drafts)
    return None if accepted is None else 1.0 + accepted


def first_position_acceptance_rate(counts: StepCounts) -> float | None:
    """Share of steps that accepted the first drafted token; the same for every K."""
    return ratio(sum(counts.num_accepted_tokens_per_pos[:1]), counts.num_drafts)  # a depth of 0 has no position


def marginal_acceptance_rates(counts: StepCounts) -> tuple[float | None, ...]:
    """accepted_per_pos[i] / drafts, for each of the K positions (vLLM's per-position rate)."""
    return tuple(ratio(accepted, counts.num_drafts) for accepted in counts.num_accepted_tokens_per_pos)


def conditional_acceptance_rates(counts: StepCounts) -> tuple[float | None, ...]:
    """accepted_per_pos[i] / accepted_per_pos[i-1]: acceptance given that all before were accepted."""
    per_pos = counts.num_accepted_tokens_per_pos
    before = (counts.num_drafts, *per_pos)
    return tuple(ratio(accepted, previous) for accepted, previous in zip(per_pos, before, strict=False))


def target_passes_saved(counts: SpeculationCounts) -> int:
    """Target forward passes that plain decoding would have needed beyond those that were made."""
    return counts.num_output_tokens - counts.target_passes


def tokens_per_target_pass(counts: SpeculationCounts) -> float | None:
    """Output tokens over target forward passes: prefill, drafted and plain steps alike."""
    return ratio(counts.num_output_tokens, counts.target_passes)


def time_per_output_token_ms(timing: ArmTiming) -> float | None:
    """TPOT: decode time over the output tokens after the first."""
    return ratio(timing.decode_ms, timing.num_output_tokens - 1)


def speedup(baseline: ArmTiming, speculative: ArmTiming) -> float | None:
    """Baseline over speculative end-to-end time: above 1 speculation is faster."""
    return ratio(baseline.end_to_end_ms, speculative.end_to_end_ms)


def pool_counts(counts: Iterable[SpeculationCounts]) -> SpeculationCounts | None:
    """The sum of counts that share one K; None of nothing.

    Raises:
        InputError: the counts were taken at different K, so that their positions do not add up.
    """
    rows = list(counts)
    if not rows:
        return None
    if len({len(row.num_accepted_tokens_per_pos) for row in rows}) > 1:
        raise InputError("counts of different num_speculative_tokens cannot be pooled")

    def columns(values: Iterable[Sequence[int]]) -> tuple[int, ...]:
        return tuple(sum(column) for column in zip(*values, strict=True))

    return SpeculationCounts(
        num_drafts=sum(row.num_drafts for row in rows),
        num_draft_tokens=sum(row.num_draft_tokens for row in rows),
        num_accepted_tokens=sum(row.num_accepted_tokens for row in rows),
        num_accepted_tokens_per_pos=columns(row.num_accepted_tokens_per_pos for row in rows),
        acceptance_histogram=columns(row.acceptance_histogram for row in rows),
        num_output_tokens=sum(row.num_output_tokens for row in rows),
        num_prompt_tokens=sum(row.num_prompt_tokens for row in rows),
        num_plain_steps=sum(row.num_plain_steps for row in rows),
        num_cut_steps=sum(row.num_cut_steps for row in rows),
        num_cut_draft_tokens=sum(row.num_cut_draft_tokens for row in rows),
        num_cut_accepted_tokens=sum(row.num_cut_accepted_tokens for row in rows),
    )


def cached_shares(cached: CachedPrompts) -> tuple[float | None, float | None, float | None]:
    """The shares of prompt tokens found in prefix caches: by production, by the baseline and by speculation."""
    return (
        ratio(cached.production_cached_tokens, cached.num_prompt_tokens),
        ratio(cached.baseline_cached_tokens, cached.num_prompt_tokens),
        ratio(cached.speculative_cached_tokens, cached.num_prompt_tokens),
    )


def student_quantile(df: int, probability: float) -> float:
    """The quantile of Student's t distribution above its middle, to 12 digits; `df` is one less than the values.

    scipy has it too, and takes a third of the space of an installation.

    Args:
        probability: from 0.5, below 1.
    """
    normal = NormalDist().inv_cdf(probability)
    if df >= MANY_DF:
        return normal + sum(
            normal
            * sum(factor * math.pow(normal, 2 * place) for place, factor in enumerate(factors))
            / math.pow(df, order)
            for order, factors in enumerate(_EXPANSION, start=1)
        )
    quantile = normal  # below the quantile sought: Newton's steps go up to it and not beyond
    log_height = math.lgamma((df + 1) / 2.0) - math.lgamma(df / 2.0) - math.log(df * math.pi) / 2.0
    while True:
        density = math.exp(log_height - (df + 1) / 2.0 * math.log1p(quantile**2 / df))
        step = (probability - _student_share(df, quantile)) / density
        quantile += step
        if step <= 1e-12 * quantile:
            return quantile


def _student_share(df: int, quantile: float) -> float:
    """The share of Student's t distribution below a quantile: for a whole `df` a sum (Abramowitz, Stegun 26.7.3)."""
    angle = math.atan(quantile / math.sqrt(df))
    squared = math.cos(angle) ** 2
    term = math.cos(angle) if df % 2 else 1.0
    total = 0.0
    for place in range(df // 2):
        total += term
        begin = 2 * place + 1 + df % 2
        term *= squared * begin / (begin + 1)
    within = math.sin(angle) * total
    return 0.5 + ((angle + within) / math.pi if df % 2 else within / 2.0)
