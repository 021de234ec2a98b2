"""Results: counted as the outcomes say, kept in a file, taken up again, and shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from scipy import stats

from kernels.benchmarks.simulation_page import PAGE, PICTURE, markdown, write_page
from shadowspec.errors import InputError
from shadowspec.simulate import run_worlds as runner
from shadowspec.simulate.gate_under_test import HypothesisOutcome
from shadowspec.simulate.naive import NAIVE_GATES
from shadowspec.simulate.paths import TestOutcome
from shadowspec.simulate.repetition import Repetition
from shadowspec.simulate.results import WorldResult, count_times, read_results, tally, write_results
from shadowspec.simulate.rows import CONFIG, configs_of
from shadowspec.simulate.run_worlds import run_worlds
from shadowspec.simulate.summary import broken_promises, power_limit_blocks, quantile, share, summarise
from shadowspec.simulate.world import World
from shadowspec.simulate.world_tables import WorldTable, quoted_figures, tables_of
from shadowspec.simulate.worlds import WORLDS
from shadowspec.types import Verdict

ROOT = Path(__file__).parents[2]


def outcome(
    verdict: Verdict = Verdict.HOLD,
    *,
    slice_key: str = "",
    fingerprint: str = CONFIG.fingerprint,
    num_restarts: int = 0,
    start_blocks: int = 0,
    num_blocks: int = 100,
    alarm_block: int | None = None,
) -> HypothesisOutcome:
    tests = {
        "speedup": TestOutcome("block", 50, None, 8, 0.1, 0.2),
        "tail": TestOutcome("block", 59, None, 59, 0.1, 0.0),
    }
    return HypothesisOutcome(
        slice_key=slice_key,
        fingerprint=fingerprint,
        num_restarts=num_restarts,
        start_blocks=start_blocks,
        level=0.00625,
        verdict=verdict,
        reason_code="",
        num_blocks=num_blocks,
        num_clusters=4 * num_blocks,
        was_dependent=False,
        tests=tests,
        alarm_block=alarm_block,
    )


def counted(world: World, *repetitions: tuple[HypothesisOutcome, ...]) -> WorldResult:
    said = {gate.name: True for gate in NAIVE_GATES}
    return tally(world, 1, [Repetition(hypotheses, said) for hypotheses in repetitions], 1.0)


def times(world: World, number: int, total: int, verdict: Verdict, num_blocks: int = 80) -> WorldResult:
    wrong, right = (outcome(verdict, num_blocks=num_blocks),), (outcome(),)
    return counted(world, *([wrong] * number + [right] * (total - number)))


def test_a_family_is_wrong_once_however_many_of_it_are() -> None:
    slices = [outcome(Verdict.ENABLE, slice_key=f"prompt_class=s{i:02d}") for i in range(3)]
    result = counted(WORLDS["eight_slices"], (outcome(), *slices), (outcome(),))
    assert (result.false_enables, result.false_disables) == (1, 0)


def test_only_the_new_engine_may_not_be_enabled() -> None:
    world = WORLDS["fingerprint_change"]
    old, new = (
        outcome(Verdict.ENABLE),
        outcome(Verdict.ENABLE, fingerprint=configs_of((1,))[1].fingerprint, num_restarts=1),
    )
    assert counted(world, (old,)).false_enables == 0
    assert counted(world, (old, new)).false_enables == 1
    assert counted(world, (old, new)).enable_blocks == ((100, 1),), "the endpoint's own, not the new engine's"


def test_alarms_are_counted_from_the_change_on() -> None:
    change = WORLDS["decay"].effects.change_block or 0
    late, early = outcome(Verdict.ENABLE, alarm_block=change + 150), outcome(Verdict.ENABLE, alarm_block=change - 1)
    result = counted(WORLDS["decay"], (late,), (early,), (outcome(Verdict.ENABLE),))
    assert (result.alarm_blocks, result.num_alarmed_early) == (((150, 1),), 1)
    again = [outcome(Verdict.ENABLE, num_restarts=1, start_blocks=start) for start in (change - 1, change + 150)]
    assert counted(WORLDS["decay"], (late, again[0])).false_enables == 0
    assert counted(WORLDS["decay"], (late, again[1])).false_enables == 1


def test_each_world_of_many_repetitions_is_held_to_its_upper_end() -> None:
    """Of 1,000, 46 reach up to 6.1%, 44 to 5.9%; alpha is 5%."""
    margin = WORLDS["margin"]
    assert broken_promises([times(margin, 44, 1_000, Verdict.ENABLE)]) == []
    assert broken_promises([times(margin, 47, 1_000, Verdict.ENABLE)]) != []
    assert broken_promises([times(margin, 47, 1_000, Verdict.DISABLE)]) != []


def test_worlds_of_few_repetitions_are_held_to_it_together_and_alone_where_they_prove_more() -> None:
    margin, a_a = WORLDS["margin"], WORLDS["a_a"]

    def broken(first: int, second: int, total: int = 150) -> list[str]:
        return broken_promises([times(margin, first, total, Verdict.ENABLE), times(a_a, second, total, Verdict.ENABLE)])

    assert broken(5, 4) == [], "9 of 300: up to 5.6%"
    assert "together" in broken(6, 5)[0], "11 of 300: up to 6.5%"
    assert "margin" in broken(22, 0)[0], "22 of 150: 7% at least"
    assert broken(1, 1, 10) == [], "too few to say"
    assert "margin" in broken(8, 0, 10)[0]


def test_power_is_asked_within_its_limit() -> None:
    world = WORLDS["minimum_effect"]
    result = times(world, 90, 100, Verdict.ENABLE)
    fixed = ((stats.norm.ppf(1 - 0.00625) + stats.norm.ppf(0.8)) * 2.0) ** 2
    assert power_limit_blocks(result) == max(round(1.5 * 59), round(2.5 * fixed)) == 112
    assert broken_promises([result]) == []
    late = times(world, 90, 100, Verdict.ENABLE, num_blocks=113)
    assert "power 0%" in broken_promises([late])[0]


def test_intervals_are_exact() -> None:
    """Clopper and Pearson's own example: 0 of 100 is below 3.62%; 5 of 100 between 1.64 and 11.28%."""
    assert share(0, 100).upper == pytest.approx(0.0362, abs=1e-4)
    found = share(5, 100)
    assert (found.lower, found.upper) == pytest.approx((0.0164, 0.1128), abs=1e-4)
    assert (share(0, 0).value, share(0, 0).lower, share(0, 0).upper) == (None, 0.0, 1.0)
    assert share(7, 7).upper == 1.0


