"""Fingerprints: the digests that databases hold, options at their defaults, and an endpoint's sampling defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field, fields, make_dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.engine import candidate
from shadowspec.engine.heads.loading import LoadedHeads
from shadowspec.engine.models import LoadedModel
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.gate.run.recompute import explain
from shadowspec.rollout.endpoint_run import advance_rollouts
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.servers import identity as served
from shadowspec.servers.engines import ENGINES, ServerIdentity, prompt_rules_of
from shadowspec.servers.engines.rules import ENGINE_OPTIONS
from shadowspec.servers.engines.sglang import Sglang
from shadowspec.servers.engines.vllm import Vllm
from shadowspec.servers.server_settings import ServerSettings
from shadowspec.servers.step_counts import COUNTERS
from shadowspec.store import Store
from shadowspec.types import (
    SUFFIX_OPTIONS,
    Arm,
    FingerprintedConfig,
    SpeculationConfig,
    Stage,
    Verdict,
    VerifyRule,
    speculation,
)
from shadowspec.types.prompt_rules import UNNAMED, BrokenArguments, PromptRules
from tests.builders.changing_configs import changing, with_fingerprint
from tests.gate.feeding import Feed
from tests.gate.worlds import CONFIG, ENDPOINT, START, World, noisy_run

# Digests of version 0.1.0.  From its release on databases hold them, and an endpoint whose digest changed would lose
# its current ENABLE: then a case is never edited.  New options add none.
STORED = json.loads((Path(__file__).parents[1] / "data" / "fingerprints" / "version_0_1_0.json").read_text("utf-8"))
LATER_OPTIONS = {"speculative_config", *ENGINE_OPTIONS}  # that version 0.1.0 did not have
SOURCES = {source.name: source for source in (Vllm.counts_source, Sglang.counts_source, COUNTERS)}
IDENTITIES = {
    "vllm": {
        Arm.BASELINE: ServerIdentity("vllm", "0.32.0", "org/target", 4096),
        Arm.SPECULATIVE: ServerIdentity("vllm", "0.32.0", "org/target", 4096),
    },
    "sglang": {
        Arm.BASELINE: ServerIdentity("sglang", "0.5.23", "/models/target", None),
        Arm.SPECULATIVE: ServerIdentity("sglang", "0.5.23", "/models/target", 2048, (("speculative_num_steps", "4"),)),
    },
}


@pytest.fixture(autouse=True)
def _fixed_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions and device are part of a digest, and not what is tested."""
    monkeypatch.setattr(candidate, "engine_name", lambda: "shadowspec-torch/0.1.0 torch/2.13.0 transformers/5.23.0")
    monkeypatch.setattr(candidate, "device_name", lambda device: f"{device}, 2 threads")


def config_of(case: Mapping[str, Any], kind: type[SpeculationConfig] = SpeculationConfig) -> SpeculationConfig:
    return kind(**(case["config"] | {"verify_rule": VerifyRule(case["config"]["verify_rule"])}))


def fingerprinted(
    case: Mapping[str, Any],
    config: SpeculationConfig,
    default_sampling: Mapping[str, float] = MappingProxyType({}),
    prompt_rules: PromptRules = UNNAMED,
) -> FingerprintedConfig:
    """The config of a case through its engine's own function."""
    if case["engine"] == "servers":
        modes: dict[str, Any] = {"prefix_cache": "off", "api": "completions"}
        settings = ServerSettings("http://a", case["model"], case["device"], "bfloat16", "http://b", **modes)
        slots = case["requests_per_slot"]
        source = SOURCES[case["source"]]
        return served.fingerprint_server_config(
            config, settings, IDENTITIES[case["servers"]], source, slots, default_sampling, prompt_rules=prompt_rules
        )
    model = SimpleNamespace(device=torch.device("cpu"), dtype=torch.float32)
    target = loaded(model, "target", case["target"])
    draft: LoadedModel | LoadedHeads | None = None
    if case["draft"] is not None:
        is_model = case["draft"]["kind"] == "model"
        draft = loaded(model, "draft", case["draft"]) if is_model else heads(case["draft"]["kind"])
    return candidate.fingerprint_candidate(
        config, target, draft, case["requests_per_slot"], default_sampling, prompt_rules
    )


