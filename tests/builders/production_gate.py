"""Decisions and looks of the production gate over a world's rows, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.endpoint_look import EndpointLook, Look
from shadowspec.gate.run.folding import FoldRules
from shadowspec.gate.run.gate_run import load_evidence, run_endpoint_gate
from shadowspec.gate.run.memory_store import MemoryStore
from shadowspec.types import Decision, FingerprintedConfig, Span, Watermark
from tests.gate.oracle import EndpointEvidence
from tests.gate.worlds import CONFIG, START


class WorldStore(MemoryStore):
    """All rows of a world, of any partitions; every one is finished."""

    def __init__(
        self, rows: EndpointEvidence, configs: Mapping[str, FingerprintedConfig], *, input_ended: bool
    ) -> None:
        super().__init__(rows.endpoint, ("file", 0), configs.values())
        self.add(rows.records, rows.blocks, rows.runs)
        newest = max((record.event_time for record in rows.records if record.event_time), default=None)
        self.finish(len(rows.records), Watermark(rows.watermark or newest, is_ended=input_ended))
        self._stops: dict[tuple[str, int], int] = {}
        for record in rows.records:
            place = record.key.source, record.key.partition
            self._stops[place] = max(self._stops.get(place, 0), record.key.offset + 1)

    def finished_spans(self) -> list[Span]:
        return [Span(*place, 0, stop) for place, stop in sorted(self._stops.items())]

    def ended_places(self) -> frozenset[tuple[str, int]]:
        return frozenset(self._stops if self.watermark().is_ended else ())

    def first_offset(self, span: Span) -> int | None:
        return span.start if span.start < self._stops.get((span.source, span.partition), 0) else None


def gated(
    rows: EndpointEvidence,
    policy: GatePolicy,
    configs: Mapping[str, FingerprintedConfig] | None = None,
    *,
    input_ended: bool = True,
    now: datetime = START,
) -> list[Decision]:
    """What one gate run over these rows decides: the whole endpoint first, then its slices by name."""
    store = WorldStore(rows, configs or {CONFIG.fingerprint: CONFIG}, input_ended=input_ended)
    return list(run_endpoint_gate(store, rows.endpoint, policy, input_ended=input_ended, now=now).decisions)


def looks_after(rows: EndpointEvidence, policy: GatePolicy) -> list[Look]:
    """The hypotheses as that gate run leaves them, as a plan reads them."""
    configs = {CONFIG.fingerprint: CONFIG}
    store = WorldStore(rows, configs, input_ended=True)
    run_endpoint_gate(store, rows.endpoint, policy, input_ended=True, now=START)
    assert store.progress is not None
    rules = FoldRules.under(policy, store.latest_decisions())
    loaded = load_evidence(store.progress.document, store.evidence(), rules)
    assert loaded.refold_reason is None
    loads, until = sorted(loaded.state.loads), store.watermark().time
    look = EndpointLook(rows.endpoint, loaded.state, loaded.evidence, rules, configs, loads, until, ())
    return list(look.looks().values())
