"""One endpoint's rows, decisions and overrides in, an `EndpointReport` out."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from shadowspec import metrics
from shadowspec.errors import ConfigError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.memory_store import MemoryRows
from shadowspec.gate.run.unit_curves import endpoint_curves
from shadowspec.gate.verdict.current_decision import endpoint_decisions
from shadowspec.gate.verdict.current_verdict import CurrentVerdict, current_verdict
from shadowspec.gate.verdict.curves import SequencePoint
from shadowspec.gate.verdict.trial_levels import HypothesisId, hypothesis_id
from shadowspec.planning.demand import Demand, endpoint_loads
from shadowspec.planning.frontier import Length
from shadowspec.reports.content.definitions import config_name, find_test
from shadowspec.reports.content.notes import with_forbidding
from shadowspec.reports.figures.by_turn import production_cache, turn_rows
from shadowspec.reports.figures.cells import MeasuredCell, measured_cell
from shadowspec.reports.figures.chats import part_rows, stream_figures
from shadowspec.reports.figures.failure_rows import failures_of
from shadowspec.reports.figures.frontiers import frontiers
from shadowspec.reports.figures.predictions import predictions
from shadowspec.reports.figures.tally import CacheCost, ContextPoint, Tally, by_context
from shadowspec.reports.figures.taxonomy import SliceFigures
from shadowspec.reports.figures.token_costs import DeviceTime
from shadowspec.reports.report import hypothesis_figures as figures
from shadowspec.reports.report.hypothesis_figures import JoinedRun
from shadowspec.reports.report.report_model import EndpointReport, ReportedHypothesis
from shadowspec.store import Store
from shadowspec.types import (
    CostKey,
    Decision,
    FingerprintedConfig,
    Override,
    ProfiledCosts,
    Run,
    SamplingRegime,
    StoredBlock,
    StoredRecord,
)
from shadowspec.types.failures import failure_counts


def endpoint_report(
    source: Store,
    name: str,
    decisions: Sequence[Decision],
    orders: Sequence[Override],
    policy: GatePolicy | None,
    now: datetime,
    *,
    configs: Mapping[str, FingerprintedConfig],
    costs: Mapping[CostKey, ProfiledCosts],
    replayed: Iterable[tuple[str, FingerprintedConfig, Length]],
    price_per_hour: float | None,
    demand: Demand | None,
) -> EndpointReport:
    """One endpoint as of its current decisions, without its replays and audits.

    Hypotheses leave out fingerprints that were replaced.  Predictions keep them: acceptance that was measured on one
    engine predicts another.

    Args:
        source: committed rows, of which the endpoint's own are read.
        decisions: its latest, as the evidence left them.
        orders: the overrides in force there.
        policy: the gate's; None: the endpoint is not configured.
        now: the moment the report speaks of; aware, UTC.
        configs: every config measured, by fingerprint.
        costs: what steps cost, as it was profiled last.
        replayed: tokens per step of its replays, by slice and config.
        price_per_hour: of the device; None: as the policy has it.
        demand: production's; None: not measured.
    """
    records, blocks, runs = source.records(name), source.blocks(name), source.runs(name)
    measured = _join_runs(records, blocks, runs)
    decided = endpoint_decisions(decisions, policy, (), now, measured=source.traffic(name), configs=configs)
    by_key: dict[HypothesisId, Decision] = {hypothesis_id(decision): decision for decision in decided.current}
    runs_by_key: dict[HypothesisId, list[JoinedRun]] = defaultdict(list)
    for measured_run in measured:
        for slice_key in {measured_run.slice_key, ""}:
            runs_by_key[slice_key, measured_run.concurrency, measured_run.run.fingerprint].append(measured_run)
    slices = {key: _slice_figures(key[0], joined_runs) for key, joined_runs in runs_by_key.items()}
    paths = endpoint_curves(name, source.folds(name), MemoryRows(records, blocks, runs), decisions)
    measured_or_decided = [
        _hypothesis(
            name,
            key,
            current_verdict(name, key[0], key[1], by_key.get(key), orders, now),
            runs_by_key[key],
            blocks,
            configs,
            policy,
            paths.get(key, {}),
            _others(slices, key),
        )
        for key in {*by_key, *runs_by_key}
    ]
    current = [
        hypothesis for hypothesis in measured_or_decided if hypothesis.fingerprint in decided.fingerprints.values()
    ]
    ordered = tuple(sorted(_with_forbidding(current), key=_reading_order))
    cells = _cells(sorted(measured_or_decided, key=_reading_order), runs_by_key)
    events = [record.event_time for record in records if record.event_time is not None]
    starts = [block.started_at for block in blocks]
    return EndpointReport(
        name=name,
        hypotheses=ordered,
        overrides=tuple(orders),
        first_event=min(events, default=None),
        last_event=max(events, default=None),
        first_measured=min(starts, default=None),
        last_measured=max(starts, default=None),
        policy={} if policy is None else _plain(policy),
        predictions=tuple(predictions(cells, configs, costs)),
        frontiers=tuple(frontiers(cells, configs, costs, replayed)),
        price_per_hour=price_per_hour or (None if policy is None else policy.device_price_per_hour),
        production_cache=production_cache(records),
        loads=endpoint_loads(
            [hypothesis.decision for hypothesis in ordered if hypothesis.decision is not None], demand
        ),
    )


def _cells(
    hypotheses: Iterable[ReportedHypothesis], runs: Mapping[HypothesisId, Sequence[JoinedRun]]
) -> list[MeasuredCell]:
    """The subjects of predictions: the slices.  The whole endpoint is their mixture, not another cell."""
    return [
        measured_cell(
            (hypothesis.slice_key, hypothesis.concurrency, hypothesis.fingerprint),
            pooled.counts,
            pooled.num_requests,
            mean_acceptance_length=pooled.mean_acceptance_length,
            ratio_of_total_times=None if hypothesis.latency is None else hypothesis.latency.ratio_of_total_times,
            device=_device_time(runs[hypothesis.slice_key, hypothesis.concurrency, hypothesis.fingerprint]),
        )
        for hypothesis in hypotheses
        if hypothesis.slice_key and (pooled := hypothesis.acceptance) is not None
    ]


def _device_time(runs: Iterable[JoinedRun]) -> DeviceTime:
    """Of the requests that were timed in both arms."""
    total = DeviceTime()
    for measured in runs:
        baseline, speculative = measured.run.baseline, measured.run.speculative
        if baseline is not None and speculative is not None:
            total += DeviceTime(
                baseline.end_to_end_ms / measured.concurrency,
                speculative.end_to_end_ms / measured.concurrency,
                baseline.num_output_tokens,
                speculative.num_output_tokens,
            )
    return total


def _with_forbidding(hypotheses: Sequence[ReportedHypothesis]) -> list[ReportedHypothesis]:
    marked = {hypothesis_id(d): d for d in with_forbidding([h.decision for h in hypotheses if h.decision])}
    return [
        dataclasses.replace(h, decision=marked.get((h.slice_key, h.concurrency, h.fingerprint))) for h in hypotheses
    ]


def _reading_order(hypothesis: ReportedHypothesis) -> tuple[str, int, bool, int, str]:
    """Config, load, the endpoint before its slices, busy slices before small ones."""
    h = hypothesis
    return h.config_name, h.concurrency, h.slice_key != "", -h.num_requests, h.slice_key


def _hypothesis(
    endpoint: str,
    key: HypothesisId,
    current: CurrentVerdict,
    runs: Sequence[JoinedRun],
    blocks: Sequence[StoredBlock],
    configs: Mapping[str, FingerprintedConfig],
    policy: GatePolicy | None,
    paths: Mapping[str, tuple[SequencePoint, ...]],
    others: Sequence[SliceFigures],
) -> ReportedHypothesis:
    slice_key, concurrency, fingerprint = key
    decision = current.decision
    counter = Counter(measured.run.block_id for measured in runs)
    used = [block for block in blocks if block.block_id in counter]
    config = configs.get(fingerprint)
    loops = sum(measured.run.is_repetition_loop for measured in runs)
    answered = sum(measured.run.failure is None for measured in runs)
    figures_of_slice = _slice_figures(slice_key, runs)
    acceptance = figures.acceptance(runs)
    memories = [block.memory[fingerprint] for block in used if fingerprint in block.memory]
    return ReportedHypothesis(
        endpoint=endpoint,
        slice_key=slice_key,
        concurrency=concurrency,
        fingerprint=fingerprint,
        config_name=decision.config.name if decision else config_name(configs, fingerprint),
        engine=_engine(decision, config),
        decision=decision,
        override=current.override,
        speedup=find_test(decision, "speedup"),
        acceptance_interval=find_test(decision, "acceptance"),
        num_requests=len(runs),
        num_failed=len(runs) - answered,
        num_blocks=len(used),
        num_short_blocks=_num_short(used, runs),
        acceptance=acceptance,
        latency=figures.latency(runs),
        parity=figures.parity(runs, _near_tie_logit(policy, config)),
        memory=figures.memory(memories),
        kv_cache=figures.kv_cache(memories),
        num_repetition_loops=loops,
        repetition_loop_share=metrics.ratio(loops, answered),
        by_turn=turn_rows(
            [(measured.run, measured.turn) for measured in runs],
            by_turn=config is not None and config.mode is not None,
        ),
        by_context=by_context(_context_points(runs), _cache_cost(used, fingerprint)),
        streams=stream_figures(measured.run for measured in runs),
        by_part=part_rows(measured.run for measured in runs),
        failures=failures_of(
            figures_of_slice,
            others,
            num_repetition_loops=loops,
            num_drafts=acceptance.counts.num_drafts if acceptance else 0,
            num_first_accepted=acceptance.counts.num_first_accepted if acceptance else 0,
        ),
        sequences=paths,
    )


def _num_short(blocks: Sequence[StoredBlock], runs: Iterable[JoinedRun]) -> int:
    """Blocks with fewer requests, or conversations, than they have places for."""
    held: dict[str, set[object]] = defaultdict(set)
    turns = {block.block_id: block.max_turns for block in blocks}
    for measured in runs:
        if (block_id := measured.run.block_id) in turns:
            held[block_id].add(measured.run.key if turns[block_id] == 1 else measured.unit_key)
    return sum(len(held[block.block_id]) < block.n_max // block.max_turns for block in blocks)


def _engine(decision: Decision | None, config: FingerprintedConfig | None) -> str:
    if config is not None:
        return config.engine
    return "unknown" if decision is None else decision.engine


def _context_points(runs: Iterable[JoinedRun]) -> Iterator[ContextPoint]:
    for measured in runs:
        if (counts := measured.run.counts) is not None:
            of_measured = Tally.of_measured(measured.run, measured.sampling_rate)
            yield ContextPoint(counts.num_prompt_tokens, counts.num_output_tokens, of_measured)


def _cache_cost(blocks: Iterable[StoredBlock], fingerprint: str) -> CacheCost | None:
    """The same in every block of a config."""
    return next((cost for block in blocks if (cost := CacheCost.of(block.memory.get(fingerprint))) is not None), None)


def _slice_figures(slice_key: str, runs: Sequence[JoinedRun]) -> SliceFigures:
    """What a slice is compared by; each request weighs the inverse of its session's sampling rate."""
    counted = [
        (measured.run.counts, 1.0 / measured.sampling_rate) for measured in runs if measured.run.counts is not None
    ]
    return SliceFigures(
        slice_key,
        sum(measured.run.failure is None for measured in runs),
        sum(weight * counts.num_drafts for counts, weight in counted),
        sum(weight * counts.num_first_accepted for counts, weight in counted),
        failure_counts(measured.run for measured in runs),
    )


