"""What is stored comes back equal, on both dialects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shadowspec.store import Store
from shadowspec.types import BlockResult, FingerprintedConfig, StoredBlock, StoredRecord
from tests.builders.databases import DIALECTS
from tests.store import examples, strategies
from tests.store.saving import is_stored, save_block, save_records

# A database per example costs half a second: the examples share one, so what they draw may meet what is there.
SHARED = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=DIALECTS)
def fresh(request: pytest.FixtureRequest, new_database: Callable[[str], str]) -> Callable[[], Store]:
    return lambda: Store.open(new_database(request.param))


@SHARED
@given(record=strategies.records())
def test_records(store: Store, record: StoredRecord) -> None:
    stored = is_stored(store, record)
    assert save_records(store, [record]) == (0 if stored else 1)
    assert is_stored(store, record)
    if record.endpoint is not None and not stored:
        assert [found for found in store.records(record.endpoint) if found.key == record.key] == [record]


def test_half_a_surrogate_in_a_document(store: Store) -> None:
    """JSON can hold it as an escape, and not every reader of JSON reads it."""
    config = replace(examples.config(), details={"chat_template": "cut \ud83d"})
    store.save_fingerprints([config])
    assert store.fingerprints() == {config.fingerprint: config}


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(measured=strategies.measured_blocks())
def test_blocks(
    fresh: Callable[[], Store], measured: tuple[list[FingerprintedConfig], list[StoredRecord], BlockResult]
) -> None:
    configs, records, result = measured
    block = result.block
    with fresh() as store:
        store.save_fingerprints(configs)
        assert save_block(store, result, records) == len(result.runs)
        assert store.fingerprints() == {config.fingerprint: config for config in configs}
        ordered = sorted(result.runs, key=lambda run: (run.key, run.fingerprint))
        assert store.runs(block.endpoint) == ordered
        kept = StoredBlock(
            block.block_id,
            block.sequence,
            block.endpoint,
            block.slice_key,
            block.concurrency,
            block.n_max,
            block.first_arm,
            result.started_at,
            result.memory,
        )
        assert store.blocks(block.endpoint) == [kept]


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_decisions(fresh: Callable[[], Store], data: st.DataObject) -> None:
    config = data.draw(strategies.FINGERPRINTED)
    gate_runs = data.draw(st.lists(st.lists(strategies.decisions(config), max_size=3), max_size=3))
    made = [decision for gate_run in gate_runs for decision in gate_run]
    with fresh() as store:
        store.save_fingerprints([config])
        ids = [number for gate_run in gate_runs for number in store.append_decisions(gate_run)]
        assert [store.decision(number) for number in ids] == [(None, each) for each in made]
        last = {(each.endpoint, each.slice_key, each.concurrency): each for each in made}
        assert store.latest_decisions() == [last[hypothesis] for hypothesis in sorted(last)]
        for endpoint in ("chat", "sql"):
            latest = [last[hypothesis] for hypothesis in sorted(last) if hypothesis[0] == endpoint]
            assert store.latest_decisions(endpoint) == latest
