"""`shadowspec replay`: the same counters as the loop's, refusals that say why, and no model where none is needed."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shadowspec.cli.replay import parse_depths
from shadowspec.engine.batch import Request
from shadowspec.engine.models import LoadedModel, load_model
from shadowspec.errors import UsageError
from shadowspec.types import SamplingParameters
from tests.builders.answered_records import NGRAM, answered
from tests.builders.workspace import Workspace, record, write_traffic
from tests.engine.heads.reference import Medusa

NUM_RECORDS = 24
HEADS = """
[[endpoints.letters.candidates]]
name = "heads"
proposer = "medusa"
draft = "heads"
num_speculative_tokens = 3
"""


@pytest.fixture(scope="module")
def target(tiny_pair: tuple[Path, Path]) -> LoadedModel:
    return load_model(str(tiny_pair[0]), torch.device("cpu"), torch.float32)


def cells(document: dict[str, Any], config: str, **slice_labels: str) -> list[dict[str, Any]]:
    return [cell for cell in document["replays"] if cell["config"] == config and cell["slice"] == slice_labels]


def test_greedy_traffic_is_replayed_to_the_counters_that_run_stores(
    workspace: Workspace, target: LoadedModel, tmp_path: Path
) -> None:
    config = (workspace.folder / "shadowspec.toml").read_text(encoding="utf-8")
    (workspace.folder / "shadowspec.toml").write_text(config + NGRAM + HEADS, encoding="utf-8")
    torch.manual_seed(2)
    Medusa(4, 1).save(workspace.folder / "heads", 1)
    traffic = write_traffic(tmp_path / "t.jsonl", [answered(target, number) for number in range(NUM_RECORDS)])
    workspace.migrate()
    assert workspace.run("run", str(traffic)).code == 0
    result = workspace.run("replay", str(traffic), "--k", "2..4", "--json", "--out", "each.jsonl")
    assert result.code == 0, result.err
    document = result.document
    assert document["schema_version"] == 1
    assert document["requests_replayed"] == NUM_RECORDS
    with sqlite3.connect(tmp_path / "shadow.db") as database:
        for name in ("draft", "lookup", "heads"):
            stored = database.execute(
                "select sum(num_drafts), sum(num_accepted_tokens), sum(num_draft_tokens), sum(num_output_tokens), "
                "sum(num_plain_steps), sum(num_cut_steps) from runs join fingerprints using (fingerprint) "
                "where name = ?",
                (name,),
            ).fetchone()
            whole = cells(document, name)
            assert [cell["num_speculative_tokens"] for cell in whole] == [2, 3, 4]
            expected = whole[1]["expected"]
            names = ("num_drafts", "num_accepted_tokens", "num_draft_tokens", "num_output_tokens", "num_plain_steps",
                     "num_cut_steps")  # fmt: skip
            assert [expected[each] for each in names] == pytest.approx(stored)
            assert whole[1]["mean_acceptance_length"] == pytest.approx(1.0 + stored[1] / stored[0])
            assert whole[1]["mean_acceptance_length_lower"] <= whole[1]["mean_acceptance_length"]
            assert whole[1]["num_sessions"] == NUM_RECORDS
    lines = [json.loads(line) for line in (workspace.folder / "each.jsonl").read_text("utf-8").splitlines()]
    assert len(lines) == NUM_RECORDS
    drafts = sum(
        item["expected"]["num_drafts"]
        for line in lines
        for item in line["replays"]
        if (item["config"], item["num_speculative_tokens"]) == ("draft", 3)
    )
    assert drafts == pytest.approx(cells(document, "draft")[1]["expected"]["num_drafts"])
    shown = workspace.run("replay", str(traffic))
    assert shown.code == 0
    assert "K=8" in shown.out
    assert "24 responses replayed" in shown.out


@pytest.mark.all
def test_suffix_drafts_are_replayed_to_the_counters_that_run_stores(
    workspace: Workspace, target: LoadedModel, tmp_path: Path
) -> None:
    """One request at a time: what is remembered at each is then the same in both."""
    workspace.replace_in_config("concurrency = 2", "concurrency = 1")
    path = workspace.folder / "shadowspec.toml"
    config = path.read_text(encoding="utf-8")
    candidates = [
        f'[[endpoints.letters.candidates]]\nname = "s-{memory}"\nproposer = "suffix"\nnum_speculative_tokens = 3\n'
        f"suffix_memory_tokens = {memory}\n"
        for memory in (0, 40, 100_000)
    ]
    path.write_text(config[: config.index("[[endpoints.letters.candidates]]")] + "\n".join(candidates), "utf-8")
    traffic = write_traffic(tmp_path / "t.jsonl", [answered(target, number) for number in range(NUM_RECORDS)])
    workspace.migrate()
    assert workspace.run("run", str(traffic)).code == 0
    result = workspace.run("replay", str(traffic), "--k", "2..4", "--json")
    assert result.code == 0, result.err
    names = ("num_drafts", "num_accepted_tokens", "num_draft_tokens", "num_plain_steps", "num_cut_steps")
    accepted = []
    with sqlite3.connect(tmp_path / "shadow.db") as database:
        for memory in (0, 40, 100_000):
            stored = database.execute(
                f"select {', '.join(f'sum({name})' for name in names)} from runs join fingerprints "
                "using (fingerprint) where name = ? and suffix_memory_tokens = ?",
                (f"s-{memory}", memory),
            ).fetchone()
            expected = cells(result.document, f"s-{memory}")[1]["expected"]
            assert [expected[name] for name in names] == pytest.approx(stored)
            accepted.append(stored[1])
    assert accepted[0] < accepted[1] < accepted[2]


def test_max_requests_is_of_all_files_together(workspace: Workspace, target: LoadedModel) -> None:
    files = [
        str(write_traffic(workspace.folder / f"{first}.jsonl", [answered(target, first + row) for row in range(4)]))
        for first in (0, 10, 20)
    ]
    result = workspace.run("replay", *files, "--k", "2", "--max-requests", "6", "--json")
    assert result.code == 0, result.err
    assert result.document["requests_replayed"] == 6


def test_what_replay_refuses_is_none_of_max_requests(workspace: Workspace, target: LoadedModel, tmp_path: Path) -> None:
    records = [answered(target, number) for number in range(12)]
    for answer in records[:6:2]:
        token_ids = answer["response"]["choices"][0]["token_ids"]
        token_ids[0] = 2 + (token_ids[0] - 1) % 8  # another than the target's
    traffic = write_traffic(tmp_path / "t.jsonl", records)
    result = workspace.run("replay", str(traffic), "--k", "2", "--max-requests", "6", "--json")
    assert result.code == 0, result.err
    assert result.document["requests_replayed"] == 6
    assert [row["reason"] for row in result.document["funnel"]] == ["not_argmax"]


def test_adaptive_depth_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    workspace.replace_in_config(
        "num_speculative_tokens = 3", "num_speculative_tokens = 3\ndraft_confidence_threshold = 0.4"
    )
    result = workspace.run("replay", str(write_traffic(tmp_path / "t.jsonl", [record(0)])))
    assert result.code == 2
    assert "candidate 'draft': draft_confidence_threshold cannot be replayed" in result.err


def test_what_cannot_be_replayed_keeps_nothing_else_from_it(
    workspace: Workspace, target: LoadedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = workspace.folder / "shadowspec.toml"
    text = path.read_text(encoding="utf-8")
    replace = text[text.index("[[endpoints.letters.candidates]]") :].replace('name = "draft"', 'name = "adaptive"')
    path.write_text(f"{text}\n{replace}draft_confidence_threshold = 0.4\n", encoding="utf-8")
    traffic = write_traffic(tmp_path / "t.jsonl", [answered(target, number) for number in range(2)])
    result = workspace.run("replay", str(traffic), "--json")
    assert result.code == 0, result.err
    assert {cell["config"] for cell in result.document["replays"]} == {"draft"}
    assert "left out: candidate 'adaptive': draft_confidence_threshold cannot be replayed" in caplog.text


def stored(workspace: Workspace, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(workspace.folder / "shadow.db") as database:
        return database.execute(query).fetchall()


@pytest.mark.all
def test_counts_are_kept_beside_the_loops_under_the_same_fingerprint(
    workspace: Workspace, target: LoadedModel, tmp_path: Path
) -> None:
    traffic = write_traffic(tmp_path / "t.jsonl", [answered(target, number) for number in range(NUM_RECORDS)])
    workspace.migrate()
    workspace.run("run", str(traffic))
    result = workspace.run("replay", str(traffic), "--k", "2..4")
    assert result.code == 0
    assert f"stored: {3 * NUM_RECORDS} new rows of expected counts, of {NUM_RECORDS} replayed responses" in result.err
    totals = "select sum(num_drafts), sum(num_accepted_tokens), count(*) from"
    (loop,) = stored(workspace, f"{totals} runs")
    (totals_row,) = stored(workspace, f"{totals} replays where fingerprint in (select fingerprint from fingerprints)")
    assert totals_row == pytest.approx(loop)
    depths = stored(workspace, "select num_speculative_tokens, count(*) from replays group by 1 order by 1")
    assert depths == [(2, NUM_RECORDS), (3, NUM_RECORDS), (4, NUM_RECORDS)]
    again = workspace.run("replay", str(traffic), "--k", "3..5", "--store", "--json")
    assert f"stored: {NUM_RECORDS} new rows" in again.err
    assert stored(workspace, "select count(*) from fingerprints") == [(1,)]
    texts = "select unit_key from replays union select source from replays"
    assert not any("session-" in value for (value,) in stored(workspace, texts))

    assert workspace.run("gate").code == 0
    document = json.loads(workspace.run("report", "--json").out)
    rows = [row for row in document["endpoints"][0]["replays"] if not row["slice"]]
    assert [(row["num_speculative_tokens"], row["num_requests"]) for row in rows] == [
        (depth, NUM_RECORDS) for depth in (2, 3, 4, 5)
    ]
    assert rows[1]["mean_acceptance_length"] == pytest.approx(rows[1]["loop_mean_acceptance_length"])
    assert [row["loop_num_requests"] for row in rows] == [0, NUM_RECORDS, 0, 0]


@pytest.mark.all
def test_replays_stand_beside_the_runs_of_a_queue(workspace: Workspace, target: LoadedModel, tmp_path: Path) -> None:
    """A queue and sampling defaults are part of the fingerprint, which is that of the loop's runs."""
    workspace.replace_in_config("loads =", "requests_per_slot = 2\ndefault_sampling = { top_p = 0.9 }\nloads =")
    traffic = write_traffic(tmp_path / "t.jsonl", [answered(target, number) for number in range(6)])
    workspace.migrate()
    workspace.run("run", str(traffic))
    assert workspace.run("replay", str(traffic), "--k", "3").code == 0
    assert workspace.run("gate").code == 0
    document = json.loads(workspace.run("report", "--json").out)
    assert [row["loop_num_requests"] for row in document["endpoints"][0]["replays"] if not row["slice"]] == [6]


