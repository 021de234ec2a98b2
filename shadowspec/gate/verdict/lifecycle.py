"""A hypothesis's decision from look to look: which verdicts stay, and how a drift alarm or new fingerprint ends a run.

`decide` judges one run of the tests by its evidence; here runs follow each other.  ENABLE starts the detectors.
An alarm ends the run: ENABLE becomes DISABLE or HOLD by policy.  The next look begins a run with no evidence at a
reserved level, whose verdict then replaces the alarm's.  After a new fingerprint it is HOLD meanwhile.
DISABLE by a bound starts a detector too, of the promise that it proved: there is no gain.  Where new evidence refutes
it, the run ends.  DISABLE stays in force, which is the safe side, until the next run reaches its verdict.  A DISABLE
that one observation proves, by a parity fault or memory over budget, ends only with the fingerprint.
An ENABLE ends without an alarm where the operator names a serving engine other than the one that measured.  A parity
fault or memory over budget turns it into DISABLE: its detectors end with it, and its evidence continues.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime

from shadowspec.gate.evidence.hypothesis import HypothesisEvidence, watch_detectors
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.stats import drift
from shadowspec.gate.verdict import reasons
from shadowspec.gate.verdict.current_verdict import DISABLE_CODES
from shadowspec.gate.verdict.decision import Hypothesis, decide, proven_bounds, rests_on_enable, verdict_start
from shadowspec.gate.verdict.trial_levels import HypothesisId, passed_clusters
from shadowspec.types import (
    Decision,
    DetectorFigures,
    DriftFigures,
    ProvenBounds,
    ReasonCode,
    Trial,
    Verdict,
    Watch,
    WatchedMean,
)

_LN10 = math.log(10.0)
_TEST_OF_CODE = {code: name for name, code in DISABLE_CODES.items()}  # of a DISABLE that new evidence may refute
ALARM_CODES = frozenset({ReasonCode.DRIFT, ReasonCode.REOPENED})  # an alarm ended a run, and the next one is undecided
WAITING_CODES = frozenset(
    {ReasonCode.TOO_FEW_CLUSTERS, ReasonCode.TOO_FEW_UNITS, ReasonCode.MIN_SPAN}
)  # HOLD only because evidence is missing
# HOLD that no further evidence ends: a level, a limit, an engine or a budget would have to change.  One that is futile
# is not expected to end.
FINAL_CODES = frozenset(
    {
        ReasonCode.FUTILE,
        ReasonCode.UNDECIDABLE,
        ReasonCode.NO_LEVEL_LEFT,
        ReasonCode.UNPROVABLE,
        ReasonCode.UNKNOWN_MEMORY,
        ReasonCode.OTHER_ENGINE,
    }
)

# The current verdict of each hypothesis, and its reason code.
CurrentVerdicts = Mapping[HypothesisId, tuple[Verdict, str]]


def is_open(verdict: Verdict, reason_code: str) -> bool:
    """Whether more evidence may still change the decision: a HOLD for evidence, or an alarm's verdict."""
    return reason_code in ALARM_CODES or (verdict is Verdict.HOLD and reason_code not in FINAL_CODES)


def decided_slices(verdicts: CurrentVerdicts, loads: Collection[int], fingerprints: Collection[str]) -> set[str]:
    """The slices of an endpoint that feed nothing open at these loads and with these configs.

    A slice feeds its hypotheses and the whole endpoint's (""), which is among the results if any slice is.
    """
    wanted = {(load, fingerprint) for load in loads for fingerprint in fingerprints}
    decided: dict[str, set[tuple[int, str]]] = defaultdict(set)
    for (slice_key, load, fingerprint), (verdict, reason_code) in verdicts.items():
        if not is_open(verdict, reason_code):
            decided[slice_key].add((load, fingerprint))
    if not wanted or not wanted <= decided[""]:
        return set()
    slices = {slice_key for slice_key, closed in decided.items() if wanted <= closed}
    return slices if slices != {""} else set()


