"""The table of failures: the same from single runs as from rollups, and empty states that say why."""

from __future__ import annotations

import io
import json
import random
from dataclasses import replace

import pytest
from rich.console import Console

from shadowspec import metrics
from shadowspec.reports.figures.failure_rows import (
    NO_CONTRACT,
    NOT_LOOKED_AT,
    FailureRow,
    Failures,
    failures_of,
    stored_failures,
)
from shadowspec.reports.figures.taxonomy import FailureKind, SliceFigures
from shadowspec.reports.report import build_report, render_html, render_json, render_markdown, terminal_tables
from shadowspec.reports.report.report_model import ReportedHypothesis
from shadowspec.store import GroupSums
from shadowspec.store.rollups import RollupSums
from shadowspec.text import markdown_text
from shadowspec.types import Contract, Intervention, Run, RunFlags, ServedRun, Validity
from shadowspec.types.failures import failure_counts
from tests.builders.pages import Page
from tests.builders.report_worlds import CHAT, CODE, POLICY, world
from tests.reports.worlds import NOW, MemorySource, add_slice

PLACE = ("draft-k4-0f3a9c5d7e1b2846", 4)


def flagged(source: MemorySource, contract: Contract | None = Contract.JSON) -> MemorySource:
    """The world with flags drawn for every run; a third of the outputs are cut, the speculative arm breaks more."""
    draw = random.Random(7)

    def flags(run: Run) -> RunFlags:
        cut = draw.random() < 0.3
        base = Validity.UNFINISHED if cut else Validity(draw.random() < 0.95)
        spec = Validity.UNFINISHED if cut else Validity(draw.random() < 0.5)
        validities = (None, None) if contract is None else (base, spec)
        changed = draw.choice([None, None, None, *Intervention])
        return RunFlags(draw.choice([None, False, True]), draw.random() < 0.1, contract, *validities, changed)

    for endpoint, runs in source.measured_runs.items():
        source.measured_runs[endpoint] = [run if run.failure else replace(run, flags=flags(run)) for run in runs]
    return source


def hypotheses(source: MemorySource) -> list[ReportedHypothesis]:
    (endpoint,) = build_report(source, {"editor": POLICY}, NOW, data_note="Made up.").endpoints
    return list(endpoint.hypotheses)


def row(failures: Failures, name: str) -> FailureRow:
    return next(each for each in failures.rows if each.name == name)


def test_servers_say_nothing_of_the_drafts_context_and_the_rest_is_counted() -> None:
    source = flagged(world(failures=3))
    for endpoint, runs in source.measured_runs.items():
        source.measured_runs[endpoint] = [
            run if run.failure else replace(
                run, flags=replace(run.flags, is_beyond_draft_context=None), served=ServedRun("response", 0, 0, 0)
            )
            for run in runs
        ]  # fmt: skip
    whole, *_ = hypotheses(source)
    runs = [run for run in source.measured_runs["editor"] if run.failure is None]
    assert whole.failures.num_looked_at == len(runs)
    beyond = row(whole.failures, "beyond_draft_context")
    assert (beyond.count, beyond.of, beyond.share) == (0, 0, None)
    assert row(whole.failures, "json_speculative_unfinished").of == len(runs)


def test_counts_and_what_they_are_shares_of() -> None:
    source = flagged(world(failures=3))
    whole, *_ = hypotheses(source)
    runs = [run for run in source.measured_runs["editor"] if run.failure is None]
    found = whole.failures
    assert found.num_looked_at == len(runs)
    known = [run.flags.is_early_rejection for run in runs if run.flags.is_early_rejection is not None]
    assert (row(found, "early_rejections").count, row(found, "early_rejections").of) == (sum(known), len(known))
    assert row(found, "early_rejections").share == sum(known) / len(known)
    ended = [
        run.flags.speculative_validity for run in runs if run.flags.speculative_validity is not Validity.UNFINISHED
    ]
    assert row(found, "json_speculative_invalid").of == len(ended)
    assert row(found, "json_speculative_invalid").count == ended.count(Validity.INVALID)
    assert row(found, "json_speculative_unfinished").of == len(runs)
    assert row(found, "repetition_loops").of == len(runs)
    for each in Intervention:
        assert row(found, each.value).count == sum(run.flags.intervention is each for run in runs)
    assert FailureKind.STRUCTURED_OUTPUT in {each.kind for each in found.suspicions}
    assert found.notes == ()