def test_quantiles_count_those_that_never_came() -> None:
    times = count_times([1, 4, 1, 2])
    assert [quantile(times, 0.5, total) for total in (4, 6, 8, 9)] == [1, 2, 4, None]
    assert quantile(times, 0.9, 4) == 4
    assert quantile((), 0.5, 0) is None


def test_a_file_comes_back_and_a_stranger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert read_results(path) == {}
    results = {"margin": times(WORLDS["margin"], 3, 60, Verdict.ENABLE)}
    write_results(path, results, {"python": "3"})
    assert read_results(path) == results
    for stranger in ("[]", "{", '{"schema_version": 99, "worlds": {}}', '{"schema_version": 2, "worlds": {"a": {}}}'):
        path.write_text(stranger, encoding="utf-8")
        with pytest.raises(InputError, match=r"results\.json"):
            read_results(path)


def test_a_run_is_taken_up_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, asked = tmp_path / "results.json", []
    repeat_chunk = runner.repeat_chunk

    def watched(name: str, seed: int, first: int, last: int) -> dict[int, Repetition]:
        asked.append((name, first, last))
        return repeat_chunk(name, seed, first, last)

    monkeypatch.setattr(runner, "repeat_chunk", watched)
    slowdown, no_speedup = WORLDS["slowdown"], WORLDS["no_speedup"]
    first = run_worlds([slowdown], 2, 1, 1, path)
    both = run_worlds([slowdown, no_speedup], 2, 1, 1, path)
    assert asked == [("slowdown", 0, 2), ("no_speedup", 0, 2)]
    assert both["slowdown"] == first["slowdown"]
    more = run_worlds([slowdown], 5, 1, 1, path)
    assert asked[2:] == [("slowdown", 2, 5)], "the missing repetitions alone are run"
    assert run_worlds([slowdown], 3, 1, 1, path) == more, "what the file holds is never thrown away"
    at_once = run_worlds([slowdown], 5, 1, 1)["slowdown"]
    assert rounded(more["slowdown"]) == rounded(at_once), "in two parts as in one"
    run_worlds([slowdown], 2, 2, 1, path)
    assert asked[4:] == [("slowdown", 0, 2)], "another seed is another run"
    monkeypatch.setitem(runner.WORLDS, "slowdown", replace(slowdown, regime="high"))
    run_worlds([runner.WORLDS["slowdown"]], 2, 2, 1, path)
    assert len(asked) == 6, "a world that was changed is another world"
    assert list(read_results(path)) == ["no_speedup", "slowdown"], "in the order of the worlds"