def decide_in_run(
    hypothesis: Hypothesis,
    evidence: HypothesisEvidence,
    policy: GatePolicy,
    *,
    trial: Trial | None,
    has_entered: bool,
    previous: Decision | None,
    now: datetime,
) -> Decision:
    """The decision on a hypothesis in its run `trial` (None: it has none yet, or no level is left for it).

    `evidence` is only that of the run; `previous` the latest decision with this fingerprint, of this run or not.
    """
    has_level = trial is not None and trial.level is not None  # without one DISABLE stands while its bound crosses
    in_run = previous if previous is not None and has_level and not previous.ends_run else None
    in_force = in_run if in_run is not None and in_run.reason_code not in ALARM_CODES else None
    decision = decide(hypothesis, evidence, policy, trial=trial, has_entered=has_entered, previous=in_force, now=now)
    if trial is None:
        return decision
    if rests_on_enable(decision):
        before = in_force.watch if in_force is not None and rests_on_enable(in_force) else None
        watch = _watch(decision, evidence, policy) if before is None else _follow(before, decision, policy)
        detectors = evidence.detectors if before is None or watch.promises == before.promises else {}
        decision = replace(decision, watch=watch, drift=_drift_figures(detectors, policy))
        decision = _after_detectors(decision, detectors, policy)
    elif decision.verdict is Verdict.DISABLE and decision.reason_code in _TEST_OF_CODE and has_level:
        before = in_force.watch if in_force is not None and in_force.verdict is Verdict.DISABLE else None
        decision = replace(
            decision, watch=before or _refutable(decision, policy), drift=_drift_figures(evidence.detectors, policy)
        )
        decision = _after_detectors(decision, evidence.detectors, policy)
    elif decision.verdict is Verdict.HOLD and trial.num_restarts and decision.reason_code != ReasonCode.OTHER_ENGINE:
        decision = _meanwhile(decision, trial, policy)
    return replace(decision, verdict_since=verdict_start(decision.verdict, previous, now))


def next_evidence(evidence: HypothesisEvidence, decision: Decision) -> HypothesisEvidence:
    """A run's evidence to store after `decision`: all, with its detectors started, or nothing if the run ended.

    Detectors watch while a verdict is in force or held by the policy; promises that the policy moves start them again.

    The counts of the slice are always retained: the next look replaces them.  So are the windows and the clip, which
    do not depend on the run.
    """
    if decision.ends_run:
        windows = replace(evidence.windows, num_late_blocks=0)
        return HypothesisEvidence(
            counts=evidence.counts,
            newest_event=evidence.newest_event,
            windows=windows,
            clip=evidence.clip,
            first_logs=evidence.first_logs,
        )
    started = watch_detectors(decision)
    is_watched = {name: (each.promise, each.best) for name, each in evidence.detectors.items()} == {
        name: (each.promise, each.best) for name, each in started.items()
    }
    return evidence if is_watched else replace(evidence, detectors=started)


def _watch(decision: Decision, evidence: HypothesisEvidence, policy: GatePolicy) -> Watch:
    """What an ENABLE rests on: its bounds, the watched promises, and the first unit of each."""
    proven = proven_bounds(decision, evidence.mix_lower)
    shares = [result.figures.get("noise_share") for result in decision.tests if result.name == "tail"]
    noise_share = next((share for share in shares if isinstance(share, float)), 0.0)
    promises = _promises(proven, policy, noise_share, has_z="parity_sampled" in proven)
    return Watch(decision.num_blocks, passed_clusters(decision), promises, proven, decision.reason, noise_share)


def _refutable(decision: Decision, policy: GatePolicy) -> Watch:
    """What a DISABLE promises: the mean that its bound proved lies beyond the limit of that look."""
    result = next(test for test in decision.tests if test.name == _TEST_OF_CODE[ReasonCode(decision.reason_code)])
    started = drift.start_reopening(policy, result)
    promises = {name: WatchedMean(detector.promise, detector.best) for name, detector in started.items()}
    return Watch(decision.num_blocks, passed_clusters(decision), promises)


