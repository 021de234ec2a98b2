"""Rows in, a `PeriodReport` out.

Invariant: the report of a past time comes out the same whenever it is made, but for the funnel and for plans, which
speak of now and are left out (plans) or said to (funnel) where now is another time, and where events before its end
were measured after it: runs are known by the hours of their events.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from shadowspec.errors import NoDataError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.current_decision import LatestDecision, endpoint_decisions
from shadowspec.gate.verdict.current_verdict import active, current_verdict
from shadowspec.gate.verdict.hold_reasons import still_needed
from shadowspec.metrics import ratio
from shadowspec.planning.plans import EndpointPlan, plan_stored
from shadowspec.reports.content.definitions import find_test
from shadowspec.reports.content.notes import data_note
from shadowspec.reports.figures.funnel import funnel_of
from shadowspec.reports.period.period_changes import changes_within, is_event
from shadowspec.reports.period.period_model import Need, PeriodReport, PeriodRow, Quality, SimulatedRate
from shadowspec.store import Store
from shadowspec.types import Decision, Override, OverrideRecord, Rollout, Verdict

DAY_S = 86_400.0
MAX_PLANNED = 40  # open hypotheses of an endpoint up to which its futures are drawn: a quarter of a second each
TITLE = "Speculative decoding: changes"


@dataclass(frozen=True, slots=True)
class PeriodSettings:
    """What the configuration says that a report needs, by endpoint."""

    policies: Mapping[str, GatePolicy] = field(default_factory=dict)
    sample_rates: Mapping[str, float] = field(default_factory=dict)
    simulated: Mapping[str, SimulatedRate | None] = field(default_factory=dict)
    data_note: str = ""
    title: str = TITLE
    dashboard_url: str | None = None  # with which changes link to their evidence


def build_period_report(
    source: Store,
    settings: PeriodSettings,
    since: datetime,
    until: datetime,
    now: datetime,
    *,
    gate_outcome: str | None = None,
    events: Collection[str] = (),
) -> PeriodReport:
    """The report on the time from `since` up to, but without, `until`; all aware, UTC.

    `gate_outcome` is what became of the gate run that went before it, where one did.  With `events` the report lists
    only the changes that are such events, and draws no plans: it is sent at once.
    """
    # 1. The state at the beginning and at the end.
    before, after = source.decisions_at(since), source.decisions_at(until)
    records = [record for record in (_at(override, until) for override in source.overrides()) if record is not None]
    orders = active(records, until)
    endpoints = sorted({*source.endpoints(), *settings.policies, *(decision.endpoint for decision in after)})
    decided = {name: [decision for decision in after if decision.endpoint == name] for name in endpoints}
    configs = source.fingerprints()
    current: dict[str, list[LatestDecision]] = {}
    for name in endpoints:
        policy, measured = settings.policies.get(name), source.traffic(name, until)
        looked_at = endpoint_decisions(decided[name], policy, (), until, measured=measured, configs=configs)
        current[name] = [latest for latest in looked_at.latest if latest.is_current]
    judged = [latest.decision for name in endpoints for latest in current[name]]
    rollouts = source.rollout_history()
    stages = {(rollout.endpoint, rollout.concurrency): rollout for rollout in rollouts if rollout.decided_at < until}
    board = [_row(decision, orders, stages, until) for decision in judged]

    # 2. What happened between them.
    changes, has_left_out = changes_within(source, since, until, before, after, rollouts)
    if events:
        changes = [change for change in changes if is_event(change, events)]

    # 3. What is still open, and how far the evidence can be trusted.
    plans = {
        name: None if events else _plan(source, settings, name, decided[name], current[name]) for name in endpoints
    }
    needs = [_need(decision, plans[decision.endpoint]) for decision in judged if decision.verdict is Verdict.HOLD]
    counts = source.funnel()
    return PeriodReport(
        title=settings.title,
        data_note=data_note(configs.values(), settings.data_note),
        since=since,
        until=until,
        generated_at=now,
        report_id=report_id(since, until),
        changes=tuple(changes),
        has_left_out=has_left_out,
        board=tuple(sorted(board, key=_reading_order)),
        needs=tuple(
            sorted(needs, key=lambda need: (need.endpoint, need.slice_key, need.concurrency, need.config_name))
        ),
        quality=tuple(
            _quality(source, settings, name, decided[name], current[name], since, until) for name in endpoints
        ),
        total_funnel=funnel_of(None, counts, {*endpoints, None, *(name for name, _, _ in counts)}),
        gate_outcome=gate_outcome,
        dashboard_url=settings.dashboard_url,
    )


def report_id(since: datetime, until: datetime) -> str:
    """A name for the report on this time, the same whenever and wherever it is made."""
    return hashlib.sha256(f" {since.isoformat()} {until.isoformat()}".encode()).hexdigest()[:32]


def _at(record: OverrideRecord, moment: datetime) -> OverrideRecord | None:
    """The override as it was known at a moment; None if it was not set yet."""
    if record.override.created_at >= moment:
        return None
    if record.clearing is not None and record.clearing.cleared_at >= moment:
        return replace(record, clearing=None)
    return record


def _row(
    measured: Decision, orders: Sequence[Override], stages: Mapping[tuple[str, int], Rollout], until: datetime
) -> PeriodRow:
    """The state of a hypothesis at a time; `stages` are the rollouts of each endpoint and load at that time."""
    place = measured.endpoint, measured.slice_key, measured.concurrency
    current = current_verdict(*place, measured, orders, until)
    shown = current.decision
    assert shown is not None, "something was decided"
    rollout = stages.get((measured.endpoint, measured.concurrency)) if not measured.slice_key else None
    return PeriodRow(
        endpoint=measured.endpoint,
        slice_key=measured.slice_key,
        concurrency=measured.concurrency,
        config_name=measured.config.name,
        fingerprint=measured.fingerprint,
        engine=measured.engine,
        verdict_engine=measured.verdict_engine,
        verdict=shown.verdict,
        measured_verdict=measured.verdict,
        is_overridden=current.override is not None,
        reason_code=shown.reason_code,
        reason=shown.reason,
        since=current.since,
        speedup=find_test(measured, "speedup"),
        total_time=find_test(measured, "total_time"),
        acceptance=find_test(measured, "acceptance"),
        num_blocks=measured.num_blocks,
        num_clusters=measured.num_clusters,
        traffic_share=measured.traffic_share,
        stage=rollout.stage.value if rollout is not None and rollout.fingerprint == measured.fingerprint else None,
        decision_id=measured.decision_id,
        decided_at=measured.decided_at,
    )


def _reading_order(row: PeriodRow) -> tuple[str, int, str, bool, float, str]:
    """Endpoint, load, config, the endpoint before its slices, busy slices before small ones."""
    share = -(row.traffic_share or 0.0)
    return row.endpoint, row.concurrency, row.config_name, row.slice_key != "", share, row.slice_key


def _plan(
    source: Store,
    settings: PeriodSettings,
    endpoint: str,
    decided: Sequence[Decision],
    current: Sequence[LatestDecision],
) -> EndpointPlan | None:
    """The plan of an endpoint's open questions, where the evidence still is what the decisions rest on."""
    num_open = sum(latest.decision.verdict is Verdict.HOLD for latest in current)
    policy, rate = settings.policies.get(endpoint), settings.sample_rates.get(endpoint)
    if policy is None or rate is None or not 0 < num_open <= MAX_PLANNED:
        return None
    latest = source.folded_evidence(endpoint).latest_decisions
    if {decision.decision_id for decision in latest} != {decision.decision_id for decision in decided}:
        return None
    try:
        return plan_stored(source, endpoint, policy, sample_rate=rate, capacity_per_s=None)
    except NoDataError:  # folded under another policy: what the gate said beside its decisions is all that is known
        return None


