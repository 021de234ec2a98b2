"""Monte-Carlo intervals of a share: Clopper and Pearson's, which hold at every size and every truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Share:
    """`count` of `total`, with the bounds of a two-sided interval."""

    count: int
    total: int
    lower: float
    upper: float

    @property
    def value(self) -> float | None:
        """The share itself; None of nothing."""
        return self.count / self.total if self.total else None


def share(count: int, total: int, confidence: float = 0.95) -> Share:
    """`count` of `total` with its exact interval at `confidence`; from 0 to 1 of nothing."""
    from scipy.special import betaincinv  # slow to load: at its use here and beside

    tail = (1.0 - confidence) / 2.0
    lower = float(betaincinv(count, total - count + 1, tail)) if count else 0.0
    upper = float(betaincinv(count + 1, total - count, 1.0 - tail)) if count < total else 1.0
    return Share(count, total, lower, upper)


def quantile(values: list[int], probability: float, total: int) -> int | None:
    """The value that a `probability` of `total` runs did not exceed, those without a value being infinite."""
    place = int(np.ceil(probability * total)) - 1
    return sorted(values)[place] if 0 <= place < len(values) else None