def _follow(watch: Watch, decision: Decision, policy: GatePolicy) -> Watch:
    """The watch of an ENABLE at a later look: its promises are those of the limits under which ENABLE is in force."""
    if decision.verdict is not Verdict.ENABLE:
        return watch
    promises = _promises(watch.proven, policy, watch.noise_share, has_z="drift_z_low" in watch.promises)
    if promises == watch.promises or not watch.proven:
        return watch
    return replace(watch, num_blocks=decision.num_blocks, num_clusters=passed_clusters(decision), promises=promises)


def _promises(
    proven: Mapping[str, ProvenBounds], policy: GatePolicy, noise_share: float, *, has_z: bool
) -> dict[str, WatchedMean]:
    """The promises under this policy's limits, by detector."""
    bounds = {}
    for name in ("speedup", "acceptance"):
        if name in proven and (lower := proven[name].lower) is not None:
            bounds[name] = math.log(lower) if name == "speedup" else lower
    started = drift.start_detectors(policy, bounds, has_z=has_z, noise_share=noise_share)
    return {name: WatchedMean(detector.promise, detector.best) for name, detector in started.items()}


def _drift_figures(detectors: Mapping[str, drift.Detector], policy: GatePolicy) -> DriftFigures:
    """How close each detector is to its alarm, on the scale of units seen."""
    figures = {}
    for watcher in (*drift.WATCHERS, *drift.REOPENING_WATCHERS):
        if (detector := detectors.get(watcher.name)) is not None:
            log10 = detector.log_peak / _LN10 if detector.num_units else None
            figures[watcher.name.removeprefix("drift_")] = DetectorFigures(detector.num_units, log10)
    advice = ", ".join(drift.advice(detectors, policy)) or None
    return DriftFigures(math.log10(drift.alarm_threshold(policy)), advice, figures)


def _after_detectors(decision: Decision, detectors: Mapping[str, drift.Detector], policy: GatePolicy) -> Decision:
    tests, parts = {test.name: test for test in decision.tests}, []
    for watcher in drift.alarms(detectors, policy):
        detector = detectors[watcher.name]
        promise = math.exp(detector.promise) if watcher.test_name == "speedup" else detector.promise
        is_least, number = detector.best > detector.promise, detector.num_units
        parts.append(
            reasons.promise_broken(tests[watcher.test_name], promise, number, decision.verdict, is_least=is_least)
        )
    if not parts:
        return decision
    if decision.verdict is Verdict.DISABLE:
        return replace(decision, reason_code=ReasonCode.REOPENED, reason=reasons.refuted(parts), ends_run=True)
    return replace(
        decision,
        verdict=_alarm_verdict(policy),
        reason_code=ReasonCode.DRIFT,
        reason=reasons.alarmed(parts),
        ends_run=True,
    )


def _meanwhile(decision: Decision, trial: Trial, policy: GatePolicy) -> Decision:
    """The decision of a run that follows another and is still undecided."""
    if trial.reopens:
        reason = reasons.after_refutation(trial.num_restarts, decision.reason)
        return replace(decision, verdict=Verdict.DISABLE, reason_code=ReasonCode.REOPENED, reason=reason)
    if trial.supersedes is None:
        reason = reasons.after_alarm(trial.num_restarts, decision.reason)
        return replace(decision, verdict=_alarm_verdict(policy), reason_code=ReasonCode.DRIFT, reason=reason)
    if decision.reason_code not in WAITING_CODES:
        return decision
    reason = reasons.new_fingerprint(trial.supersedes, decision.reason)
    return replace(decision, reason_code=ReasonCode.CHANGED_FINGERPRINT, reason=reason)


def _alarm_verdict(policy: GatePolicy) -> Verdict:
    return Verdict.DISABLE if policy.on_alarm == "disable" else Verdict.HOLD
