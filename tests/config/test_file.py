"""The configuration file: what is wrong is named by file and key, and nothing is taken silently."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shadowspec.config import (
    Config,
    DashboardSettings,
    config_template,
    find_config,
    load_config,
    load_hash_secret,
    load_previous_secret,
    policy_template,
)
from shadowspec.config.dashboard_settings import AccessSettings, DashboardRole
from shadowspec.errors import ConfigError
from shadowspec.gate.policy import GatePolicy
from shadowspec.live.live_source import LiveSource
from shadowspec.scheduler.job_settings import LiveSettings, ScheduleSettings
from shadowspec.servers.engines import prompt_rules_of
from shadowspec.servers.server_settings import ServerSettings, Waits
from shadowspec.tap.endpoints import Load, MatchRule
from shadowspec.types import Contract, OutputContract, SpeculationConfig, VerifyRule
from shadowspec.types.server_facts import Fact
from shadowspec.types.settings import EngineSettings, GuardPolicy

ENDPOINT = """
[endpoints.chat]
target = "models/target"
served_models = ["m"]
[[endpoints.chat.candidates]]
name = "k4"
draft = "models/draft"
num_speculative_tokens = 4
"""
LIVE = ENDPOINT + "[endpoints.chat.live]\n"
SERVED = (
    ENDPOINT.replace("[[", "engine = 'openai'\n[[", 1)
    + """
