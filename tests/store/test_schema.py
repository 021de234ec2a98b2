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
from shadowspec.types import Arm, ArmOrder, StoredAudit
from tests.store import examples
from tests.store.later_revision import LATER, add_revision
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


def test_runs_from_before_their_order_was_stored_are_read_without_it(database_url: str) -> None:
    """Down to revision 0001 and up again: the columns leave and come back empty, and nothing else changes."""
    ordered = examples.block("b", range(1, 2))
    runs = tuple(replace(run, order=ArmOrder(Arm.SPECULATIVE, Arm.BASELINE, 61.5)) for run in ordered.runs)
    with Store.open(database_url) as store:
        store.save_fingerprints([examples.config()])
        save_block(store, replace(ordered, runs=runs), [examples.record(1)])
        assert store.runs("chat") == list(runs)
    schema.migrate(database_url, "0001")
    upgrade(database_url)
    assert check(database_url) == []
    with Store.open(database_url) as store:
        assert store.runs("chat") == list(ordered.runs)


MERGE_REASONS = """
op.add_column("records", sa.Column("end", sa.Text))
op.execute("UPDATE records SET \\"end\\" = counter || coalesce(':' || reason, '')")
with op.batch_alter_table("records") as batch:
    batch.alter_column("end", existing_type=sa.Text, nullable=False)
"""


def test_a_later_revision_goes_up_and_down_with_data(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It computes a required column from stored rows; what the revision before it knows stays, on the way back too."""
    _fill(database_url)
    first = head()
    with monkeypatch.context() as patch:
        add_revision(patch, tmp_path, MERGE_REASONS, 'op.drop_column("records", "end")')
        with pytest.raises(StoreError, match=f"revision {first}, behind this version's {LATER}: run `shadowspec db"):
            Store.open(database_url)
        assert upgrade(database_url) == current(database_url) == LATER
        assert _execute(database_url, 'SELECT "end" FROM records') == [("measured",)]
        schema.migrate(database_url, first)
    assert (current(database_url), check(database_url)) == (first, [])
    with Store.open(database_url) as store:
        assert store.records("chat") == [examples.record(1)]
        assert store.runs("chat") == list(examples.block("b", range(1, 2)).runs)
        assert store.latest_decisions() == [examples.decision()]


def test_a_later_revision_that_fails_leaves_everything(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(database_url)
    first = head()
    with monkeypatch.context() as patch:
        add_revision(patch, tmp_path, MERGE_REASONS + 'op.create_table("runs", sa.Column("mine", sa.Integer))')
        with pytest.raises(StoreError, match="already exists"):
            upgrade(database_url)
    assert (current(database_url), check(database_url)) == (first, [])
    with Store.open(database_url) as store:
        assert store.records("chat") == [examples.record(1)]


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
        names = sqlalchemy.inspect(engine).get_table_names()
        return {name for name in names if not name.endswith(("_timeless", "_default"))}  # partitions
    finally:
        engine.dispose()


def test_columns_have_the_order_of_the_code_and_no_defaults(database_url: str) -> None:
    engine = sqlalchemy.create_engine(database_url)
    try:
        inspector = sqlalchemy.inspect(engine)
        for table in metadata.tables.values():
            columns = inspector.get_columns(table.name)
            assert [column["name"] for column in columns] == list(table.columns.keys())
            defaults = [column["name"] for column in columns if column["default"] and not column.get("autoincrement")]
            assert defaults == []
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
    """A newer version's, or one of those that 0.1.0 does not upgrade: one line says what to do."""
    _execute(database_url, "UPDATE alembic_version SET version_num = '0029'")
    for attempt in (upgrade, Store.open, check):
        with pytest.raises(
            StoreError, match=r"pip install --upgrade shadowspec.*new database in database\.url"
        ) as caught:
            attempt(database_url)
        assert "\n" not in str(caught.value)
    assert current(database_url) == "0029"


def test_a_failing_upgrade_leaves_nothing(blank_url: str) -> None:
    _execute(blank_url, "CREATE TABLE live_hours (mine INTEGER)")  # the last table that the migration makes
    with pytest.raises(StoreError, match="already exists"):
        upgrade(blank_url)
    assert current(blank_url) is None
    assert _tables(blank_url) == {"live_hours"}


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


def _execute(url: str, *statements: str) -> list[tuple[object, ...]]:
    """Run the statements; returns the rows of the last one."""
    engine = session.create_engine(session.parse_url(url))
    with session.write(engine) as connection:
        for statement in statements:
            result = connection.execute(sqlalchemy.text(statement))
        rows = [tuple(row) for row in result] if result.returns_rows else []
    engine.dispose()
    return rows


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