def test_nothing_is_kept_where_that_is_said_or_cannot_be(
    workspace: Workspace, target: LoadedModel, tmp_path: Path
) -> None:
    traffic = str(write_traffic(tmp_path / "t.jsonl", [answered(target, number) for number in range(2)]))
    without = workspace.run("replay", traffic)
    assert without.code == 0
    assert "not stored: there is no database yet" in without.err
    assert not (workspace.folder / "shadow.db").exists()
    missing = workspace.run("replay", traffic, "--store")
    assert missing.code == 2
    assert "db upgrade" in missing.err
    workspace.migrate()
    assert workspace.run("replay", traffic, "--no-store").code == 0
    assert workspace.run("replay", traffic, "--draft-only").code in (0, 4)
    assert stored(workspace, "select count(*) from replays") == [(0,)]
    both = workspace.run("replay", traffic, "--draft-only", "--store")
    assert both.code == 2
    assert "--store needs the target" in both.err
    with sqlite3.connect(workspace.folder / "shadow.db") as database:
        database.execute("update alembic_version set version_num = '0029'")
    earlier = workspace.run("replay", traffic)
    assert earlier.code == 2
    assert "a state before 0.1.0, which is not upgraded" in earlier.err


def test_the_loop_is_audited_and_an_alarm_orders_hold(
    workspace: Workspace, target: LoadedModel, tmp_path: Path
) -> None:
    workspace.replace_in_config("[endpoints.letters]", "[engine]\naudit_share = 1.0\n\n[endpoints.letters]")
    records = [record(number, max_tokens=12, temperature=0.7, ignore_eos=True) for number in range(2 * NUM_RECORDS)]
    workspace.migrate()
    assert workspace.run("run", str(write_traffic(tmp_path / "t.jsonl", records))).code == 0
    audits = workspace.run("gate", "--json").document["audits"]
    assert [(audit["endpoint"], audit["num_units"], audit["is_alarm"]) for audit in audits] == [
        ("letters", 2 * NUM_RECORDS, False)
    ] * 2
    assert "no alarm in 48 outputs" in workspace.run("gate", "--tests").out
    assert "audit of" not in workspace.run("gate").out

    with sqlite3.connect(workspace.folder / "shadow.db") as database:  # as if replay had expected nothing
        database.execute("update audits set expected_accepted_tokens = 0.0, is_folded = 0")
        database.execute("delete from audit_states")
    result = workspace.run("gate")
    assert result.code == 0
    assert "audit of letters, whole endpoint, draft: alarm since" in result.out
    orders = workspace.run("override", "list", "--json").document["overrides"]
    assert {order["verdict"] for order in orders} == {"HOLD"}
    assert all("audit alarm: the engine accepts otherwise than replay expects" in order["reason"] for order in orders)
    assert workspace.run("check", "--endpoint", "letters").code == 1  # a DISABLE stays one: it is safer
    assert "alarm since" in workspace.run("report", "--format", "md").out