[endpoints.chat.servers]
baseline_url = "http://a:8000"
speculative_url = "https://b.example/llm/"
device = "2x H100"
dtype = "bfloat16"
"""
)
K5 = ENDPOINT.partition("[[")[2].join(("[[", "")).replace("k4", "k5")
SERVER_OF_K5 = """[[endpoints.chat.servers.speculative]]
candidate = 'k5'
url = 'http://k5:1'
"""
SEVERAL = (
    SERVED.replace('speculative_url = "https://b.example/llm/"\n', "")
    + K5
    + SERVER_OF_K5.replace("k5", "k4")
    + SERVER_OF_K5
)
TWO_SERVERS = """engine = 'openai'
servers = {baseline_url = 'http://a', speculative_url = 'http://b', device = 'a card', dtype = 'bfloat16'}
[["""
METHOD = ENDPOINT.replace("[[", TWO_SERVERS, 1).replace('draft = "models/draft"', "method = 'mtp'")
SUFFIX = ENDPOINT.replace('draft = "models/draft"', 'proposer = "suffix"')


def load(tmp_path: Path, text: str, **environment: str) -> Config:
    path = tmp_path / "shadowspec.toml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, environment)


def message_of(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert str(tmp_path / "shadowspec.toml") in message
    assert caught.value.exit_code == 2
    return message


@pytest.fixture
def template(tmp_path: Path) -> str:
    """The template, beside the policy that it names."""
    (tmp_path / "policy.toml").write_text(policy_template(), encoding="utf-8")
    return config_template(str(tmp_path / "policy.toml"))


def test_the_template_is_a_configuration_as_it_stands(tmp_path: Path, template: str) -> None:
    config = load(tmp_path, template)
    assert list(config.endpoints) == ["chat"]
    assert config.policy == GatePolicy()
    assert config.endpoints["chat"].policy == replace(GatePolicy(), serving_engine="shadowspec-torch")
    assert config.policy_path == tmp_path / "policy.toml"


def test_the_template_can_be_sent_to_another_process(tmp_path: Path, template: str) -> None:
    """As the worker sends it to the engine's."""
    config = load(tmp_path, template)
    assert pickle.loads(pickle.dumps(config)) == config


def test_every_key_that_the_template_shows_is_real_and_shows_its_default(tmp_path: Path, template: str) -> None:
    commented = re.compile(r"(?m)^# (?=\[{1,2}[a-z]|[a-z_]+ = )")
    shown = load(tmp_path, commented.sub("", template))
    plain = load(tmp_path, template)
    assert shown.database_url == plain.database_url
    assert [c.name for c in shown.endpoints["chat"].candidates] == ["draft-k4", "ngram-k4", "suffix-k8", "eagle-k4"]
    assert shown.endpoints["chat"].candidates[0] == plain.endpoints["chat"].candidates[0]
    assert shown.engine == EngineSettings()
    plain_dashboard = replace(
        shown.dashboard, price_per_gpu_hour=None, data_note=None, access=AccessSettings(), public_url=None
    )
    assert plain_dashboard == DashboardSettings()
    assert (shown.dashboard.access.local_role, shown.dashboard.access.roles.claim) == (DashboardRole.VIEWER, "email")
    assert replace(shown.schedule, jobs={}, receivers={}, targets={}, metrics_address=None) == ScheduleSettings()
    servers = shown.endpoints["served"].servers
    assert servers is not None
    server = ServerSettings(servers.baseline_url, servers.model, servers.device, servers.dtype, servers.speculative_url)
    assert replace(servers, api_key_variable=None, ca_file=None, max_model_len=None, tool_call_format=None) == server
    live = shown.endpoints["chat"].live
    assert live is not None
    source = LiveSource(live.source.urls, live.source.model)
    plain_source = replace(live.source, api_key_variable=None, ca_file=None, plain_urls=())
    assert replace(live, source=plain_source) == LiveSettings(source)
    suffix = shown.endpoints["chat"].candidates[2]
    assert suffix == SpeculationConfig("suffix-k8", suffix.target, None, "suffix", 8, VerifyRule.GREEDY_DRAFT)


def test_the_values_reach_the_inner_layers(tmp_path: Path) -> None:
    config = load(
        tmp_path,
        """
        [engine]
        device = "cuda:1"
        seed = 3
        [gate]
        alpha = 0.1
        timed_positions = 2
        [endpoints.sql]
        target = "t"
        served_models = ["m", "m-2"]
        match = { model = "m*" }
        slice_by = ["prompt_class", "tier"]
        labels = { tier = ["free", "pro"] }
        sample_rate = 0.5
        loads = [{ concurrency = 4, share = 3 }, { concurrency = 1 }]
        max_age_s = 60
        max_new_tokens = 9
        default_sampling = { temperature = 0.6, top_k = 20 }
        gate = { floor = 0.5, block_max_wait_s = 60, cluster_max_age_s = 3600, cluster_reopen_after_s = 7200 }
        [[endpoints.sql.candidates]]
        name = "n"
        proposer = "ngram"
        num_speculative_tokens = 5
        ngram_min = 3
        [[endpoints.sql.candidates]]
        name = "d"
        draft = "x"
        num_speculative_tokens = 2
        verify_rule = "exact_match"
        draft_confidence_threshold = 0.4
        [[endpoints.sql.candidates]]
        name = "s"
        proposer = "suffix"
        num_speculative_tokens = 8
        suffix_decoding_max_tree_depth = 32
        suffix_decoding_max_spec_factor = 2
        suffix_decoding_min_token_prob = 0.2
        suffix_memory_tokens = 0
        """,
    )
    endpoint = config.endpoints["sql"]
    rule = endpoint.rule
    assert (config.engine.device, config.engine.seed, config.engine.dtype) == ("cuda:1", 3, "auto")
    assert (endpoint.policy.alpha, endpoint.policy.floor, config.policy.floor) == (0.1, 0.5, 0.4)
    assert (rule.name, rule.served_models, rule.match) == ("sql", ("m", "m-2"), MatchRule(model="m*"))
    assert (rule.slice_by, rule.labels, rule.sample_rate) == (("prompt_class", "tier"), {"tier": ("free", "pro")}, 0.5)
    assert (rule.timed_positions, rule.loads) == (2, (Load(4, 3.0), Load(1, 1.0)))
    assert rule.default_sampling == {"temperature": 0.6, "top_k": 20}
    assert (rule.block_max_wait, rule.max_age) == (timedelta(minutes=1), timedelta(minutes=1))
    assert (rule.time_block, rule.unit_span) == (timedelta(minutes=10), timedelta(hours=1))
    assert rule.max_new_tokens == 9
    ngram, draft, suffix = endpoint.candidates
    assert (ngram.draft, ngram.ngram_min, ngram.verify_rule) == (None, 3, VerifyRule.GREEDY_DRAFT)
    assert (draft.target, draft.draft, draft.verify_rule) == ("t", "x", VerifyRule.EXACT_MATCH)
    assert (draft.draft_confidence_threshold, ngram.draft_confidence_threshold) == (0.4, 0.0)
    assert suffix == SpeculationConfig(
        "s", "t", None, "suffix", 8, VerifyRule.GREEDY_DRAFT,
        suffix_decoding_max_tree_depth=32, suffix_decoding_max_spec_factor=2.0, suffix_decoding_min_token_prob=0.2,
        suffix_memory_tokens=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "contracts"),
    [
        ("", {}),
        ('contract = "json"', {"": OutputContract(Contract.JSON)}),
        (
            'contract = { structured = "sql", tool_calling = "tool_call" }\nsql_dialect = "postgres"',
            {
                "structured": OutputContract(Contract.SQL, dialect="postgres"),
                "tool_calling": OutputContract(Contract.TOOL_CALL, dialect="postgres"),
            },
        ),
    ],
)
def test_contracts(tmp_path: Path, keys: str, contracts: dict[str, OutputContract]) -> None:
    text = ENDPOINT.replace("[endpoints.chat]\n", f"[endpoints.chat]\n{keys}\n")
    assert load(tmp_path, text).endpoints["chat"].rule.contracts == contracts


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ('contract = "yaml"', "contract: unknown contract 'yaml'; choose json, tool_call, sql"),
        ('contract = { structured = "yaml" }', "contract: unknown contract 'yaml'"),
        ('contract = { sql = "sql" }', "contract: unknown prompt class 'sql'; choose code, structured"),
        ('contract = { "" = "sql", structured = "json" }', "contract: unknown prompt class ''"),
        ('contract = "json"\nsql_dialect = "postgres"', "sql_dialect: is only for the contract sql"),
        ("contract = 3", "endpoints.chat.contract"),
    ],
)
def test_contracts_that_are_none(tmp_path: Path, keys: str, says: str) -> None:
    text = ENDPOINT.replace("[endpoints.chat]\n", f"[endpoints.chat]\n{keys}\n")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert says in str(caught.value)


