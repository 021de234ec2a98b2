"""Parts: whole sessions, the same for a longer file, and none too small."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shadowspec.distill.examples import MAX_TIMES, Example, split, times
from shadowspec.distill.training_settings import Shares
from shadowspec.errors import NoDataError


def sessions(examples: tuple[Example, ...]) -> set[str]:
    return {each.unit_key for each in examples}


def test_a_session_is_in_one_part_and_nothing_is_lost(examples: tuple[Example, ...]) -> None:
    parts = split(examples, Shares(), seed=0)
    assert sorted(
        each.response.key for examples in (parts.training, parts.validation, parts.held_out) for each in examples
    ) == [each.response.key for each in examples]
    assert not sessions(parts.training) & sessions(parts.held_out)
    assert not sessions(parts.training) & sessions(parts.validation)
    assert not sessions(parts.validation) & sessions(parts.held_out)


def test_shares_are_kept_over_many_sessions(examples: tuple[Example, ...]) -> None:
    many = [replace(examples[0], unit_key=f"many-{number}") for number in range(4_000)]
    parts = split(many, Shares(validation=0.1, held_out=0.3), seed=1)
    assert len(parts.held_out) == pytest.approx(1_200, abs=120)
    assert len(parts.validation) == pytest.approx(400, abs=80)


def test_more_traffic_moves_no_session(examples: tuple[Example, ...]) -> None:
    fewer, more = split(examples[:60], Shares(), seed=0), split(examples, Shares(), seed=0)
    assert set(fewer.held_out) <= set(more.held_out)
    assert set(fewer.training) <= set(more.training)


def test_the_same_name_at_two_endpoints_is_two_sessions(examples: tuple[Example, ...]) -> None:
    names = [f"s-{number}" for number in range(400)]
    parts = split(
        [replace(examples[0], endpoint=endpoint, unit_key=name) for endpoint in ("a", "b") for name in names],
        Shares(), seed=0,
    )  # fmt: skip
    drawn = {(each.endpoint, each.unit_key) for each in parts.held_out}
    assert {name for name in names if ("a", name) in drawn} != {name for name in names if ("b", name) in drawn}


def test_too_few_sessions_say_which_part_lacks_them(examples: tuple[Example, ...]) -> None:
    with pytest.raises(NoDataError, match=r"of the 3 sessions with a response fell into the .* part, and 2 are"):
        split(examples[:6], Shares(), seed=0)


@pytest.mark.parametrize(("validation", "held_out"), [(0.0, 0.2), (0.2, 0.0), (0.5, 0.5)])
def test_shares_leave_something_for_every_part(validation: float, held_out: float) -> None:
    with pytest.raises(ValueError, match="leave some to train on"):
        Shares(validation, held_out)


def of_slice(example: Example, name: str, number: int) -> list[Example]:
    return [replace(example, slice_key=name, unit_key=f"{name}-{place}") for place in range(number)]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [((30, 30), (1, 1)), ((90, 30), (1, 2)), ((90, 10), (1, 4)), ((90, 1), (1, MAX_TIMES)), ((5,), (1,))],
)
def test_rare_slices_count_more_often(
    examples: tuple[Example, ...], numbers: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    in_slices = [each for place, number in enumerate(numbers) for each in of_slice(examples[0], str(place), number)]
    assert times(in_slices) == {f"letters {place}": number for place, number in enumerate(expected)}


def test_slices_of_one_name_at_two_endpoints_are_two(examples: tuple[Example, ...]) -> None:
    rare = replace(examples[0], endpoint="other", unit_key="rare")
    found = times([*of_slice(examples[0], examples[0].slice_key, 9), rare])
    assert found == {examples[0].place: 1, rare.place: MAX_TIMES}


def test_nothing_counts_as_nothing() -> None:
    assert times([]) == {}