def _need(decision: Decision, plan: EndpointPlan | None) -> Need:
    open_tests = tuple(
        (test.name, test.unit, test.units_needed)
        for test in decision.tests
        if test.outcome == "open" and test.is_required
    )
    need = Need(
        endpoint=decision.endpoint,
        slice_key=decision.slice_key,
        concurrency=decision.concurrency,
        config_name=decision.config.name,
        reason_code=decision.reason_code,
        reason=decision.reason,
        needed=still_needed(decision),
        open_tests=open_tests,
        decision_id=decision.decision_id,
    )
    key = decision.slice_key, decision.concurrency, decision.fingerprint
    for hypothese in plan.hypotheses if plan is not None else ():
        hypothesis = hypothese.hypothesis
        if hypothese.is_open and key == (hypothesis.slice_key, hypothesis.concurrency, hypothesis.config.fingerprint):
            return replace(
                need,
                is_planned=True,
                clusters_median=hypothese.clusters_median,
                clusters_late=hypothese.clusters_late,
                days_median=_days(hypothese.seconds_median),
                days_late=_days(hypothese.seconds_late),
                enable_share=hypothese.enable_share,
                disable_share=hypothese.disable_share,
            )
    return need


def _quality(
    source: Store,
    settings: PeriodSettings,
    endpoint: str,
    decided: Sequence[Decision],
    current: Sequence[LatestDecision],
    since: datetime,
    until: datetime,
) -> Quality:
    sums = [group.sums for group in source.group_sums(endpoint, since, until)]
    looked = [latest.decision for latest in current]
    whole = [decision for decision in looked if not decision.slice_key] or looked
    last = max(whole, key=lambda decision: decision.decided_at, default=None)
    newest = [latest.evidence_at for latest in current if latest.evidence_at is not None]
    missing = [decision.evidence.missing_share for decision in whole if decision.evidence.missing_share is not None]
    beyond = [ratio(decision.evidence.counts.num_beyond, decision.evidence.counts.num_arrived) for decision in whole]
    policy = settings.policies.get(endpoint)
    return Quality(
        endpoint=endpoint,
        num_measured=sum(rollup_sums.num_runs - rollup_sums.num_failed for rollup_sums in sums),
        num_failed=sum(rollup_sums.num_failed for rollup_sums in sums),
        last_look=max((decision.decided_at for decision in decided), default=None),
        newest_evidence=max(newest, default=None),
        watermark=None if last is None else last.evidence.newest_record,
        watermark_held_by=None if last is None else last.evidence.watermark_held_by,
        num_late=max((decision.evidence.counts.num_late for decision in whole), default=None),
        num_lost=max((decision.evidence.counts.num_lost for decision in whole), default=None),
        beyond_share=max((share for share in beyond if share is not None), default=None),
        missing_share=max(missing, default=None),
        max_missing=None if policy is None else policy.max_missing,
        simulated=settings.simulated.get(endpoint),
    )


def _days(seconds: float | None) -> float | None:
    return None if seconds is None else seconds / DAY_S
