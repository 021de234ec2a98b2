"""Prefix caches as served: shared by conversations and blocks, kept by arm, and left alone by all that is not timed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from shadowspec.errors import ModelError
from shadowspec.servers.connecting import connect
from shadowspec.servers.measure_servers import ServerEngine
from shadowspec.servers.prefix_caches import DRAWN_IDS, MAX_FILL_TOKENS, found_before
from shadowspec.servers.probing import probe_both, remarks
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.stream import Completion
from shadowspec.types import Arm, Block, RecordKey, Run, SamplingParameters, ShadowPrompt
from shadowspec.types.settings import EngineSettings
from tests.builders.llamacpp_fields import COMPARED
from tests.builders.server_blocks import CONFIG, NOON, settings
from tests.servers.fake_llamacpp import FakeLlamaCpp
from tests.servers.fake_server import FakeServer, running, status, well

PAGE = 4
SYSTEM = (40, 41, 42, 43, 44, 45, 46, 47)  # two pages that all conversations begin with
TURNS = (17, 26, 34)  # prompt tokens of the turns, in pages 16, 24 and 32
OWN = (16, 24)  # tokens in pages that a later turn finds of the turn before it


def prompts(session: int, num_turns: int = 3) -> tuple[ShadowPrompt, ...]:
    sampling = SamplingParameters(temperature=0.0, max_tokens=8, ignore_eos=True)
    every = (*SYSTEM, *(3 + (session + 5 * place) % 30 for place in range(TURNS[-1] - len(SYSTEM))))
    keys = (RecordKey("f" * 64, 0, 10 * session + turn) for turn in range(num_turns))
    return tuple(
        ShadowPrompt(key, "e", NOON, {}, every[:length], sampling, f"s{session}")
        for key, length in zip(keys, TURNS, strict=False)
    )


def block(*sessions: int, load: int = 1, fillers: Sequence[int] = (), repeats: bool = False) -> Block:
    requests = tuple(prompt for session in sessions for prompt in prompts(session))
    filling = tuple(prompt for session in fillers for prompt in prompts(session))
    per_slot = -(-(len(sessions) + len(fillers)) // load)
    made = Block("b" * 64, 0, "e", "", load, requests, filling, Arm.BASELINE, per_slot, max_turns=3)
    return structs.replace(made, repeats_baseline=repeats)


Pair = tuple[FakeServer, FakeServer]


@pytest.fixture
def servers() -> Iterator[Pair]:
    with running(*(pair := (FakeServer(tells_cached=True, page_tokens=PAGE), cached_server(3)))):
        yield pair


def cached_server(depth: int) -> FakeServer:
    return FakeServer(depth, tells_cached=True, page_tokens=PAGE)


def engine_of(servers: Pair, mode: str = "as_served", warmup_blocks: int = 0, **changes: Any) -> ServerEngine:
    config = COMPARED if isinstance(servers[0], FakeLlamaCpp) else CONFIG
    measuring = EngineSettings(warmup_blocks=warmup_blocks)
    chosen = settings(servers, prefix_cache=mode, **changes)
    engine = connect(chosen, [config], measuring, requests_per_slot=1, default_sampling={})
    for server in servers:
        server.bodies.clear()
        server.found.clear()
    return engine


def cached(runs: Sequence[Run]) -> list[tuple[int, int] | None]:
    return [run.served.cached_tokens for run in runs if run.served is not None]


def both(*tokens: int) -> list[tuple[int, int]]:
    return [(number, number) for number in tokens]


def test_a_shared_system_prompt_is_found_by_other_conversations_and_in_later_blocks(servers: Pair) -> None:
    engine = engine_of(servers)
    assert cached(engine.measure(block(1, 2)).runs) == both(0, *OWN, 8, *OWN)
    assert cached(engine.measure(block(3, 4)).runs) == both(8, *OWN, 8, *OWN)
    salts = {body["cache_salt"] for body in servers[0].bodies}
    assert salts == {body["cache_salt"] for body in servers[1].bodies}
    assert len(salts) == 1, "all of an engine's measured requests share one"


def test_both_arms_begin_cold_each_time_an_engine_connects(servers: Pair) -> None:
    for _ in range(2):
        assert cached(engine_of(servers).measure(block(1)).runs) == both(0, *OWN)


def test_hits_that_speculation_loses_are_seen_in_its_arm_alone(servers: Pair) -> None:
    engine = engine_of(servers)
    engine.measure(block(1))
    servers[1].loses_hits = True
    servers[1].pages.clear()
    assert cached(engine.measure(block(2)).runs) == [(8, 0), (16, 0), (24, 0)]


def test_warm_up_leaves_nothing_that_a_measured_request_finds(servers: Pair) -> None:
    engine = engine_of(servers, warmup_blocks=2)
    assert cached(engine.measure(block(1, 2)).runs) == both(0, *OWN, 8, *OWN)


def test_a_filler_begins_cold_and_leaves_the_measured_conversations_cold(servers: Pair) -> None:
    engine = engine_of(servers)
    runs = engine.measure(block(1, load=2, fillers=[1])).runs
    assert cached(runs) == both(0, *OWN)
    assert [number for _, number in sorted(servers[0].found)] in ([0, *OWN] * 2, [0, *OWN, 0, *OWN])


def test_a_request_that_was_sent_again_finds_what_others_have_left(servers: Pair) -> None:
    engine = engine_of(servers)
    engine.measure(block(1))
    servers[0].script.append(status(500))
    assert cached(engine.measure(block(2)).runs) == both(8, *OWN)


def test_the_baselines_second_run_finds_as_much_as_its_first_and_leaves_no_prompt_for_it(servers: Pair) -> None:
    engine = engine_of(servers)
    engine.measure(block(1, 2))
    servers[0].found.clear()
    runs = engine.measure(block(3, 4, repeats=True)).runs
    assert cached(runs) == both(8, *OWN, 8, *OWN)
    first, primed, again = servers[0].found[:6], servers[0].found[6:7], servers[0].found[7:]
    assert [number for _, number in again] == [number for _, number in first]
    assert [number for _, number in primed] == [0], "the system prompt, once"
    assert servers[0].bodies[-7]["prompt"] == list(SYSTEM)
    assert {salt for salt, _ in first}.isdisjoint(salt for salt, _ in again), "its own prompts lie under the other salt"
    orders = [run.order for run in runs]
    assert all(order is not None and order.baseline_repeat_ms is not None for order in orders)


def test_a_second_run_in_a_cold_block_is_given_nothing(servers: Pair) -> None:
    engine = engine_of(servers)
    engine.measure(block(1, 2, repeats=True))
    numbers = [number for _, number in servers[0].found]
    assert numbers == [0, *OWN, 8, *OWN] * 2


def test_the_baseline_runs_once_where_it_does_not_say_what_it_found() -> None:
    with running(*(servers := (FakeServer(page_tokens=PAGE), cached_server(3)))):
        runs = engine_of(servers).measure(block(1, repeats=True)).runs
    assert len(servers[0].bodies) == 3
    assert [run.order.baseline_repeat_ms for run in runs if run.order is not None] == [None] * 3


def test_a_second_run_that_found_more_or_less_has_no_time(servers: Pair) -> None:
    engine = engine_of(servers)
    engine.measure(block(1))

    async def forgetting(server: FakeServer, body: dict[str, Any], writer: Any) -> None:
        server.pages.clear()
        await well(server, body, writer)

    servers[0].script.extend([well] * 6 + [forgetting])  # the first run, what is given to the second, two turns of it
    runs = engine.measure(block(2, repeats=True)).runs
    repeats = [run.order.baseline_repeat_ms for run in runs if run.order is not None]
    assert [each is None for each in repeats] == [False, False, True], "24 tokens that the first run found are gone"


def test_requests_beside_the_timed_arms_have_salts_of_their_own(servers: Pair) -> None:
    engine = engine_of(servers)
    servers[1].lost_token = 3  # outputs diverge: the baseline is asked for the gap, and again for its own answer
    runs = engine.measure(block(1)).runs
    assert [run.parity.first_divergence for run in runs if run.parity is not None] == [3] * 3
    timed, others = servers[0].bodies[:3], servers[0].bodies[3:]
    assert len(others) == 6
    assert {body["cache_salt"] for body in timed}.isdisjoint(body["cache_salt"] for body in others)
    sampled = structs.replace(block(2).requests[0], sampling=SamplingParameters(temperature=1.0, max_tokens=4))
    engine.measure(structs.replace(block(2), requests=(sampled,)))
    assert servers[0].scored
    assert {body["cache_salt"] for body in timed}.isdisjoint(body["cache_salt"] for body in servers[0].scored)
    assert cached(engine.measure(block(3)).runs) == both(8, *OWN)


def test_llama_cpp_uses_its_cache_for_timed_requests_alone_and_repeats_none() -> None:
    with running(*(servers := (FakeLlamaCpp(page_tokens=PAGE), FakeLlamaCpp(3, page_tokens=PAGE)))):
        engine = engine_of(servers, warmup_blocks=1)
        servers[1].lost_token = 3
        runs = engine.measure(block(1, repeats=True)).runs
        warming, timed, others = (servers[0].bodies[start : start + 3] for start in (0, 3, 6))
        assert cached(runs) == both(0, *OWN)
        assert cached(engine.measure(block(2)).runs) == both(8, *OWN)
        found = remarks(*probe_both(settings(servers, prefix_cache="as_served")))
    sent = [list(prompt.prompt_token_ids) for prompt in prompts(1)]
    assert [body["prompt"] for body in warming] == [prompt[::-1] for prompt in sent], "other prompts"
    assert [body["prompt"] for body in timed] == sent
    assert [body["cache_prompt"] for body in (*warming, *timed, *others)] == [False] * 3 + [True] * 3 + [False] * 3
    assert [body["n_predict"] for body in others] == [1, 8, 1], "the gap and the baseline's own answer, no second run"
    assert any("knows no salts" in remark for remark in found)


def test_a_server_that_ignores_salts_is_measured_as_one_without_them(servers: Pair) -> None:
    for server in servers:
        server.knows_salts = False
    assert any("knows no salts" in remark for remark in remarks(*probe_both(settings(servers, prefix_cache="on"))))
    engine = engine_of(servers, warmup_blocks=1)
    runs = engine.measure(block(1, repeats=True)).runs
    assert cached(runs) == both(0, *OWN), "the warm-up had other prompts"
    assert len(servers[0].bodies) == 6, "and there was no second run"


def test_servers_without_a_prefix_cache_are_measured_as_they_are(servers: Pair) -> None:
    for server in servers:
        server.page_tokens = 0
    assert cached(engine_of(servers).measure(block(1, repeats=True)).runs) == both(0, 0, 0)
    found = remarks(*probe_both(settings(servers, prefix_cache="as_served")))
    assert any("the baseline server's prefix cache is off" in remark for remark in found)


@pytest.mark.parametrize("evicts", [True, False])
def test_turns_are_evicted_before_the_next_one_comes(servers: Pair, *, evicts: bool) -> None:
    for server in servers:
        server.evicts, server.kv_tokens, server.max_model_len = evicts, 400, 128
    engine = engine_of(servers, "evicted")
    runs = engine.measure(block(1, 2)).runs
    assert [run.failure for run in runs] == [None] * 6
    turns = [cached(runs)[turn::3] for turn in range(3)]
    if evicts:  # but for the system prompt, which the conversation before has just computed again
        assert turns == [both(0, 8)] * 3
    else:  # a tier keeps them
        assert turns == [both(0, 8), both(16, 16), both(24, 24)]
    fillers = [body for body in servers[0].bodies if body["max_tokens"] == 1]
    assert [len(body["prompt"]) for body in fillers] == [127] * 8, "400 tokens of prompts, twice"
    assert len({tuple(body["prompt"][:DRAWN_IDS]) for body in fillers}) == 8
    assert engine.configs[0].mode == "measured with turns evicted from the prefix cache"


def test_later_turns_fail_where_nothing_was_evicted_before_them(servers: Pair) -> None:
    for server in servers:
        server.kv_tokens, server.max_model_len = 100, 128
    engine = engine_of(servers, "evicted", max_attempts=1)
    servers[0].script.extend([well, status(400)])
    assert [run.failure for run in engine.measure(block(1)).runs] == [None, *["baseline_http_400"] * 2]
    assert [run.failure for run in engine.measure(block(2)).runs] == [None] * 3


@pytest.mark.parametrize(
    ("tokens", "message"),
    [(None, r"does not say how many tokens .*vLLM: /metrics"), (MAX_FILL_TOKENS + 1, "--num-gpu-blocks-override")],
)
def test_a_cache_that_cannot_be_filled_is_refused(servers: Pair, tokens: int | None, message: str) -> None:
    servers[1].kv_tokens = tokens
    with pytest.raises(ModelError, match=f"speculative server.*{message}"):
        engine_of(servers, "evicted")
    assert engine_of(servers) is not None


def test_eviction_needs_a_cache(servers: Pair) -> None:
    servers[0].page_tokens = 0
    with pytest.raises(ModelError, match=r"prefix_cache is evicted .*--enable-prefix-caching"):
        engine_of(servers, "evicted")


def test_the_modes_are_different_configs(servers: Pair) -> None:
    made = [engine_of(servers, mode).configs[0] for mode in ("off", "on", "as_served", "evicted")]
    assert len({config.fingerprint for config in made}) == 4
    for config, other in pairwise(made[1:]):
        assert config.differing_details(other) == ["prefix_cache"]
    assert made[2].mode == "measured with prefix caches as served"


@dataclass
class Cache:
    """Whole pages of what was answered."""

    held: frozenset[tuple[int, ...]] = frozenset()

    def answer(self, prompt: tuple[int, ...]) -> int:
        pages = [prompt[:end] for end in range(2, len(prompt) + 1, 2)]
        found = max((len(page) for page in pages if page in self.held and len(page) < len(prompt)), default=0)
        self.held |= set(pages)
        return found


PROMPTS = st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=9).map(tuple), max_size=8)


@given(before=PROMPTS, asked=PROMPTS)
def test_what_was_found_from_before_lets_every_request_find_as_much_again(
    before: list[tuple[int, ...]], asked: list[tuple[int, ...]]
) -> None:
    served, again = Cache(), Cache()
    for prompt in before:
        served.answer(prompt)
    sampling = SamplingParameters(temperature=0.0, max_tokens=1)
    requests = [ServerRequest(prompt, sampling, 0) for prompt in asked]
    numbers = [served.answer(prompt) for prompt in asked]
    outcomes = [
        Completion(
            *((), (), "", "length", 1, float(place), float(place), float(place)),
            cached_tokens=number,
            num_prompt_tokens=len(prompt),
        )
        for place, (prompt, number) in enumerate(zip(asked, numbers, strict=True))
    ]
    found = found_before(requests, outcomes)
    assert found is not None
    assert len(set(found)) == len(found)
    for prefix in found:
        again.answer(prefix)
    assert [again.answer(prompt) for prompt in asked] == numbers
    if asked:
        assert found_before(requests, [replace(outcome, cached_tokens=None) for outcome in outcomes]) is None
