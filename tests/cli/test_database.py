"""`shadowspec db retain` and `db grant` as they are typed."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy
from msgspec import structs
from sqlalchemy import NullPool

from shadowspec.store import Store
from shadowspec.types import Verdict, WriteBatch
from tests.builders.workspace import Workspace
from tests.store import examples


def fill(url: str, verdict: Verdict | None) -> None:
    """A block of two requests from forty days ago and one of today, decided or not."""
    with Store.open(url) as store:
        store.save_fingerprints([examples.config()])
        for number, age in enumerate((timedelta(days=40), timedelta(hours=1))):
            lines, time = range(number * 2, number * 2 + 2), datetime.now(UTC) - age
            records = tuple(structs.replace(examples.record(line), event_time=time) for line in lines)
            result = replace(examples.block(f"b{number}", lines, sequence=number), started_at=time)
            store.save_batch(WriteBatch((), ((result, records),)), "group")
        if verdict is not None:
            store.append_decisions([examples.decision(verdict)])


def test_retain(workspace: Workspace) -> None:
    workspace.run("db", "upgrade")
    fill("sqlite:///shadow.db", Verdict.ENABLE)
    planned = workspace.run("db", "retain", "--days", "30", "--dry-run", "--json").document
    assert (planned["dry_run"], planned["num_runs"], planned["num_records"], planned["num_blocks"]) == (
        True,
        2,
        2,
        None,
    )
    assert "would remove 2 runs and 2 records" in workspace.run("db", "retain", "--days", "30", "--dry-run").out
    done = workspace.run("db", "retain", "--days", "30")
    assert done.code == 0
    assert "removed 2 runs and 2 records" in done.out
    assert "removed 1 blocks" in done.out
    assert workspace.run("db", "retain", "--days", "30", "--json").document["num_runs"] == 0
    with Store.open("sqlite:///shadow.db") as store:
        assert len(store.runs("chat")) == 2
        assert sum(rollup.sums.num_runs for rollup in store.rollups("chat")) == 4


def test_retain_refuses_what_is_undecided(workspace: Workspace) -> None:
    workspace.run("db", "upgrade")
    fill("sqlite:///shadow.db", None)
    refused = workspace.run("db", "retain", "--days", "30")
    assert refused.code == 2
    assert "undecided hypotheses of chat" in refused.err
    forced = workspace.run("db", "retain", "--days", "30", "--force", "--json")
    assert forced.document["undecided_endpoints"] == ["chat"]
    assert forced.document["num_runs"] == 2
    assert workspace.run("db", "retain", "--days", "0").code == 2
    assert workspace.run("db", "retain").code == 2


def test_grant_is_for_postgres(workspace: Workspace) -> None:
    workspace.run("db", "upgrade")
    refused = workspace.run("db", "grant", "reader", "somebody")
    assert refused.code == 2
    assert "SQLite" in refused.err
    unknown = workspace.run("db", "grant", "king", "somebody")
    assert unknown.code == 2
    assert "'writer', 'gate', 'reader', 'operator'" in unknown.err


@pytest.fixture
def role(postgres_url: str) -> Iterator[str]:
    name = f"cli_{uuid.uuid4().hex[:8]}"
    engine = sqlalchemy.create_engine(postgres_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN")
    yield name
    with engine.connect() as connection:
        connection.exec_driver_sql(f"DROP ROLE {name}")


@pytest.mark.integration
def test_grant(role: str, workspace: Workspace, new_database: Callable[[str], str]) -> None:
    workspace.replace_in_config("sqlite:///shadow.db", new_database("postgres"))
    done = workspace.run("db", "grant", "writer", role)
    assert (done.code, done.out.strip()) == (0, f"role {role} is now a writer")
    document = workspace.run("db", "grant", "operator", role, "--json").document
    assert document["kind"] == "operator"
    assert f"GRANT SELECT ON decisions TO {role}" in document["statements"]
    assert f"GRANT SELECT, INSERT ON overrides TO {role}" in document["statements"]