def loaded(model: object, name: str, options: Mapping[str, Any]) -> LoadedModel:
    return LoadedModel(
        path=f"models/{name}",
        model=model,
        tokenizer=cast("Any", None),
        end_token_ids=frozenset({0}),
        weights_digest=f"{name}-weights",
        config_digest=f"{name}-config",
        tokenizer_digest=f"{name}-tokenizer",
        num_shared_tokens=options.get("num_shared_tokens"),
        passes=cast("Any", SimpleNamespace(name=options["passes"])) if options.get("passes") else None,
        kernels=cast("Any", SimpleNamespace(backend=options["kernels"])) if options.get("kernels") else None,
    )


def heads(kind: str) -> LoadedHeads:
    return LoadedHeads("models/heads", kind, cast("Any", None), "heads-weights", "heads-config")


def name_of(case: Mapping[str, Any]) -> str:
    return str(case["name"])


@pytest.mark.parametrize("case", STORED, ids=name_of)
def test_fingerprints_that_databases_hold_are_taken_again(case: Mapping[str, Any]) -> None:
    """A promise of compatibility: an endpoint without sampling defaults goes on with its evidence."""
    assert fingerprinted(case, config_of(case)).fingerprint == case["fingerprint"]


def test_the_stored_fingerprints_span_every_option_and_both_engines() -> None:
    for engine in ("in_process", "servers"):
        speculation_configs = [config_of(case) for case in STORED if case["engine"] == engine]
        for option in {each.name for each in fields(SpeculationConfig)[3:]} - LATER_OPTIONS:
            assert len({getattr(config, option) for config in speculation_configs}) > 1, (engine, option)


@given(
    case=st.sampled_from(STORED),
    default=st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    value=st.integers() | st.text(),
    name=st.from_regex(r"[a-z]{3,8}_option", fullmatch=True),
    is_for_suffix=st.booleans(),
)
def test_a_new_option_changes_no_fingerprint_until_it_is_set(
    case: Mapping[str, Any], default: object, value: object, name: str, *, is_for_suffix: bool
) -> None:
    """Also where it is one of the suffix proposer's, which no other proposer uses."""
    later = make_dataclass(
        "LaterConfig", [(name, Any, field(default=default))], bases=(SpeculationConfig,), frozen=True, slots=True
    )
    config = config_of(case, later)
    with pytest.MonkeyPatch.context() as patched:
        for module in (speculation, candidate, served):
            patched.setattr(module, "SUFFIX_OPTIONS", SUFFIX_OPTIONS + (name,) * is_for_suffix, raising=False)
        unset, changed = (
            fingerprinted(case, speculation_config).fingerprint
            for speculation_config in (config, replace(config, **{name: value}))
        )
    assert unset == case["fingerprint"]
    is_used = not is_for_suffix or config.proposer == "suffix"
    assert (changed == case["fingerprint"]) == (value == default or not is_used)


@pytest.mark.parametrize("case", STORED, ids=name_of)
def test_the_rules_by_which_prompts_are_rendered_are_part_of_the_fingerprint(case: Mapping[str, Any]) -> None:
    by_engine = {
        engine: fingerprinted(case, config_of(case), prompt_rules=prompt_rules_of(engine))
        for engine in (None, *ENGINES)
    }
    rules = {engine: prompt_rules_of(engine).identity for engine in by_engine}
    assert rules[None] == ""
    assert by_engine[None].fingerprint == case["fingerprint"], "an engine without rules of its own changes nothing"
    assert len({each.fingerprint for each in by_engine.values()}) == len(set(rules.values())) > 3
    assert rules["vllm"] == (
        'tool_fields=[["name", null], ["description", null], ["parameters", null], ["strict", "omitted"]]'
    )
    assert by_engine["vllm"].details["prompt_rules"] == rules["vllm"]


