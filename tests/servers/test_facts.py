"""Facts of the servers: read, declared or unknown; part of the fingerprint of both arms; differences are named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shadowspec.errors import ModelError, ServiceUnavailableError
from shadowspec.servers.connecting import connect
from shadowspec.servers.engines.reported_facts import (
    llamacpp_facts,
    sglang_facts,
    vllm_dtype,
    vllm_facts,
)
from shadowspec.servers.metrics_page import families_on
from shadowspec.servers.probing import facts_text, probe_both, remarks
from shadowspec.servers.server_settings import FactsOfArms
from shadowspec.types.server_facts import FACTS, differing_facts, known_dtype
from tests.builders.server_blocks import COLD, CONFIG, block, connected, settings
from tests.servers.fake_server import FakeServer, running, well
from tests.servers.fake_sglang import FakeSglang

Pair = tuple[FakeServer, FakeServer]
PAGE = Path(__file__).parent.parent / "data/live/vllm-0.32.0.txt"


@pytest.fixture
def servers() -> Iterator[Pair]:
    pair = FakeServer(cache_labels={"cache_dtype": "auto"}), FakeServer(3, cache_labels={"cache_dtype": "auto"})
    with running(*pair):
        yield pair


def details(pair: Pair, **changes: Any) -> dict[str, str]:
    (config,) = connected(pair, **changes).configs
    return {name: value for name, value in config.details.items() if name.startswith("fact_")}


def test_a_page_of_vllm_has_the_facts_of_its_cache_and_no_measured_number() -> None:
    labels = [sample.labels for family in families_on(PAGE.read_text()) for sample in family.samples
              if sample.name == "vllm:cache_config_info"]  # fmt: skip
    assert dict(vllm_facts(labels, {})) == {"kv_cache_dtype": "auto", "prefix_caching": "on"}
    offloading = {**labels[0], "kv_offloading_size": "4.0"}
    assert dict(vllm_facts([offloading], {}))["kv_offload"] == "native"
    assert vllm_facts([{**labels[0], "num_gpu_blocks": "7"}], {}) == vllm_facts(labels, {})


def test_vllm_in_dev_mode_reports_its_flags() -> None:
    tables = {
        "model_config": {"quantization": "fp8"},
        "parallel_config": {"tensor_parallel_size": 2, "data_parallel_size": 1},
        "scheduler_config": {"max_num_seqs": 64, "async_scheduling": True, "policy": "fcfs"},
        "attention_config": {"backend": "FLASH_ATTN"},
        "cache_config": {"cache_dtype": "fp8", "enable_prefix_caching": False},
        "kv_transfer_config": {"kv_connector": "LMCacheConnectorV1"},
        "lora_config": {"max_loras": 1},
    }
    info = {"vllm_config": tables, "vllm_env": {"VLLM_USE_V2_MODEL_RUNNER": False}}
    facts = dict(vllm_facts([{"cache_dtype": "auto"}], info))
    assert facts == {
        "kv_cache_dtype": "fp8",
        "quantization": "fp8",
        "tensor_parallel_size": "2",
        "data_parallel_size": "1",
        "max_num_seqs": "64",
        "scheduling_policy": "fcfs",
        "attention_backend": "flash_attn",
        "model_runner": "v1",
        "async_scheduling": "on",
        "prefix_caching": "off",
        "kv_offload": "lmcacheconnectorv1",
        "lora": "on",
    }
    assert set(facts) == set(FACTS)
    plain = {"kv_transfer_config": None, "lora_config": None, "attention_config": {"backend": None}}
    assert dict(vllm_facts([], {"vllm_config": plain})) == {"kv_offload": "none", "lora": "off"}


def test_a_server_that_computes_in_another_type_is_refused(servers: Pair) -> None:
    """Rounding is told from faults by the type, and vLLM makes bfloat16 of a float32 model."""
    stated = settings(servers).dtype
    servers[1].drafting, servers[1].started = {}, {"model_config": {"dtype": f"torch.{stated}"}}
    connected(servers)
    servers[1].started = {"model_config": {"dtype": "torch.float16"}}
    with pytest.raises(ModelError, match='the speculative server computes in float16: set dtype = "float16"'):
        connected(servers)


def test_a_type_is_known_where_it_is_one_of_a_configuration() -> None:
    assert vllm_dtype({"vllm_config": {"model_config": {"dtype": "torch.bfloat16"}}}) == "bfloat16"
    assert vllm_dtype({"vllm_config": {"model_config": None}}) is vllm_dtype({}) is None
    assert (known_dtype("float16"), known_dtype("auto"), known_dtype(None)) == ("float16", None, None)


def test_sglang_and_llamacpp_report_theirs() -> None:
    info = {
        "kv_cache_dtype": "auto", "quantization": None, "tp_size": 4, "max_running_requests": None,
        "attention_backend": "fa3", "disable_radix_cache": True, "disable_overlap_schedule": False,
        "enable_hierarchical_cache": False, "enable_lora": None, "lora_paths": None, "max_total_num_tokens": 4_711,
    }  # fmt: skip
    assert dict(sglang_facts(info)) == {
        "kv_cache_dtype": "auto",
        "quantization": "none",
        "tensor_parallel_size": "4",
        "attention_backend": "fa3",
        "prefix_caching": "off",
        "async_scheduling": "on",
        "kv_offload": "none",
        "lora": "off",
    }
    assert dict(llamacpp_facts({"total_slots": 4, "model_ftype": "Q4_K - Medium"})) == {
        "max_num_seqs": "4",
        "quantization": "q4_k - medium",
    }


def test_a_changed_flag_of_either_server_is_another_config(servers: Pair) -> None:
    first = connected(servers).configs[0]
    assert first.details["fact_kv_cache_dtype"] == "auto"
    for server in servers:
        server.cache_labels = {"cache_dtype": "fp8"}
        other = connected(servers).configs[0]
        assert other.fingerprint != first.fingerprint
        assert other.details["fact_kv_cache_dtype"] == ("auto | fp8" if server is servers[1] else "fp8 | auto")
        server.cache_labels = {"cache_dtype": "auto", "num_gpu_blocks": "17"}  # measured at a start
    assert connected(servers).configs[0].fingerprint == first.fingerprint


def test_a_declared_fact_counts_like_a_read_one(servers: Pair) -> None:
    declared = details(servers, facts={"tensor_parallel_size": 2, "lora": False})
    assert declared == {
        "fact_kv_cache_dtype": "auto",
        "fact_tensor_parallel_size": "2",
        "fact_lora": "off",
    }
    for server in servers:
        server.drafting = {}
        server.started = {"parallel_config": {"tensor_parallel_size": 2}, "lora_config": None}
    assert details(servers) == declared


def test_a_server_that_contradicts_its_operator_is_an_error(servers: Pair) -> None:
    servers[1].cache_labels = {"cache_dtype": "fp8"}
    with pytest.raises(ModelError, match="kv_cache_dtype is 'int8', and the speculative server reports 'fp8'"):
        connected(servers, facts={"kv_cache_dtype": "int8"})
    own = FactsOfArms(baseline="bfloat16", speculative="fp8")  # the first chooses by itself
    assert details(servers, facts={"kv_cache_dtype": own}) == {"fact_kv_cache_dtype": "bfloat16 | fp8"}


def test_what_differs_is_named_and_what_the_method_forces_is_part_of_what_is_measured(servers: Pair) -> None:
    def told(proposer: str, **facts: Any) -> str:
        config = replace(CONFIG, proposer=proposer)
        return "; ".join(remarks(*probe_both(settings(servers, facts=facts)), config))

    assert "differ" not in told("draft_model", async_scheduling=True)
    scheduling = FactsOfArms(True, False)
    named = "the servers differ in more than speculation: async_scheduling (on, off)"
    assert named in told("draft_model", async_scheduling=scheduling)
    forced = told("ngram", async_scheduling=scheduling)
    assert "the servers differ in async_scheduling (on, off): the drafting method forces it" in forced
    assert named not in forced
    assert "may change async_scheduling, model_runner, which the servers do not report" in told("suffix")
    servers[1].cache_labels = {}
    assert "of one server only is known: kv_cache_dtype (auto, unknown)" in told("draft_model")


def test_each_fact_is_shown_as_read_declared_or_unknown(servers: Pair) -> None:
    text = facts_text(*probe_both(settings(servers, facts={"quantization": "fp8"})))
    assert text.startswith("facts read: kv_cache_dtype auto, declared: quantization fp8, unknown: tensor_parallel_size")
    assert all(name in text for name in FACTS)


def test_a_flag_that_changes_between_or_within_blocks_is_another_server(servers: Pair) -> None:
    engine = connected(servers)

    async def restarted(server: FakeServer, body: dict[str, Any], writer: Any) -> None:
        server.cache_labels = {"cache_dtype": "fp8"}
        await well(server, body, writer)

    servers[0].script.append(restarted)
    assert {run.failure for run in engine.measure(block(2)).runs} == {"baseline_other_server"}
    with pytest.raises(ServiceUnavailableError, match="flags changed"):
        engine.measure(block(2))


def test_sglang_s_default_of_running_requests_is_forced_by_speculation() -> None:
    pair = FakeSglang(started={"max_running_requests": 512}), FakeSglang(3, started={"max_running_requests": 48})
    with running(*pair):
        (config,) = connect(settings(pair), [CONFIG], COLD, requests_per_slot=3, default_sampling={}).configs
        assert [difference.text for difference in differing_facts(config.details)] == ["max_num_seqs (512, 48)"]
        assert "max_num_seqs (512, 48): the drafting method forces it" in "; ".join(
            remarks(*probe_both(settings(pair)), CONFIG)
        )


def test_a_server_in_dev_mode_is_asked_once_for_each_of_its_starts(servers: Pair) -> None:
    for server in servers:
        server.drafting = {}
        server.process_started = 1.5e9
    engine = connected(servers)
    asked = [server.num_info for server in servers]
    engine.measure(block(2))
    first = [server.num_info for server in servers]
    engine.measure(block(2))
    assert [server.num_info for server in servers] == first, "it looks at its whole environment for an answer"
    assert all(after - before <= 1 for before, after in zip(asked, first, strict=True))
    servers[1].process_started = 1.6e9
    servers[1].started = {"parallel_config": {"tensor_parallel_size": 2}}
    with pytest.raises(ServiceUnavailableError, match="flags changed"):
        engine.measure(block(2))