def test_acceptance_with_and_without_what_was_changed() -> None:
    source = flagged(world())
    whole, *_ = hypotheses(source)
    runs = source.measured_runs["editor"]
    left = metrics.pool_counts(run.counts for run in runs if run.counts and run.flags.intervention is None)
    every = metrics.pool_counts(run.counts for run in runs if run.counts)
    assert left is not None
    assert every is not None
    failures = whole.failures.intervened
    assert failures.num_intervened == sum(run.flags.intervention is not None for run in runs) > 10
    assert failures.without_them == metrics.first_position_acceptance_rate(left)
    assert failures.with_them == metrics.first_position_acceptance_rate(every)


def test_where_every_output_was_changed_acceptance_without_them_is_undefined() -> None:
    counts = {"looked_at": 3, "filtered": 3, "intervened_drafts": 30, "intervened_first_accepted_tokens": 20}
    failures = failures_of(
        SliceFigures("", 3, 30.0, 20.0, counts), [], num_repetition_loops=0, num_drafts=30, num_first_accepted=20
    ).intervened
    assert (failures.num_intervened, failures.with_them, failures.without_them) == (3, 20 / 30, None)


def test_slices_are_compared_with_each_other_and_the_whole_with_nothing() -> None:
    other = "prompt_class=chat,sampling_regime=greedy"
    source = world()
    add_slice(source, "editor", other, num_blocks=10, speedup=1.0, rate=0.2, seed=5)
    whole, code, slow, chat = hypotheses(source)
    assert (code.slice_key, slow.slice_key, chat.slice_key) == (CODE, other, CHAT)
    assert [each.kind for each in slow.failures.suspicions] == [FailureKind.DOMAIN_MISMATCH]
    assert whole.failures.suspicions == code.failures.suspicions == chat.failures.suspicions == ()


@pytest.mark.parametrize("slice_key", ["", CODE, CHAT])
def test_rollups_give_what_runs_give(slice_key: str) -> None:
    source = flagged(world())
    hypothesis = next(each for each in hypotheses(source) if each.slice_key == slice_key)
    slice_of = {block.block_id: block.slice_key for block in source.measured_blocks["editor"]}
    by_slice = {key: [r for r in source.measured_runs["editor"] if slice_of[r.block_id] == key] for key in (CODE, CHAT)}
    sums = []
    for key, runs in by_slice.items():
        pooled = metrics.pool_counts(run.counts for run in runs if run.counts)
        assert pooled is not None
        added = RollupSums(
            num_runs=len(runs),
            num_failed=sum(run.failure is not None for run in runs),
            num_repetition_loops=sum(run.is_repetition_loop for run in runs),
            weighted_drafts=float(pooled.num_drafts),
            weighted_first_accepted_tokens=float(pooled.num_accepted_tokens_per_pos[0]),
        )
        sums.append(GroupSums("editor", key, *PLACE, None, added))
    counts = {(key, *PLACE): failure_counts(runs) for key, runs in by_slice.items()}
    elsewhere = GroupSums("editor", CODE, "another", 4, None, RollupSums(num_runs=10_000, weighted_drafts=1e9))
    assert hypothesis.acceptance is not None
    found = stored_failures(slice_key, PLACE, [*sums, elsewhere], counts, hypothesis.acceptance.counts)
    assert found == hypothesis.failures


def test_empty_states_say_why() -> None:
    whole, *_ = hypotheses(world())
    assert whole.failures.notes == (NOT_LOOKED_AT,)
    assert [each.name for each in whole.failures.rows] == ["repetition_loops"], "which older versions counted, too"
    whole, *_ = hypotheses(flagged(world(), contract=None))
    assert whole.failures.notes == (NO_CONTRACT,)
    nothing = stored_failures("", PLACE, [], {}, None)
    assert (nothing.num_looked_at, nothing.intervened.with_them) == (0, None)
    assert nothing.rows[0].share is None


def test_every_format_shows_them() -> None:
    report = build_report(flagged(world()), {"editor": POLICY}, NOW, data_note="Made up.")
    html, markdown = Page(render_html(report)).text, render_markdown(report)
    (endpoint,) = json.loads(render_json(report))["endpoints"]
    shown = endpoint["hypotheses"][0]["failures"]
    assert shown["suspicions"][0]["kind"] in set(FailureKind)
    for each in shown["rows"]:
        assert each["title"] in html
        assert f"{each['count']:,}" in html
        assert markdown_text(each["title"]) in markdown
        assert each["definition"] in html
    for figure in shown["suspicions"][0]["figures"]:
        assert figure in html
    assert "suspected: structured output" in markdown
    untold = render_html(build_report(world(), {"editor": POLICY}, NOW, data_note="Made up."))
    assert NOT_LOOKED_AT in untold
    file = io.StringIO()
    console = Console(file=file, width=300)
    for each in terminal_tables(report):
        console.print(each)
    for figure in shown["suspicions"][0]["figures"]:
        assert figure in file.getvalue()
    assert "suspected: structured output: " in file.getvalue()
