"""Replay beside the loop on the evidence page, and audits above the line of changes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import streamlit as st
from sqlalchemy import Engine, event
from streamlit.testing.v1 import AppTest

from shadowspec.gate.run.audit_difference import AuditState
from shadowspec.gate.run.audit_run import fold_units, run_audits
from shadowspec.store import Store
from shadowspec.types import AuditedRun, AuditedUnit, Decision, ExpectedCounts, RecordKey, ReplayedRecord, StoredAudit
from tests.dashboards.pages import said

Open = Callable[..., AppTest]
Configure = Callable[..., Path]
NOW = datetime.now(UTC)


@pytest.fixture
def decision(filled_url: str) -> Decision:
    with Store.open(filled_url) as store:
        return max(
            (decision for decision in store.latest_decisions() if decision.slice_key),
            key=lambda decision: decision.num_blocks,
        )


@pytest.fixture
def url(filled_url: str, tmp_path: Path, decision: Decision) -> str:
    """A copy of the store in which the decision's slice was replayed and its loop audited, with an alarm."""
    path = tmp_path / "copy.db"
    shutil.copy(filled_url.removeprefix("sqlite:///"), path)
    with Store.open(f"sqlite:///{path}") as store:
        config = store.fingerprints()[decision.fingerprint]
        counts = ExpectedCounts(20.0, 60.0, 1.0, (1.0, 0.0), (19.0, 1.0, 0.0), 22, 90)
        store.save_replays(
            [
                ReplayedRecord(
                    RecordKey("f", 0, line),
                    decision.endpoint,
                    decision.slice_key,
                    f"s{line}",
                    NOW - timedelta(days=line % 30),
                    ((config, counts),),
                )
                for line in range(300)
            ]
        )
        runs = [AuditedRun(RecordKey("f", 0, line), decision.fingerprint, 21, 10, 1.0) for line in range(60)]
        states = fold_units({}, [AuditedUnit(decision.slice_key, run) for run in runs], NOW)
        with store.audit_session(decision.endpoint) as session:
            session.save([StoredAudit(*cell, state.document()) for cell, state in states.items()])
        assert run_audits(store, decision.endpoint, NOW)[0].state.has_alarmed
    return f"sqlite:///{path}"


def test_the_evidence_page_marks_replay_and_shows_the_audit(
    url: str, configured: Configure, open_page: Open, decision: Decision
) -> None:
    configured(url)
    app = open_page(
        "evidence",
        endpoint=decision.endpoint,
        slice=decision.slice_key,
        load=str(decision.concurrency),
        config=decision.fingerprint[:12],
    )
    assert not app.exception
    text = said(app)
    assert "Replay beside the engine" in text
    assert "No test uses them" in text
    assert "1.05" in text
    assert "Audit of the engine" in text
    assert "\u2715 alarm since" in text


def test_changes_open_the_audits_where_one_alarms(url: str, configured: Configure, open_page: Open) -> None:
    configured(url)
    app = open_page("changes", window="all")
    assert not app.exception
    assert any("2 engine audits failed" in error.value for error in app.error)
    assert "\u2715 alarm since" in said(app)
    assert any("audit alarm: the engine accepts otherwise" in why for why in app.dataframe[0].value["Why"])


@pytest.fixture
def num_statements() -> Iterator[Callable[[], int]]:
    """How many statements were sent to any database since one last asked."""
    sent: list[str] = []

    def keep(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)

    def number() -> int:
        found = len([each for each in sent if not each.startswith("PRAGMA")])
        sent.clear()
        return found

    event.listen(Engine, "before_cursor_execute", keep)
    yield number
    event.remove(Engine, "before_cursor_execute", keep)


def test_changes_ask_no_more_of_many_endpoints_than_of_one(
    url: str, configured: Configure, open_page: Open, decision: Decision, num_statements: Callable[[], int]
) -> None:
    with Store.open(url) as store:
        others = [name for name in store.endpoints() if name != decision.endpoint]
        (fingerprint, config), *_ = store.fingerprints().items()
        counts = ExpectedCounts(20.0, 60.0, 1.0, (1.0, 0.0), (19.0, 1.0, 0.0), 22, 90)
        for name in others:  # so that everything is asked of each: replays, the loop beside them, audits
            record_key = RecordKey(name, 0, 1)
            store.save_replays([ReplayedRecord(record_key, name, decision.slice_key, "s", NOW, ((config, counts),))])
            with store.audit_session(name) as session:
                session.save([StoredAudit("", fingerprint, AuditState(1).document())])
    assert len(others) > 1
    asked = []
    for where in ({"endpoint": decision.endpoint}, {}):
        configured(url)
        num_statements()
        app = open_page("changes", window="all", **where)
        assert not app.exception
        asked.append(num_statements())
        st.cache_resource.clear()
    assert asked[0] == asked[1] > 5


@pytest.mark.all
def test_without_replays_and_audits_nothing_is_said(
    filled_url: str, configured: Configure, open_page: Open, decision: Decision
) -> None:
    configured(filled_url)
    for page in ("evidence", "changes"):
        app = open_page(page, endpoint=decision.endpoint, window="all")
        assert not app.exception
        assert not app.error
        # What the store's sums suspect depends on the hour up to which it is filled.
        assert {each.icon for each in app.warning} <= {":material/troubleshoot:"}
        assert "Replay beside the engine" not in said(app)
        assert "Audits of the engine" not in said(app)