@pytest.mark.parametrize("name", [field.name for field in fields(PromptRules)])
def test_every_rule_of_a_prompt_is_in_its_identity_but_what_is_refused(name: str) -> None:
    default = getattr(PromptRules(), name)
    others: dict[type, object] = {bool: not default, str: "; ", tuple: ("thoughts",), type(None): (("name", None),)}
    value = BrokenArguments.KEPT if name == "broken_arguments" else others[type(default)]
    changes: dict[str, Any] = {name: value}
    identity = replace(PromptRules(), **changes).identity
    assert identity.startswith(f"{name}=") == (name != "refuses_unknown_roles")


NEUTRAL = {"temperature": 1.0, "top_p": 1, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1, "presence_penalty": 0}


@pytest.mark.parametrize("case", STORED, ids=name_of)
def test_sampling_defaults_are_part_of_the_fingerprint(case: Mapping[str, Any]) -> None:
    config = config_of(case)
    defaults = [{"temperature": 0.7}, {"temperature": 0.1}, {"top_k": 20}, {"temperature": 0.7, "top_p": 0.9}]
    found = [fingerprinted(case, config, default_sampling=each) for each in defaults]
    assert len({each.fingerprint for each in found} | {case["fingerprint"]}) == 1 + len(defaults)
    assert found[-1].details["default_sampling"] == "temperature=0.7, top_p=0.9"
    reordered = fingerprinted(case, config, default_sampling={"top_p": 0.9, "temperature": 0.7, "min_p": 0})
    assert reordered == found[-1]


@pytest.mark.parametrize("case", STORED, ids=name_of)
def test_an_endpoint_without_sampling_defaults_keeps_its_fingerprint(case: Mapping[str, Any]) -> None:
    for sampling in ({}, NEUTRAL, {"top_k": 0}):
        config = fingerprinted(case, config_of(case), default_sampling=sampling)
        assert config.fingerprint == case["fingerprint"]
        assert "default_sampling" not in config.details


@pytest.mark.representative("postgres")
def test_another_fingerprint_ends_verdict_and_rollout_of_the_one_before(store: Store) -> None:
    new = replace(CONFIG, details={"default_sampling": "temperature=0.7"}, fingerprint="e" * 64)
    make_run = changing((100, noisy_run()), (110, with_fingerprint(noisy_run(), new.fingerprint)))
    feed = Feed(store, World(110, make_run=make_run).evidence(), (CONFIG, new))
    policy = GatePolicy(max_hypotheses=3, min_span_s=0.0, window_s=0.0)
    rollout = RolloutPolicy(require_confirmed=False, shadow_soak_s=0.0, min_soak_blocks=0)
    feed.write_blocks(0, 100)
    now = START + timedelta(days=1)
    enabled = run_endpoint_gate(store, ENDPOINT, policy, input_ended=True, now=now).decisions[0]
    assert enabled.verdict is Verdict.ENABLE
    (step,) = advance_rollouts(store, ENDPOINT, policy, rollout, now)
    assert (step.rollout.stage, step.rollout.fingerprint) == (Stage.PARTIAL, CONFIG.fingerprint)

    feed.write_blocks(100, 110)
    later = now + timedelta(hours=1)
    gate = run_endpoint_gate(store, ENDPOINT, policy, input_ended=True, now=later)
    assert gate.latest == store.latest_decisions(ENDPOINT), "the replaced fingerprint's included"
    found = {each.fingerprint: each for each in gate.decisions}
    for decision in found.values():
        assert (decision.verdict, decision.reason_code) == (Verdict.HOLD, "changed_fingerprint")
        assert decision.decision_id is not None
        assert explain(store, decision.decision_id).differences == ()
    again = run_endpoint_gate(store, ENDPOINT, policy, input_ended=True, now=later + timedelta(hours=1))
    stored = store.latest_decisions(ENDPOINT)
    assert [(each.decision_id, each) for each in again.latest] == [(each.decision_id, each) for each in stored]
    assert len(again.latest) > len(again.decisions), "what replaced the fingerprint is not decided again"
    (step,) = advance_rollouts(store, ENDPOINT, policy, rollout, later)
    assert (step.rollout.stage, step.rollout.reason_code) == (Stage.SHADOW, "not_enabled")
