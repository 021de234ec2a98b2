"""The sentences under a decision's reason: an override, its run, the drift since ENABLE, the mix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from shadowspec.gate.verdict.current_verdict import override_text
from shadowspec.gate.verdict.slice_rules import forbidding_slices, keeps_off
from shadowspec.metrics import cached_shares, ratio
from shadowspec.text import moment, percent, plural, sentence, slice_title, times
from shadowspec.types import (
    Composition,
    Decision,
    FingerprintedConfig,
    MixChange,
    Override,
    ReasonCode,
    Reservations,
    Verdict,
)
from shadowspec.types.decision_documents import REOPENING

_WATCHED = {"tail": "the slowed share", "z_low": "z, low side", "z_high": "z, high side"}  # detectors, for people

TRIAL_NOTE = "Trial policy: verdicts speak of this recording only; `export` and `check` refuse them."
REHEARSAL_NOTE = (
    "Rehearsal, not a decision of the gate: the recording is not read to its end, and every session counts as if it "
    "were closed. Run the same `shadowspec try` command again to read the rest."
)


@dataclass(frozen=True, slots=True)
class DetectorLine:
    """One statistic that is watched after ENABLE: it speaks up at `limit_log10` and above."""

    title: str
    log10: float | None  # None: nothing was folded yet
    limit_log10: float | None  # None: the decision does not keep it, only whether it was reached
    num_units: int | None

    @property
    def text(self) -> str:
        """The statistic beside its limit."""
        units = "" if self.num_units is None else f" after {plural(self.num_units, 'unit')}"
        limit = "" if self.limit_log10 is None else f", fires at 10^{self.limit_log10:.2f}"
        return f"{'0' if self.log10 is None else f'10^{self.log10:.2f}'}{limit}{units}"


def decision_notes(decision: Decision) -> list[str]:
    """The sentences that a reader needs beside the reason; none where there is nothing to add."""
    composition = decision.composition or Composition(is_named=True)
    notes = [
        *_trial(decision),
        *override_notes(decision),
        *_forbidden(decision),
        *_load(decision),
        *_run(decision),
        *_drift(decision),
    ]
    if decision.verdict is Verdict.ENABLE and not composition.is_named:
        notes.append("Another config has a better lower bound of speedup here and is the one named.")
    cover, bounds = composition.cover, composition.bounds.get("speedup")
    if cover is not None and cover.is_shown_under_parent and decision.reason_code != ReasonCode.OVERRIDE:
        whole = f"so that the verdict on the whole endpoint ({cover.covering_verdict}) covers it"
        notes.append(f"It has no level, {'and its own bounds show harm' if keeps_off(decision) else whole}.")
    if bounds is not None and bounds.known_share > 0.0:
        notes.append(
            f"Under the current traffic, the slices' bounds give a speedup of [{times(bounds.lower)}, "
            f"{times(bounds.upper)}]; {percent(bounds.known_share)} of the traffic has such a bound."
        )
    prompts = prompt_note(decision)
    counted = [note for note in (prompts, cache_note(decision)) if note is not None]
    return [*notes, *_never_timed(decision), *counted, *_changes(decision)]


def with_forbidding(decisions: Sequence[Decision]) -> list[Decision]:
    """The current decisions; an ENABLE of a whole endpoint names the slices that keep it from being acted on."""
    return [_with_forbidding(decision, decisions) for decision in decisions]


def alerts(decision: Decision) -> list[str]:
    """Those of the sentences that nobody should have to look for: overrides, slices that forbid, alarms, shifts."""
    notes = [*override_notes(decision), *_forbidden(decision)]
    sounded = [line for line in detector_lines(decision) if _has_reached(line)]
    if decision.reason_code == ReasonCode.DRIFT:
        statistics = "".join(f" {line.title}: {line.text}." for line in sounded)
        notes.append(f"Drift alarm: a proven limit no longer holds.{statistics}")
    if decision.verdict is Verdict.ENABLE:
        notes += _advice(decision)
    change = _mix_change(decision)
    if change is not None and change.has_shifted:
        notes += _changes(decision)
    return notes


def order_note(order: Override, written: Callable[[datetime | None], str] = moment) -> str:
    """An override: what it covers, who ordered it, why, and until when; `written` is how times are."""
    load = "every load" if order.concurrency is None else f"load {order.concurrency}"
    covered = f"{order.verdict} on {slice_title(order.slice_key)}, {load}"
    words = override_text(order)
    return f"{words[0].upper()}{words[1:]}. {covered}, {_in_force(order.created_at, order.expires_at, written)}."


def override_notes(decision: Decision) -> list[str]:
    """Since and until when an override holds, and what was measured; none where the gate's decision is in force."""
    override = decision.override
    if override is None:
        return []
    times = _in_force(decision.since, override.expires_at)
    measured = f"Measured verdict: {override.verdict}. {sentence(override.reason)}"
    return [f"The override is {times}.", measured]