@pytest.mark.parametrize("proposer", ["heterogeneous_draft_model", "medusa", "mlp_speculator", "eagle3"])
def test_heads_and_drafts_of_another_vocabulary_draft_their_arg_max_unless_told_otherwise(
    tmp_path: Path, proposer: str
) -> None:
    (config,) = load(tmp_path, f"{ENDPOINT}proposer = '{proposer}'\n").endpoints["chat"].candidates
    assert (config.proposer, config.draft, config.verify_rule) == (proposer, "models/draft", VerifyRule.GREEDY_DRAFT)
    text = f"{ENDPOINT}proposer = '{proposer}'\nverify_rule = 'rejection'\n"
    assert load(tmp_path, text).endpoints["chat"].candidates[0].verify_rule is VerifyRule.REJECTION


def test_a_servers_method_is_its_own_name_and_its_settings_are_taken_as_they_are(tmp_path: Path) -> None:
    given = (
        "speculative_config = {method = 'deepseek_mtp', draft_tensor_parallel_size = 2, a = {c = [1, 2.5], b = 'x'}}"
    )
    (found,) = load(tmp_path, f"{METHOD}{given}\n").endpoints["chat"].candidates
    assert (found.proposer, found.draft, found.verify_rule) == ("mtp", None, VerifyRule.SERVER)
    assert found.server_settings == {
        "method": "deepseek_mtp", "draft_tensor_parallel_size": 2, "a": {"b": "x", "c": [1, 2.5]},
    }  # fmt: skip
    others = "a = {b = 'x', c = [1, 2.5]}, draft_tensor_parallel_size = 2, method = 'deepseek_mtp'"
    assert load(tmp_path, f"{METHOD}speculative_config = {{{others}}}\n").endpoints["chat"].candidates == (found,)
    (bare,) = load(tmp_path, METHOD + "draft = 'org/draft'\nverify_rule = 'rejection'\n").endpoints["chat"].candidates
    assert (bare.draft, bare.verify_rule, bare.server_settings) == ("org/draft", VerifyRule.REJECTION, {})
    assert bare.is_served_method
    assert not load(tmp_path, SERVED).endpoints["chat"].candidates[0].is_served_method


@pytest.mark.parametrize(
    "name",
    ["mtp", "dflash", "p-eagle", "EAGLE3", "ngram", "suffix", "medusa", "some.later_one", "ngram-simple,draft-simple"],
)
def test_any_name_may_be_a_servers_method(tmp_path: Path, name: str) -> None:
    (found,) = load(tmp_path, METHOD.replace("mtp", name)).endpoints["chat"].candidates
    assert (found.proposer, found.title) == (name, name)


def test_servers(tmp_path: Path) -> None:
    found = load(tmp_path, SERVED + "token_timeout_s = 2.5\nca_file = 'ca.pem'\nmodel = 'n'\n").endpoints["chat"]
    assert found.servers == ServerSettings(
        "http://a:8000", "n", "2x H100", "bfloat16", "https://b.example/llm/", ca_file=Path("ca.pem"),
        waits=Waits(token_s=2.5),
    )  # fmt: skip
    assert found.candidates[0].backend == "openai"
    plain = load(tmp_path, SERVED).endpoints["chat"].servers
    assert plain is not None
    assert plain.model == "m", "the first name under which the target is served"


def test_each_of_several_candidates_has_a_server(tmp_path: Path) -> None:
    found = load(tmp_path, SEVERAL + "facts = { lora = false }\n").endpoints["chat"]
    assert [candidate.name for candidate in found.candidates] == ["k4", "k5"]
    assert found.servers is not None
    assert found.servers.roots == ("http://a:8000", "http://k4:1", "http://k5:1")
    assert [found.servers.server_of(name).label for name in ("k4", "k5")] == ["speculative (k4)", "speculative (k5)"]
    assert [dict(found.servers.server_of(name).facts) for name in ("k4", "k5")] == [
        {},
        {"lora": Fact("off", is_read=False)},
    ]


