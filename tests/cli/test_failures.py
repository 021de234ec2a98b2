"""Failures from the mirror to the report: counted where they were seen, and no text of them anywhere."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from shadowspec import demo
from shadowspec.engine import Engine, Models
from shadowspec.quality.custom_scores import Scorer
from shadowspec.store import Store, upgrade
from shadowspec.types import (
    Contract,
    FunnelCounter,
    OutputContract,
    SamplingParameters,
    SpeculationConfig,
    StoredRecord,
    Validity,
    VerifyRule,
)
from shadowspec.types.settings import EngineSettings
from tests.builders.workspace import Workspace, record, write_traffic
from tests.store.saving import save_block
from tests.worker.blocks import block, prompt

CANARY = "canary_of_a_tool"


def changed(number: int, **envelope: Any) -> dict[str, Any]:
    return record(number) | envelope


def test_from_traffic_to_the_report(workspace: Workspace, caplog: pytest.LogCaptureFixture) -> None:
    workspace.replace_in_config("loads =", 'contract = "json"\nloads =')
    tool = {"type": "function", "function": {"name": CANARY, "parameters": {"description": CANARY}}}
    answer = {"model": "m", "choices": [{"finish_reason": "content_filter", "text": CANARY}]}
    traffic = [
        *(record(number) for number in range(3)),
        record(3, tools=[tool]),
        changed(4, response=answer),
        changed(5, status=400, metadata={"intervention": "rejected"}),
        changed(6, status=400),
        changed(7, metadata={"intervention": "rewritten"}),
    ]
    path = str(write_traffic(workspace.folder / "traffic.jsonl", traffic))
    workspace.migrate()
    with caplog.at_level(logging.DEBUG):
        done = workspace.run("run", path)
    assert done.code == 0, done.err
    with Store.open("sqlite:///shadow.db") as store:
        funnel, runs = store.funnel(), store.runs("letters")
        (counts,) = store.failure_counts("letters").values() if len(store.failure_counts("letters")) == 1 else (None,)
        total = sum(each["looked_at"] for each in store.failure_counts("letters").values())
    assert sum(funnel.values()) == len(traffic), "the funnel adds up"
    assert funnel["letters", FunnelCounter.UNSUPPORTED, "failed_request"] == 1
    assert funnel["letters", FunnelCounter.MEASURED, None] == len(runs) == total == 7
    assert counts is None or counts["looked_at"] == 7
    assert {run.flags.contract for run in runs} == {Contract.JSON}
    assert sorted(run.flags.intervention or "" for run in runs) == ["", "", "", "", "filtered", "rejected", "rewritten"]
    # Of six letters at most, an output is no JSON; those that end before are invalid, the others unfinished.
    for run in runs:
        expected = Validity.UNFINISHED if run.finish_reason == "length" else Validity.INVALID
        assert (run.flags.baseline_validity, run.flags.speculative_validity) == (expected, expected)

    report = json.loads(workspace.run("report", "--json").out)
    whole = next(h for h in report["endpoints"][0]["hypotheses"] if h["slice"] == {})
    rows = {row["name"]: row for row in whole["failures"]["rows"]}
    assert whole["failures"]["num_looked_at"] == 7
    assert whole["failures"]["intervened"]["num_intervened"] == 3
    assert {name: rows[name]["count"] for name in ("filtered", "rewritten", "rejected")} == {
        "filtered": 1,
        "rewritten": 1,
        "rejected": 1,
    }
    for arm in ("baseline", "speculative"):
        assert rows[f"json_{arm}_unfinished"]["of"] == 7
        ended = rows[f"json_{arm}_invalid"]
        assert ended["count"] == ended["of"] == 7 - rows[f"json_{arm}_unfinished"]["count"]
    markdown = workspace.run("report", "--format", "md").out
    assert "Filtered behind the model" in markdown
    assert "without the 3 requests whose production output a layer behind the model changed" in markdown
    for text in (caplog.text, done.out, done.err, markdown):
        assert CANARY not in text
    assert CANARY.encode() not in (workspace.folder / "shadow.db").read_bytes()


def test_no_output_reaches_the_database_or_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The bundled pair writes texts, each contract judges them, and none is found again."""
    config = SpeculationConfig("draft", "t", str(demo.DRAFT), "draft_model", 4, VerifyRule.REJECTION)
    target, candidates = Models(EngineSettings("cpu")).candidates(str(demo.TARGET), [config], lambda _: None, 1, {})
    seen: list[str] = []

    def score(text: str) -> float:
        seen.append(text)
        return 1.0

    tool = {"type": "function", "function": {"name": CANARY}}
    questions = [
        "CREATE TABLE canaries (name TEXT);\n\nQuestion: list all names.",
        "Return one JSON object.",
        "Tell me a story.",
        "Answer with a number.",
    ]
    asked = [
        replace(
            prompt(place),
            prompt_token_ids=tuple(target.tokenizer.render_chat([{"role": "user", "content": question}], None)),
            sampling=SamplingParameters(temperature=0.0, max_tokens=32),
            contract=OutputContract(
                kind, (tool,), dialect=None, pattern="[0-9]+" if kind is Contract.GRAMMAR else None
            ),
        )
        for place, (kind, question) in enumerate(zip(Contract, questions, strict=True))
    ]
    url = f"sqlite:///{tmp_path / 'store.db'}"
    upgrade(url)
    names = (tmp_path / "store.db").read_bytes()  # of tables and columns
    with caplog.at_level(logging.DEBUG), Store.open(url) as store:
        engine = Engine(target, candidates, EngineSettings(warmup_blocks=0), scorers={"chat": Scorer({"score": score})})
        result = engine.measure(block(*asked))
        store.save_fingerprints(engine.configs)
        now = datetime.now(UTC)
        rows = [StoredRecord(each.key, FunnelCounter.MEASURED, endpoint="chat", event_time=now) for each in asked]
        save_block(store, result, rows)
        assert {run.flags.contract for run in store.runs("chat")} == set(Contract)
    assert len(seen) == 2 * len(Contract)
    assert all(len(text) > 20 for text in seen)
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    words = {word for text in (*seen, *questions) for word in text.split() if len(word) > 7}
    telling = {word for word in words if word.encode() not in names}
    assert len(telling) > 3
    for piece in (*seen, *questions, *telling, CANARY):
        assert piece not in caplog.text
        assert piece.encode() not in stored


def test_an_engine_that_cannot_judge_sql_does_not_start(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace.replace_in_config("loads =", 'contract = "sql"\nloads =')
    traffic = str(write_traffic(workspace.folder / "traffic.jsonl", [record(1)]))
    workspace.migrate()
    monkeypatch.setitem(sys.modules, "sqlglot", None)
    wrong = workspace.run("run", traffic)
    assert wrong.code == 2
    assert "endpoints.letters: contract: SQL needs the extra `sql`: pip install 'shadowspec[sql]'" in wrong.err
    monkeypatch.delitem(sys.modules, "sqlglot")
    workspace.replace_in_config("loads =", 'sql_dialect = "klingon"\nloads =')
    wrong = workspace.run("run", traffic)
    assert wrong.code == 2
    assert "knows no dialect 'klingon'" in wrong.err