def detector_lines(decision: Decision) -> list[DetectorLine]:
    """The statistics of drift and of the prompt mix; none where nothing is watched."""
    lines = []
    if decision.drift is not None:
        limit = decision.drift.threshold_log10
        lines += [
            DetectorLine(_title_of(name), detector.log10, limit, detector.num_units)
            for name, detector in decision.drift.detectors.items()
        ]
    if (change := _mix_change(decision)) is not None:
        lines.append(DetectorLine("Shift of the prompt mix", change.log10_evidence, None, None))
    return lines


def _title_of(name: str) -> str:
    """A detector's, for people."""
    watched = name.removeprefix(REOPENING)
    return f"{'Drift of' if watched == name else 'Against DISABLE:'} {_WATCHED.get(watched, watched)}"


def _with_forbidding(decision: Decision, decisions: Sequence[Decision]) -> Decision:
    if decision.slice_key or decision.verdict is not Verdict.ENABLE:
        return decision
    changes = tuple(
        f"{slice_title(forbidding_slice.slice_key)} ({percent(forbidding_slice.traffic_share)} of the traffic)"
        for forbidding_slice in forbidding_slices(decision, decisions)
    )
    return replace(decision, reservations=replace(decision.reservations or Reservations(), forbidden_by=changes))


def _trial(decision: Decision) -> list[str]:
    return [TRIAL_NOTE] if decision.recording_only else []


def _forbidden(decision: Decision) -> list[str]:
    reasons = "; ".join((decision.reservations or Reservations()).forbidden_by or ())
    return [f"DISABLE means {reasons}: `check` does not pass the endpoint as a whole."] if reasons else []


def _load(decision: Decision) -> list[str]:
    if decision.reservations is None or decision.reservations.is_load_configured:
        return []
    return [f"Load {decision.concurrency} is no longer configured and no longer measured; this is its last decision."]


def _run(decision: Decision) -> list[str]:
    run = decision.run
    if decision.supersession is not None or run is None or not run.num_restarts or run.level is None:
        return []
    return [f"Run {run.num_restarts + 1} of its tests, on separate evidence, at level {run.level:.2g}."]


def _never_timed(decision: Decision) -> list[str]:
    share = ratio(decision.evidence.counts.num_beyond, decision.evidence.counts.num_arrived)
    if not share:
        return []
    return [
        f"{percent(share)} of its requests are never timed, because they come after timed_positions in their session. "
        "The verdict assumes that they are like the others."
    ]


def prompt_note(decision: Decision) -> str | None:
    """How many of the measured prompts production's server counts otherwise; None where it counts none of them."""
    counts = decision.evidence.counts
    if (share := ratio(counts.num_other_prompts, counts.num_compared_prompts)) is None:
        return None
    return (
        f"Production's server counts another length of {percent(share)} of the "
        f"{plural(counts.num_compared_prompts, 'prompt')} that it counted."
    )


def cache_note(decision: Decision) -> str | None:
    """How much of the prompts production and the servers found in prefix caches; None where that is not known."""
    cached = decision.evidence.counts.cached
    production, baseline, speculative = cached_shares(cached)
    if production is None:
        return None
    return (
        f"Of the prompt tokens of {plural(cached.num_requests, 'request')}, production's prefix cache held "
        f"{percent(production)}, the baseline's {percent(baseline)} and the speculative one's {percent(speculative)}."
    )


def _drift(decision: Decision) -> list[str]:
    if decision.verdict is not Verdict.ENABLE or decision.drift is None:
        return []
    notes = []
    watched = decision.drift.detectors.get("speedup")
    if watched is not None and watched.num_units:
        notes.append(
            f"The gate has watched {plural(watched.num_units, 'block')} since ENABLE for drift, without an alarm."
        )
    return notes + _advice(decision)


def _advice(decision: Decision) -> list[str]:
    if decision.drift is None or not decision.drift.advice:
        return []
    return [f"Advice: {decision.drift.advice} is lower than at ENABLE."]


def _mix_change(decision: Decision) -> MixChange | None:
    return None if decision.composition is None else decision.composition.mix_change


def _changes(decision: Decision) -> list[str]:
    """How the endpoint's rates have moved since ENABLE, and what of it is the traffic's doing."""
    change = _mix_change(decision)
    return (
        [] if change is None else [f"{name.title()} since ENABLE: {rate.text}." for name, rate in change.rates.items()]
    )


def _has_reached(line: DetectorLine) -> bool:
    return line.log10 is not None and line.limit_log10 is not None and line.log10 >= line.limit_log10


def _in_force(
    since: datetime | None, until: datetime | None, written: Callable[[datetime | None], str] = moment
) -> str:
    return f"in force since {written(since)}, until {'it is cleared' if until is None else written(until)}"


def data_note(configs: Iterable[FingerprintedConfig], fallback: str) -> str:
    """The measured configs' note on their data; the given note where they have none."""
    return " ".join(sorted({config.data_note for config in configs if config.data_note})) or fallback
