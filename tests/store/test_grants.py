"""Each kind of role can do its work, and nothing beyond it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import sqlalchemy
from msgspec import structs
from sqlalchemy import NullPool, make_url, text
from sqlalchemy.exc import ProgrammingError

from shadowspec.errors import StoreError, UsageError
from shadowspec.store import RoleKind, Store
from shadowspec.types import (
    Advance,
    Clearing,
    Delivery,
    EndpointProgress,
    Fold,
    FunnelCounter,
    LoopSpan,
    OpenBlock,
    OpenKey,
    PartitionId,
    Period,
    RecordKey,
    Span,
    StoredAudit,
    StoredEvidence,
    Verdict,
    WriteBatch,
)
from tests.store import examples

pytestmark = pytest.mark.integration
MEASURED = ("chat", FunnelCounter.MEASURED, None)


@pytest.fixture
def make_role(postgres_url: str) -> Iterator[Callable[[str], str]]:
    """Makes a role that may log in; they are dropped after the database on which they have rights."""
    engine = sqlalchemy.create_engine(postgres_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    made: list[str] = []

    def make(prefix: str) -> str:
        made.append(f"{prefix}_{uuid.uuid4().hex[:8]}")
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE ROLE {_quoted(made[-1])} LOGIN")
        return made[-1]

    yield make
    with engine.connect() as connection:
        for role in made:
            connection.exec_driver_sql(f"DROP ROLE {_quoted(role)}")


def _quoted(role: str) -> str:
    return '"' + role.replace('"', '""').replace("%", "%%") + '"'


@pytest.fixture
def url(make_role: Callable[[str], str], new_database: Callable[[str], str]) -> str:
    made = new_database("postgres")
    with Store.open(made) as owner:
        owner.save_fingerprints([examples.config()])
        owner.save_batch(_batch(0), "group")
        owner.append_decisions([examples.decision()])
    return made


def _batch(number: int, year: int = 2025) -> WriteBatch:
    timestamp_ms = int(datetime(year, 7, 7, tzinfo=UTC).timestamp() * 1000)
    record = structs.replace(examples.record(number), key=RecordKey("topic", 0, number, timestamp_ms))
    result = examples.block(f"b{number}", range(1), sequence=number)
    audited = examples.audited(replace(result, runs=(replace(result.runs[0], key=record.key),)))
    moved = Advance(PartitionId("topic"), number or None, number + 1, 1, {MEASURED: 1}, None)
    return WriteBatch((), ((audited, (record,)),), (moved,))


@contextmanager
def granted(url: str, kind: RoleKind, role: str) -> Iterator[Store]:
    """The store as a role of this kind opens it."""
    with Store.open(url) as owner:
        owner.grant(kind, role)
    with Store.open(_as(url, role)) as store:
        yield store


def _as(url: str, role: str) -> str:
    return make_url(url).set(username=role).render_as_string(hide_password=False)


def refused(url: str, role: str, *statements: str) -> None:
    engine = sqlalchemy.create_engine(_as(url, role), poolclass=NullPool)
    for statement in statements:
        with engine.connect() as connection, pytest.raises(ProgrammingError, match=r"permission denied|must be owner"):
            connection.execute(text(statement))


TABLES = ("records", "runs", "blocks", "block_memory", "fingerprints", "ledger", "funnel_counts", "rollups")
NO_REMOVAL = tuple(f"DELETE FROM {table}" for table in TABLES) + tuple(f"TRUNCATE {table}" for table in TABLES)
NO_WRITING = (
    "INSERT INTO attempts VALUES ('s', 0, 0, 0, 0, 1)",
    "UPDATE ledger SET next_offset = 0",
    "UPDATE rollups SET num_runs = 0",
    "SELECT shadowspec_create_partition('records', '2024-01-01')",
    "INSERT INTO records VALUES ('s', 0, 0, 0, 0, 'shed', NULL, NULL, NULL, '{}')",
)
NO_SCHEMA = (
    "CREATE TABLE mine (x int)",
    "DROP TABLE records",
    "ALTER TABLE runs ADD COLUMN x int",
    "DELETE FROM records_default",
    "SELECT * FROM records_timeless",
)


def test_a_writer_writes(url: str, make_role: Callable[[str], str]) -> None:
    role = make_role("writer")
    with granted(url, RoleKind.WRITER, role) as store:
        store.save_fingerprints([examples.config("new"), examples.config()])
        assert store.save_batch(_batch(1), "group").num_new_runs == 1
        assert store.save_replays([examples.replayed(1)]) == 1
        assert store.save_backfilled("work", examples.backfilled(0), [examples.replayed(2)]) == 1
        assert store.save_backfilled("work", examples.backfilled(0), [examples.replayed(2)]) == 0
        assert store.backfilled_blocks("work", {"file"}) == [examples.backfilled(0)]
        assert store.backfilled_sums({"file"}, {"fp"}, ["chat"])["chat"]
        with store.endpoint_lock("chat"):
            store.append_evaluations([examples.evaluation()])
        assert store.evaluations("chat") == [examples.evaluation()]
        assert store.save_batch(_batch(2, year=2023), "group").num_new_runs == 1  # a month that it makes
        assert store.record_attempt([RecordKey("topic", 0, 9)]) == {RecordKey("topic", 0, 9): 1}
        store.clear_attempts([RecordKey("topic", 0, 9)])
        assert store.current_verdicts("chat") == {
            ("", 4, "fp"): (examples.decision().verdict, examples.decision().reason_code)
        }
        assert len(store.finished_records(PartitionId("topic"), 0)) == 3
        assert store.unit_memories("chat", examples.NOON) == {}
        assert store.recent_request_ids("chat", examples.NOON) == set()
        assert [entry.next_offset for entry in store.ledger("group")] == [3]
        assert store.funnel() == {MEASURED: 3}
        with pytest.raises(StoreError, match="permission denied"):
            store.latest_decisions()
        with pytest.raises(StoreError, match="permission denied"):
            store.append_decisions([examples.decision()])
    refused(url, role, *NO_REMOVAL, *NO_SCHEMA)
    refused(
        url,
        role,
        "SELECT reason FROM decisions",
        "SELECT * FROM test_snapshots",
        "UPDATE records SET counter = 'shed'",
        "UPDATE runs SET failure = NULL",
        "UPDATE fingerprints SET name = 'other'",
        "UPDATE replays SET num_drafts = 0",
        "UPDATE backfill_blocks SET num_records = 0",
        "DELETE FROM backfill_blocks",
        "UPDATE audits SET expected_accepted_tokens = 0",
        "SELECT * FROM audit_states",
        "UPDATE alembic_version SET version_num = '0'",
    )


def test_a_gate_decides(url: str, make_role: Callable[[str], str]) -> None:
    role = make_role("gate")
    with granted(url, RoleKind.GATE, role) as store, store.endpoint_lock("chat"):
        rows = store.evidence("chat")
        assert len(rows.runs) == 1
        assert store.decision(*store.append_decisions([examples.decision()])) is not None
        store.append_rollouts([examples.rollout()])
        assert store.rollouts() == [examples.rollout()]
        for _ in range(2):
            with store.audit_session("chat") as audits:
                audits.save([StoredAudit("", "fp", {"num_units": len(audits.take())})])
        assert [sums.num_units for sums in store.replay_sums(["chat"])["chat"]] == []
        store.add_override(examples.override(Verdict.HOLD))  # as an audit does that alarms
        with store.evidence_session("chat") as session:  # twice: what is kept is also changed and forgotten
            for _ in range(2):
                session.save_evidence([StoredEvidence("", 4, "fp", b"")])
                session.save_open_blocks({"b": OpenBlock((RecordKey("topic", 0, 0),), examples.NOON)}, ())
                session.keys("way").add([OpenKey("", "session:s", (), examples.NOON)])
                session.discard_evidence()
            folded = (Span("topic", 0, 0, 1),)
            fold_id = session.append(Fold(folded, None, 0, 0, {}, examples.NOON, begins={}), {}, folded)
        with store.evidence_session("chat") as session:
            assert session.progress == EndpointProgress(fold_id, {}, folded)
            more = (Span("topic", 0, 1, 2),)
            session.append(Fold(more, None, 0, 0, {}, examples.NOON), {}, (Span("topic", 0, 0, 2),))
    refused(url, role, "DELETE FROM folds", "UPDATE folds SET num_runs = 0")
    refused(url, role, "UPDATE audits SET expected_accepted_tokens = 0", "DELETE FROM audits", "DELETE FROM replays")
    refused(url, role, "INSERT INTO override_clearings VALUES (1, 'r', 'a', now())", "DELETE FROM overrides")
    refused(url, role, *NO_REMOVAL, *NO_SCHEMA, *NO_WRITING)
    refused(url, role, "UPDATE decisions SET verdict = 'ENABLE'", "DELETE FROM decisions", "DELETE FROM test_snapshots")


def test_a_scheduler_keeps_its_log_and_decides(url: str, make_role: Callable[[str], str]) -> None:
    role = make_role("scheduler")
    period = Period("daily", examples.NOON, examples.NOON)
    delivery = Delivery("daily", examples.NOON, "team", "key", None, examples.NOON)
    with granted(url, RoleKind.SCHEDULER, role) as store:
        store.begin_periods([period])
        store.prepare_period(replace(period, until=examples.NOON), [delivery])
        store.keep_delivery(replace(delivery, attempts=1))
        store.append_decisions([examples.decision()])
        lead = store.leadership("schedule")
        assert lead.try_acquire()
        lead.release()
        refused(url, role, *NO_REMOVAL, *NO_WRITING, *NO_SCHEMA, "DELETE FROM report_deliveries")


@pytest.mark.parametrize("kind", [RoleKind.GATE, RoleKind.READER, RoleKind.OPERATOR])
def test_no_other_role_keeps_the_log(url: str, make_role: Callable[[str], str], kind: RoleKind) -> None:
    role = make_role(kind)
    with granted(url, kind, role) as store:
        assert store.deliveries() == []
        refused(url, role, "INSERT INTO schedule_periods (job, due_at, since) VALUES ('a', now(), now())")


def test_an_operator_overrides(url: str, make_role: Callable[[str], str]) -> None:
    role = make_role("operator")
    with granted(url, RoleKind.OPERATOR, role) as store:
        override_id = store.add_override(examples.override())
        store.clear_override(Clearing(override_id, "mended", "ada", examples.NOON))
        assert [record.clearing is not None for record in store.overrides("chat")] == [True]
        with pytest.raises(StoreError, match="permission denied"):
            store.append_rollouts([examples.rollout()])
    refused(url, role, *NO_REMOVAL, *NO_SCHEMA, "DELETE FROM overrides", "UPDATE override_clearings SET reason = ''")


@pytest.mark.parametrize("kind", [RoleKind.WRITER, RoleKind.READER])
def test_no_other_role_overrides(url: str, make_role: Callable[[str], str], kind: RoleKind) -> None:
    role = make_role(kind)
    with granted(url, kind, role) as store, pytest.raises(StoreError, match="permission denied"):
        store.add_override(examples.override())
    refused(url, role, "DELETE FROM overrides", "INSERT INTO override_clearings VALUES (1, 'r', 'a', now())")


@pytest.mark.parametrize("kind", [RoleKind.READER, RoleKind.OPERATOR])
def test_a_reader_reads(url: str, make_role: Callable[[str], str], kind: RoleKind) -> None:
    role = make_role(kind)
    with granted(url, kind, role) as store:
        assert len(store.evidence("chat").runs) == len(store.rollups("chat")) == 1
        assert store.histogram("chat", "speedup").num_runs
        assert (store.replay_sums(["chat"]), store.replay_configs()) == ({"chat": []}, {})
        assert store.audit_states(["chat"]) == {"chat": []}
        assert store.loop_sums([LoopSpan("chat", ["fp"], examples.NOON, examples.NOON)])["chat"]
        with pytest.raises(StoreError, match="permission denied"), store.audit_session("chat") as audits:
            audits.take()
        with pytest.raises(StoreError, match="permission denied"):
            store.save_replays([examples.replayed(1)])
        assert store.finished_blocks("work") == {}
        with pytest.raises(StoreError, match="permission denied"):
            store.save_backfilled("work", examples.backfilled(0), [])
        assert store.funnel() == {MEASURED: 1}
        assert store.endpoints() == ["chat"]
        with pytest.raises(StoreError, match="permission denied"):
            store.append_decisions([examples.decision()])
        with pytest.raises(StoreError, match="permission denied"):
            store.save_batch(_batch(1), "group")
    refused(url, role, *NO_REMOVAL, *NO_SCHEMA, *NO_WRITING, "INSERT INTO fingerprints SELECT * FROM fingerprints")


def test_a_role_without_a_grant_sees_nothing(url: str, make_role: Callable[[str], str]) -> None:
    role = make_role("stranger")
    with pytest.raises(StoreError, match="permission denied"):
        Store.open(_as(url, role))
    refused(url, role, "SELECT * FROM records", "SELECT shadowspec_create_partition('records', '2024-01-01')")


def test_another_kind_takes_the_place_of_the_first(url: str, make_role: Callable[[str], str]) -> None:
    role = make_role("moved")
    with granted(url, RoleKind.WRITER, role):
        pass
    with granted(url, RoleKind.READER, role) as store:
        assert len(store.latest_decisions()) == 1
    refused(url, role, *NO_WRITING)


def test_names_are_quoted(url: str, make_role: Callable[[str], str]) -> None:
    role = make_role('odd " : % role; DROP')
    with Store.open(url) as owner:
        assert any('"odd "" : %' in statement for statement in owner.grant(RoleKind.READER, role))
    engine = sqlalchemy.create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT has_table_privilege(:role, 'runs', 'SELECT')"), {"role": role})
        assert not connection.scalar(text("SELECT has_table_privilege(:role, 'runs', 'INSERT')"), {"role": role})


def test_what_cannot_be_granted(url: str) -> None:
    owner_name = make_url(url).username
    assert owner_name is not None
    with Store.open(url) as owner:
        with pytest.raises(StoreError, match="there is no role 'nobody'"):
            owner.grant(RoleKind.READER, "nobody")
        with pytest.raises(UsageError, match="owns the tables"):
            owner.grant(RoleKind.READER, owner_name)
        assert len(owner.runs("chat")) == 1


def test_sqlite_has_no_roles(new_database: Callable[[str], str]) -> None:
    with Store.open(new_database("sqlite")) as store, pytest.raises(UsageError, match="SQLite"):
        store.grant(RoleKind.READER, "anybody")
