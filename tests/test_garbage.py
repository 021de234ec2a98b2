"""What is searched for cycles, and how often."""

from __future__ import annotations

import gc

from shadowspec.garbage import YOUNG_VALUES, seldom_collected, uncollected


def test_a_loop_is_searched_seldom_and_leaves_things_as_they_were() -> None:
    before = gc.get_threshold()
    with seldom_collected():
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold() == (YOUNG_VALUES, *before[1:])
        assert gc.isenabled()
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_a_batch_is_not_searched_and_what_was_off_stays_off() -> None:
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