def test_conversations_are_measured_where_the_servers_prefix_cache_is_on(tmp_path: Path) -> None:
    text = """
        [endpoints.chat]
        engine = "openai"
        target = "t"
        served_models = ["m"]
        gate = { timed_positions = POSITIONS, max_requests_per_cluster = 6 }
        [endpoints.chat.servers]
        baseline_url = "http://a:1"
        speculative_url = "http://b:1"
        device = "a card"
        dtype = "bfloat16"
        prefix_cache = "MODE"
        [[endpoints.chat.candidates]]
        name = "n"
        draft = "x"
        num_speculative_tokens = 2
        """
    rules = [
        load(tmp_path, text.replace("POSITIONS", "6").replace("MODE", mode)).endpoints["chat"].rule
        for mode in ("off", "on", "as_served", "evicted")
    ]
    assert [(rule.measures_conversations, rule.max_turns) for rule in rules] == [(False, 1), *[(True, 6)] * 3]
    assert load(tmp_path, SERVED).endpoints["chat"].rule.measures_conversations, "the default is as served"
    assert load(tmp_path, text.replace("POSITIONS", "7").replace("MODE", "off")).endpoints["chat"].rule.max_turns == 1
    with pytest.raises(
        ConfigError, match=r"'chat'.*timed_positions \(7\) must not exceed max_requests_per_cluster \(6\)"
    ):
        load(tmp_path, text.replace("POSITIONS", "7").replace("MODE", "on"))


def test_a_serving_engine_is_the_endpoints_own_and_reaches_its_policy(tmp_path: Path) -> None:
    named = ENDPOINT.replace("[[", "serving_engine = 'vllm 0.32'\n[[", 1)
    found = load(tmp_path, "[gate]\nrequire_serving_engine = false\n" + named)
    assert found.endpoints["chat"].policy.serving_engine == "vllm 0.32"
    assert found.endpoints["chat"].rule.prompt_rules == prompt_rules_of("vllm")
    assert not found.endpoints["chat"].policy.require_serving_engine
    assert found.policy.serving_engine is None
    assert load(tmp_path, named).endpoints["chat"].policy.other_engine("torch/2.13") is not None
    assert load(tmp_path, ENDPOINT).endpoints["chat"].policy.other_engine("torch/2.13") is None


def test_candidates_draft_by_the_rules_of_the_serving_engine_unless_the_operator_sets_others(tmp_path: Path) -> None:
    ngram = """
        [[endpoints.chat.candidates]]
        name = "n"
        proposer = "ngram"
        num_speculative_tokens = 4
    """

    def rules(text: str) -> list[tuple[str, str]]:
        found = load(tmp_path, text).endpoints["chat"].candidates
        return [(each.ngram_occurrence.value, each.draft_sampling.value) for each in found]

    named = ENDPOINT.replace("[[", "serving_engine = 'vllm 0.32'\n[[", 1)
    default = ("latest", "request")
    assert rules(ENDPOINT + ngram) == [default, default]
    assert rules(named + ngram) == [("latest", "temperature"), ("latest_filled", "request")]
    on_cpu = named.replace("vllm", "vllm-cpu")
    assert rules(on_cpu + ngram) == [("latest", "temperature"), ("earliest", "request")]
    own = named + "draft_sampling = 'request'\n" + ngram + "ngram_occurrence = 'latest'\n"
    assert rules(own) == [default, default]
    assert rules(ENDPOINT + "draft_sampling = 'temperature'\n") == [("latest", "temperature")]
    assert rules(SERVED.replace("[[", "serving_engine = 'vllm'\n[[", 1)) == [default], "there the server drafts"


def test_drafts_end_within_the_limit_as_the_serving_engines_do_or_the_operator_sets(tmp_path: Path) -> None:
    def is_within(text: str) -> bool:
        (found,) = load(tmp_path, text).endpoints["chat"].candidates
        return found.drafts_within_limit

    named = ENDPOINT.replace("[[", "serving_engine = 'llama.cpp'\n[[", 1)
    assert is_within(named)
    assert is_within(ENDPOINT + "drafts_within_limit = true\n")
    assert not is_within(ENDPOINT)
    assert not is_within(ENDPOINT.replace("[[", "serving_engine = 'vllm'\n[[", 1))
    assert not is_within(named + "drafts_within_limit = false\n")
    assert not is_within(SERVED.replace("[[", "serving_engine = 'llama.cpp'\n[[", 1)), "there the server drafts"


