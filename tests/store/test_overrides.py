"""Overrides and rollout stages are appended, read back as they were, and never changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
import sqlalchemy
from sqlalchemy.exc import DBAPIError

from shadowspec.errors import StoreError, UsageError
from shadowspec.store import Store
from shadowspec.types import Clearing, OverrideRecord, Stage, Verdict
from tests.store import examples

NOON = examples.NOON


def test_an_override_and_its_end_read_back(store: Store) -> None:
    first = replace(examples.override(), expires_at=NOON + timedelta(days=1), concurrency=4)
    second = examples.override(Verdict.HOLD, endpoint="code", slice_key="prompt_class=code")
    ids = [store.add_override(override) for override in (first, second)]
    assert ids[0] < ids[1]
    clearing = Clearing(ids[1], "mended", "grace", NOON + timedelta(hours=1))
    store.clear_override(clearing)
    expected = [
        OverrideRecord(replace(first, override_id=ids[0]), None),
        OverrideRecord(replace(second, override_id=ids[1]), clearing),
    ]
    assert store.overrides() == expected
    assert store.overrides("code") == expected[1:]
    assert store.overrides("unknown") == []


def test_an_override_is_cleared_once(store: Store) -> None:
    override_id = store.add_override(examples.override())
    with pytest.raises(UsageError, match=f"no override {override_id + 1}"):
        store.clear_override(Clearing(override_id + 1, "mended", "grace", NOON))
    store.clear_override(Clearing(override_id, "mended", "grace", NOON))
    with pytest.raises(UsageError, match="cleared before, by grace at 2026-01-02 12:00"):
        store.clear_override(Clearing(override_id, "again", "ada", NOON))


def test_rollouts_keep_their_history_and_the_newest_stands(store: Store) -> None:
    store.save_fingerprints([examples.config()])
    first = replace(examples.rollout(Stage.SHADOW), fingerprint=None, depth_caps={}, depth_since=None, share=0.0)
    later = replace(examples.rollout(), decided_at=NOON + timedelta(days=1), depth_caps={"<512": 3, "": 1})
    other = examples.rollout(Stage.BROAD, concurrency=16)
    store.append_rollouts([first, other])
    store.append_rollouts([later])
    assert store.rollouts() == store.rollouts("chat") == [later, other]
    elsewhere = replace(first, endpoint="editor")
    store.append_rollouts([elsewhere])
    assert store.rollout_history("chat") == [first, other, later]
    assert store.rollout_history() == [first, other, later, elsewhere]
    assert store.rollouts("code") == []
    with pytest.raises(StoreError):
        store.append_rollouts([replace(first, fingerprint="unknown")])


def test_the_database_refuses_to_change_them(store: Store, database_url: str) -> None:
    store.save_fingerprints([examples.config()])
    override_id = store.add_override(examples.override())
    store.clear_override(Clearing(override_id, "mended", "grace", NOON))
    store.append_rollouts([examples.rollout()])
    before = store.overrides(), store.rollouts()
    tables = ("overrides", "override_clearings", "rollouts")
    changes = [f"UPDATE {table} SET {column}" for table, column in zip(
        tables, ("author = 'eve'", "author = 'eve'", "stage = 'broad'"), strict=True
    )]  # fmt: skip
    refused(database_url, "append-only", [*changes, *(f"DELETE FROM {table}" for table in tables)])
    assert (store.overrides(), store.rollouts()) == before


def test_enable_can_be_forced_by_nobody(store: Store, database_url: str) -> None:
    with pytest.raises(UsageError, match="cannot be forced"):
        examples.override(Verdict.ENABLE)
    names = "endpoint, slice_key, verdict, reason, author, created_at"
    row = "'chat', '', 'ENABLE', 'r', 'a', '2026-01-01'"
    refused(database_url, "(?i)check constraint", [f"INSERT INTO overrides ({names}) VALUES ({row})"])
    assert store.overrides() == []


def refused(url: str, message: str, statements: Sequence[str]) -> None:
    engine = sqlalchemy.create_engine(url)
    for statement in statements:
        with engine.connect() as connection, pytest.raises(DBAPIError, match=message):
            connection.execute(sqlalchemy.text(statement))
    engine.dispose()
