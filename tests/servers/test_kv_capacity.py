"""What servers' KV caches hold: read from each engine's own words, compared, stored with a block and judged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shadowspec.servers.engines.sglang import capacity_in
from shadowspec.servers.engines.vllm import capacity_on
from shadowspec.servers.kv_capacity import KvCapacity, served_memory
from shadowspec.servers.probing import probe_both, remarks
from shadowspec.types import ServedMemory, VerifyRule
from tests.builders.server_blocks import CONFIG, block, connected, settings
from tests.servers.fake_server import FakeServer, running
from tests.servers.fake_sglang import FakeSglang

RECORDED = Path(__file__).parent.parent / "data" / "live" / "vllm-0.32.0.txt"
SHARE = (("gpu_memory_utilization", "0.92"),)


def info(**labels: str) -> str:
    shown = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{shown}}} 1.0\n"


def test_a_recorded_page_of_vllm_says_what_the_cache_holds() -> None:
    sizing = (*SHARE, ("kv_cache_memory_bytes", "1073741824"))
    found = capacity_on(RECORDED.read_text(), 1024)
    assert found == KvCapacity(48_768, 47.625, sizing)
    assert found.fixed_by == "kv_cache_memory_bytes"


@pytest.mark.parametrize(
    ("labels", "length", "wanted"),
    [
        ({"num_gpu_blocks": "381", "block_size": "128"}, 1024, KvCapacity(48_768, 47.625)),
        ({"num_gpu_blocks": "381", "block_size": "128"}, None, KvCapacity(48_768)),
        # A hybrid model: its blocks hold fewer tokens than their size says.
        (
            {"num_gpu_blocks": "86", "block_size": "1552", "kv_cache_size_tokens": "111238",
             "kv_cache_max_concurrency": "2.26"},
            65_536,
            KvCapacity(111_238, 2.26),
        ),
        ({"num_gpu_blocks": "None", "block_size": "16"}, 1024, None),
        ({"num_gpu_blocks": "0", "block_size": "16"}, 1024, None),
    ],
)  # fmt: skip
def test_versions_of_vllm_say_it_by_tokens_or_by_blocks(
    labels: dict[str, str], length: int | None, wanted: KvCapacity | None
) -> None:
    assert capacity_on(info(**labels), length) == wanted


def test_engine_cores_add_up_and_one_that_does_not_say_leaves_all_unknown() -> None:
    first = info(engine="0", kv_cache_size_tokens="1000", kv_cache_max_concurrency="2.5")
    second = first.split("\n")[1].replace('engine="0"', 'engine="1"')
    assert capacity_on(first + second + "\n", 400) == KvCapacity(2_000, 5.0)
    assert capacity_on(first + second.replace("1000", "None") + "\n", 400) is None
    assert capacity_on("# TYPE vllm:request_success_total counter\n", 400) is None


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ({"max_total_num_tokens": 400_000, "dp_size": 2}, KvCapacity(800_000, 100.0)),
        ({"max_total_num_tokens": 400_000, "mem_fraction_static": 0.9},
         KvCapacity(400_000, 50.0, (("mem_fraction_static", "0.9"),))),
        ({"max_total_num_tokens": 7, "internal_states": [{"memory_usage": {"token_capacity": 4000}},
                                                         {"memory_usage": {"token_capacity": 8000}}]},
         KvCapacity(12_000, 1.5)),
        ({"max_total_num_tokens": 400_000, "internal_states": [{}]}, KvCapacity(400_000, 50.0)),
        ({}, None),
        ({"max_total_num_tokens": None, "internal_states": "none"}, None),
    ],
)  # fmt: skip
def test_sglang_says_it_for_each_rank(told: dict[str, Any], wanted: KvCapacity | None) -> None:
    assert capacity_in(told, 8_000) == wanted


def test_two_caches_that_may_take_other_shares_of_their_devices_are_not_compared() -> None:
    base, spec = KvCapacity(1_000, 10.0, SHARE), KvCapacity(800, 8.0, SHARE)
    assert served_memory(base, spec, "vllm") == ServedMemory(1_000, 800, 10.0, 8.0, "vllm")
    assert served_memory(base, None, "vllm") is None
    assert served_memory(base, KvCapacity(800, 8.0, (("gpu_memory_utilization", "0.95"),)), "vllm") is None


def test_what_a_speculative_server_lacks_is_displaced() -> None:
    memory = ServedMemory(48_000, 41_000, 48.0, 41.0, "vllm")
    assert (memory.displaced_kv_tokens, memory.displaced_requests) == (7_000, 7.0)
    assert memory.extra_share == pytest.approx(7 / 48)
    more = ServedMemory(41_000, 48_000, None, 48.0, "vllm")
    assert (more.displaced_kv_tokens, more.displaced_requests) == (0, None)
    assert more.extra_share == pytest.approx(-7 / 41)
    assert ServedMemory(0, 0, None, None, "vllm").extra_share is None


@pytest.fixture(params=[FakeServer, FakeSglang])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[FakeServer, FakeServer]]:
    servers = request.param(), request.param(num_speculative_tokens=3, kv_tokens=41_984)
    with running(*servers):
        yield servers


def test_a_block_has_what_both_caches_held_before_it(pair: tuple[FakeServer, FakeServer]) -> None:
    engine = connected(pair)
    wanted = ServedMemory(48_768, 41_984, 47.625, 41.0, pair[0].owner)
    assert engine.measure(block(2)).memory == {engine.configs[0].fingerprint: wanted}
    pair[1].kv_tokens = 32_768  # restarted with less
    assert engine.measure(block(2)).memory[engine.configs[0].fingerprint].displaced_kv_tokens == 16_000
    pair[0].kv_tokens = None
    result = engine.measure(block(2))
    assert result.memory == {}
    assert [run.failure for run in result.runs] == [None, None]


def test_what_a_cache_holds_is_in_no_fingerprint(pair: tuple[FakeServer, FakeServer]) -> None:
    before = connected(pair).configs[0].fingerprint
    pair[1].kv_tokens = 1_024
    assert connected(pair).configs[0].fingerprint == before


def told(servers: tuple[FakeServer, FakeServer]) -> str:
    return "; ".join(remarks(*probe_both(settings(servers))))


def test_doctor_says_why_the_difference_is_not_what_speculation_takes() -> None:
    servers = FakeServer(), FakeServer(3)
    with running(*servers):
        assert "KV cache" not in told(servers)
        servers[1].kv_tokens = 60_000
        assert "holds more than the baseline's (60,000 tokens, 48,768)" in told(servers)
        servers[1].cache_labels = {"gpu_memory_utilization": "0.95"}
        assert "gpu_memory_utilization 0.92; gpu_memory_utilization 0.95" in told(servers)
        servers[1].cache_labels = {"num_gpu_blocks_override": "64"}
        assert "num_gpu_blocks_override sets the size of the speculative server's KV cache" in told(servers)
        lookup = replace(CONFIG, proposer="ngram", draft=None, verify_rule=VerifyRule.GREEDY_DRAFT)
        assert "sets the size" not in "; ".join(remarks(*probe_both(settings(servers)), lookup)), "it has no weights"
        servers[1].kv_tokens = None
        assert "the capacity of the KV caches is not reported" in told(servers)