def test_live(tmp_path: Path) -> None:
    text = ENDPOINT + "[endpoints.chat.live]\nmetrics_urls = ['http://a:8000/metrics', 'https://b.example/m']\n"
    found = load(tmp_path, text + "engine = 'sglang'\nrun_length = 500\nca_file = 'ca.pem'\n").endpoints["chat"].live
    assert found is not None
    assert found.source == LiveSource(
        ("http://a:8000/metrics", "https://b.example/m"), "m", "sglang", ca_file=Path("ca.pem")
    )
    assert found.source.replicas == ("a:8000/metrics", "b.example/m")
    assert found.guard == GuardPolicy("first_position_acceptance_rate", 256, 500, num_replicas=2)
    assert found.interval_s == 60.0
    chosen = text + "[endpoints.chat.gate]\nacceptance_metric = 'draft_acceptance_rate'\n"
    other = load(tmp_path, chosen).endpoints["chat"].live
    assert other is not None
    assert other.guard.metric == "draft_acceptance_rate"
    assert load(tmp_path, ENDPOINT).endpoints["chat"].live is None


def test_an_endpoint_without_a_match_rule_takes_what_names_it(tmp_path: Path) -> None:
    assert load(tmp_path, ENDPOINT).endpoints["chat"].rule.match == MatchRule(endpoint="chat")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[databse]\n", "databse: is not a known key; did you mean database?"),
        (LIVE + "metrics_urls = []\n", "endpoints.chat.live.metrics_urls"),
        (LIVE + "metrics_urls = ['http://key@a/metrics']\n", "endpoints.chat.live.metrics_urls"),
        (LIVE + "metrics_urls = ['http://a/m', 'https://a/m']\n", "metrics_urls: the same URL is listed twice"),
        (LIVE + "metrics_urls = ['http://a/m']\nengine = 'tgi'\n", "endpoints.chat.live.engine"),
        (LIVE + "metrics_urls = ['http://a/m']\ninterval_s = 0.5\n", "endpoints.chat.live.interval_s"),
        (LIVE + "metrics_urls = ['http://a/m']\nkey = 'x'\n", "endpoints.chat.live.key: is not a known key"),
        ("[database]\nurll = 'x'\n", "database.urll: is not a known key; did you mean url?"),
        ("[privacy]\nhash_secret = 'x'\n", "privacy.hash_secret: is not a known key"),
        ("[engine]\nattention = 'sdpa'\n", "engine.attention: is not a known key"),
        ("[engine]\ndevice = 'tpu'\n", "engine.device"),
        ("[engine]\nseed = '1'\n", "engine.seed: must be an integer, not a string"),
        ("[gate]\nalfa = 0.1\n", "gate.alfa: is not a known key; did you mean alpha?"),
        ("[gate]\nalpha = 2\n", "'alpha'"),
        ("[gate]\nalpha = 'x'\n", "'alpha'"),
        (ENDPOINT + "[endpoints.chat.gate]\nfloor = 7\n", "endpoints.chat.gate: policy key 'floor'"),
        (ENDPOINT + "[endpoints.chat.gate]\nflor = 0.1\n", "endpoints.chat.gate.flor: is not a known key"),
        (ENDPOINT + "sort = 1\n", "endpoints.chat.candidates.k4.sort: is not a known key"),
        (ENDPOINT + "proposer = 'eagle'\n", "endpoints.chat.candidates.k4.proposer"),
        (ENDPOINT + "proposer = 'ngram'\n", "ngram takes no draft"),
        (ENDPOINT + "proposer = 'suffix'\n", "suffix takes no draft"),
        (ENDPOINT + "ngram_min = 2\n", "ngram_min is only for the proposer ngram"),
        (ENDPOINT + "suffix_memory_tokens = 2\n", "suffix_memory_tokens is only for the proposer suffix"),
        (ENDPOINT + "ngram_occurrence = 'earliest'\n", "ngram_occurrence is only for the proposer ngram"),
        (ENDPOINT + "draft_sampling = 'greedy'\n", "draft_sampling: must be 'request' or 'temperature'"),
        (SUFFIX + "draft_sampling = 'temperature'\n", "draft_sampling is only for proposers with a draft; remove it"),
        (SUFFIX + "drafts_within_limit = 1\n", "k4.drafts_within_limit: must be true or false"),
        (ENDPOINT + "draft_confidence_threshold = 1.0\n", "k4.draft_confidence_threshold: must be less than 1"),
        (ENDPOINT + "draft_confidence_threshold = -0.1\n", "draft_confidence_threshold: must be greater than or"),
        (SUFFIX + "ngram_max = 2\n", "ngram_max is only for the proposer ngram"),
        (SUFFIX + "draft_confidence_threshold = 0.4\n", "is only for the proposer draft_model"),
        (SUFFIX + "verify_rule = 'rejection'\n", "suffix proposes no probabilities: verify_rule must be"),
        (SUFFIX + "suffix_decoding_max_tree_depth = 1\n", "suffix_decoding_max_tree_depth: must be greater"),
        (SUFFIX + "suffix_decoding_max_tree_depth = 1025\n", "suffix_decoding_max_tree_depth: must be less"),
        (SUFFIX + "suffix_decoding_max_spec_factor = 0\n", "suffix_decoding_max_spec_factor: must be greater"),
        (SUFFIX + "suffix_decoding_max_spec_factor = 0.04\n", "no drafted token for the longest match, of 23 tokens"),
        (SUFFIX + "suffix_decoding_min_token_prob = 1.1\n", "suffix_decoding_min_token_prob: must be less"),
        (SUFFIX + "suffix_memory_tokens = -1\n", "suffix_memory_tokens: must be greater"),
        (ENDPOINT.replace("draft = ", "proposer = 'medusa'  # "), "medusa needs a draft"),
        (ENDPOINT + "verify_rule = 'greedy'\n", "endpoints.chat.candidates.k4.verify_rule"),
        (ENDPOINT.replace('served_models = ["m"]', ""), "endpoints.chat.served_models: is missing"),
        (ENDPOINT.replace('["m"]', "[]"), "endpoints.chat.served_models"),
        (ENDPOINT.replace("= 4", "= 0"), "num_speculative_tokens: must be at least 1; only a kind"),
        (ENDPOINT + 'kind = "deployment"\n', "k4: draft is not for a second deployment"),
        (ENDPOINT.replace('draft = "models/draft"\n', 'kind = "deployment"\n'), "only for engine"),
        (ENDPOINT.replace("= 4", "= true"), "endpoints.chat.candidates.k4.num_speculative_tokens"),
        (ENDPOINT.split("[[")[0], "endpoints.chat.candidates: is missing"),
        (ENDPOINT.replace("[[", "slice_by = ['tier']\n[[", 1), "tier is not a label; add it to labels"),
        (ENDPOINT.replace("[[", "slice_by = ['tenant', 'tenant']\n[[", 1), "slice_by: the same value"),
        (ENDPOINT.replace("[[", "labels = { user = ['a'] }\n[[", 1), "user is a built-in label or personal"),
        (ENDPOINT.replace("[[", "loads = []\n[[", 1), "endpoints.chat.loads"),
        (ENDPOINT.replace("[[", "loads = [{concurrency=1},{concurrency=1}]\n[[", 1), "loads: the same value"),
        (ENDPOINT.replace("[[", "sample_rate = 0\n[[", 1), "endpoints.chat.sample_rate"),
        (ENDPOINT.replace("[[", "sample_rate = nan\n[[", 1), "endpoints.chat.sample_rate"),
        (ENDPOINT.replace("chat", "'a b'"), "endpoints.a b"),
        (ENDPOINT.replace("[[", "engine = 'openai'\n[[", 1), 'engine = "openai" needs the table servers'),
        (SERVED.replace("engine = 'openai'", ""), 'engine = "openai" needs the table servers'),
        (SERVED.replace("b.example/llm", "b.example/v1"), "speculative_url: is the server's root, without /v1"),
        (SERVED.replace("http://a:8000", "http://key@a:8000"), "endpoints.chat.servers.baseline_url"),
        (SERVED.replace("http://a:8000", "ftp://a"), "endpoints.chat.servers.baseline_url"),
        (SERVED.replace("https://b.example/llm/", "http://a:8000/"), "must be two servers"),
        (SERVED.replace('dtype = "bfloat16"', ""), "endpoints.chat.servers.dtype: is missing"),
        (SERVED + "total_timeout_s = 0\n", "endpoints.chat.servers.total_timeout_s"),
        (SERVED + "api_key = 'x'\n", "endpoints.chat.servers.api_key: is not a known key"),
        (SERVED + K5, "speculative_url is one server, and there are 2 candidates: replace it by a table"),
        (SEVERAL.replace(SERVER_OF_K5, ""), "servers.speculative: candidate 'k5' has no server; add its table"),
        (SEVERAL.replace("candidate = 'k5'", "candidate = 'k4'"), "candidate 'k4' has two servers; remove one"),
        (SEVERAL + SERVER_OF_K5.replace("k5", "k6"), "no candidate is named 'k6'; correct or remove its table"),
        (SEVERAL.replace("http://k5:1", "http://k4:1/"),
         "speculative.k4.url and speculative.k5.url must be two servers: no server changes its drafts by request"),
        (SEVERAL.replace("http://k5:1", "http://a:8000"), "baseline_url and speculative.k5.url must be two servers"),
        (SEVERAL.replace("http://k5:1", "http://k5:1/v1"), "speculative.k5.url: is the server's root, without /v1"),
        (SEVERAL.replace('dtype =', 'speculative_url = "http://c:1"\ndtype ='), "servers: give speculative_url, or"),
        (SERVED.replace('speculative_url = "https://b.example/llm/"', ""), "servers: give speculative_url, or a table"),
        (SEVERAL.replace("url = 'http://k5:1'", ""), "endpoints.chat.servers.speculative.1.url: is missing"),
        (SEVERAL + "facts = { lora = [] }\n", "endpoints.chat.servers.speculative.1.facts.lora"),
        (SEVERAL.replace('draft = "models/draft"', "kind = 'deployment'", 1), '"deployment" asks another question'),
        (SERVED.replace("= 4", "= 4\ndraft_confidence_threshold = 0.5"), "is only for the engine in this process"),
        (SERVED.replace("= 4", "= 4\ndraft_sampling = 'request'"), "draft_sampling is only for the engine"),
        (SERVED.replace("= 4", "= 4\ndrafts_within_limit = false"), "drafts_within_limit is only for the engine"),
        (ENDPOINT.replace("[[", "serving_engine = ''\n[[", 1), "endpoints.chat.serving_engine: must have at"),
        (ENDPOINT.replace("[[", "serving_engine = '  '\n[[", 1), "serving_engine: give one engine, such as vllm"),
        (ENDPOINT.replace("[[", "serving_engine = 'vllm sglang'\n[[", 1), "serving_engine: give one engine"),
        ("[gate]\nserving_engine = 'vllm'\n", "gate.serving_engine: is not a known key; it belongs in [endpoints."),
        (ENDPOINT + "method = 'mtp'\n", 'k4: method is only for engine = "openai"'),
        (METHOD + "proposer = 'eagle3'\n", "method and proposer exclude each other"),
        (METHOD.replace("'mtp'", "'m tp'"), "endpoints.chat.candidates.k4.method"),
        (METHOD + "ngram_max = 3\n", "ngram_max is only for a proposer"),
        (METHOD + "suffix_memory_tokens = 0\n", "suffix_memory_tokens is only for a proposer"),
        (METHOD + "speculative_config = {method = 'eagle'}\n", "method is 'mtp', and method 'eagle'"),
        (METHOD + "speculative_config = {speculative-algorithm = 'EAGLE'}\n",
         "method is 'mtp', and speculative-algorithm 'EAGLE'"),
        (METHOD + "speculative_config = {num_speculative_tokens = 3}\n",
         "num_speculative_tokens is 4, and num_speculative_tokens 3"),
        (METHOD.replace("'mtp'", "'DFLASH'") + "speculative_config = {speculative_num_draft_tokens = 4}\n",
         "num_speculative_tokens is 4, and of speculative_num_draft_tokens 4 the first token is not drafted"),
        (METHOD + "speculative_config = {a = [{b = 2026-01-01}]}\n", "speculative_config: JSON has no dates"),
        (METHOD + "speculative_config = {a = inf}\n", "speculative_config"),
        (METHOD + "speculative_config = 3\n", "speculative_config"),
        (ENDPOINT + "speculative_config = {a = 1}\n", "speculative_config: needs a method"),
        ("endpoints = 3\n", "endpoints: must be a table"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, text: str, wanted: str) -> None:
    assert wanted in message_of(tmp_path, text)


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    message = message_of(tmp_path, "[engine]\nseed = -1\nspeed = 2\n[extra]\n")
    assert len(message.splitlines()) == 3


