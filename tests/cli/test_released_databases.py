"""A database that an earlier release has left goes on with this version: nothing is lost, and it is decided on."""

from __future__ import annotations

import gzip
import json
from importlib.metadata import version

import pytest

from shadowspec.store import Store
from tests.builders.workspace import Workspace, record, write_traffic
from tests.store import released

RELEASES = sorted(path.name.removesuffix(".db.gz") for path in released.FOLDER.glob("*.db.gz"))


@pytest.mark.parametrize("release", RELEASES)
def test_a_database_of_a_release_is_upgraded_read_and_decided_on(workspace: Workspace, release: str) -> None:
    held = gzip.decompress((released.FOLDER / f"{release}.db.gz").read_bytes())
    (workspace.folder / "shadow.db").write_bytes(held)
    wanted = json.loads((released.FOLDER / f"{release}.json").read_text(encoding="utf-8"))
    assert workspace.run("db", "upgrade").code == 0
    assert workspace.run("db", "check").code == 0
    with Store.open("sqlite:///shadow.db") as store:
        before = store.latest_decisions()
        assert [
            {"endpoint": each.endpoint, "verdict": each.verdict, "reason_code": each.reason_code,
             "num_blocks": each.num_blocks}
            for each in before
        ] == wanted  # fmt: skip
    listed = workspace.run("override", "list", "--json")
    assert [each["author"] for each in listed.document["overrides"]] == ["on-call@example.com"]
    explained = workspace.run("gate", "--explain", str(before[0].decision_id))
    assert explained.code == 0, explained.err
    more = write_traffic(
        workspace.folder / "more.jsonl", map(record, range(released.NUM_RECORDS, 2 * released.NUM_RECORDS))
    )
    for words in (("run", str(more)), ("gate", "--json"), ("report", "--json", "--out", "-")):
        done = workspace.run(*words)
        assert done.code == 0, done.err
    assert done.document["endpoints"][0]["hypotheses"][0]["num_requests"] > 0
    assert workspace.run("check", "--endpoint", "letters").code == 1, "the override is in force"


def test_this_version_has_its_file() -> None:
    """`python -m tests.store.released` writes it; one of a release is never written again."""
    assert version("shadowspec") in RELEASES
