"""A store with two endpoints, and the report of it."""

from __future__ import annotations

from dataclasses import asdict

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.state import FOLD_VERSION, new_progress
from shadowspec.types import Fold, Span
from tests.builders.production_gate import gated
from tests.gate.oracle import EndpointEvidence
from tests.reports.worlds import NOW, MemorySource, add_slice

POLICY = GatePolicy(window_s=0.0, max_hypotheses=2, min_span_s=0.0)
CODE = "prompt_class=code,sampling_regime=greedy"
CHAT = "prompt_class=chat,sampling_regime=low"


def world(failures: int = 0) -> MemorySource:
    source = MemorySource()
    add_slice(source, "editor", CODE, num_blocks=70, speedup=1.4, rate=0.7, seed=3, failures=failures)
    add_slice(source, "editor", CHAT, num_blocks=6, speedup=1.1, rate=0.5, seed=4)
    return source


def judged(source: MemorySource) -> MemorySource:
    for endpoint in source.endpoints():
        rows = EndpointEvidence(endpoint, source.records(endpoint), source.blocks(endpoint), source.runs(endpoint))
        source.decisions += gated(rows, POLICY, source.configs, now=NOW)
        source.folded[endpoint] = [fold_of(rows)]
    return source


def fold_of(rows: EndpointEvidence) -> Fold:
    """One fold that took in all of these rows."""
    places: dict[tuple[str, int], int] = {}
    for record in rows.records:
        place = record.key.source, record.key.partition
        places[place] = max(places.get(place, 0), record.key.offset + 1)
    spans = tuple(Span(*place, 0, stop) for place, stop in sorted(places.items()))
    parameters = {"version": FOLD_VERSION, **asdict(POLICY)}
    return Fold(spans, None, len(rows.records), len(rows.runs), parameters, NOW, begins=new_progress({}, {}))