def test_broken_toml_is_told_with_its_line(tmp_path: Path) -> None:
    assert "line 3" in message_of(tmp_path, "[database]\nurl = 'x'\nurl = \n")


def test_no_value_shows_in_a_message_or_a_repr(tmp_path: Path) -> None:
    secret = "postgresql+psycopg://user:password@host/db"
    message = message_of(tmp_path, f"[database]\nurl = ['{secret}']\n[engine]\nseed = '{secret}'\n")
    assert "password" not in message
    assert "password" not in repr(load(tmp_path, f"[database]\nurl = '{secret}'\n"))


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (binary, tmp_path, tmp_path / "missing.toml"):
        with pytest.raises(ConfigError, match=re.escape(str(path))):
            load_config(path, {})


def test_the_file_is_looked_up_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="shadowspec init"):
        find_config(None, {})
    paths = {name: tmp_path / name for name in ("shadowspec.toml", "named.toml", "given.toml")}
    for path in paths.values():
        path.write_text("")
    environment = {"SHADOWSPEC_CONFIG": str(paths["named.toml"])}
    assert find_config(None, {}) == Path("shadowspec.toml")
    assert find_config(None, environment) == paths["named.toml"]
    assert find_config(paths["given.toml"], environment) == paths["given.toml"]
    # A named file that is missing is an error, not a reason to take the next one.
    for explicit, variables in ((Path("no.toml"), environment), (None, {"SHADOWSPEC_CONFIG": "no.toml"})):
        with pytest.raises(ConfigError, match=r"no\.toml: no such file"):
            find_config(explicit, variables)


