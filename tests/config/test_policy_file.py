"""The policy file is read strictly, overrides key by key, and `init` writes one that shows every default."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from shadowspec.config import Config, config_template, load_config, policy_template
from shadowspec.config.policy_file import OF_ENDPOINTS, OF_THE_CODE
from shadowspec.errors import ConfigError
from shadowspec.gate.policy import GatePolicy
from shadowspec.rollout.rollout_policy import RolloutPolicy

COMMENTED_KEY = re.compile(r"(?m)^# (?=\[{1,2}[a-z]|[a-z_0-9]+ = )")
ENDPOINT = """
[endpoints.{name}]
target = "t"
served_models = ["m"]
[[endpoints.{name}.candidates]]
name = "ngram"
proposer = "ngram"
num_speculative_tokens = 3
"""


def load(folder: Path, policy: str | None, *, configuration: str = "") -> Config:
    """A configuration of the endpoints chat and code, with this policy file."""
    path, policy_path = folder / "shadowspec.toml", folder / "gate.toml"
    named = "" if policy is None else f"policy = {str(policy_path)!r}\n"
    path.write_text(named + "".join(ENDPOINT.format(name=name) for name in ("chat", "code")) + configuration)
    if policy is not None:
        policy_path.write_text(policy)
    return load_config(path, {})


def test_defaults_overrides_and_what_stands_in_neither(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        version = 1
        [default]
        margin = 0.1
        memory_budget_share = "none"
        memory_budget_tokens = 5000
        [default.rollout]
        partial_share = 0.2
        first_depth = 2
        [endpoints.code]
        floor = 0.5
        margin = 0.02
        [endpoints.code.rollout]
        first_depth = 3
        context_max_depths = { "128k+" = 0 }
        """,
    )
    chat, code = config.endpoints["chat"], config.endpoints["code"]
    assert chat.policy == config.policy == GatePolicy(margin=0.1, memory_budget_share=None, memory_budget_tokens=5000)
    assert chat.rollout == config.rollout == RolloutPolicy(partial_share=0.2, first_depth=2)
    assert (code.policy.floor, code.policy.margin, code.policy.memory_budget_tokens) == (0.5, 0.02, 5000)
    assert code.rollout == RolloutPolicy(partial_share=0.2, first_depth=3, context_max_depths={"128k+": 0})
    assert config.policy_path == tmp_path / "gate.toml"


def test_the_same_keys_stand_in_the_configuration_where_there_is_no_file(tmp_path: Path) -> None:
    config = load(tmp_path, None, configuration="[gate]\nmargin = 0.1\n[gate.rollout]\nfirst_depth = 2\n")
    assert config.policy.margin == 0.1
    assert config.endpoints["chat"].rollout.first_depth == 2
    assert config.policy_path == config.path


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("", "version is missing; write version = 1"),
        ("version = 2", "version 2 is not known to this shadowspec"),
        ("version = '1'", "version '1' is not known"),
        ("version = true", "version True is not known"),
        ("version = 1\n[defaults]\n", "defaults: is not a known key"),
        ("version = 1\ndefault = 1\n", "default: must be a table"),
        ("version = 1\nendpoints = []\n", "endpoints: must be a table"),
        ("version = 1\n[endpoints]\nchat = 1\n", "endpoints.chat: must be a table"),
        (
            "version = 1\n[endpoints.cht]\n",
            "endpoints.cht: no such endpoint is configured; did you mean chat? (configured: chat, code)",
        ),
        ("version = 1\n[default]\nmarign = 0.1\n", "default.marign: is not a known key"),
        ("version = 1\n[default]\nmargin = 1.0\n", "default: policy key 'margin'"),
        ("version = 1\n[default]\nmargin = nan\n", "default: policy key 'margin'"),
        ("version = 1\n[default]\nmemory_budget_share = nan\n", "'memory_budget_share'"),
        ("version = 1\n[default]\nmemory_budget_share = inf\n", "'memory_budget_share'"),
        ("version = 1\n[default]\nmargin = 'none'\n", "'margin'"),
        ("version = 1\n[default]\nrequire_serving_engine = 1\n", "'require_serving_engine' must be true or false"),
        ("version = 1\n[default]\nserving_engine = 'vllm'\n", "is not a known key; it belongs in [endpoints.NAME]"),
        ("version = 1\n[default]\nrollout = 3\n", "default.rollout: must be a table"),
        ("version = 1\n[default.rollout]\nshare = 0.1\n", "default.rollout.share: is not a known key"),
        ("version = 1\n[default.rollout]\npartial_share = 1.0\n", "'partial_share'"),
        ("version = 1\n[default.rollout]\nfirst_depth = 0\n", "'first_depth'"),
        ("version = 1\n[default.rollout]\nmin_soak_blocks = 1.5\n", "'min_soak_blocks'"),
        ("version = 1\n[default.rollout]\nalarm_stage = 'broad'\n", "'alarm_stage'"),
        ("version = 1\n[default.rollout.context_max_depths]\n'8k' = -1\n", "context_max_depths.8k"),
        ("version = 1\n[default.rollout]\ncontext_max_depths = 3\n", "'context_max_depths'"),
        ("version = 1\n[endpoints.chat]\nfloor = 7\n", "endpoints.chat: policy key 'floor'"),
        ("version = 1\n[endpoints.chat.rollout]\nfloor = 0.1\n", "endpoints.chat.rollout.floor: is not a known key"),
        ("version = \n", "not valid TOML"),
    ],
)
def test_what_is_refused(tmp_path: Path, policy: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, policy)
    assert str(caught.value).startswith(f"{tmp_path / 'gate.toml'}: ")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("configuration", "says"),
    [
        ("[gate]\nmargin = 0.1\n", "gate: the policy is in"),
        ("[endpoints.chat.gate]\nmargin = 0.1\n", "endpoints.chat.gate: the policy is in"),
    ],
)
def test_a_policy_stands_in_one_place(tmp_path: Path, configuration: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(tmp_path, "version = 1", configuration=configuration)


def test_a_policy_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "shadowspec.toml"
    path.write_text(f"policy = {str(tmp_path / 'none.toml')!r}\n")
    with pytest.raises(ConfigError, match=r"none\.toml: no such file"):
        load_config(path, {})


def test_the_template_shows_every_parameter_with_its_default(tmp_path: Path) -> None:
    shown = COMMENTED_KEY.sub("", policy_template())
    path, policy_path = tmp_path / "shadowspec.toml", tmp_path / "policy.toml"
    path.write_text(config_template(str(policy_path)))
    policy_path.write_text(shown)
    config = load_config(path, {})
    assert (config.policy, config.rollout) == (GatePolicy(), RolloutPolicy())
    assert config.endpoints["chat"].policy.max_hypotheses == 4
    assert config.endpoints["chat"].rollout.partial_share == 0.05
    for table, kind in (("default", GatePolicy), ("default.rollout", RolloutPolicy)):
        body = shown.split(f"[{table}]\n")[1].split("\n[")[0]
        assert sorted(re.findall(r"(?m)^(\w+) = ", body)) == sorted(
            {field.name for field in fields(kind)} - OF_ENDPOINTS - OF_THE_CODE
        )
    policy_path.write_text(policy_template())
    assert load_config(path, {}).policy == GatePolicy()
