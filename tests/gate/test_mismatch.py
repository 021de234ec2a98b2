"""Production mismatch: found where the two samples differ, not where they do not, and not from too few sessions."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from shadowspec.gate.audit.mismatch import MISMATCH_LEVEL, mismatches
from shadowspec.gate.evidence.asymptotic import BURN_IN
from shadowspec.types import AcceptanceSums

START = datetime(2026, 1, 1, tzinfo=UTC)


def sums(
    rng: np.random.Generator, length: float, num_units: int, slice_key: str = "a=b", fingerprint: str = "f"
) -> AcceptanceSums:
    """Sessions whose own mean acceptance length spreads by a fifth around `length`."""
    drafts = rng.integers(5, 40, num_units).astype(np.float64)
    accepted = drafts * (length - 1.0) * rng.uniform(0.8, 1.2, num_units)
    return AcceptanceSums(
        slice_key, fingerprint, num_units, num_units, float(drafts.sum()), float(4 * drafts.sum()),
        float(accepted.sum()), float(accepted.sum() / 2), float((drafts**2).sum()), float((accepted * drafts).sum()),
        float((accepted**2).sum()), START, START,
    )  # fmt: skip


def test_the_same_acceptance_is_no_mismatch() -> None:
    rng = np.random.default_rng(4)
    inside = 0
    for _ in range(200):
        (mismatch,) = mismatches([sums(rng, 2.5, 400)], [sums(rng, 2.5, 300)])
        assert not mismatch.is_alarm
        assert mismatch.lower is not None
        assert mismatch.upper is not None
        inside += mismatch.lower <= 0.0 <= mismatch.upper
    assert inside / 200 >= 1.0 - MISMATCH_LEVEL


@pytest.mark.parametrize(("length", "sign"), [(3.0, 1.0), (2.0, -1.0)])
def test_another_acceptance_is_one(length: float, sign: float) -> None:
    rng = np.random.default_rng(5)
    (mismatch,) = mismatches([sums(rng, length, 600)], [sums(rng, 2.5, 500)])
    assert mismatch.is_alarm
    assert mismatch.difference * sign == pytest.approx(0.5, abs=0.05)
    assert mismatch.limit == pytest.approx(0.05 * mismatch.loop_length)


def test_a_difference_within_the_limit_is_none_however_sure() -> None:
    rng = np.random.default_rng(6)
    (mismatch,) = mismatches([sums(rng, 2.55, 200_000)], [sums(rng, 2.5, 200_000)])
    assert mismatch.lower is not None
    assert mismatch.lower > 0.0
    assert not mismatch.is_alarm


def test_few_sessions_say_nothing() -> None:
    rng = np.random.default_rng(7)
    for sizes in ((BURN_IN - 1, 500), (500, BURN_IN - 1)):
        (mismatch,) = mismatches([sums(rng, 4.0, sizes[0])], [sums(rng, 2.0, sizes[1])])
        assert (mismatch.lower, mismatch.upper, mismatch.is_alarm) == (None, None, False)


def test_only_what_both_have_is_compared_and_shares_the_level() -> None:
    rng = np.random.default_rng(8)
    replayed = [sums(rng, 2.0, 200, name, print_) for name in ("b=1", "a=1") for print_ in ("f", "g")]
    looped = [sums(rng, 2.0, 200, "a=1", "g"), sums(rng, 2.0, 200, "b=1", "f"), sums(rng, 2.0, 200, "c=1", "f")]
    found = mismatches(replayed, looped)
    assert [(mismatch.slice_key, mismatch.fingerprint) for mismatch in found] == [("a=1", "g"), ("b=1", "f")]
    assert {mismatch.level for mismatch in found} == {MISMATCH_LEVEL / 2}
    assert mismatches(replayed, []) == []
