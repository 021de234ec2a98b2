"""Rows, decisions and overrides in, a `Report` out.

Invariant: the report repeats what the gate decided, what an operator ordered over it, and what was stored; it
decides nothing itself, and every figure can be formed again from the rows it was given.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Mapping
from datetime import datetime

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.current_verdict import active
from shadowspec.planning.demand import read_demand
from shadowspec.reports.content.notes import REHEARSAL_NOTE, TRIAL_NOTE
from shadowspec.reports.content.notes import data_note as noted
from shadowspec.reports.figures.frontiers import list_replayed_lengths
from shadowspec.reports.figures.funnel import funnel_of
from shadowspec.reports.figures.replay_rows import audit_rows, replay_rows
from shadowspec.reports.report.endpoint_report import endpoint_report
from shadowspec.reports.report.report_model import EndpointReport, Report
from shadowspec.rollout.endpoint_run import unfinished_trials
from shadowspec.store import Store
from shadowspec.types import Decision, Reservations


def build_report(
    source: Store,
    policies: Mapping[str, GatePolicy],
    now: datetime,
    *,
    data_note: str,
    loads: Mapping[str, Collection[int]] | None = None,
    price_per_hour: float | None = None,
    title: str = "Speculative decoding: gating report",
) -> Report:
    """The report of everything in the source, as of its latest decisions.

    Args:
        source: committed rows, read only.
        policies: the gate's policy of each endpoint; one that has no rows yet is shown as such.
        now: the moment the report speaks of; aware, UTC.
        data_note: what the data is and is not, in a sentence; a synthetic store says it itself.
        loads: each endpoint's configured loads, by concurrency; decisions at others are said to be left over.
        price_per_hour: of the device; None: as each endpoint's policy has it.
        title: heading of the report.
    """
    decisions = defaultdict(list)
    for decision in source.latest_decisions():
        decisions[decision.endpoint].append(decision)
    funnel = source.funnel()
    configs, costs, replay_configs = source.fingerprints(), source.costs(), source.replay_configs()
    orders = active(source.overrides(), now)
    counted = {name for name, _, _ in funnel if name is not None}
    names = sorted({*source.endpoints(), *decisions, *policies, *counted, *(order.endpoint for order in orders)})
    replayed = source.replay_sums(names)
    endpoints = [
        endpoint_report(
            source,
            name,
            [_with_load(decision, (loads or {}).get(name)) for decision in decisions[name]],
            [order for order in orders if order.endpoint == name],
            policies.get(name),
            now,
            configs=configs,
            costs=costs,
            replayed=list_replayed_lengths(replayed[name], replay_configs),
            price_per_hour=price_per_hour,
            demand=read_demand(source, name, now, policies.get(name, GatePolicy()).mix_window_s),
        )
        for name in names
    ]
    replays, audits = replay_rows(source, replayed), audit_rows(source, names)
    endpoints = [
        dataclasses.replace(endpoint, replays=replays[endpoint.name], audits=audits[endpoint.name])
        for endpoint in endpoints
    ]
    is_trial = any(h.decision and h.decision.recording_only for endpoint in endpoints for h in endpoint.hypotheses)
    notes = [*([TRIAL_NOTE] if is_trial else []), *([REHEARSAL_NOTE] if unfinished_trials(source, policies) else [])]
    unnamed = [None] if any(name is None for name, _, _ in funnel) else []
    return Report(
        title=title,
        data_note=" ".join((noted(configs.values(), data_note), *notes)),
        generated_at=now,
        endpoints=tuple(sorted(endpoints, key=_busiest_first)),
        funnels=tuple(funnel_of(name, funnel, {name}) for name in [*names, *unnamed]),
        total_funnel=funnel_of(None, funnel, {*names, None}),
        configs=tuple(sorted(configs.values(), key=lambda c: (c.config.name, c.fingerprint))),
    )


def _with_load(decision: Decision, loads: Collection[int] | None) -> Decision:
    """The decision, marked where the configuration has left its load (None: nothing is known of it)."""
    if loads is None or decision.concurrency in loads:
        return decision
    return dataclasses.replace(decision, reservations=Reservations(is_load_configured=False))


def _busiest_first(endpoint: EndpointReport) -> tuple[int, str]:
    return -sum(h.num_requests for h in endpoint.hypotheses if not h.slice_key), endpoint.name
