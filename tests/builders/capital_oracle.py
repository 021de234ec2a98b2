"""The capital of a betting test, from its definition."""

from __future__ import annotations

import numpy as np

from shadowspec.gate.stats.betting import FRACTIONS, WEIGHTS


def log_capital(ratios: np.ndarray) -> float:
    """After all units of `ratios` (y / b); 0 of none."""
    return float(np.logaddexp.reduce(np.log(WEIGHTS) + np.log1p(np.multiply.outer(FRACTIONS, ratios)).sum(axis=1)))
