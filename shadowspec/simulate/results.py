"""The sums over a world's repetitions: counts and stopping times, stored as one document."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Literal

import msgspec

from shadowspec.simulate.gate_under_test import HypothesisOutcome
from shadowspec.simulate.repetition import Repetition
from shadowspec.simulate.rows import CONFIG
from shadowspec.simulate.world import SteeredWorld, World
from shadowspec.types import Verdict
from shadowspec.types.codec import decode, encode

Times = tuple[tuple[int, int], ...]  # units or blocks at which something ended, in order, and how often it did
METHOD = 3  # of deciding a world: by the production gate.  Raised where a draw may end otherwise: all are run again


@dataclass(frozen=True, slots=True)
class TestTally:
    """One test of the endpoint's hypothesis over all repetitions, independent of the other tests.

    `passed_units` and `failed_units` are the units at which its null (its opposite null) first fell, of those
    repetitions in which it did; `mean` and `sd` of its unit values against the threshold, averaged over `num_runs`.
    """

    __test__ = False

    num_runs: int
    unit: str
    level: float
    min_units: int
    mean: float
    sd: float
    passed_units: Times = ()
    failed_units: Times = ()


@dataclass(frozen=True, slots=True)
class DiscoveryTally:
    """What one rule enabled over all repetitions of many endpoints.

    `false_shares` sums each repetition's false ENABLEs over all of its ENABLEs, and `squared_shares` their squares.
    """

    true: int
    false: int
    false_shares: float
    squared_shares: float


@dataclass(frozen=True, slots=True)
class WorldResult:
    """All repetitions of one world.

    `false_enables` and `false_disables` count repetitions in which any hypothesis got that verdict wrongly; a false
    alarm of a steered world is a false DISABLE.
    `enable_blocks`, `disable_blocks`, `enable_clusters` and `alarm_blocks` (from the change on) are of the first
    run of the endpoint's hypothesis; `num_alarmed_early` the repetitions with an alarm before the change.  `definition`
    distinguishes the world, as it was defined and decided, from one of the same name that was changed since.
    """

    name: str
    definition: str
    repetitions: int
    seed: int
    level: float
    false_enables: int
    false_disables: int
    num_dependent: int
    enable_blocks: Times
    disable_blocks: Times
    enable_clusters: Times
    alarm_blocks: Times
    num_alarmed_early: int
    naive_enables: dict[str, int]
    tests: dict[str, TestTally]
    seconds: float
    discoveries: dict[str, DiscoveryTally] = field(default_factory=dict)  # of many endpoints, by rule


class StoredResults(msgspec.Struct, frozen=True):
    """A file of results, and the environment that they depend on besides the seed."""

    schema_version: Literal[2]
    environment: Mapping[str, str]
    worlds: Mapping[str, WorldResult]


def tally(world: World, seed: int, repetitions: Iterable[Repetition], seconds: float) -> WorldResult:
    """The sums over repetitions of one world."""
    done = list(repetitions)
    false_enables = sum(any(_is_wrong(world, outcome, Verdict.ENABLE) for outcome in r.hypotheses) for r in done)
    false_disables = sum(any(_is_ended_wrongly(world, outcome) for outcome in r.hypotheses) for r in done)
    outcomes = [outcome for r in done for outcome in r.hypotheses if not outcome.slice_key and not outcome.num_restarts]
    alarms = [_blocks_to_alarm(world, outcome) for outcome in outcomes if outcome.alarm_block is not None]
    late = [blocks for blocks in alarms if blocks is not None]
    return WorldResult(
        name=world.name,
        definition=definition_of(world),
        repetitions=len(done),
        seed=seed,
        level=outcomes[0].level if outcomes else 0.0,
        false_enables=false_enables,
        false_disables=false_disables,
        num_dependent=sum(outcome.was_dependent for outcome in outcomes),
        enable_blocks=count_times(outcome.num_blocks for outcome in outcomes if outcome.verdict is Verdict.ENABLE),
        disable_blocks=count_times(outcome.num_blocks for outcome in outcomes if outcome.verdict is Verdict.DISABLE),
        enable_clusters=count_times(outcome.num_clusters for outcome in outcomes if outcome.verdict is Verdict.ENABLE),
        alarm_blocks=count_times(late),
        num_alarmed_early=len(alarms) - len(late),
        naive_enables={name: sum(r.naive[name] for r in done) for name in (done[0].naive if done else ())},
        tests=_tests(outcomes),
        seconds=round(seconds, 1),
        discoveries=_discoveries(done),
    )


def add_results(before: WorldResult, further: WorldResult) -> WorldResult:
    """The sums over the repetitions of both, which are of one world, defined and decided in one way."""
    names = [*before.tests, *(name for name in further.tests if name not in before.tests)]
    return replace(
        before,
        repetitions=before.repetitions + further.repetitions,
        level=before.level or further.level,
        false_enables=before.false_enables + further.false_enables,
        false_disables=before.false_disables + further.false_disables,
        num_dependent=before.num_dependent + further.num_dependent,
        enable_blocks=_add_times(before.enable_blocks, further.enable_blocks),
        disable_blocks=_add_times(before.disable_blocks, further.disable_blocks),
        enable_clusters=_add_times(before.enable_clusters, further.enable_clusters),
        alarm_blocks=_add_times(before.alarm_blocks, further.alarm_blocks),
        num_alarmed_early=before.num_alarmed_early + further.num_alarmed_early,
        naive_enables={name: count + further.naive_enables[name] for name, count in before.naive_enables.items()},
        tests={name: _add_tests(before.tests.get(name), further.tests.get(name)) for name in names},
        seconds=round(before.seconds + further.seconds, 1),
        discoveries={
            rule: _add_discoveries(tally, further.discoveries[rule]) for rule, tally in before.discoveries.items()
        },
    )


def definition_of(world: World) -> str:
    """A digest of all that defines the world (its policy too, and not its title), and of how it is decided."""
    return hashlib.sha256(f"{METHOD} {replace(world, title='')!r}".encode()).hexdigest()[:16]


def write_results(path: Path, results: Mapping[str, WorldResult], environment: Mapping[str, str]) -> None:
    """Replace the file by one that holds these results."""
    written = path.with_name(path.name + ".part")
    written.parent.mkdir(parents=True, exist_ok=True)
    written.write_bytes(encode(StoredResults(2, environment, results)))
    written.replace(path)


def read_results(path: Path) -> Mapping[str, WorldResult]:
    """The results that a file holds, by world; {} if there is no file.

    Raises:
        InputError: the file is not one of ours.
    """
    if not path.exists():
        return {}
    return decode(path.read_bytes(), StoredResults, str(path), "name another file").worlds


def count_times(times: Iterable[int]) -> Times:
    """The times, each with how often it came."""
    return tuple(sorted(Counter(times).items()))


def num_times(times: Times) -> int:
    """How many there are."""
    return sum(number for _, number in times)


def _add_times(*parts: Times) -> Times:
    return count_times(time for part in parts for time, number in part for _ in range(number))


def _tests(outcomes: list[HypothesisOutcome]) -> dict[str, TestTally]:
    names = list(dict.fromkeys(name for outcome in outcomes for name in outcome.tests))
    tallies = {}
    for name in names:
        tests = [outcome.tests[name] for outcome in outcomes if name in outcome.tests]
        tallies[name] = TestTally(
            num_runs=len(tests),
            unit=tests[0].unit,
            level=outcomes[0].level,
            min_units=tests[0].min_units,
            mean=fmean(test.mean for test in tests),
            sd=fmean(test.sd for test in tests),
            passed_units=count_times(test.passed for test in tests if test.passed is not None),
            failed_units=count_times(test.failed for test in tests if test.failed is not None),
        )
    return tallies


def _add_tests(before: TestTally | None, further: TestTally | None) -> TestTally:
    tallies = [tally for tally in (before, further) if tally is not None]
    num_runs = sum(tally.num_runs for tally in tallies)
    return replace(
        tallies[0],
        num_runs=num_runs,
        mean=sum(tally.mean * tally.num_runs for tally in tallies) / num_runs,
        sd=sum(tally.sd * tally.num_runs for tally in tallies) / num_runs,
        passed_units=_add_times(*(tally.passed_units for tally in tallies)),
        failed_units=_add_times(*(tally.failed_units for tally in tallies)),
    )


def _discoveries(done: Sequence[Repetition]) -> dict[str, DiscoveryTally]:
    by_rule = {
        rule: [repetition.discoveries[rule] for repetition in done] for rule in (done[0].discoveries if done else ())
    }
    return {
        rule: DiscoveryTally(
            true=sum(found.true for found in draws),
            false=sum(found.false for found in draws),
            false_shares=sum(found.false_share for found in draws),
            squared_shares=sum(found.false_share**2 for found in draws),
        )
        for rule, draws in by_rule.items()
    }


def _add_discoveries(before: DiscoveryTally, further: DiscoveryTally) -> DiscoveryTally:
    return DiscoveryTally(
        before.true + further.true,
        before.false + further.false,
        before.false_shares + further.false_shares,
        before.squared_shares + further.squared_shares,
    )


def _is_new(world: World, outcome: HypothesisOutcome) -> bool:
    """Whether a run is of the candidate or engine that came with the world's change."""
    change = world.effects.change_block
    if isinstance(world, SteeredWorld):
        return outcome.num_restarts > 0
    began_after = change is not None and outcome.start_blocks >= change
    return began_after or outcome.fingerprint != CONFIG.fingerprint


def _blocks_to_alarm(world: World, outcome: HypothesisOutcome) -> int | None:
    """Blocks from the change to the alarm; None of an alarm before it, or without any."""
    if outcome.alarm_block is None or not world.expects_alarm:
        return None
    # A steered world changes at its ENABLE.
    change = outcome.num_blocks if isinstance(world, SteeredWorld) else world.effects.change_block or 0
    return outcome.alarm_block - change if outcome.alarm_block > change else None


def _is_ended_wrongly(world: World, outcome: HypothesisOutcome) -> bool:
    """A false DISABLE; where rates follow the verdicts, an alarm without a change is one."""
    is_alarm = isinstance(world, SteeredWorld) and not world.expects_alarm and outcome.alarm_block is not None
    return is_alarm or _is_wrong(world, outcome, Verdict.DISABLE)


def _is_wrong(world: World, outcome: HypothesisOutcome, verdict: Verdict) -> bool:
    if outcome.verdict is not verdict:
        return False
    if verdict is Verdict.ENABLE:
        return world.is_wrong_to_enable(outcome.slice_key, is_new=_is_new(world, outcome))
    return world.is_wrong_to_disable(outcome.slice_key, is_new=_is_new(world, outcome))
