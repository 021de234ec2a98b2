"""The sums over a world's repetitions: counts and stopping times, stored as one document."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from shadowspec.errors import InputError
from shadowspec.simulate.gate_under_test import HypothesisOutcome
from shadowspec.simulate.repetition import Repetition
from shadowspec.simulate.rows import CHANGED
from shadowspec.simulate.world import SteeredWorld, World
from shadowspec.types import Verdict

FORMAT = 2
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
    passed_units: list[int] = field(default_factory=list)
    failed_units: list[int] = field(default_factory=list)


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
    enable_blocks: list[int]
    disable_blocks: list[int]
    enable_clusters: list[int]
    alarm_blocks: list[int]
    num_alarmed_early: int
    naive_enables: dict[str, int]
    tests: dict[str, TestTally]
    seconds: float

    def document(self) -> dict[str, object]:
        """As JSON has it: a list of stopping times becomes pairs of a time and how often it came."""
        tests = {name: _count_values(asdict(test)) for name, test in self.tests.items()}
        return {**_count_values(asdict(self)), "tests": tests}


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
        enable_blocks=sorted(outcome.num_blocks for outcome in outcomes if outcome.verdict is Verdict.ENABLE),
        disable_blocks=sorted(outcome.num_blocks for outcome in outcomes if outcome.verdict is Verdict.DISABLE),
        enable_clusters=sorted(outcome.num_clusters for outcome in outcomes if outcome.verdict is Verdict.ENABLE),
        alarm_blocks=sorted(late),
        num_alarmed_early=len(alarms) - len(late),
        naive_enables={name: sum(r.naive[name] for r in done) for name in (done[0].naive if done else ())},
        tests=_tests(outcomes),
        seconds=round(seconds, 1),
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
        enable_blocks=sorted(before.enable_blocks + further.enable_blocks),
        disable_blocks=sorted(before.disable_blocks + further.disable_blocks),
        enable_clusters=sorted(before.enable_clusters + further.enable_clusters),
        alarm_blocks=sorted(before.alarm_blocks + further.alarm_blocks),
        num_alarmed_early=before.num_alarmed_early + further.num_alarmed_early,
        naive_enables={name: count + further.naive_enables[name] for name, count in before.naive_enables.items()},
        tests={name: _add_tests(before.tests.get(name), further.tests.get(name)) for name in names},
        seconds=round(before.seconds + further.seconds, 1),
    )


def definition_of(world: World) -> str:
    """A digest of all that defines the world (its policy too, and not its title), and of how it is decided."""
    return hashlib.sha256(f"{METHOD} {replace(world, title='')!r}".encode()).hexdigest()[:16]


def write_results(path: Path, results: Mapping[str, WorldResult], environment: Mapping[str, str]) -> None:
    """Replace the file by one that holds these results."""
    worlds = [f"{json.dumps(name)}: {json.dumps(result.document())}" for name, result in results.items()]
    head = f'{{"schema_version": {FORMAT}, "environment": {json.dumps(dict(environment))}, "worlds": {{\n'
    written = path.with_name(path.name + ".part")
    written.parent.mkdir(parents=True, exist_ok=True)
    written.write_text(head + ",\n".join(worlds) + "\n}}\n", encoding="utf-8")
    written.replace(path)


def read_results(path: Path) -> dict[str, WorldResult]:
    """The results that a file holds, by world; {} if there is no file.

    Raises:
        InputError: the file is not one of ours.
    """
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema_version"] != FORMAT:
            raise InputError(
                f"{path} is of version {document['schema_version']}, this program reads {FORMAT}: name another file"
            )
        return {name: _result(value) for name, value in document["worlds"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} does not hold the results of a simulation") from error


def _count_values(values: Mapping[str, object]) -> dict[str, object]:
    return {
        name: sorted(Counter(value).items()) if isinstance(value, list) else value for name, value in values.items()
    }


def _result(value: Mapping[str, Any]) -> WorldResult:
    tests = {name: TestTally(**_repeat_values(test)) for name, test in value["tests"].items()}
    return WorldResult(**{**_repeat_values(value), "tests": tests})


def _repeat_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: [time for time, count in value for _ in range(count)] if isinstance(value, list) else value
        for name, value in values.items()
    }


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
            passed_units=sorted(test.passed for test in tests if test.passed is not None),
            failed_units=sorted(test.failed for test in tests if test.failed is not None),
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
        passed_units=sorted(units for tally in tallies for units in tally.passed_units),
        failed_units=sorted(units for tally in tallies for units in tally.failed_units),
    )


def _is_new(world: World, outcome: HypothesisOutcome) -> bool:
    """Whether a run is of the candidate or engine that came with the world's change."""
    change = world.effects.change_block
    if isinstance(world, SteeredWorld):
        return outcome.num_restarts > 0
    began_after = change is not None and outcome.start_blocks >= change
    return began_after or outcome.fingerprint == CHANGED.fingerprint


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
