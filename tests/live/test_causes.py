"""What an alarm looks like: one replica of several, a young process, another series, mix or cache; nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from shadowspec.live.causes import plausible_causes
from shadowspec.types import (
    Composition,
    Decision,
    LiveCounts,
    LiveReplica,
    LiveScrape,
    LiveWindow,
    MixChange,
    Verdict,
)
from tests.store import examples

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def replica(name: str, age: timedelta = timedelta(days=3), series: str = "s") -> LiveReplica:
    return LiveReplica(name, LiveScrape(name, series, NOW, NOW - age, LiveCounts()))


def windows(name: str, cached: list[int], series: str = "s") -> list[LiveWindow]:
    """A window a minute, each with 100 prompt tokens of which so many were cached."""
    return [
        LiveWindow(
            name, series, NOW + (place - 1) * MINUTE, NOW + place * MINUTE, False, 0,
            LiveCounts(num_prompt_tokens=100, num_cached_tokens=number),
        )
        for place, number in enumerate(cached)
    ]  # fmt: skip


def causes(
    alarmed: list[str], replicas: list[LiveReplica], of: list[LiveWindow], *, has_shifted: bool = False
) -> list[str]:
    decision: Decision = replace(
        examples.decision(Verdict.ENABLE),
        composition=Composition(is_named=True, mix_change=MixChange(3.0, has_shifted)),
    )
    return plausible_causes(alarmed, {each.replica: each for each in replicas}, of, [decision], NOW)


def test_an_old_process_with_the_same_traffic_looks_like_nothing() -> None:
    assert causes(["a"], [replica("a")], windows("a", [50] * 20)) == []


def test_one_replica_of_several() -> None:
    (cause,) = causes(["a"], [replica("a"), replica("b")], windows("a", [50] * 20))
    assert cause.startswith("1 replica of 2")


def test_a_process_that_began_shortly_before() -> None:
    (cause,) = causes(["a"], [replica("a", 7 * MINUTE)], windows("a", [50] * 20))
    assert cause == "the process of a began 7 minutes before"


def test_another_series_since_enable() -> None:
    counted = windows("a", [50] * 5) + windows("a", [50] * 5, series="other")
    (cause,) = causes(["a"], [replica("a", series="other")], counted)
    assert "another series" in cause


def test_the_mix_of_prompts() -> None:
    (cause,) = causes(["a"], [replica("a")], windows("a", [50] * 20), has_shifted=True)
    assert cause == "the mix of prompts has shifted since ENABLE"


def test_a_cache_that_is_found_less_often() -> None:
    (cause,) = causes(["a"], [replica("a")], windows("a", [60] * 15 + [10] * 5))
    assert cause == "the prefix cache holds 10% of the prompt tokens, and held 60%"


def test_at_most_three_are_named() -> None:
    counted = windows("a", [60] * 15) + windows("a", [10] * 5, series="other")
    found = causes(["a"], [replica("a", MINUTE), replica("b")], counted, has_shifted=True)
    assert len(found) == 3