def rounded(result: WorldResult) -> WorldResult:
    """Means of means differ in their last digits."""
    tests = {name: replace(test, mean=round(test.mean, 9), sd=round(test.sd, 9)) for name, test in result.tests.items()}
    return replace(result, tests=tests, seconds=0.0)


@pytest.mark.all
def test_processes_give_what_one_process_gives() -> None:
    alone, spread = (run_worlds([WORLDS["slowdown"]], 22, 5, jobs)["slowdown"] for jobs in (1, 2))
    assert replace(alone, seconds=0.0) == replace(spread, seconds=0.0)


def test_tables_and_markdown() -> None:
    results = {
        name: times(WORLDS[name], number, 60, verdict)
        for name, number, verdict in (
            ("margin", 1, Verdict.ENABLE),
            ("minimum_effect", 60, Verdict.ENABLE),
            ("sizes_115", 60, Verdict.ENABLE),
            ("no_speedup", 60, Verdict.DISABLE),
        )
    }
    tables = tables_of(results)
    assert all(len(row) == len(table.heads) for table in tables for row in table.rows)
    nulls = next(table for table in tables if table.title.startswith("Where nothing"))
    assert nulls.rows[0][2] == "1.7% [0.0, 8.9]"
    quoted = {line.what: line.measured for line in quoted_figures(results)}
    assert quoted["speedup 1.15, blocks"] == "50/50"
    assert quoted["DISABLE at speedup 1.0, blocks"] == "80/80"
    assert quoted["DISABLE at speedup 0.9, blocks"] is None
    assert markdown(WorldTable("t", ("a|b", "c"), (("1", "2"),))) == "| a\\|b | c |\n| --- | ---: |\n| 1 | 2 |"
    assert summarise(results["minimum_effect"]).enable_blocks.ninety == 80


def test_the_documentation_is_what_the_kept_results_say(tmp_path: Path) -> None:
    write_page(ROOT / "kernels/benchmarks/results/simulation.json", tmp_path)
    for name in (PAGE, PICTURE):
        written = (tmp_path / name).read_text(encoding="utf-8")
        committed = (ROOT / "docs" / "research" / name).read_text(encoding="utf-8")
        assert committed == written, f"docs/research/{name}: run `make simulation`"


def test_page_and_picture(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_results(path, {"margin": times(WORLDS["margin"], 3, 1_000, Verdict.ENABLE)}, {"python": "3.11"})
    write_page(path, tmp_path / "docs")
    text = (tmp_path / "docs" / PAGE).read_text(encoding="utf-8")
    assert "0.3% [0.1\u20130.9]" in text
    assert "No world contradicts the gate's promise." in text
    assert all(gate.title in text for gate in NAIVE_GATES)
    drawn = ElementTree.fromstring((tmp_path / "docs" / PICTURE).read_text(encoding="utf-8"))
    titles = [element.text or "" for element in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert any(title.startswith("the gate: 0.3%") for title in titles)
    write_results(path, {"margin": times(WORLDS["margin"], 300, 1_000, Verdict.ENABLE)}, {"python": "3.11"})
    write_page(path, tmp_path / "docs")
    assert "- margin: false ENABLE up to 32.9%, above 6.0%" in (tmp_path / "docs" / PAGE).read_text(encoding="utf-8")
