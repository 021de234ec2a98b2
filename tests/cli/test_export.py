"""`export`, from stored decisions to each peer's file."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from msgspec import structs

from shadowspec.store import Store
from shadowspec.types import SpeculationConfig, Stage, Verdict, VerifyRule
from tests.builders.workspace import Workspace
from tests.store import examples
from tests.store.saving import save_block

DRAFT = SpeculationConfig("small", "org/target", "org/draft", "draft_model", 4, VerifyRule.REJECTION)


def fill(
    verdict: Verdict,
    *,
    evidence_age: timedelta = timedelta(hours=1),
    endpoint: str = "letters",
    engine: str = "vllm/0.32.0",
    recording_only: bool = False,
    unit: str = "window",
) -> None:
    """A decision of now on one block, measured some time ago."""
    now = datetime.now(UTC)
    with Store.open("sqlite:///shadow.db") as store:
        store.save_fingerprints([replace(examples.config(), config=DRAFT)])
        block = examples.block("b", range(1, 3))
        result = replace(block, block=structs.replace(block.block, endpoint=endpoint))
        records = [
            structs.replace(examples.record(line, endpoint), event_time=now - evidence_age) for line in range(1, 3)
        ]
        save_block(store, result, records)
        plain = examples.decision(verdict, endpoint=endpoint)
        tests = tuple(replace(test, unit=unit) for test in plain.tests)
        decided = replace(
            plain, config=DRAFT, decided_at=now, engine=engine, recording_only=recording_only, tests=tests
        )
        store.append_decisions([decided])


@pytest.fixture
def enabled(workspace: Workspace) -> Workspace:
    workspace.migrate()
    fill(Verdict.ENABLE)
    return workspace


def vllm(workspace: Workspace, *arguments: str) -> object:
    done = workspace.run("export", "--format", "vllm", *arguments)
    assert done.code == 0, done.err
    return json.loads(done.out or "null")


def test_an_enabled_endpoint_is_on(enabled: Workspace) -> None:
    assert vllm(enabled) == {
        "num_speculative_tokens": 4,
        "method": "draft_model",
        "model": "org/draft",
        "draft_sample_method": "probabilistic",
        "num_speculative_tokens_per_batch_size": [[1, 4, 4], [5, 2**31 - 1, 0]],
    }
    said = enabled.run("export", "-f", "vllm").err.splitlines()
    assert said[0] == "letters, whole endpoint, load 4, small: on, 4 tokens, decision 1, measured on vllm/0.32.0"


def test_the_file_of_a_confirming_run_is_written_while_the_rollout_waits_for_that_run(enabled: Workspace) -> None:
    whole = vllm(enabled)
    with Store.open("sqlite:///shadow.db") as store:
        store.append_rollouts([examples.rollout(Stage.SHADOW, endpoint="letters")])
    assert vllm(enabled) is None, "nobody is served yet"
    assert vllm(enabled, "--to-confirm") == whole
    assert "for a confirming run only" in enabled.run("export", "-f", "vllm", "--to-confirm").err
    refused = enabled.run("export", "-f", "flagd", "--to-confirm")
    assert (refused.code, "flagd starts no server" in refused.err) == (2, True)


@pytest.mark.parametrize("verdict", ["disable", "hold"])
def test_the_kill_switch_switches_every_format_off(enabled: Workspace, verdict: str) -> None:
    order = ("override", "set", "-e", "letters", "--verdict", verdict, "--reason", "incident", "--author", "ada")
    assert enabled.run(*order).code == 0
    assert vllm(enabled) is None
    assert yaml.safe_load(enabled.run("export", "-f", "sglang").out) == {}
    assert yaml.safe_load(enabled.run("export", "-f", "tensorrt-llm").out) == {"speculative_config": None}
    assert json.loads(enabled.run("export", "-f", "modelopt").out)["measured"] is False
    flags = json.loads(enabled.run("export", "-f", "flagd").out)["flags"]
    assert [flag["targeting"] for flag in flags.values()] == [{}, {}]
    assert "off (an operator's override" in enabled.run("export", "-f", "vllm").err
    assert enabled.run("override", "clear", "1", "--reason", "over", "--author", "ada").code == 0
    assert vllm(enabled) is not None


def test_a_kill_switch_on_a_slice_that_was_never_decided_switches_every_server_off(enabled: Workspace) -> None:
    whose = ("--slice", "prompt_class=riddle", "--allow-unseen", "--reason", "incident", "--author", "ada")
    assert enabled.run("override", "set", "-e", "letters", *whose).code == 0
    assert vllm(enabled) is None
    assert yaml.safe_load(enabled.run("export", "-f", "sglang").out) == {}
    assert yaml.safe_load(enabled.run("export", "-f", "tensorrt-llm").out) == {"speculative_config": None}
    profile = json.loads(enabled.run("export", "-f", "modelopt").out)
    assert profile["measured"] is False
    assert profile["measurement_conditions"]["verdict"] == "BLOCKED"
    flags = json.loads(enabled.run("export", "-f", "flagd").out)["flags"]
    assert '"on"' not in json.dumps([flag["targeting"] for flag in flags.values()])
    said = enabled.run("export", "-f", "vllm").err
    assert "letters, prompt_class=riddle, every load: off, as is every request" in said
    document = enabled.run("export", "-f", "vllm", "--json").document
    assert [each["slice"] for each in document["overrides"]] == [{"prompt_class": "riddle"}]
    assert enabled.run("override", "clear", "1", "--reason", "over", "--author", "ada").code == 0
    assert vllm(enabled) is not None


def test_old_evidence_is_off(workspace: Workspace) -> None:
    workspace.migrate()
    fill(Verdict.ENABLE, evidence_age=timedelta(days=8))
    assert vllm(workspace) is None
    assert vllm(workspace, "--max-age", "9d") is not None


def test_what_another_engine_measured_is_off(enabled: Workspace) -> None:
    assert vllm(enabled, "--expect-engine", "sglang") is None
    assert vllm(enabled, "--expect-engine", "vllm 0.32") is not None


def test_what_another_engine_measured_is_off_once_the_serving_one_is_named(enabled: Workspace) -> None:
    enabled.replace_in_config("[endpoints.letters]\n", '[endpoints.letters]\nserving_engine = "sglang"\n')
    assert vllm(enabled) is None
    said = enabled.run("export", "-f", "vllm").err
    assert "off (not proven; HOLD: " in said
    assert "easure through two servers of sglang" in said
    enabled.replace_in_config('"sglang"\n', '"sglang"\ngate = { require_serving_engine = false }\n')
    on = yaml.safe_load(enabled.run("export", "-f", "sglang").out)
    assert on["speculative-num-steps"] == 4, (
        "the policy accepts what was measured elsewhere, for the engine that serves"
    )
    refused = enabled.run("export", "-f", "vllm")
    assert (refused.code, refused.out) == (2, "")
    assert "the verdicts on letters are for sglang, not for vllm" in " ".join(refused.err.split())


@pytest.mark.representative("vllm", "flagd")
@pytest.mark.parametrize("form", ["vllm", "sglang", "tensorrt-llm", "modelopt", "flagd"])
def test_verdicts_for_the_engine_in_this_process_are_refused_unless_accepted(workspace: Workspace, form: str) -> None:
    workspace.migrate()
    fill(Verdict.ENABLE, engine="shadowspec-torch/0.1.0 torch/2.13.0")
    refused = workspace.run("export", "-f", form, "--out", "spec")
    assert refused.code == 2
    assert "the verdicts on letters are for shadowspec-torch" in " ".join(refused.err.split())
    assert not Path("spec").exists()
    accepted = workspace.run("export", "-f", form, "--accept-other-engine", "--json")
    assert accepted.code == 0, accepted.err
    assert [each for each in accepted.document["remarks"] if each.startswith("accepted by --accept-other-engine: ")]
    assert accepted.document["decisions"][0]["verdict_engine"] == "shadowspec-torch"
    order = ("override", "set", "-e", "letters", "--verdict", "disable", "--reason", "incident", "--author", "ada")
    assert workspace.run(*order).code == 0
    off = workspace.run("export", "-f", form)
    assert off.code == 0, "the kill switch never waits for an engine's name"


def test_a_named_engine_that_measured_is_no_other(workspace: Workspace) -> None:
    workspace.migrate()
    fill(Verdict.ENABLE, engine="shadowspec-torch/0.1.0 torch/2.13.0")
    workspace.replace_in_config("[endpoints.letters]\n", '[endpoints.letters]\nserving_engine = "shadowspec-torch"\n')
    for form in ("flagd", "modelopt", "envoy"):
        done = workspace.run("export", "-f", form)
        assert done.code == 2
        assert "the verdicts on letters are for shadowspec-torch, which serves no clients" in " ".join(done.err.split())
        assert workspace.run("export", "-f", form, "--accept-other-engine").code == 0
    assert workspace.run("export", "-f", "vllm").code == 2


def test_a_held_decision_is_off(workspace: Workspace) -> None:
    workspace.migrate()
    fill(Verdict.HOLD)
    assert vllm(workspace) is None


@pytest.mark.parametrize("is_stored", [True, False])
def test_verdicts_of_a_trial_policy_are_refused_by_the_decision_and_by_the_policy(
    workspace: Workspace, is_stored: bool
) -> None:
    workspace.migrate()
    fill(Verdict.ENABLE, recording_only=is_stored)
    if not is_stored:
        workspace.replace_in_config("[gate]\n", "[gate]\nrecording_only = true\n")
    for command in (("export", "-f", "flagd"), ("check", "--endpoint", "letters")):
        refused = workspace.run(*command)
        assert refused.code == 4
        assert "trial policy (recording_only = true)" in refused.err


def test_an_enable_of_blocks_is_refused(workspace: Workspace) -> None:
    workspace.migrate()
    fill(Verdict.ENABLE, unit="block")
    for command in (("export", "-f", "flagd"), ("check", "--endpoint", "letters")):
        refused = workspace.run(*command)
        assert refused.code == 4
        assert "the units of its verdict are blocks (window_s = 0)" in " ".join(refused.err.split())


def test_files(enabled: Workspace) -> None:
    for form, name in (("tensorrt-llm", "trt.yaml"), ("sglang", "sglang.yaml"), ("flagd", "flags.json")):
        Path("deep").mkdir(exist_ok=True)
        done = enabled.run("export", "-f", form, "--accept-other-engine", "--out", f"deep/{name}")
        assert (done.code, done.out) == (0, "")
        assert f"written: deep/{name}" in done.err
    texts = {path.name: path.read_text(encoding="utf-8") for path in Path("deep").iterdir()}
    assert yaml.safe_load(texts["trt.yaml"])["speculative_config"]["max_concurrency"] == 4
    assert texts["trt.yaml"].startswith("# letters: decisions 1; measured on vllm/0.32.0\n")
    assert yaml.safe_load(texts["sglang.yaml"])["max-running-requests"] == 4
    assert set(json.loads(texts["flags.json"])["flags"]) == {"letters.speculation", "letters.num_speculative_tokens"}


def test_the_profile_pools_what_was_measured(enabled: Workspace) -> None:
    profile = json.loads(enabled.run("export", "-f", "modelopt").out)
    assert profile["marginal_accept_rates"] == [1.0, 0.5, 0.5, 0.5]
    assert profile["mean_accept_length"] == 3.5
    assert profile["measurement_conditions"]["decisions"] == [1]


def test_json(enabled: Workspace) -> None:
    document = enabled.run("export", "-f", "vllm", "--json").document
    assert document["schema_version"] == 1
    assert json.loads(document["text"])["num_speculative_tokens"] == 4
    (entry,) = document["decisions"]
    assert (entry["decision_id"], entry["verdict"], entry["is_on"], entry["off_because"]) == (1, "ENABLE", True, None)
    assert document["remarks"]


def test_errors(workspace: Workspace) -> None:
    workspace.migrate()
    nothing = workspace.run("export", "-f", "vllm")
    assert (nothing.code, "run `shadowspec run FILE` first" in nothing.err.replace("\n", " ")) == (4, True)
    unknown = workspace.run("export", "-f", "vllm", "--endpoint", "other")
    assert (unknown.code, "configured: letters" in unknown.err.replace("\n", " ")) == (2, True)
    assert workspace.run("export", "-f", "vllm", "--max-age", "soon").code == 2
    assert workspace.run("export", "-f", "nothing").code == 2
    assert workspace.run("export").code == 2


@pytest.mark.parametrize("form", ["litellm", "httproute", "envoy"])
def test_an_enabled_endpoint_has_a_route(enabled: Workspace, form: str) -> None:
    pools = "--speculative", "spec:8001", "--plain", "plain:8002"
    done = enabled.run("export", "--format", form, *pools, "--out", "routes.yaml")
    assert done.code == 0, done.err
    written = Path("routes.yaml").read_text(encoding="utf-8")
    clusters = Path("routes.clusters.yaml").read_text(encoding="utf-8") if form == "envoy" else ""
    assert "8001" in written + clusters
    assert "the speculative pool runs" in done.err
    assert yaml.safe_load(written).keys() & {"model_list", "spec", "resources"}


def test_routes_of_several_endpoints_name_the_pools_of_each_and_the_rest(enabled: Workspace) -> None:
    path = Path("shadowspec.toml")
    known = path.read_text(encoding="utf-8")
    added = known[known.index("[endpoints.letters]") :].replace("letters", "code")
    path.write_text(f"{known}\n{added}", encoding="utf-8")
    done = enabled.run("export", "--format", "httproute")
    assert (done.code, "endpoints.letters.pools: is missing" in done.err.replace("\n", " ")) == (2, True)
    pools = "".join(
        f'[endpoints.{name}.pools]\nspeculative = "{name}-fast:80"\nplain = "{name}-plain:80"\n'
        for name in ("letters", "code")
    )
    path.write_text(f"{known}\n{added}\n{pools}", encoding="utf-8")
    done = enabled.run("export", "--format", "httproute")
    assert (done.code, "--otherwise HOST:PORT" in done.err.replace("\n", " ")) == (2, True)
    done = enabled.run("export", "--format", "httproute", "--otherwise", "router:80")
    assert done.code == 0, done.err
    names = [document["metadata"]["name"] for document in yaml.safe_load_all(done.out)]
    assert names == ["shadowspec-letters", "shadowspec-code", "shadowspec"]
    one = enabled.run("export", "--format", "httproute", "--endpoint", "code")
    assert one.code == 4, "nothing is decided there"


@pytest.mark.parametrize("form", ["litellm", "httproute", "envoy"])
def test_without_an_enable_all_requests_are_plain(workspace: Workspace, form: str) -> None:
    workspace.migrate()
    fill(Verdict.HOLD)
    done = workspace.run("export", "--format", form)
    assert done.code == 0, done.err
    assert "no slice is on, every request goes to the plain pool" in done.err
    assert "speculative" not in done.out
    assert "x-shadowspec" not in done.out


def test_the_pool_behind_routes_gets_its_settings(enabled: Workspace) -> None:
    value = vllm(enabled, "--routed")
    assert isinstance(value, dict)
    assert value["num_speculative_tokens"] == 4


def test_routes_configure_no_server(enabled: Workspace) -> None:
    done = enabled.run("export", "--format", "envoy", "--routed")
    assert done.code == 2
    assert "--routed goes with --format vllm, sglang, llama.cpp, tensorrt-llm" in done.err