def test_heads_are_not_replayed_without_the_target(workspace: Workspace, target: LoadedModel, tmp_path: Path) -> None:
    config = (workspace.folder / "shadowspec.toml").read_text(encoding="utf-8")
    (workspace.folder / "shadowspec.toml").write_text(config + HEADS, encoding="utf-8")
    (workspace.folder / "heads").mkdir()
    (workspace.folder / "heads" / "config.json").write_text("{}", encoding="utf-8")
    traffic = write_traffic(tmp_path / "t.jsonl", [answered(target, 0)])
    result = workspace.run("replay", str(traffic), "--draft-only")
    assert result.code == 2
    assert "candidate heads drafts from the target's hidden states" in result.err


def test_draft_only_gives_what_both_models_give(workspace: Workspace, target: LoadedModel, tmp_path: Path) -> None:
    records = [answered(target, number, temperature=1.0) for number in range(NUM_RECORDS)]
    for each in records:
        prompt = target.tokenizer.encode(each["request"]["prompt"])
        ids = each["response"]["choices"][0]["token_ids"]
        each["response"]["choices"][0]["logprobs"] = {"token_logprobs": logprobs(target, prompt, ids)}
    traffic = write_traffic(tmp_path / "t.jsonl", records)
    both = workspace.run("replay", str(traffic), "--k", "3", "--json").document
    weights = workspace.folder / "target-without-weights"
    source = Path(target.path)
    shutil.copytree(source, weights, ignore=shutil.ignore_patterns("*.safetensors"))
    workspace.replace_in_config(str(source), str(weights))
    alone = workspace.run("replay", str(traffic), "--k", "3", "--json", "--draft-only")
    assert alone.code == 0, alone.err
    found = alone.document
    assert found["draft_only"] is True
    lengths = [document["replays"][0]["mean_acceptance_length"] for document in (both, found)]
    assert lengths[0] == pytest.approx(lengths[1], rel=1e-4)
    assert 1.0 < lengths[0] < 4.0
    warm = [each | {"request": each["request"] | {"temperature": 0.8}} for each in records]
    refused = workspace.run("replay", str(write_traffic(tmp_path / "w.jsonl", warm)), "--draft-only")
    assert refused.code == 4
    assert "raw_logprobs" in refused.out
    assert "]@1/0: its logprobs are of the distribution before temperature" in refused.err