def test_the_database_url_of_the_environment_wins(tmp_path: Path) -> None:
    text = "[database]\nurl = 'sqlite:///a.db'\n"
    assert load(tmp_path, text).database_url == "sqlite:///a.db"
    assert load(tmp_path, text, SHADOWSPEC_DATABASE_URL="sqlite:///b.db").database_url == "sqlite:///b.db"
    assert load(tmp_path, "").database_url == "sqlite:///shadowspec.db"


@pytest.mark.parametrize("name", ["a/b", "ü", "a b", "x\\n\\u202eevil"])
def test_a_name_that_cannot_be_one_is_escaped_and_explained(tmp_path: Path, name: str) -> None:
    message = message_of(tmp_path, f'[schedule.receivers."{name}"]\nkind = "folder"\nfolder = "r"\n')
    assert "must be a name of at most 64 letters, digits, _ . -, with a letter or digit first" in message
    assert "\n" not in message
    assert "\u202e" not in message


def test_an_address_with_a_name_is_explained(tmp_path: Path) -> None:
    receiver = '[schedule.receivers.x]\nkind = "email"\nhost = "h"\nsender = "a@b.c"\n'
    message = message_of(tmp_path, receiver + 'to = ["Team <team@example.org>"]\n')
    assert "must be an address, such as team@example.org" in message


