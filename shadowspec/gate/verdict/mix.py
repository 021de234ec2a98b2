"""Prompt-mix shift, apart from decay within slices: whether the traffic changed or the speculation.

An endpoint's rate R = sum of w_s * r_s (w_s a slice's share of the weight, r_s its rate) can fall because
traffic moved to slices with a low rate or because the slices' rates fell.  The change between two windows is
split exactly, with midpoint weights:

    R1 - R0 = sum of (w1 - w0) * ((r0 + r1) / 2 - C)  +  sum of (w0 + w1) / 2 * (r1 - r0)

The first sum is the mix's part, the second the part within slices; C = (R0 + R1) / 2 only centres the slices'
terms (the shares' changes sum to 0), so that a slice that grows and is better than the endpoint counts upward.

A separate test, which may be read at every look, asks whether the mix moved at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shadowspec.gate.stats.betting import Floats
from shadowspec.metrics import ratio

PRIOR = 0.5  # Jeffreys': the mixture's cost over the best-fitting share stays within log(2 * sqrt(n)) or so


@dataclass(frozen=True, slots=True)
class SliceWeight:
    """A slice in one window: the sum that its rate averages, and that rate's denominator.

    Acceptance: accepted tokens over drafted ones (or steps), so that shares are draft-token shares; speedup:
    the sum of clipped log speedups over requests.
    """

    total: float
    weight: float


@dataclass(frozen=True, slots=True)
class SliceShift:
    """One slice's contribution to the change."""

    slice_key: str
    share_before: float
    share_after: float
    mix_part: float
    within_part: float


@dataclass(frozen=True, slots=True)
class Decomposition:
    """after - before = mix_part + within_part, to rounding; slices by name."""

    before: float
    after: float
    slices: tuple[SliceShift, ...]

    @property
    def mix_part(self) -> float:
        """The part of the change that the traffic's shares explain."""
        return sum(shift.mix_part for shift in self.slices)

    @property
    def within_part(self) -> float:
        """The part of the change that the slices' rates explain."""
        return sum(shift.within_part for shift in self.slices)


def decompose(before: Mapping[str, SliceWeight], after: Mapping[str, SliceWeight]) -> Decomposition | None:
    """The change of the endpoint's rate between two windows, by slice; None where a window holds no weight.

    A slice that is in only one window has no rate in the other: its whole contribution is mix.
    """
    weight_before, weight_after = (sum(weighted.weight for weighted in window.values()) for window in (before, after))
    rate_before = ratio(sum(weighted.total for weighted in before.values()), weight_before)
    rate_after = ratio(sum(weighted.total for weighted in after.values()), weight_after)
    if rate_before is None or rate_after is None:
        return None
    centre = (rate_before + rate_after) / 2.0
    nothing = SliceWeight(0.0, 0.0)
    slices = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, nothing), after.get(name, nothing)
        share_old, share_new = old.weight / weight_before, new.weight / weight_after
        own_old, own_new = ratio(old.total, old.weight), ratio(new.total, new.weight)
        first = own_new if own_old is None else own_old
        last = own_old if own_new is None else own_new
        if first is None or last is None:
            continue
        slices.append(
            SliceShift(
                name,
                share_old,
                share_new,
                mix_part=(share_new - share_old) * ((first + last) / 2.0 - centre),
                within_part=(share_old + share_new) / 2.0 * (last - first),
            )
        )
    return Decomposition(rate_before, rate_after, tuple(slices))


@dataclass(frozen=True, slots=True)
class MixShift:
    """Whether the slices' shares of the clusters differ from the reference window.

    `log_evidence` is the logarithm of an e-value: under an unchanged mix it exceeds 1 / level, at any look, with
    probability at most level.  `slices` holds each slice's logarithm.
    """

    log_evidence: float
    slices: Mapping[str, float]

    @property
    def log10_evidence(self) -> float:
        """The same to base 10."""
        return self.log_evidence / math.log(10.0)

    def has_shifted(self, level: float) -> bool:
        """Whether an unchanged mix is rejected at `level`."""
        return self.log_evidence >= -math.log(level)

    def shifted_slices(self, level: float) -> tuple[str, ...]:
        """The slices whose share moved, at `level` for all of them together; the clearest first."""
        limit = math.log(len(self.slices) / level) if self.slices else math.inf
        return tuple(sorted((name for name, log in self.slices.items() if log >= limit), key=self._rank))

    def _rank(self, name: str) -> tuple[float, str]:
        return -self.slices[name], name