def logprobs(target: LoadedModel, prompt: list[int], ids: list[int]) -> list[float]:
    """What vLLM would log: the model's own, before any processing."""
    from shadowspec.engine.parity import teacher_forced_logits

    logits = teacher_forced_logits(target.model, [Request(tuple(prompt), SamplingParameters(), 0)], [ids])[0][0]
    return logits.log_softmax(-1)[np.arange(len(ids)), ids].tolist()


def test_lookup_needs_no_model(workspace: Workspace, target: LoadedModel, tmp_path: Path) -> None:
    path = workspace.folder / "shadowspec.toml"
    config = path.read_text(encoding="utf-8")
    path.write_text(config[: config.index("[[endpoints.letters.candidates]]")] + NGRAM, encoding="utf-8")
    source, weights = Path(target.path), workspace.folder / "target-without-weights"
    shutil.copytree(source, weights, ignore=shutil.ignore_patterns("*.safetensors"))
    workspace.replace_in_config(str(source), str(weights))
    traffic = write_traffic(tmp_path / "t.jsonl", [answered(target, number) for number in range(6)])
    result = workspace.run("replay", str(traffic), "--json")
    assert result.code == 0, result.err
    assert len(cells(result.document, "lookup")) == 8


def test_what_cannot_be_replayed_is_counted_and_told(workspace: Workspace, target: LoadedModel, tmp_path: Path) -> None:
    good = answered(target, 0)
    other = answered(target, 1)
    ids = other["response"]["choices"][0]["token_ids"]
    ids[0] = 2 if ids[0] != 2 else 3  # not what a greedy target says
    without = answered(target, 2)
    del without["response"]["choices"][0]["token_ids"]
    rewritten = answered(target, 4) | {"metadata": {"intervention": "rewritten"}}
    traffic = write_traffic(tmp_path / "t.jsonl", [good, other, without, record(3), good, rewritten])
    result = workspace.run("replay", str(traffic), "--json", "--out", "each.jsonl")
    assert result.code == 0
    funnel = {each["reason"]: each["num_records"] for each in result.document["funnel"]}
    refused = {"not_argmax": 1, "no_token_ids": 1, "no_response": 1, "seen_before": 1, "changed_response": 1}
    assert funnel == refused
    reasons = [json.loads(line).get("reason") for line in (workspace.folder / "each.jsonl").read_text().splitlines()]
    assert sorted(filter(None, reasons)) == sorted(funnel)
    reported = workspace.run("replay", str(traffic))
    assert "first not_argmax: " in reported.err
    assert "]@2/0: output token 0 is not the target's arg-max" in reported.err


