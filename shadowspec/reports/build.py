"""Rows and decisions in, a `Report` out.

Invariant: the report repeats what the gate decided and what was stored; it decides nothing itself, and every
figure can be formed again from the rows it was given.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from shadowspec import metrics
from shadowspec.errors import ConfigError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.sequences import SequencePoint
from shadowspec.gating import EndpointEvidence, HypothesisId, hypothesis_id
from shadowspec.reports import figures
from shadowspec.reports.evidence import interval, sequences
from shadowspec.reports.figures import MeasuredRun
from shadowspec.reports.model import EndpointReport, Funnel, FunnelRow, Hypothesis, Report
from shadowspec.reports.source import ReportSource
from shadowspec.types import (
    Decision,
    FingerprintedConfig,
    FunnelCounter,
    Run,
    SamplingRegime,
    StoredBlock,
    StoredRecord,
)

FunnelCounts = Mapping[tuple[str | None, FunnelCounter, str | None], int]


def build_report(
    source: ReportSource,
    policies: Mapping[str, GatePolicy],
    now: datetime,
    *,
    data_note: str,
    title: str = "Speculative decoding: gating report",
) -> Report:
    """The report of everything in the source, as of its latest decisions.

    Args:
        source: committed rows, read only.
        policies: the gate's policy of each endpoint; one that has no rows yet is shown as such.
        now: the moment the report speaks of; aware, UTC.
        data_note: what the data is and is not, in a sentence.
        title: heading of the report.
    """
    decisions = defaultdict(list)
    for decision in source.latest_decisions():
        decisions[decision.endpoint].append(decision)
    funnel = source.funnel()
    configs = source.fingerprints()
    names = sorted({*source.endpoints(), *decisions, *policies, *(name for name, _, _ in funnel if name is not None)})
    endpoints = tuple(
        _endpoint(
            name,
            source.records(name),
            source.blocks(name),
            source.runs(name),
            decisions[name],
            configs,
            policies.get(name),
        )
        for name in names
    )
    unnamed = [None] if any(name is None for name, _, _ in funnel) else []
    return Report(
        title=title,
        data_note=data_note,
        generated_at=now,
        endpoints=tuple(sorted(endpoints, key=_busiest_first)),
        funnels=tuple(_funnel(name, funnel, {name}) for name in [*names, *unnamed]),
        total_funnel=_funnel(None, funnel, {*names, None}),
        configs=tuple(sorted(configs.values(), key=lambda c: (c.config.name, c.fingerprint))),
    )


def _endpoint(
    name: str,
    records: Sequence[StoredRecord],
    blocks: Sequence[StoredBlock],
    runs: Sequence[Run],
    decisions: Sequence[Decision],
    configs: Mapping[str, FingerprintedConfig],
    policy: GatePolicy | None,
) -> EndpointReport:
    measured = _measured(records, blocks, runs)
    by_key: dict[HypothesisId, Decision] = {hypothesis_id(d): d for d in decisions}
    runs_by_key: dict[HypothesisId, list[MeasuredRun]] = defaultdict(list)
    for item in measured:
        for slice_key in {item.slice_key, ""}:
            runs_by_key[slice_key, item.concurrency, item.run.fingerprint].append(item)
    paths = sequences(EndpointEvidence(name, records, blocks, runs), policy, decisions)
    hypotheses = [
        _hypothesis(
            name, key, by_key.get(key), runs_by_key[key], blocks, configs.get(key[2]), policy, paths.get(key, {})
        )
        for key in {*by_key, *list(runs_by_key)}
    ]
    events = [record.event_time for record in records if record.event_time is not None]
    starts = [block.started_at for block in blocks]
    return EndpointReport(
        name=name,
        hypotheses=tuple(sorted(hypotheses, key=_reading_order)),
        first_event=min(events, default=None),
        last_event=max(events, default=None),
        first_measured=min(starts, default=None),
        last_measured=max(starts, default=None),
        policy={} if policy is None else _plain(policy),
    )


def _busiest_first(endpoint: EndpointReport) -> tuple[int, str]:
    return -sum(h.num_requests for h in endpoint.hypotheses if not h.slice_key), endpoint.name


def _reading_order(hypothesis: Hypothesis) -> tuple[str, int, bool, int, str]:
    """Config, load, the endpoint before its slices, busy slices before small ones."""
    h = hypothesis
    return h.config_name, h.concurrency, h.slice_key != "", -h.num_requests, h.slice_key


def _hypothesis(
    endpoint: str,
    key: HypothesisId,
    decision: Decision | None,
    runs: Sequence[MeasuredRun],
    blocks: Sequence[StoredBlock],
    config: FingerprintedConfig | None,
    policy: GatePolicy | None,
    paths: Mapping[str, tuple[SequencePoint, ...]],
) -> Hypothesis:
    slice_key, concurrency, fingerprint = key
    own = Counter(item.run.block_id for item in runs)
    used = [block for block in blocks if block.block_id in own]
    loops = sum(item.run.is_repetition_loop for item in runs)
    answered = sum(item.run.failure is None for item in runs)
    name = decision.config.name if decision else config.config.name if config else fingerprint[:12]
    return Hypothesis(
        endpoint=endpoint,
        slice_key=slice_key,
        concurrency=concurrency,
        fingerprint=fingerprint,
        config_name=name,
        decision=decision,
        speedup=interval(decision, "speedup"),
        acceptance_interval=interval(decision, "acceptance"),
        num_requests=len(runs),
        num_failed=len(runs) - answered,
        num_blocks=len(used),
        num_short_blocks=sum(own[block.block_id] < block.n_max for block in used),
        acceptance=figures.acceptance(runs),
        latency=figures.latency(runs),
        parity=figures.parity(runs, _near_tie_logit(policy, config)),
        memory=figures.memory(block.memory[fingerprint] for block in used if fingerprint in block.memory),
        num_repetition_loops=loops,
        repetition_loop_share=metrics.ratio(loops, answered),
        sequences=paths,
    )


def _near_tie_logit(policy: GatePolicy | None, config: FingerprintedConfig | None) -> float | None:
    if policy is None or config is None:
        return None
    try:
        return policy.near_tie_logit_of(config.dtype)
    except ConfigError:
        return None  # the report then says that no limit is known


def _measured(records: Sequence[StoredRecord], blocks: Sequence[StoredBlock], runs: Iterable[Run]) -> list[MeasuredRun]:
    """Runs with their record and their block; the store's keys hold both, so neither can be missing."""
    record_of = {record.key: record for record in records}
    block_of = {block.block_id: block for block in blocks}
    return [
        MeasuredRun(
            run=run,
            slice_key=block_of[run.block_id].slice_key,
            concurrency=block_of[run.block_id].concurrency,
            sampling_rate=record_of[run.key].sampling_rate or 1.0,
            is_greedy=record_of[run.key].labels.get("sampling_regime") == SamplingRegime.GREEDY,
        )
        for run in runs
    ]


def _funnel(endpoint: str | None, counts: FunnelCounts, names: set[str | None]) -> Funnel:
    reasons: dict[FunnelCounter, Counter[str]] = {counter: Counter() for counter in FunnelCounter}
    totals: Counter[FunnelCounter] = Counter()
    for (name, counter, reason), number in counts.items():
        if name in names:
            totals[counter] += number
            if reason is not None:
                reasons[counter][reason] += number
    return Funnel(
        endpoint=endpoint,
        num_records=sum(totals.values()),
        rows=tuple(
            FunnelRow(
                counter, totals[counter], tuple(sorted(reasons[counter].items(), key=lambda item: (-item[1], item[0])))
            )
            for counter in FunnelCounter
        ),
    )


def _most_frequent_first(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def _plain(policy: GatePolicy) -> dict[str, float | int | str | None]:
    """The policy's fields by name; what is not a plain value is written out."""
    values = {field.name: getattr(policy, field.name) for field in dataclasses.fields(policy)}
    return {
        name: value if value is None or isinstance(value, float | int | str) else str(value)
        for name, value in values.items()
    }
