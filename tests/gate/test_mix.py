"""Prompt-mix shift: an exact split of the change, and a test that may be read at every look."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.gate.verdict.mix import SliceWeight, decompose, mix_shift, mix_words

weights = st.dictionaries(
    st.sampled_from("abcde"), st.builds(SliceWeight, st.floats(-50.0, 50.0), st.floats(0.01, 100.0)), min_size=1
)


@given(weights, weights)
def test_the_parts_add_up_to_the_change(before: dict[str, SliceWeight], after: dict[str, SliceWeight]) -> None:
    split = decompose(before, after)
    assert split is not None
    assert split.mix_part + split.within_part == pytest.approx(split.after - split.before, rel=1e-9, abs=1e-6)
    assert [shift.slice_key for shift in split.slices] == sorted(before.keys() | after.keys())


def rates(shares: dict[str, float], rate: dict[str, float], scale: float = 1_000.0) -> dict[str, SliceWeight]:
    return {name: SliceWeight(rate[name] * share * scale, share * scale) for name, share in shares.items()}


def test_moved_traffic_with_unchanged_rates_is_all_mix() -> None:
    rate = {"code": 0.8, "chat": 0.4}
    split = decompose(rates({"code": 0.5, "chat": 0.5}, rate), rates({"code": 0.25, "chat": 0.75}, rate, 37.0))
    assert split is not None
    assert split.before == pytest.approx(0.6)
    assert split.after == pytest.approx(0.5)
    assert split.mix_part == pytest.approx(-0.1)
    assert split.within_part == pytest.approx(0.0)
    assert all(shift.mix_part < 0 for shift in split.slices), "the better slice shrank and the worse one grew"


def test_decay_with_unchanged_traffic_is_all_within() -> None:
    shares = {"code": 0.5, "chat": 0.5}
    split = decompose(rates(shares, {"code": 0.8, "chat": 0.4}), rates(shares, {"code": 0.6, "chat": 0.4}))
    assert split is not None
    assert split.mix_part == pytest.approx(0.0)
    assert split.within_part == pytest.approx(-0.1)
    assert {shift.slice_key: shift.within_part for shift in split.slices} == pytest.approx({"chat": 0.0, "code": -0.1})


def test_both_at_once_are_told_apart_with_midpoint_weights() -> None:
    """Shares .5/.5 to .25/.75 while code falls from .8 to .6: worked by hand."""
    before = rates({"code": 0.5, "chat": 0.5}, {"code": 0.8, "chat": 0.4})
    after = rates({"code": 0.25, "chat": 0.75}, {"code": 0.6, "chat": 0.4})
    split = decompose(before, after)
    assert split is not None
    assert split.within_part == pytest.approx((0.5 + 0.25) / 2 * -0.2)
    assert split.mix_part == pytest.approx(-0.25 * 0.7 + 0.25 * 0.4)


def test_a_slice_of_one_window_is_all_mix() -> None:
    split = decompose({"a": SliceWeight(6.0, 10.0)}, {"a": SliceWeight(6.0, 10.0), "new": SliceWeight(1.0, 10.0)})
    assert split is not None
    assert split.within_part == 0.0
    assert split.mix_part == pytest.approx(0.35 - 0.6)
    assert split.slices[1].share_before == 0.0


def test_an_empty_window_has_no_change() -> None:
    assert decompose({}, {"a": SliceWeight(1.0, 2.0)}) is None
    assert decompose({"a": SliceWeight(0.0, 0.0)}, {"a": SliceWeight(1.0, 2.0)}) is None


def test_an_unchanged_mix_is_seldom_rejected_at_any_look() -> None:
    """400 pairs of windows of 6 slices, the second looked at after every 20 clusters: at most 5%."""
    rng = np.random.default_rng(0)
    names, shares = "abcdef", np.array([0.5, 0.2, 0.15, 0.1, 0.04, 0.01])
    num_worlds, rejected = 400, 0
    for _ in range(num_worlds):
        before = dict(zip(names, rng.multinomial(300, shares).tolist(), strict=True))
        steps = rng.multinomial(20, shares, size=30).cumsum(axis=0)
        looks = [mix_shift(before, dict(zip(names, row.tolist(), strict=True))) for row in steps]
        rejected += any(look.has_shifted(0.05) for look in looks)
    assert rejected / num_worlds <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / num_worlds)


def test_the_evidence_is_below_a_martingale() -> None:
    """One slice of two, four clusters in all: the mean over every outcome is at most 1, whatever the share."""
    for share in (0.05, 0.3, 0.5, 0.9):
        mean = 0.0
        for first in range(3):
            for second in range(3):
                chance = math.prod(
                    math.comb(2, count) * share**count * (1 - share) ** (2 - count) for count in (first, second)
                )
                shift = mix_shift({"a": first, "b": 2 - first}, {"a": second, "b": 2 - second})
                mean += chance * math.exp(shift.log_evidence)
        assert mean <= 1.0


def test_the_evidence_by_hand() -> None:
    """Two of two after one of two: 1/8 and 3/8 under the mixtures, at most (3/4)^3 * 1/4 under a common share."""
    shift = mix_shift({"a": 1, "b": 1}, {"a": 2, "b": 0})
    assert shift.log_evidence == pytest.approx(math.log(1 / 8 * 3 / 8 / (0.75**3 * 0.25)))


def test_a_shift_is_found_and_its_slices_are_named() -> None:
    before = {"code": 500, "chat": 300, "maths": 200}
    after = {"code": 300, "chat": 500, "maths": 200}
    shift = mix_shift(before, after)
    assert shift.has_shifted(0.001)
    assert shift.shifted_slices(0.001) == ("chat", "code")
    assert not mix_shift(before, {name: count // 2 for name, count in before.items()}).has_shifted(0.5)


def test_a_new_slice_is_a_shift() -> None:
    shift = mix_shift({"code": 500}, {"code": 450, "tools": 50})
    assert shift.has_shifted(0.001)
    assert set(shift.shifted_slices(0.001)) == {"code", "tools"}


@pytest.mark.parametrize("window", [{}, {"a": 0}])
def test_no_traffic_is_no_evidence(window: dict[str, int]) -> None:
    assert not mix_shift(window, {"a": 5_000}).has_shifted(0.9)
    assert mix_shift(window, window).shifted_slices(0.05) == ()


def test_words_say_how_much_is_mix() -> None:
    rate = {"code": 0.8, "chat": 0.4}
    split = decompose(rates({"code": 0.5, "chat": 0.5}, rate), rates({"code": 0.25, "chat": 0.75}, rate))
    assert split is not None
    moved = mix_shift({"code": 500, "chat": 500}, {"code": 250, "chat": 750})
    words = mix_words(split, moved, 0.05)
    assert words.startswith("the prompt mix has moved (")
    assert "chat from 50% to 75%" in words
    assert "code from 50% to 25%" in words
    assert "; from 0.6 to 0.5: -0.1 by the mix, " in words
    still = mix_shift({"code": 5, "chat": 5}, {"code": 5, "chat": 5})
    assert mix_words(split, still, 0.05).startswith("no shift of the prompt mix is proven; from 0.6 to 0.5")
    logs = decompose({"a": SliceWeight(math.log(1.5), 1.0)}, {"a": SliceWeight(math.log(1.2), 1.0)})
    assert logs is not None
    words = mix_words(logs, still, 0.05, is_log=True)
    assert words.endswith("from 1.5 to 1.2: times 1 by the mix, times 0.8 within slices")
