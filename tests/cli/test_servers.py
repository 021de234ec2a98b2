"""`run` and `doctor` where an endpoint is measured through two servers."""

from __future__ import annotations

import importlib
import json
import pickle
import select
import time
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from shadowspec.app.serve_worker import ConfiguredEngines
from shadowspec.config import load_config
from shadowspec.engine.models import load_model
from shadowspec.servers import judging
from shadowspec.store import Store
from shadowspec.text import markdown_text
from shadowspec.types import Arm, Block, BlockResult, PairedScore, Validity
from shadowspec.types.server_facts import FACTS
from shadowspec.worker.engine_process import EngineProcess, Event, MeasuringFailed, Ready
from tests.builders.answered_records import answered
from tests.builders.served_models import measured, serve, steady_timing
from tests.builders.server_blocks import prompt
from tests.builders.workspace import Workspace, record, write_traffic
from tests.servers.fake_server import FakeServer, running, silent, well
from tests.servers.fake_sglang import FakeSglang
from tests.services import PATIENCE_S


@pytest.fixture
def servers() -> Iterator[tuple[FakeServer, FakeServer]]:
    pair = FakeServer(tells_queue=True, tells_cached=True), FakeServer(3, tells_queue=True, tells_cached=True)
    with running(*pair):
        yield pair


@pytest.fixture
def served(workspace: Workspace, servers: tuple[FakeServer, FakeServer]) -> Workspace:
    """The endpoint of the workspace, measured through servers."""
    serve(workspace, servers)
    workspace.migrate()
    return workspace


def test_traffic_is_measured_and_says_by_which_engine(
    served: Workspace, servers: tuple[FakeServer, FakeServer]
) -> None:
    done = measured(served, *range(6))
    assert done.code == 0, done.err
    assert done.document["requests_measured"] == 6
    with Store.open(f"sqlite:///{served.folder}/shadow.db") as store:
        runs = store.runs("letters")
        configs = store.fingerprints()
    assert [run.failure for run in runs] == [None] * 6
    assert {run.served.counts_source for run in runs if run.served is not None} == {"response"}
    (config,) = configs.values()
    assert (config.engine, config.device, config.config.backend) == ("vllm/0.32.0", "a fake", "openai")
    gated = served.run("gate", "--json")
    assert gated.code == 0, gated.err
    assert {each["verdict"] for each in gated.document["decisions"]} == {"HOLD"}
    reported = {(each["engine"], each["serving_engine"]) for each in gated.document["decisions"]}
    assert reported == {("vllm/0.32.0", None)}
    assert {each["verdict_engine"] for each in gated.document["decisions"]} == {"vllm"}
    shown = " ".join(served.run("gate").out.split())
    assert "Latency was measured on vllm/0.32.0; the verdicts are for vllm, as its servers report" in shown
    assert "abcdefgh" not in done.err + done.out
    reported = served.run("report", "--json")
    assert reported.code == 0, reported.err
    (shown,) = reported.document["speculation_configs"]
    assert (shown["engine"], shown["details"]["counts_source"]) == ("vllm/0.32.0", "response")
    assert served.run("report", "--out", "report.html").code == 0
    assert "counts source response" in (served.folder / "report.html").read_text(encoding="utf-8")


def test_init_takes_the_serving_engine_from_a_server(
    workspace: Workspace, servers: tuple[FakeServer, FakeServer]
) -> None:
    done = workspace.run("init", "new.toml", "--server", servers[0].url)
    assert done.code == 0, done.err
    assert load_config(workspace.folder / "new.toml").endpoints["chat"].policy.serving_engine == "vllm"
    with running(gone := FakeServer()):
        pass
    done = workspace.run("init", "other.toml", "--force", "--server", gone.url)
    assert (done.code, "serving server 127.0.0.1" in done.err) == (5, True)