def _others(slices: Mapping[HypothesisId, SliceFigures], key: HypothesisId) -> list[SliceFigures]:
    """The endpoint's slices at the same load and with the same config; none for the whole endpoint."""
    slice_key, *place = key
    return [figures for (name, *other), figures in slices.items() if slice_key and name and other == place]


def _near_tie_logit(policy: GatePolicy | None, config: FingerprintedConfig | None) -> float | None:
    if policy is None or config is None:
        return None
    try:
        return policy.near_tie_logit_of(config.dtype)
    except ConfigError:
        return None  # the report then says that no limit is known


def _join_runs(records: Sequence[StoredRecord], blocks: Sequence[StoredBlock], runs: Iterable[Run]) -> list[JoinedRun]:
    """Runs with their record and their block; the store's keys hold both, so neither can be missing."""
    record_of = {record.key: record for record in records}
    block_of = {block.block_id: block for block in blocks}
    return [
        JoinedRun(
            run=run,
            slice_key=block_of[run.block_id].slice_key,
            concurrency=block_of[run.block_id].concurrency,
            sampling_rate=record_of[run.key].sampling_rate or 1.0,
            is_greedy=record_of[run.key].labels.get("sampling_regime") == SamplingRegime.GREEDY,
            unit_key=record_of[run.key].unit_key,
            turn=record_of[run.key].session_position,
        )
        for run in runs
    ]


def _plain(policy: GatePolicy) -> dict[str, float | int | str | None]:
    """The policy's fields by name; what is not a plain value is written out."""
    values = {field.name: getattr(policy, field.name) for field in dataclasses.fields(policy)}
    return {
        name: value if value is None or isinstance(value, float | int | str) else str(value)
        for name, value in values.items()
    }
