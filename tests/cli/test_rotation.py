"""A new hash secret beside the previous one: known sessions keep their identity, new ones get one under the new."""

from __future__ import annotations

import pytest

from shadowspec.store import Store
from shadowspec.tap.hashing import KeyedHash, RotatedHash
from tests.builders.workspace import Workspace, record, write_traffic

OLD, NEW = b"the secret before", b"the secret that is new"


def test_draws_of_known_sessions_stay() -> None:
    old, new = KeyedHash(OLD), KeyedHash(NEW)
    session, user = old.identifier("session", "a"), old.identifier("user", "u")
    rotated = RotatedHash(NEW, OLD, [session, user])
    assert (rotated.identifier("session", "a"), rotated.identifier("user", "u")) == (session, user)
    assert rotated.identifier("session", "b") == new.identifier("session", "b")
    assert rotated.identifier("user", "a") == new.identifier("user", "a")
    numbered = (f"session:{session}#7", old), (f"user:{user}#9", old), ("session:b#7", new)
    for unit, like in (*numbered, (f"session:{session}", old), ("session:b", new), ("time:3", new)):
        assert rotated.uniform("sample", "chat", unit) == like.uniform("sample", "chat", unit)
        assert rotated.choice("timed_position", 9, "chat", unit) == like.choice("timed_position", 9, "chat", unit)


def test_a_rotation_splits_no_session(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace.migrate()
    first = write_traffic(workspace.folder / "first.jsonl", [record(number) for number in range(4)])
    assert workspace.run("run", str(first)).code == 0
    old = (workspace.folder / "secret").read_bytes()
    (workspace.folder / "previous").write_bytes(old)
    (workspace.folder / "secret").write_bytes(NEW)
    workspace.replace_in_config("[gate]", 'hash_secret_previous_file = "previous"\n\n[gate]')
    later = [record(number) | {"request_id": f"later-{number}"} for number in (2, 3, 4, 5)]
    assert workspace.run("run", str(write_traffic(workspace.folder / "second.jsonl", later))).code == 0
    with Store.open("sqlite:///shadow.db") as store:
        found = {stored.session_hash for stored in store.records("letters")}
    hashes = {
        *(KeyedHash(old.strip()).identifier("session", f"session-{number}") for number in range(4)),
        *(KeyedHash(NEW).identifier("session", f"session-{number}") for number in (4, 5)),
    }
    assert found == hashes
