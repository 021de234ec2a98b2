"""What `shadowspec try` prints: the inferred settings, the estimate, and what the trial came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shadowspec.app.progress_bar import notes
from shadowspec.app.public_decisions import DecisionDocument, public_decision
from shadowspec.app.try_out.preparation import PreparedTrial
from shadowspec.app.try_out.survey import refusals
from shadowspec.cli.console import print_json
from shadowspec.cli.measuring_view import shown_decisions
from shadowspec.cli.screen_view import print_screen
from shadowspec.cli.serving_engine import is_in_process, verdicts_for
from shadowspec.gate.verdict.hold_reasons import needed_for_promotion, span_needed
from shadowspec.reports.content.endpoint_rows import basis_notes, endpoint_rows
from shadowspec.reports.content.notes import REHEARSAL_NOTE
from shadowspec.reports.content.screen_rows import FirstScreen
from shadowspec.reports.report import verdict_tables
from shadowspec.text import plain_text, plural, span_text
from shadowspec.types import Decision, SamplingRegime
from shadowspec.types.public_documents import PublicDocument

if TYPE_CHECKING:
    from shadowspec.app.try_out.measuring import LoadedTrial, TrialOutcome


class TryDocument(PublicDocument, frozen=True, kw_only=True):
    """The trial of `try --json`; `still_wanted` is what each candidate needs for production."""

    recording_only: bool
    rehearsal: bool
    decisions: Sequence[DecisionDocument]
    still_wanted: Mapping[str, Sequence[str]]
    ended_by: str
    records_read: int
    requests_measured: int
    requests_found: int
    config: str
    report: str
    seconds: float


def print_plan(trial: PreparedTrial, *, is_load_assumed: bool) -> None:
    """The inferred settings."""
    inputs, survey, others = trial.inputs, trial.survey, trial.others
    # Records of other models are named by their models.
    refused = Counter({name: number for name, number in survey.refused.items() if name != "other_model" or not others})
    num_requests, num_sessions = len(survey.requests), len(survey.sessions)
    sampled = "" if trial.sample.scale == 1.0 else f" in the first {trial.sample.num_sampled:,} lines"
    span = span_text((survey.last - survey.first).total_seconds())
    candidates = ", ".join(candidate.name for candidate in trial.config.endpoints[inputs.endpoint].candidates)
    labels = ", ".join(trial.slicing.slice_by)
    slices = labels if trial.slicing.is_divided else f"none ({labels}: one value)"
    load = "assumed: set --load to production's" if is_load_assumed else "--load"
    reach = f"ENABLE needs {trial.min_timed:,} or more"
    if inputs.servers is None and not is_in_process(inputs.serving_engine):
        reach += f", timed on {inputs.serving_engine}; a trial in this process ends in HOLD"
    elif trial.num_timed < trial.min_timed:
        reach += (
            f", so expect HOLD or DISABLE. Give a longer recording: at least about {trial.min_sessions:,} sessions, "
            f"better {2 * trial.min_sessions:,}"
        )
    lines = [
        f"{plural(num_requests, 'usable request')} of {plural(num_sessions, 'session')}{sampled}, {span}, "
        f"model {', '.join(inputs.served_models)}{survey.mismatch}",
        *([f"not usable: {refusals(refused)}"] if refused else []),
        *trial.sample.gaps,
        *([f"other models in the file, left out: {', '.join(others)} (--model NAME)"] if others else []),
        f"candidates: {candidates}; load: {plural(inputs.concurrency, 'request')} at once ({load}); "
        f"slices by: {slices}",
        f"serving engine: {inputs.serving_engine}, measured on it"
        if inputs.servers is not None
        else f"serving engine: {verdicts_for(inputs.serving_engine)}",
        *_sampling_lines(trial),
        f"timed: about {plural(round(trial.num_timed), 'request')}, at most one of each session; {reach}",
        f"trial policy: verdicts speak of this recording only ({trial.config_path})",
    ]
    for line in lines:
        notes.print(plain_text(line), markup=False, highlight=False, soft_wrap=True)


def _sampling_lines(trial: PreparedTrial) -> list[str]:
    """How requests are sampled that leave a parameter out; nothing where no default decides."""
    sampling, requests = trial.config.endpoints[trial.inputs.endpoint].sampling, trial.survey.requests
    left_out = [
        sampling.mattering(request.left_out, is_greedy=request.labels["sampling_regime"] == SamplingRegime.GREEDY)
        for request in requests
    ]
    num_open, names = sum(map(bool, left_out)), sorted(set().union(*left_out))
    if not num_open and sampling.max_new_tokens is None:
        return []
    who = f"{num_open:,} of {plural(len(requests), 'request')} leave out {', '.join(names) or 'a limit'} and"
    if "temperature" in names:
        return [f"sampling: {sampling.text_of(who)}"]
    return [f"sampling: {sampling.text_of(who, neutral='none of it')}"]


def print_estimate(loaded: LoadedTrial, minutes: float | None) -> None:
    """How long the trial will take, and where its outputs are cut."""
    limit = "" if minutes is None else f"; --minutes ends the command after {span_text(minutes * 60)}"
    basis = f"the {plural(loaded.num_before, 'request')} measured before" if loaded.num_before else "a warm-up"
    wait = "its time is known after the first block"
    if loaded.estimated_s is not None:
        wait = f"in about {span_text(loaded.estimated_s)}, by {basis}"
    notes.print(
        f"estimate: {plural(round(loaded.num_left), 'request')}, {wait}{limit}; Ctrl-C ends it with the verdict so far",
        highlight=False,
        soft_wrap=True,
    )
    if loaded.max_new_tokens is not None:
        notes.print(
            f"outputs are cut at {loaded.max_new_tokens} tokens, so that a block takes seconds on this device "
            "(max_new_tokens in the configuration)",
            highlight=False,
            soft_wrap=True,
        )


def print_outcome(
    trial: PreparedTrial, outcome: TrialOutcome, report: Path, *, is_load_assumed: bool, as_json: bool
) -> None:
    """The verdicts, what production still needs, and the next step."""
    progress, wanted, is_whole = outcome.progress, _still_wanted(trial, outcome.decisions), outcome.ended_by == "end"
    if as_json:
        print_json(
            TryDocument(
                recording_only=True,
                rehearsal=not is_whole,
                decisions=list(map(public_decision, outcome.decisions)),
                still_wanted=wanted,
                ended_by=outcome.ended_by,
                records_read=progress.done.records_read,
                requests_measured=progress.done.requests_measured,
                requests_found=progress.done.requests_found,
                config=str(trial.config_path),
                report=str(report),
                seconds=round(progress.seconds, 1),
            )
        )
        return
    part = "" if is_whole else f" ({progress.done.records_read:,} of {progress.num_records:,} records read)"
    before = f", {progress.done.requests_found:,} before" if progress.done.requests_found else ""
    measured = plural(progress.done.requests_measured, "request")
    load = plural(trial.inputs.concurrency, "request")
    notes = (
        trial.config.dashboard.data_note or "",
        f"Measured at {load} at once, a guess: `--load` sets production's." if is_load_assumed else "",
        "" if is_whole else REHEARSAL_NOTE,
        _for_production(trial, outcome.decisions),
    )
    print_screen(
        FirstScreen(
            endpoint_rows(outcome.decisions),
            f"Trial of this recording{part}: {measured} measured in {span_text(progress.seconds)}{before}.",
            (*basis_notes(outcome.decisions), *filter(None, notes)),
            f"More: open {report}; --verbose shows slices; `shadowspec gate --tests` every test and `shadowspec plan` "
            f"the sessions needed, each with --config {report.parent / trial.config_path.name}.",
        ),
        lambda: (
            *verdict_tables(shown_decisions(outcome.decisions)),
            *(f"{name} still needs for production: {'; '.join(needed)}." for name, needed in wanted.items()),
        ),
    )


def _for_production(trial: PreparedTrial, decisions: Sequence[Decision]) -> str:
    """What every candidate lacks before it may be promoted, whatever its tests say."""
    policy = trial.config.endpoints[trial.inputs.endpoint].policy
    spans = {span_needed(decision.evidence, policy) for decision in decisions if not decision.slice_key}
    needs = [span for span in spans if span is not None] if len(spans) == 1 else []
    lacks = " and ".join((*needs, *_latency_needed(trial)))
    return "For production: run `shadowspec init`, then measure the mirror of your gateway." + (
        f" It still needs {lacks}." if lacks else ""
    )


def _latency_needed(trial: PreparedTrial) -> list[str]:
    """What a trial in this process cannot measure."""
    engine = trial.inputs.serving_engine
    serves = "the engine that serves" if is_in_process(engine) else engine
    latency = f"latency measured on {serves}, through two servers (docs/servers.md)"
    return [latency] if trial.inputs.servers is None else []


def _still_wanted(trial: PreparedTrial, decisions: Sequence[Decision]) -> dict[str, list[str]]:
    """What each candidate still needs for an ENABLE that may be promoted."""
    policy = trial.config.endpoints[trial.inputs.endpoint].policy
    return {
        decision.config.name: [*needed_for_promotion(decision, policy), *_latency_needed(trial)]
        for decision in decisions
        if not decision.slice_key
    }
