"""Replay's acceptance beside the loop's, marked as replay, and the audits of the loop's outputs by replay.

Replay's figures are expectations given logged responses.  No test rests on them: a record gives the gate what the
loop counted, or nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from shadowspec import metrics
from shadowspec.gate.run.audit_difference import AuditState
from shadowspec.gate.run.audit_run import stored_audits
from shadowspec.store import Store
from shadowspec.text import number, plural
from shadowspec.types import AcceptanceSums, FingerprintedConfig, LoopSpan, StoredAudit

ReplaySums = Mapping[str, Sequence[AcceptanceSums]]  # by endpoint


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One slice ("": the whole endpoint), way of drafting and K: replay's pooled figures, and the loop's beside them.

    `loop` speaks of the time that the replayed responses are of; None where that config was not measured then.
    """

    slice_key: str
    config_name: str
    verify_rule: str
    num_speculative_tokens: int
    fingerprint: str
    num_requests: int
    mean_acceptance_length: float | None
    first_position_acceptance_rate: float | None
    draft_acceptance_rate: float | None
    loop_num_requests: int
    loop_mean_acceptance_length: float | None


@dataclass(frozen=True, slots=True)
class AuditRow:
    """The audit of the loop's outputs of one slice ("": the whole endpoint) and config."""

    slice_key: str
    config_name: str
    fingerprint: str
    state: AuditState

    @property
    def words(self) -> str:
        """Its present state."""
        if self.state.alarmed_at is not None:
            return f"alarm since {self.state.alarmed_at:%Y-%m-%d %H:%M} UTC"
        if not self.state.num_units:
            return "nothing audited yet"
        return f"no alarm in {plural(self.state.num_units, 'output')}"

    @property
    def capital_text(self) -> str:
        """The highest capital, and that at which it alarms, as powers of ten."""
        return f"10^{number(self.state.log10_peak, 1)} of 10^{number(self.state.log10_threshold, 1)}"


def replay_rows(source: Store, replayed: ReplaySums) -> dict[str, tuple[ReplayRow, ...]]:
    """Everything replayed at each endpoint, by slice (the whole endpoint first), config, rule and K.

    `replayed` is what the source's replays add up to; an endpoint without any has no rows.
    """
    spans = [_span(endpoint, sums) for endpoint, sums in replayed.items() if sums]
    looped = source.loop_sums(spans) if spans else {}
    configs = source.replay_configs() if spans else {}
    return {endpoint: _rows(sums, looped.get(endpoint, ()), configs) for endpoint, sums in replayed.items()}


def _span(endpoint: str, replayed: Sequence[AcceptanceSums]) -> LoopSpan:
    """The loop's side of what was replayed: the same configs in the same time."""
    return LoopSpan(
        endpoint,
        {sums.fingerprint for sums in replayed},
        min(sums.first_event for sums in replayed),
        max(sums.last_event for sums in replayed),
    )


def _rows(
    replayed: Sequence[AcceptanceSums], of_loop: Iterable[AcceptanceSums], configs: Mapping[str, FingerprintedConfig]
) -> tuple[ReplayRow, ...]:
    both = {(sums.slice_key, sums.fingerprint) for sums in replayed}
    looped = [sums for sums in of_loop if (sums.slice_key, sums.fingerprint) in both]  # the whole is of the same slices
    loops = {(sums.slice_key, sums.fingerprint): sums for sums in _with_whole(looped)}
    rows = [
        _replay_row(sums, loops.get((sums.slice_key, sums.fingerprint)), configs[sums.fingerprint])
        for sums in _with_whole(replayed)
    ]
    return tuple(
        sorted(rows, key=lambda row: (row.slice_key, row.config_name, row.verify_rule, row.num_speculative_tokens))
    )


def audit_rows(source: Store, endpoints: Collection[str]) -> dict[str, tuple[AuditRow, ...]]:
    """Every audit of each of the endpoints, alarms first."""
    states = source.audit_states(endpoints)
    configs = source.fingerprints() if any(states.values()) else {}
    return {endpoint: _audit_rows(state, configs) for endpoint, state in states.items()}


def _audit_rows(states: Sequence[StoredAudit], configs: Mapping[str, FingerprintedConfig]) -> tuple[AuditRow, ...]:
    rows = []
    for audit in stored_audits(states):
        config = configs.get(audit.fingerprint)
        name = audit.fingerprint[:12] if config is None else config.config.name
        rows.append(AuditRow(audit.slice_key, name, audit.fingerprint, audit.state))
    return tuple(sorted(rows, key=lambda row: (not row.state.has_alarmed, row.slice_key, row.config_name)))


def _replay_row(sums: AcceptanceSums, loop: AcceptanceSums | None, config: FingerprintedConfig) -> ReplayRow:
    return ReplayRow(
        slice_key=sums.slice_key,
        config_name=config.config.name,
        verify_rule=config.config.verify_rule.value,
        num_speculative_tokens=config.config.num_speculative_tokens,
        fingerprint=sums.fingerprint,
        num_requests=sums.num_requests,
        mean_acceptance_length=metrics.mean_acceptance_length(sums),
        first_position_acceptance_rate=metrics.first_position_acceptance_rate(sums),
        draft_acceptance_rate=metrics.draft_acceptance_rate(sums),
        loop_num_requests=0 if loop is None else loop.num_requests,
        loop_mean_acceptance_length=None if loop is None else metrics.mean_acceptance_length(loop),
    )


def _with_whole(sums_by_slice: Iterable[AcceptanceSums]) -> list[AcceptanceSums]:
    """These by slice, and before them those of the whole endpoint."""
    by_slice = list(sums_by_slice)
    whole: dict[str, AcceptanceSums] = {}
    for sums in by_slice:
        before = whole.get(sums.fingerprint)
        whole[sums.fingerprint] = replace(sums, slice_key="") if before is None else before.plus(sums)
    return [*whole.values(), *by_slice]
