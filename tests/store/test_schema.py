"""Migrations, on blank databases and on ones with data, and what opening a wrong database says."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import make_url

from shadowspec.errors import ServiceUnavailableError, StoreError, UsageError
from shadowspec.store import Store, check, current, head, session, upgrade
from shadowspec.store.admin import schema
from shadowspec.store.table_definitions import metadata
from shadowspec.types import Contract, Intervention, RunFlags, StoredAudit, Validity
from tests.store import examples
from tests.store.saving import save_block


def test_upgrade_of_a_blank_database(blank_url: str) -> None:
    assert current(blank_url) is None
    with pytest.raises(StoreError, match="shadowspec db upgrade"):
        Store.open(blank_url)
    assert upgrade(blank_url) == current(blank_url) == head()
    assert check(blank_url) == []


def test_revisions_are_those_that_alembic_finds() -> None:
    """The store knows them by the names of their files alone."""
    config = Config()
    config.set_main_option("script_location", str(schema.migrations_folder()))
    scripts = ScriptDirectory.from_config(config)
    assert schema.revisions() == [script.revision for script in scripts.walk_revisions()][::-1]
    assert scripts.get_heads() == [head()]


def test_upgrade_is_idempotent_and_keeps_the_data(database_url: str) -> None:
    _fill(database_url)
    upgrade(database_url)
    with Store.open(database_url) as store:
        assert store.records("chat") == [examples.record(1)]
        assert store.latest_decisions() == [examples.decision()]
        assert store.replay_configs() == {"fp": examples.config()}
        assert [sums.num_requests for sums in store.replay_sums(["chat"])["chat"]] == [2]
        assert store.backfilled_blocks("work", {"file"}) == [examples.backfilled(0)]
        assert store.audit_states(["chat"])["chat"] == [StoredAudit("", "fp", {"num_units": 1})]


def test_every_revision_goes_down_and_up_with_data(blank_url: str) -> None:
    """Stepwise to the newest, with rows in every table from the first step that can hold them, and back."""
    for revision in schema.revisions():
        schema.migrate(blank_url, revision)
        assert current(blank_url) == revision
    _fill(blank_url)
    schema.migrate(blank_url, "base")
    assert current(blank_url) is None
    assert _tables(blank_url) <= {"alembic_version"}
    upgrade(blank_url)
    assert check(blank_url) == []
    with Store.open(blank_url) as store:
        assert store.funnel() == {}


@pytest.mark.representative("sqlite")
def test_what_was_measured_before_there_were_flags_keeps_its_figures_and_has_none(blank_url: str) -> None:
    """Down and up again with data: revision 0010 leaves runs and rollups of before as they were, 0015 all but gaps."""
    schema.upgrade(blank_url)
    _fill(blank_url)
    with Store.open(blank_url) as store:
        (before,), rollups = store.runs("chat"), store.rollups("chat")
    _execute(blank_url, "UPDATE runs SET is_beyond_draft_context = true, contract = 'json'")
    schema.migrate(blank_url, "0009")
    assert "rollup_failures" not in _tables(blank_url)
    upgrade(blank_url)
    assert check(blank_url) == []
    flagged = RunFlags(False, True, Contract.JSON, Validity.VALID, Validity.UNFINISHED, Intervention.FILTERED)
    with Store.open(blank_url) as store:
        assert store.runs("chat") == [examples.without_gaps(before)]
        assert store.rollups("chat") == rollups
        assert store.failure_counts("chat") == {}
        new = examples.block("c", range(2, 3), sequence=2)
        save_block(
            store, replace(new, runs=tuple(replace(run, flags=flagged) for run in new.runs)), [examples.record(2)]
        )
        assert [run.flags for run in store.runs("chat")] == [RunFlags(), flagged]
        ((key, counts),) = store.failure_counts("chat").items()
        assert (key, counts["looked_at"], counts["filtered"], counts["beyond_draft_context"]) == (
            ("", "fp", 4),
            1,
            1,
            1,
        )
        assert store.rollups("chat")[0].sums.num_runs == 2
    schema.migrate(blank_url, "0009")
    upgrade(blank_url)
    with Store.open(blank_url) as store:
        assert [run.flags for run in store.runs("chat")] == [RunFlags(), RunFlags()]
        assert store.rollups("chat")[0].sums.num_runs == 2
        assert store.failure_counts("chat") == {}


@pytest.mark.representative("sqlite")
def test_configs_measured_before_there_were_options_have_their_defaults(blank_url: str) -> None:
    """Rows that a worker wrote before 0009, and ones that it goes on writing after."""
    insert = (
        "INSERT INTO fingerprints (fingerprint, name, target, draft, proposer, num_speculative_tokens, verify_rule, "
        "backend, ngram_min, ngram_max, engine, device, dtype, details) "
        "VALUES ('{}', 'ngram-4', 'target', NULL, 'ngram', 4, 'greedy', 'torch', 2, 4, 'e', 'cpu', 'f', '{{}}')"
    )
    schema.migrate(blank_url, "0008")
    _execute(blank_url, insert.format("before"))
    upgrade(blank_url)
    _execute(blank_url, insert.format("after"))
    with Store.open(blank_url) as store:
        found = store.fingerprints()
    assert {name: each.config for name, each in found.items()} == {"before": examples.CONFIG, "after": examples.CONFIG}
    schema.migrate(blank_url, "0008")
    upgrade(blank_url)
    assert check(blank_url) == []


def _fill(url: str) -> None:
    with Store.open(url) as store:
        store.save_fingerprints([examples.config()])
        save_block(store, examples.audited(examples.block("b", range(1, 2))), [examples.record(1)])
        store.append_decisions([examples.decision()])
        store.save_replays([examples.replayed(1)])
        store.save_backfilled("work", examples.backfilled(0), [examples.replayed(2)])
        with store.audit_session("chat") as session:
            session.save([StoredAudit("", "fp", {"num_units": len(session.take())})])


def _tables(url: str) -> set[str]:
    engine = sqlalchemy.create_engine(url)
    try:
        found = sqlalchemy.inspect(engine).get_table_names()
        return {name for name in found if not name.endswith(("_timeless", "_default"))}  # partitions
    finally:
        engine.dispose()


def test_check_tells_drift(database_url: str) -> None:
    _execute(database_url, "ALTER TABLE records ADD COLUMN surplus TEXT", "DROP INDEX ix_runs_endpoint_event_time")
    differences = check(database_url)
    assert len(differences) == 2
    assert any("surplus" in line for line in differences)
    assert any("ix_runs_endpoint_event_time" in line for line in differences)


def test_check_tells_missing_tables(blank_url: str) -> None:
    upgrade(blank_url)
    _execute(blank_url, "DROP TABLE attempts")
    assert ["attempts" in line for line in check(blank_url)] == [True]
    assert _tables(blank_url) == set(metadata.tables) - {"attempts"} | {"alembic_version"}


@pytest.mark.parametrize(("found", "says"), [("0000_unknown", "does not know"), (None, "no schema yet")])
def test_a_database_at_another_revision_is_refused(database_url: str, found: str | None, says: str) -> None:
    change = f"UPDATE alembic_version SET version_num = '{found}'" if found else "DELETE FROM alembic_version"
    _execute(database_url, change)
    for attempt in (Store.open, check):
        with pytest.raises(StoreError, match=says):
            attempt(database_url)


def test_an_unknown_revision_is_not_upgraded(database_url: str) -> None:
    _execute(database_url, "UPDATE alembic_version SET version_num = '0000_unknown'")
    with pytest.raises(StoreError, match="upgrade shadowspec itself"):
        upgrade(database_url)
    assert current(database_url) == "0000_unknown"


def test_a_failing_upgrade_leaves_nothing(blank_url: str) -> None:
    _execute(blank_url, "CREATE TABLE test_snapshots (mine INTEGER)")  # the last table that the migration makes
    with pytest.raises(StoreError, match="already exists"):
        upgrade(blank_url)
    assert current(blank_url) is None
    assert _tables(blank_url) == {"test_snapshots"}


def test_upgrades_at_once_wait_for_each_other(blank_url: str) -> None:
    errors: list[Exception] = []

    def attempt() -> None:
        try:
            upgrade(blank_url)
        except Exception as exc:  # reported by the assertion below
            errors.append(exc)

    threads = [threading.Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert current(blank_url) == head()


def _execute(url: str, *statements: str) -> None:
    engine = session.create_engine(session.parse_url(url))
    with session.write(engine) as connection:
        for statement in statements:
            connection.execute(sqlalchemy.text(statement))
    engine.dispose()


@pytest.mark.parametrize(
    "url", ["", "nonsense", "mysql://host/db", "sqlite://", "sqlite:///:memory:", "postgresql://host:port/db"]
)
def test_a_wrong_url_is_a_usage_error(url: str) -> None:
    for attempt in (Store.open, upgrade, current, check):
        with pytest.raises(UsageError):
            attempt(url)


def test_a_missing_file_is_not_created(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'none.db'}"
    with pytest.raises(StoreError, match="shadowspec db upgrade"):
        Store.open(url)
    with pytest.raises(StoreError, match="shadowspec db upgrade"):
        check(url)
    assert current(url) is None
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreError, match="does not exist"):
        upgrade(f"sqlite:///{tmp_path / 'folder' / 'none.db'}")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    junk = tmp_path / "junk.db"
    junk.write_bytes(b"\x00\xffjunk" * 1000)
    for attempt in (Store.open, upgrade, current, check):
        with pytest.raises(StoreError, match="not a database"):
            attempt(f"sqlite:///{junk}")
    assert junk.read_bytes() == b"\x00\xffjunk" * 1000


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"postgresql+psycopg://user:secret@127.0.0.1:{closed.getsockname()[1]}/db"
        for attempt in (Store.open, upgrade, current, check):
            with pytest.raises(ServiceUnavailableError) as caught:
                attempt(url)
            assert "secret" not in str(caught.value)


@pytest.mark.integration
def test_a_database_that_is_not_there_is_unavailable(postgres_url: str) -> None:
    with pytest.raises(ServiceUnavailableError, match="no_such_database"):
        Store.open(make_url(postgres_url).set(database="no_such_database").render_as_string(hide_password=False))