def mix_shift(before: Mapping[str, int], after: Mapping[str, int]) -> MixShift:
    """Evidence that the shares of the slices differ between two windows, from their numbers of clusters.

    For each slice, the probability of the two windows' counts under two independent Beta mixtures of its share,
    over the greatest that any common share gives them.  The numerator is a probability of the whole sequence,
    the denominator at least the true one, so the ratio is below a martingale that starts at 1 (universal
    inference, Wasserman, Ramdas and Balakrishnan, arXiv 1912.11436): windows may grow and be looked at for
    ever.  The mean over the slices is an e-value too, however they depend on each other.  The windows must not
    overlap, and clusters must be independent: a day against a week is a shift.
    """
    names = sorted(before.keys() | after.keys())
    counts = np.array([[window.get(name, 0) for name in names] for window in (before, after)], dtype=np.float64)
    if not names:
        return MixShift(0.0, {})
    totals = counts.sum(axis=1, keepdims=True)
    mixed = _log_beta(counts + PRIOR, totals - counts + PRIOR) - _log_beta(PRIOR, PRIOR)
    logs: Floats = mixed.sum(axis=0) - _log_likelihood(counts.sum(axis=0), float(totals.sum()))
    evidence = float(np.logaddexp.reduce(logs) - math.log(len(names)))
    return MixShift(evidence, dict(zip(names, logs.tolist(), strict=True)))


def mix_words(decomposition: Decomposition, shift: MixShift, level: float, *, is_log: bool = False) -> str:
    """One sentence for people: how far the endpoint's rate moved, and how much of it is mix.

    `is_log`: the rate is a mean log speedup, and is shown as a ratio.
    """
    moved = shift.shifted_slices(level)
    shares = {slice_shift.slice_key: slice_shift for slice_shift in decomposition.slices}
    named = [
        f"{name} from {shares[name].share_before:.0%} to {shares[name].share_after:.0%}"
        for name in moved
        if name in shares
    ]
    head = (
        "the prompt mix has moved" + (f" ({', '.join(named)})" if named else "")
        if shift.has_shifted(level)
        else "no shift of the prompt mix is proven"
    )
    if is_log:
        before, after, mix, within = (
            f"{math.exp(value):.3g}"
            for value in (decomposition.before, decomposition.after, decomposition.mix_part, decomposition.within_part)
        )
        return f"{head}; from {before} to {after}: times {mix} by the mix, times {within} within slices"
    return (
        f"{head}; from {decomposition.before:.3g} to {decomposition.after:.3g}: "
        f"{decomposition.mix_part:+.3g} by the mix, {decomposition.within_part:+.3g} within slices"
    )


def _log_likelihood(successes: Floats, total: float) -> Floats:
    """The greatest log-likelihood of `successes` [s] out of `total` under one share each."""
    if not total:
        return np.zeros_like(successes)
    share = successes / total
    return _times_log(successes, share) + _times_log(total - successes, 1.0 - share)


# A few numbers per slice: not worth the quarter of a second that loading scipy.special takes.


def _log_beta(first: Floats | float, second: Floats | float) -> Floats:
    """log B(first, second), elementwise."""
    log_beta: Floats = _log_gamma(first) + _log_gamma(second) - _log_gamma(np.add(first, second))
    return log_beta


def _times_log(counts: Floats, shares: Floats) -> Floats:
    """counts * log(shares), 0 where the count is 0."""
    products: Floats = counts * np.log(np.where(counts > 0, shares, 1.0))
    return products


_log_gamma = np.vectorize(math.lgamma, otypes=[np.float64])
