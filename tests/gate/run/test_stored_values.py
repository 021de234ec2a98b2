"""What the gate stores between looks is read back as it was, for any value, and so are costs."""

from __future__ import annotations

import json
from datetime import UTC

from hypothesis import given
from hypothesis import strategies as st

from shadowspec.gate.evidence.clusters import ClusterProgress
from shadowspec.gate.evidence.entry import Entry, RecentRequests
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.audit_difference import FRACTIONS, AuditState
from shadowspec.gate.run.state import Beginning, EndpointState, decode_state, encode_state, new_progress, new_state
from shadowspec.gate.run.traffic_counts import TrafficCounts
from shadowspec.gate.verdict.trial_levels import Seen
from shadowspec.store.evidence.evidence_session import OPEN_BLOCK_VERSION
from shadowspec.store.write.append_only_rows import COSTS_VERSION, CostPoints
from shadowspec.types import OpenBlock, RecordKey, StepCost
from shadowspec.types.codec import from_document, to_document

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
COUNTS = st.integers(0, 2**53)
REALS = st.floats(allow_nan=False, allow_infinity=False)
MAYBE = st.none() | REALS
TIMES = st.datetimes(timezones=st.just(UTC))
BY_NAME = st.dictionaries(TEXTS, COUNTS, max_size=3)
ENTRIES = st.dictionaries(TEXTS, st.builds(Entry, COUNTS, TIMES), max_size=3)
DOMINANT = st.frozensets(st.tuples(TEXTS, TEXTS), max_size=3)
RECENT = st.builds(RecentRequests, st.dictionaries(COUNTS, BY_NAME, max_size=3))
PROGRESS = st.builds(
    ClusterProgress, COUNTS, st.none() | TIMES, BY_NAME, BY_NAME, BY_NAME, BY_NAME, RECENT, ENTRIES, DOMINANT
)
BUCKETS = st.dictionaries(
    COUNTS,
    st.dictionaries(
        TEXTS,
        st.tuples(COUNTS, st.dictionaries(TEXTS, st.lists(COUNTS, min_size=3, max_size=3), max_size=2)).map(list),
        max_size=2,
    ),
    max_size=2,
)
STATES = st.builds(
    EndpointState,
    BY_NAME,
    st.dictionaries(TEXTS, PROGRESS, max_size=2),
    st.dictionaries(TEXTS, st.builds(Seen, TIMES, TIMES), max_size=2),
    st.frozensets(COUNTS, max_size=3),
    st.builds(TrafficCounts, BUCKETS),
    COUNTS,
    BY_NAME,
    BY_NAME,
)
LOGS = st.tuples(*(REALS for _ in FRACTIONS))
AUDITS = st.builds(
    AuditState, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, REALS, LOGS, LOGS, REALS, REALS, st.none() | TIMES
)


@given(STATES)
def test_a_state_is_read_as_it_was(state: EndpointState) -> None:
    document = json.loads(json.dumps(encode_state(state)))
    assert decode_state(document) == state
    assert isinstance(document["version"], int)


@given(st.dictionaries(TEXTS, ENTRIES, max_size=2), st.dictionaries(TEXTS, DOMINANT, max_size=2))
def test_a_beginning_is_read_as_it_was(
    entries: dict[str, dict[str, Entry]], dominant: dict[str, frozenset[tuple[str, str]]]
) -> None:
    begins = json.loads(json.dumps(new_progress(entries, dominant)))
    names = {*entries, *dominant}
    state = new_state(begins, dict.fromkeys(names, GatePolicy(window_s=0.0)))
    read = Beginning(
        {name: state.clusterings[name].entries for name in entries},
        {name: state.clusterings[name].dominant for name in dominant},
    )
    assert read == Beginning(entries, dominant)


@given(AUDITS)
def test_an_audit_is_read_as_it_was(state: AuditState) -> None:
    assert AuditState.of(json.loads(json.dumps(state.document()))) == state


@given(st.builds(OpenBlock, st.lists(st.builds(RecordKey, TEXTS, COUNTS, COUNTS, COUNTS, COUNTS)).map(tuple), TIMES))
def test_an_open_block_is_read_as_it_was(block: OpenBlock) -> None:
    document = json.loads(json.dumps(to_document(block, OPEN_BLOCK_VERSION)))
    read = from_document(document, OpenBlock, OPEN_BLOCK_VERSION)
    assert read == block
    assert all(isinstance(key, RecordKey) for key in read.runs)


@given(st.lists(st.builds(StepCost, COUNTS, COUNTS, COUNTS, REALS, REALS, REALS, REALS, MAYBE, MAYBE)).map(tuple))
def test_the_points_of_a_cost_surface_are_read_as_they_were(points: tuple[StepCost, ...]) -> None:
    document = json.loads(json.dumps(to_document(CostPoints(points=points), COSTS_VERSION)))
    assert from_document(document, CostPoints, COSTS_VERSION)["points"] == points