def conversation(session: int, num_turns: int) -> list[dict[str, Any]]:
    """The records of a session, each of whose prompts continues the one before it; production had a page of it."""
    whole = [3 + place % 8 for place in range(40)]
    cached = [{"prompt_tokens_details": {"cached_tokens": 8 * turn}} for turn in range(num_turns)]
    return [
        record(100 * session + turn, prompt=whole[: 9 + 7 * turn])
        | {"session_id": f"talk-{session}"}
        | {"response": {"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}], "usage": cached[turn]}}
        for turn in range(num_turns)
    ]


def test_conversations_are_measured_with_the_prefix_cache_on_and_every_page_says_so(
    served: Workspace, servers: tuple[FakeServer, FakeServer]
) -> None:
    for server in servers:
        server.page_tokens = 4
    servers[1].loses_hits = servers[0].loses_hits = True
    served.replace_in_config("timed_positions = 1", "timed_positions = 4")
    served.replace_in_config("requests_per_slot = 2", "requests_per_slot = 1")
    served.replace_in_config('prefix_cache = "off"', 'prefix_cache = "on"')
    doctor = served.run("doctor")
    assert "servers.prefix_cache is on and the server's is off" in " ".join((doctor.out + doctor.err).split())
    servers[0].loses_hits = False
    doctor = served.run("doctor")
    assert "off, or speculation loses its hits" in " ".join((doctor.out + doctor.err).split())
    servers[1].loses_hits = False
    traffic = [each for session in range(6) for each in conversation(session, 5)]
    write_traffic(served.folder / "talks.jsonl", traffic)
    done = served.run("run", "talks.jsonl", "--json")
    assert done.code == 0, done.err
    assert done.document["requests_measured"] == 24, "four turns of each session, of which there are five"
    with Store.open(f"sqlite:///{served.folder}/shadow.db") as store:
        runs, blocks = store.runs("letters"), store.blocks("letters")
        turns = {each.key: each.session_position for each in store.records("letters")}
        (rollup,) = store.rollups("letters")
    known = [(turns[run.key], run.served.cached_tokens) for run in runs if run.served is not None]
    cached = [[pair for place, pair in known if place == turn] for turn in (1, 2, 3, 4)]
    assert cached == [[(0, 0)] * 6, [(8, 8)] * 6, [(16, 16)] * 6, [(20, 20)] * 6]
    assert [(block.max_turns, block.n_max) for block in blocks] == [(4, 8)] * 3
    assert (rollup.sums.num_cached_prompt_tokens, rollup.sums.baseline_cached_tokens) == (
        6 * (9 + 16 + 23 + 30),
        6 * 44,
    )
    gated = served.run("gate", "--json")
    assert gated.code == 0, gated.err
    mode = "measured with the prefix cache on, whole conversations"
    assert any(mode in each["reason"] for each in gated.document["decisions"])
    assert "conversations" in served.run("gate").out, "the table breaks lines"
    decision_id = max(each["decision_id"] for each in gated.document["decisions"])
    explained = served.run("gate", "--explain", str(decision_id), "--json")
    assert explained.code == 0, explained.err
    assert explained.document["explanation"]["differences"] == []
    (speedup,) = (each for each in explained.document["explanation"]["decision"]["tests"] if each["name"] == "speedup")
    assert speedup["details"]["speculative_cached_share"] == pytest.approx(44 / 78)
    assert mode in " ".join(served.run("check", "--endpoint", "letters", "--on-hold", "pass").out.split())
    document = served.run("report", "--json").document
    (endpoint,) = document["endpoints"]
    whole = next(each for each in endpoint["hypotheses"] if not each["slice"])
    assert [row["turn"] for row in whole["by_turn"]] == [1, 2, 3, 4, None]
    assert [row["speculative_cached_tokens"] for row in whole["by_turn"]] == [0, 48, 96, 120, 264]
    assert endpoint["production_cache"] == {"num_requests": 30, "num_prompt_tokens": 690, "num_cached_tokens": 480}
    assert served.run("report", "--format", "md", "--out", "report.md").code == 0
    text = (served.folder / "report.md").read_text(encoding="utf-8")
    assert "Production's prefix cache held 69.6% of the prompt tokens of the 30 requests" in text
    assert "| 4 | 6 | 180 | 66.7% | 66.7% |" in text
    assert served.run("report", "--out", "report.html").code == 0
    assert "Prefix cache, turn by turn" in (served.folder / "report.html").read_text(encoding="utf-8")


def test_prefix_caches_as_served_stand_beside_productions_and_hold_where_they_are_far_apart(
    served: Workspace, servers: tuple[FakeServer, FakeServer]
) -> None:
    for server in servers:
        server.page_tokens, server.tells_cached = 4, True
    served.replace_in_config("timed_positions = 1", "timed_positions = 4\nmax_cache_gap = 0.1")
    served.replace_in_config("requests_per_slot = 2", "requests_per_slot = 1")
    served.replace_in_config("loads = [{ concurrency = 2 }]", "loads = [{ concurrency = 1 }]")
    served.replace_in_config('prefix_cache = "off"\n', "")
    write_traffic(served.folder / "talks.jsonl", [each for session in range(30) for each in conversation(session, 4)])
    done = served.run("run", "talks.jsonl", "--json")
    assert done.code == 0, done.err
    tokens = 30 * (9 + 16 + 23 + 30)
    found = 8 + 12 + 20 + 28  # all sessions have the same prompts, and the first one finds fewer
    assert done.document["prefix_caches"] == {
        "num_requests": 120,
        "num_prompt_tokens": tokens,
        "production_cached_tokens": 30 * (0 + 8 + 16 + 24),
        "baseline_cached_tokens": 29 * found + 8 + 16 + 20,
        "speculative_cached_tokens": 29 * found + 8 + 16 + 20,
    }
    assert served.run("gate").code == 0
    document = served.run("report", "--json").document
    (row,) = document["caches"]
    assert (row["num_requests"], row["production_share"]) == (120, pytest.approx(1_440 / tokens))
    assert row["baseline_share"] == row["speculative_share"] > row["production_share"] + 0.1
    (decision,) = (each for each in served.run("gate", "--json").document["decisions"] if not each["slice"])
    assert decision["reason_code"] == "cache_mismatch", decision["reason"]
    assert served.run("report", "--format", "md", "--out", "report.md").code == 0
    text = (served.folder / "report.md").read_text(encoding="utf-8")
    assert "Cached, production" in text
    assert "measured with prefix caches as served" in text


def test_requests_that_fail_stand_in_the_funnel_with_their_reason(
    served: Workspace, servers: tuple[FakeServer, FakeServer]
) -> None:
    servers[1].script.extend([well, silent(2)])  # the first is the look at the server
    traffic = write_traffic(served.folder / "more.jsonl", [record(number) for number in (10, 11, 12)])
    done = served.run("run", str(traffic), "--json")
    assert done.code == 0, done.err
    failed = [each for each in done.document["funnel"] if each["counter"] == "failed"]
    assert [(each["reason"], each["num_records"]) for each in failed] == [("speculative_token_timeout", 1)]


def test_servers_that_are_away_end_the_run_with_the_code_of_a_service(
    served: Workspace, servers: tuple[FakeServer, FakeServer]
) -> None:
    with running(gone := FakeServer()):
        pass
    served.replace_in_config(servers[1].url, gone.url)
    done = measured(served, 0)
    assert done.code == 5
    assert "speculative server 127.0.0.1" in done.err


def events_of(process: EngineProcess) -> list[Event]:
    """What the process says next."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := process.poll()) and time.monotonic() < deadline:
        select.select([process], [], [], 0.1)
    return found


def test_what_a_workers_process_is_given_measures_through_servers(served: Workspace) -> None:
    config = load_config(served.folder / "shadowspec.toml")
    engines = pickle.loads(pickle.dumps(ConfiguredEngines(config, "cpu")))()
    prompts = tuple(prompt(line) for line in range(4))
    block = Block("b" * 64, 0, "letters", "", 2, prompts, (), Arm.BASELINE, 2)
    runs = engines["letters"].measure(block).runs
    assert [run.failure for run in runs] == [None] * 4
    assert {run.fingerprint for run in runs} == {each.fingerprint for each in engines["letters"].configs}


@pytest.mark.all
def test_a_workers_process_measures_through_servers_and_ends_when_they_are_gone(
    served: Workspace, servers: tuple[FakeServer, FakeServer]
) -> None:
    """An ended process is the supervisor's to start anew; nothing is counted against the draft."""
    config = load_config(served.folder / "shadowspec.toml")
    prompts = tuple(prompt(line) for line in range(4))
    block = Block("b" * 64, 0, "letters", "", 2, prompts, (), Arm.BASELINE, 2)
    process = EngineProcess(ConfiguredEngines(config, "cpu"))
    process.start()
    try:
        (ready,) = events_of(process)
        assert isinstance(ready, Ready)
        process.submit(block)
        (result,) = events_of(process)
        assert isinstance(result, BlockResult)
        assert [run.fingerprint for run in result.runs] == [ready.configs["letters"][0].fingerprint] * 4
        servers[1].version = "0.33.0"
        process.submit(block)
        failed = events_of(process)[0]
        assert isinstance(failed, MeasuringFailed)
        assert failed.error == "ServiceUnavailableError"
    finally:
        process.stop(5.0)


def test_sampled_traffic_is_scored_and_not_held_for_want_of_it(
    served: Workspace, servers: tuple[FakeServer, FakeServer]
) -> None:
    records = [record(number, temperature=1.0) for number in range(6)]
    done = served.run("run", str(write_traffic(served.folder / "sampled.jsonl", records)), "--json")
    assert done.code == 0, done.err
    with Store.open(f"sqlite:///{served.folder}/shadow.db") as store:
        parities = [run.parity for run in store.runs("letters")]
    assert all(each is not None and each.z_tokens and each.baseline_z_tokens for each in parities)
    assert all(each is not None and each.z_error is not None and each.z_error < 1e-4 for each in parities)
    assert "hush" not in done.err + done.out
    gated = served.run("gate", "--json")
    assert {each["reason_code"] for each in gated.document["decisions"]}.isdisjoint({"unknown_parity"})


def through_a_method(workspace: Workspace, name: str, given: str) -> None:
    """The candidate drafts by the server's method, not by a proposer of ours."""
    text = (workspace.folder / "shadowspec.toml").read_text(encoding="utf-8")
    (draft,) = [line for line in text.splitlines() if line.startswith("draft =")]
    workspace.replace_in_config(draft, f"speculative_config = {given}")
    workspace.replace_in_config('proposer = "draft_model"', f'method = "{name}"')


SOON = """[gate.rollout]
shadow_soak_s = 0.0
partial_soak_s = 0.0
depth_soak_s = 0.0
min_soak_blocks = 0
first_depth = 3

[endpoints.letters]
"""


@pytest.mark.parametrize(
    ("name", "given", "kv_tokens", "verdict"),
    [
        pytest.param(
            "mtp",
            "{ draft_tensor_parallel_size = 1, nested = { a = [1, 2] } }",
            41_984,
            "ENABLE",
            marks=pytest.mark.all,
        ),
        ("dflash", '{ model = "org/dflash" }', 32_768, "DISABLE"),
    ],
)
def test_the_default_budget_of_memory_is_judged_and_a_method_goes_out_as_it_came_in(
    served: Workspace,
    servers: tuple[FakeServer, FakeServer],
    name: str,
    given: str,
    kv_tokens: int,
    verdict: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    through_a_method(served, name, given)
    for before, after in (("concurrency = 2", "concurrency = 8"), ("requests_per_slot = 2", "requests_per_slot = 1")):
        served.replace_in_config(before, after)
    served.replace_in_config("first_token_timeout_s = 0.5\ntoken_timeout_s = 0.5", "first_token_timeout_s = 30.0")
    served.replace_in_config("[endpoints.letters]\n", SOON)
    monkeypatch.setattr(judging, "timing", steady_timing)
    servers[1].kv_tokens = kv_tokens
    for server in servers:
        server.step_s = 0.0
    begin = datetime.now(UTC) - timedelta(hours=1)  # young enough to be exported
    records = [
        record(number, max_tokens=6) | {"timestamp": (begin + timedelta(seconds=number)).isoformat()}
        for number in range(480 if verdict == "ENABLE" else 16)
    ]
    done = served.run("run", str(write_traffic(served.folder / "traffic.jsonl", records)), "--json")
    assert done.code == 0, done.err
    for _ in range(3):  # from shadow to partial to broad
        gated = served.run("gate", "--json")
    (decision,) = [each for each in gated.document["decisions"] if not each["slice"]]
    tests = {test["name"]: test for test in decision["tests"]}
    assert decision["verdict"] == verdict, decision["reason"]
    displaced = 48_768 - kv_tokens
    assert tests["memory"]["outcome"] == ("pass" if verdict == "ENABLE" else "fail")
    assert tests["memory"]["estimate"] == pytest.approx(displaced / 48_768)
    shown = f"batch 47.6 becomes {kv_tokens / 1024:.1f} (requests of full length)"
    assert shown in " ".join(served.run("gate", "--verbose", "--explain", str(decision["decision_id"])).out.split())
    report = served.run("report", "--format", "md").out
    assert f"{displaced:,} displaced" in report
    assert markdown_text(shown) in report
    assert name in report
    assert served.run("report", "--out", "report.html").code == 0
    page = (served.folder / "report.html").read_text(encoding="utf-8")
    assert shown in page
    assert name in page
    exported = served.run("export", "--format", "vllm", "--endpoint", "letters")
    assert exported.code == 0, exported.err
    wanted = tomllib.loads(f"speculative_config = {given}")["speculative_config"]
    on = {"method": name, "num_speculative_tokens": 3, **wanted}
    assert json.loads(exported.out or "null") == (on if verdict == "ENABLE" else None)


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (("replay", "traffic.jsonl", "--no-store"), 2, "a server drafts it by its method draft_model, which cannot"),
        (("profile-device",), 4, "by its method draft_model: profile it with `shadowspec profile-server`"),
    ],
)  # fmt: skip
def test_what_needs_the_draft_itself_says_that_a_server_drafts(
    served: Workspace, command: tuple[str, ...], code: int, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    through_a_method(served, "draft_model", "{}")  # not even where the name is that of a proposer
    write_traffic(served.folder / "traffic.jsonl", [record(0)])
    done = served.run(*command)
    assert says in " ".join((done.err + caplog.text).split()), done.err
    assert done.code == code


def checks(workspace: Workspace) -> dict[str, tuple[bool, str]]:
    found = workspace.run("doctor", "--json").document["checks"]
    return {each["check"]: (each["ok"], each["found"]) for each in found}


def test_replay_of_an_endpoint_behind_servers_is_that_of_the_same_pair_in_this_process(
    workspace: Workspace, servers: tuple[FakeServer, FakeServer], tiny_pair: tuple[Path, Path]
) -> None:
    target = load_model(str(tiny_pair[0]), torch.device("cpu"), torch.float32)
    path = write_traffic(workspace.folder / "answers.jsonl", [answered(target, number) for number in range(4)])
    here = workspace.run("replay", str(path), "--json")
    serve(workspace, servers)
    there = workspace.run("replay", str(path), "--json")
    assert here.code == there.code == 0, there.err
    rules = {"drafting_rules": {}}  # the server drafts by its own
    assert there.document["replays"] == [each | rules for each in here.document["replays"]]


def test_doctor_says_what_both_servers_are(served: Workspace) -> None:
    found = checks(served)
    assert found["servers letters"] == (
        True,
        "m on vllm/0.32.0, and with 3 speculative tokens on vllm/0.32.0; acceptance from each answer; "
        f"facts unknown: {', '.join(FACTS)}",
    )
    assert found["audits"] == (True, "outputs of servers are not (letters; audit_share in docs/servers.md)")
    assert found["models"] == (True, "no endpoint is measured in this process")


def test_doctor_looks_at_servers_that_speak_sglangs_api(
    served: Workspace, servers: tuple[FakeServer, FakeServer]
) -> None:
    with running(*(pair := (FakeSglang(), FakeSglang(3)))):
        for before, after in zip(servers, pair, strict=True):
            served.replace_in_config(before.url, after.url)
        is_ok, found = checks(served)["servers letters"]
        assert is_ok
        assert found.startswith(
            "m on sglang/0.5.23, and with 3 speculative tokens on sglang/0.5.23; acceptance from each answer's "
            "meta_info; facts unknown: "
        )
        assert found.endswith("queue times are not reported, and so not shown (--enable-metrics)")
        pair[1].branches = 8
        is_ok, found = checks(served)["servers letters"]
        assert (is_ok, "--speculative-eagle-topk 1" in found) == (False, True)


@pytest.mark.parametrize(
    ("arm", "changes", "is_ok", "says"),
    [
        (0, {"num_speculative_tokens": 2}, False, "the baseline server speculates (2 tokens)"),
        (1, {"num_speculative_tokens": 0}, False, "does not speculate; start vLLM with --speculative-config"),
        (1, {"num_speculative_tokens": 4}, False, "is 3, and the speculative server drafts 4"),
        (1, {"model": "n"}, False, "it serves n, and not m"),
        (1, {"level": "none", "returns_token_ids": False}, False, "--per-request-spec-decode-metrics detailed"),
        (1, {"redirect": "http://elsewhere.example/x"}, False, "it points to elsewhere.example"),
        (0, {"key": "wanted"}, False, "HTTP 401"),
        (1, {"level": "none"}, True, "acceptance takes a second, untimed pass"),
        (1, {"version": "0.33.0"}, True, "the servers differ in more than speculation"),
        (0, {"tells_queue": False}, True, "--enable-per-request-metrics"),
        (0, {"tells_cached": False}, True, "--enable-prompt-tokens-details"),
        (0, {"has_metrics": False}, True, "does not say whether it speculates"),
        (1, {"has_metrics": False}, True, "shows no /metrics"),
        (0, {"returns_token_ids": False}, True, "parity stays unknown"),
        (1, {"has_template": False}, True, "the speculative server refuses chats (http_400)"),
        (0, {"max_logprobs": 19}, True, "sampled outputs cannot be scored"),
        (0, {"reported": lambda reported: None}, True, "--logprobs-mode"),
    ],
)
def test_doctor_says_what_is_missing(
    served: Workspace, servers: tuple[FakeServer, FakeServer], arm: int, changes: dict[str, Any], is_ok: bool, says: str
) -> None:
    for name, value in changes.items():
        setattr(servers[arm], name, value)
    found = checks(served)["servers letters"]
    assert found[0] is is_ok
    assert says in found[1]


def test_doctor_compares_lengths(served: Workspace, servers: tuple[FakeServer, FakeServer]) -> None:
    servers[1].max_model_len = 32
    assert checks(served)["servers letters"] == (
        False,
        "shadowspec.toml: endpoints.letters.servers: a server takes 32 tokens of prompt and output, and the target "
        "64: set max_model_len = 32, so that longer requests are recognised beforehand",
    )


def test_a_schema_is_a_slice_with_the_validity_of_both_arms(
    served: Workspace, servers: tuple[FakeServer, FakeServer]
) -> None:
    served.replace_in_config("loads =", 'scores = ["contract_valid"]\nloads =')
    schema = {"type": "object", "properties": {"canary_field": {"type": "string"}}}
    wanted = {"response_format": {"type": "json_schema", "json_schema": {"name": "w", "schema": schema}}}
    records = [record(number, **({"max_tokens": 40} | wanted if number % 2 else {})) for number in range(8)]
    path = str(write_traffic(served.folder / "mixed.jsonl", records))
    done = served.run("run", path, "--json")
    assert done.code == 0, done.err
    assert done.document["requests_measured"] == 8
    with Store.open(f"sqlite:///{served.folder}/shadow.db") as store:
        rows = store.records("letters")
        runs = {run.key: run for run in store.runs("letters")}
        counts = store.failure_counts("letters")
    slices = {row.key: row.slice_key or "" for row in rows}
    constrained = [key for key, name in slices.items() if name.endswith(",output_constraint=json_schema")]
    assert len(constrained) == 4
    assert not any("output_constraint" in name for key, name in slices.items() if key not in constrained)
    for key in constrained:
        flags = runs[key].flags
        assert (flags.baseline_validity, flags.speculative_validity) == (Validity.VALID, Validity.VALID)
        assert runs[key].scores["structured_validity"] == PairedScore(1.0, 1.0)
    (of_slice,) = (each for (name, *_), each in counts.items() if "output_constraint" in name)
    assert (of_slice["json_baseline_valid"], of_slice["json_speculative_valid"]) == (4, 4)
    report = served.run("report", "--json")
    shown = next(each for each in report.document["endpoints"][0]["hypotheses"] if "output_constraint" in each["slice"])
    assert shown["slice"]["output_constraint"] == "json_schema"
    assert "canary" not in done.out + done.err + report.out
    for part in served.folder.glob("shadow.db*"):
        assert b"canary" not in part.read_bytes(), "the schema is in the database"
    refused = served.run("override", "set", "--endpoint", "letters", "--slice", "output_constraint=json_schema",
                         "--verdict", "HOLD", "--reason", "a test", "--author", "me")  # fmt: skip
    assert refused.code == 0, refused.err


def test_in_process_a_schema_is_refused_with_its_remedy(workspace: Workspace) -> None:
    workspace.migrate()
    asked = record(1, response_format={"type": "json_object"})
    done = workspace.run("run", str(write_traffic(workspace.folder / "traffic.jsonl", [record(0), asked])))
    assert done.code == 0, done.err
    assert "grammar" in done.out
    assert 'engine = "openai"' in done.err


def test_a_score_of_servers_answers_sees_the_prompt_and_the_logged_answer(
    served: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (served.folder / "judge_of_servers.py").write_text(
        "seen = []\n"
        "def judge(output, prompt, reference, other_output):\n"
        "    seen.append((prompt, reference, output == other_output))\n"
        "    return 1.0\n"
    )
    monkeypatch.syspath_prepend(served.folder)
    served.replace_in_config("loads =", 'scores = ["judge_of_servers:judge"]\nloads =')
    logged = {"response": {"choices": [{"index": 0, "text": "production's", "finish_reason": "stop"}]}}
    traffic = write_traffic(served.folder / "traffic.jsonl", [record(0) | logged, record(1)])
    assert served.run("run", str(traffic)).code == 0
    seen = importlib.import_module("judge_of_servers").seen
    assert sorted(seen, key=repr) == sorted([("abcdefgh", "production's", True), ("bcdefgh", None, True)] * 2, key=repr)
    with Store.open(f"sqlite:///{served.folder}/shadow.db") as store:
        assert {run.scores["score"] for run in store.runs("letters")} == {PairedScore(1.0, 1.0)}
