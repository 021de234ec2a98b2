"""Whole conversations through two servers with a prefix cache: cold at first, warm later, the same in both arms."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs

from shadowspec.errors import ModelError
from shadowspec.servers.connecting import connect
from shadowspec.servers.measure_servers import ServerEngine
from shadowspec.servers.probing import probe_both, remarks
from shadowspec.types import Arm, Block, RecordKey, Run, SamplingParameters, ShadowPrompt
from tests.builders.llamacpp_fields import COMPARED
from tests.builders.server_blocks import COLD, CONFIG, NOON, connected, settings
from tests.servers.fake_llamacpp import FakeLlamaCpp
from tests.servers.fake_server import FakeServer, running, status
from tests.servers.fake_sglang import FakeSglang

PAGE = 4
TURNS = (9, 17, 26, 34)  # prompt tokens of a conversation's turns, each of which continues the one before it
CACHED = (0, 8, 16, 24)  # of them in whole pages that the turn before had


def prompts(session: int) -> tuple[ShadowPrompt, ...]:
    sampling = SamplingParameters(temperature=0.0, max_tokens=8, ignore_eos=True)
    every = tuple(3 + (session + 5 * place) % 40 for place in range(TURNS[-1]))
    return tuple(
        ShadowPrompt(
            RecordKey("f" * 64, 0, 10 * session + turn), "e", NOON, {}, every[:length], sampling, f"s{session}"
        )
        for turn, length in enumerate(TURNS)
    )


def block(*sessions: int, load: int = 2, fillers: tuple[int, ...] = ()) -> Block:
    requests = tuple(prompt for session in sessions for prompt in prompts(session))
    filling = tuple(prompt for session in fillers for prompt in prompts(session))
    per_slot = (len(sessions) + len(fillers)) // load
    return Block("b" * 64, 0, "e", "", load, requests, filling, Arm.BASELINE, per_slot, max_turns=4)


@pytest.fixture
def servers() -> Iterator[tuple[FakeServer, FakeServer]]:
    pair = FakeServer(tells_cached=True, page_tokens=PAGE), FakeServer(3, tells_cached=True, page_tokens=PAGE)
    with running(*pair):
        yield pair


def engine_of(servers: tuple[FakeServer, FakeServer], **changes: Any) -> ServerEngine:
    return connected(servers, prefix_cache="on", **changes)


def cached(runs: tuple[Run, ...]) -> list[tuple[int, int] | None]:
    return [run.served.cached_tokens for run in runs if run.served is not None]


def test_later_turns_find_the_earlier_ones_in_both_arms(servers: tuple[FakeServer, FakeServer]) -> None:
    engine = engine_of(servers)
    for _ in range(2):  # measured again it is cold again
        result = engine.measure(block(1, 2, 3, 4))
        assert [run.failure for run in result.runs] == [None] * 16
        assert cached(result.runs) == [(tokens, tokens) for tokens in CACHED] * 4
        assert [run.key.offset % 10 for run in result.runs] == [0, 1, 2, 3] * 4
    assert [server.most_in_flight for server in servers] == [2, 2]


def test_sglang_s_counts_are_read_from_its_meta_info() -> None:
    with running(*(servers := (FakeSglang(page_tokens=PAGE), FakeSglang(3, page_tokens=PAGE)))):
        runs = engine_of(servers).measure(block(1, 2)).runs
    assert cached(runs) == [(tokens, tokens) for tokens in CACHED] * 2


def test_llama_cpp_is_asked_to_use_its_cache_for_later_turns_alone() -> None:
    with running(*(servers := (FakeLlamaCpp(page_tokens=PAGE), FakeLlamaCpp(3, page_tokens=PAGE)))):
        engine = connect(
            settings(servers, prefix_cache="on"), [COMPARED], COLD, requests_per_slot=1, default_sampling={}
        )
        servers[0].bodies.clear()
        for _ in range(2):
            assert cached(engine.measure(block(1, 2, load=1)).runs) == [(tokens, tokens) for tokens in CACHED] * 2
    assert [body["cache_prompt"] for body in servers[0].bodies] == [False, True, True, True] * 4


def test_a_slot_sends_one_turn_after_the_other_under_one_salt(servers: tuple[FakeServer, FakeServer]) -> None:
    engine = engine_of(servers)
    engine.measure(block(1, 2, fillers=(3, 3)))
    salts = []
    for server in servers:
        sent: dict[str, list[int]] = defaultdict(list)
        for body in server.bodies:
            sent[body["cache_salt"]].append(len(body["prompt"]))
        assert list(sent.values()) == [list(TURNS)] * 4, "one salt for each conversation, and its turns in order"
        salts += list(sent)
    assert len(set(salts)) == 8, "no arm finds what the other, or another conversation, has left"


def test_hits_that_speculation_loses_are_seen(servers: tuple[FakeServer, FakeServer]) -> None:
    engine = engine_of(servers)
    servers[1].loses_hits = True
    for server in servers:
        server.prefill_s = 0.002
    runs = engine.measure(block(1, 2)).runs
    assert cached(runs) == [(tokens, 0) for tokens in CACHED] * 2
    for run in runs[3::4]:
        assert run.baseline is not None
        assert run.speculative is not None
        assert run.speculative.prefill_ms >= 2.0 * 24, "24 tokens at 2 ms each were computed again"


def test_a_turn_that_was_sent_again_finds_the_turns_before_it(servers: tuple[FakeServer, FakeServer]) -> None:
    engine = engine_of(servers)
    servers[0].script.append(status(500))
    runs = engine.measure(block(1, load=1)).runs
    assert cached(runs)[1:] == [(tokens, tokens) for tokens in CACHED[1:]]
    assert [run.served.num_retries for run in runs if run.served is not None] == [1, 0, 0, 0]


def test_what_a_server_does_not_say_stays_unknown(servers: tuple[FakeServer, FakeServer]) -> None:
    servers[1].tells_cached = False
    engine = engine_of(servers)
    runs = engine.measure(block(1, load=1)).runs
    assert cached(runs) == [None] * 4
    assert [run.served.baseline_cached_tokens for run in runs if run.served is not None] == list(CACHED)
    found = remarks(*probe_both(settings(servers, prefix_cache="on")))
    assert any("cached tokens are not reported" in remark for remark in found)


def test_a_baseline_without_a_prefix_cache_is_refused_where_it_is_to_be_on(
    servers: tuple[FakeServer, FakeServer],
) -> None:
    servers[0].page_tokens = 0
    with pytest.raises(ModelError, match=r"baseline server .*--enable-prefix-caching"):
        engine_of(servers)
    assert connected(servers) is not None, "with the cache off there is nothing to refuse"


def test_a_speculative_server_that_loses_its_hits_is_measured_and_remarked_upon(
    servers: tuple[FakeServer, FakeServer],
) -> None:
    servers[1].loses_hits = True
    found = remarks(*probe_both(settings(servers, prefix_cache="on")))
    assert any("speculation loses its hits" in remark for remark in found)
    assert not any("loses its hits" in remark for remark in remarks(*probe_both(settings(servers))))


def test_the_mode_is_part_of_the_fingerprint_where_it_is_on(servers: tuple[FakeServer, FakeServer]) -> None:
    (off,), (on,) = connected(servers).configs, engine_of(servers).configs
    assert off.fingerprint != on.fingerprint
    assert (off.mode, on.mode) == (None, "measured with the prefix cache on, whole conversations")
    assert on.differing_details(off) == ["max_turns", "prefix_cache"]
    longer = connect(
        settings(servers, prefix_cache="on"), [CONFIG], COLD, requests_per_slot=3, default_sampling={}, max_turns=8
    )
    assert longer.configs[0].differing_details(on) == ["max_turns"], "requests of a block weigh otherwise"
    assert "prefix_cache" not in off.details, "the fingerprints of before are what they were"


def test_without_the_mode_every_request_is_cold(servers: tuple[FakeServer, FakeServer]) -> None:
    engine = connected(servers)
    each_alone = structs.replace(block(1, 2), max_turns=1, requests_per_slot=4)
    assert cached(engine.measure(each_alone).runs) == [(0, 0)] * 8