def test_nothing_to_replay_is_no_data(workspace: Workspace, tmp_path: Path) -> None:
    result = workspace.run("replay", str(write_traffic(tmp_path / "t.jsonl", [record(0), record(1)])))
    assert result.code == 4
    assert "no_response" in result.out


@pytest.mark.parametrize(
    ("text", "depths"), [("1..8", tuple(range(1, 9))), ("4", (4,)), ("4,1,4", (1, 4)), ("3..3", (3,))]
)
def test_depths(text: str, depths: tuple[int, ...]) -> None:
    assert parse_depths(text) == depths


@pytest.mark.parametrize("text", ["", "0..3", "5..2", "1..", "1..33", "a", "1;2", "1.5"])
def test_depths_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="--k must be a range"):
        parse_depths(text)


def test_usage_errors(workspace: Workspace, tmp_path: Path) -> None:
    traffic = str(write_traffic(tmp_path / "t.jsonl", [record(0)]))
    for arguments in (("--k", "0"), ("--endpoint", "none"), ("--logprobs-mode", "raw")):
        assert workspace.run("replay", traffic, *arguments).code == 2


def test_times_of_a_trace_are_said_and_never_stored(workspace: Workspace, target: LoadedModel, tmp_path: Path) -> None:
    traffic = str(write_traffic(tmp_path / "t.jsonl", [answered(target, number) for number in range(3)]))
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 1}\n{"timestamp": 5000, "input_length": 1}\n', encoding="utf-8")
    workspace.migrate()
    given = ("replay", traffic, "--arrivals", str(trace))
    result = workspace.run(*given, "--json")
    assert (result.code, result.document["requests_replayed"]) == (0, 3), result.err
    assert "(Mooncake, 2 arrivals in 5 seconds). So arrivals and concurrency are the trace's" in result.err
    assert "The trace is repeated, because 3 records are 1.5 times its arrivals." in result.err
    with sqlite3.connect(tmp_path / "shadow.db") as database:
        assert database.execute("select count(*) from replays").fetchone() == (0,)
    stored = workspace.run(*given, "--store")
    assert (stored.code, "--arrivals excludes --store" in stored.err) == (2, True)