def test_the_previous_secret_is_one_of_a_rotation(tmp_path: Path) -> None:
    secret_file = tmp_path / "previous"
    config = load(tmp_path, f"[privacy]\nhash_secret_previous_file = '{secret_file}'\n")
    assert load_previous_secret(load(tmp_path, ""), {}) is None
    with pytest.raises(ConfigError, match=r"hash_secret_previous_file.*cannot be read"):
        load_previous_secret(config, {})
    secret_file.write_text("0123456789abcdef\n")
    assert load_previous_secret(config, {}) == b"0123456789abcdef"
    assert load_previous_secret(config, {"SHADOWSPEC_HASH_SECRET_PREVIOUS": "f" * 16}) == b"f" * 16


def test_the_secret_has_no_default(tmp_path: Path) -> None:
    secret_file = tmp_path / "secret"
    with_file = load(tmp_path, f"[privacy]\nhash_secret_file = '{secret_file}'\n")
    without = load(tmp_path, "")
    long_enough = "0123456789abcdef"
    with pytest.raises(ConfigError, match="/dev/urandom"):
        load_hash_secret(without, {})
    with pytest.raises(ConfigError, match=r"hash_secret_file.*/dev/urandom"):
        load_hash_secret(with_file, {})
    secret_file.write_text(long_enough + "\n")
    assert load_hash_secret(with_file, {}) == long_enough.encode()
    assert load_hash_secret(without, {"SHADOWSPEC_HASH_SECRET": "f" * 16}) == b"f" * 16
    assert load_hash_secret(with_file, {"SHADOWSPEC_HASH_SECRET": "f" * 16}) == b"f" * 16
    secret_file.write_text("short")
    for environment in ({}, {"SHADOWSPEC_HASH_SECRET": "short"}):
        with pytest.raises(ConfigError, match="16 bytes") as caught:
            load_hash_secret(with_file, environment)
        assert "short" not in str(caught.value).replace("too short", "")


def test_importing_it_needs_no_torch() -> None:
    program = "import sys, shadowspec.config; sys.exit(any(m in sys.modules for m in ('torch', 'transformers')))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


TOML_VALUES = st.recursive(
    st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.text("ab =[]{}", max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
    max_leaves=4,
)


def to_toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {to_toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(to_toml(inner) for inner in value) + "]"
    return repr(value) if isinstance(value, float) else f"{value}" if isinstance(value, int) else f"'{value}'"


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_value_of_any_key_is_taken_or_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    document = tomllib.loads(config_template())
    del document["policy"]  # or every document would end at a file that is not there
    endpoint = document["endpoints"]["chat"]
    table = data.draw(st.sampled_from([document, document["database"], endpoint, endpoint["candidates"][0]]))
    known = [
        "engine",
        "policy",
        "gate",
        "endpoints",
        "url",
        "target",
        "match",
        "loads",
        "labels",
        "gate",
        "draft",
        "proposer",
        "odd",
    ]
    key = data.draw(st.sampled_from([*table, *known]))
    table[key] = data.draw(TOML_VALUES)
    path = tmp_path_factory.mktemp("fuzz") / "shadowspec.toml"
    path.write_text("\n".join(f"{name} = {to_toml(value)}" for name, value in document.items()), encoding="utf-8")
    try:
        load_config(path, {})
    except ConfigError as error:
        assert str(error).startswith(str(path))  # noqa: PT017 - some values are good
