"""What a step of two servers costs is found from requests' counts, at any acceptance, with its errors."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from shadowspec.errors import InputError, ModelError, NoDataError
from shadowspec.servers.server_profile import (
    OUTPUT_TOKENS,
    REQUESTS_PER_SLOT,
    ServedSteps,
    ServerGrid,
    fit,
    profile_servers,
)
from shadowspec.servers.stream import ServerError
from shadowspec.types import CostKey, ProfiledCosts, StepCost
from tests.builders.server_blocks import CONFIG, settings
from tests.builders.step_clock import PREFILL_S, time_by_steps
from tests.servers.fake_server import FakeServer, running, status, well

BASELINE_S, SPECULATIVE_S = 0.004, 0.008
GRID = ServerGrid(loads=(1, 3), contexts=(4, 9), rounds=2)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeServer, FakeServer]]:
    """Steps of known times: the speculative server's take twice as long."""
    pair = FakeServer(step_s=0.0), FakeServer(3, step_s=0.0)
    time_by_steps(monkeypatch, BASELINE_S, SPECULATIVE_S, lambda _, answer: len(answer.chunk_sizes) - 1)
    with running(*pair):
        yield pair


def profiled(servers: tuple[FakeServer, FakeServer], grid: ServerGrid = GRID, **changes: Any) -> Any:
    config = replace(CONFIG, **changes)
    return profile_servers(settings(servers), config, grid, vocab_size=50, requests_per_slot=4, default_sampling={})


# The regression.


def made(step_ms: float, stall_ms: float, token_ms: float, noise_ms: float = 0.0) -> list[ServedSteps]:
    draw = random.Random(7)
    found = []
    for _ in range(400):
        steps, accepted, prompts = draw.randint(10, 70), draw.randint(0, 120), draw.randint(0, 6)
        took = step_ms * steps + stall_ms * prompts + token_ms * accepted + draw.gauss(0.0, noise_ms)
        found.append(ServedSteps(steps, accepted, prompts, took, 5.0))
    return found


def test_a_step_is_told_apart_from_what_others_prompts_cost() -> None:
    found = fit(made(8.0, 3.0, 0.0))
    assert (found.step_ms, found.stall_ms) == (pytest.approx(8.0), pytest.approx(3.0))
    assert found.accepted_token_ms == pytest.approx(0.0, abs=1e-9)


def test_what_an_accepted_token_adds_is_seen_with_its_error() -> None:
    found = fit(made(8.0, 3.0, 0.25, noise_ms=5.0))
    assert found.accepted_token_ms is not None
    assert found.accepted_token_error_ms is not None
    assert 0.0 < found.accepted_token_error_ms < 0.02
    assert abs(found.accepted_token_ms - 0.25) < 4 * found.accepted_token_error_ms
    none = fit(made(8.0, 3.0, 0.0, noise_ms=5.0))
    assert none.accepted_token_ms is not None
    assert none.accepted_token_error_ms is not None
    assert abs(none.accepted_token_ms) < 4 * none.accepted_token_error_ms


def test_a_stall_below_zero_is_noise_and_takes_nothing_from_a_step() -> None:
    found = fit(made(8.0, -3.0, 0.0))
    assert found.stall_ms == 0.0
    assert found.step_ms == pytest.approx(8.0, rel=0.05)


def test_without_other_prompts_or_accepted_tokens_there_is_a_step_alone() -> None:
    rows = [
        replace(served_steps, num_prompts=0, num_accepted=0, decode_ms=8.0 * served_steps.num_steps)
        for served_steps in made(8.0, 0.0, 0.0)
    ]
    found = fit(rows)
    assert (found.step_ms, found.stall_ms) == (pytest.approx(8.0), 0.0)
    assert (found.accepted_token_ms, found.accepted_token_error_ms) == (None, None)


# Through servers.


@pytest.mark.all
def test_the_servers_step_times_are_found_at_every_place(servers: tuple[FakeServer, FakeServer]) -> None:
    ran: list[None] = []
    found = profile_servers(
        settings(servers), CONFIG, GRID, vocab_size=50, requests_per_slot=4, default_sampling={},
        on_run=lambda: ran.append(None),
    )  # fmt: skip
    assert len(ran) == GRID.num_runs == 2 * 4 * 2
    at = {each.place: each for each in found.points}
    assert set(at) == {(load, depth, context) for load in (1, 3) for depth in (0, 3) for context in (4, 9)}
    for (_, depth, _), each in at.items():
        asked_ms = 1e3 * (SPECULATIVE_S if depth else BASELINE_S)
        assert each.step_ms == pytest.approx(asked_ms)
        assert each.prefill_ms == pytest.approx(1e3 * PREFILL_S)
        assert each.step_error_ms is not None
        assert each.prefill_error_ms is not None
        assert (each.draft_ms, each.verify_ms, each.other_ms) == (0.0, 0.0, each.step_ms)
    assert (found.config.engine, found.config.config.num_speculative_tokens) == ("vllm/0.32.0", 3)
    assert found.num_compared == found.num_same == 2 * REQUESTS_PER_SLOT * (1 + 3) * 2


@pytest.mark.all
def test_every_run_is_a_queue_at_its_load_with_the_same_prompts_for_both(
    servers: tuple[FakeServer, FakeServer],
) -> None:
    profiled(servers, replace(GRID, loads=(3,), contexts=(4,)))
    rows, other = ([body for body in server.bodies if body["max_tokens"] >= OUTPUT_TOKENS[0]] for server in servers)
    assert [server.most_in_flight for server in servers] == [3, 3]
    assert len(rows) == len(other) == 2 * 3 * REQUESTS_PER_SLOT
    asked = [
        sorted((tuple(body["prompt"]), body["max_tokens"], body["seed"]) for body in bodies) for bodies in (rows, other)
    ]
    assert asked[0] == asked[1]
    assert len({prompt for prompt, _, _ in asked[0]}) == len(asked[0]), "a round's prompts are its own"
    assert len({length for _, length, _ in asked[0]}) > 5
    assert all(body["ignore_eos"] and body["temperature"] == 0.0 for body in rows)
    assert len({body["cache_salt"] for body in (*rows, *other)}) == 2 * len(rows), "nothing is found in a prefix cache"


@pytest.mark.all
def test_sampled_requests_are_sampled_and_not_compared(servers: tuple[FakeServer, FakeServer]) -> None:
    found = profiled(servers, ServerGrid((2,), (4,), is_greedy=False, rounds=2))
    assert servers[1].bodies[-1]["temperature"] == 0.8
    assert (found.num_compared, found.num_same) == (0, 0)


@pytest.mark.all
def test_acceptance_is_told_and_does_not_make_a_step_dearer(servers: tuple[FakeServer, FakeServer]) -> None:
    (place,) = profiled(servers, ServerGrid((2,), (4,), rounds=3)).places
    assert place.mean_acceptance_length == pytest.approx(2.5, abs=0.1), "0 to 3 of 3, in turn"
    assert place.accepted_token_ms == pytest.approx(0.0, abs=1e-6)


def test_counters_of_the_whole_run_tell_the_steps_too(servers: tuple[FakeServer, FakeServer]) -> None:
    servers[1].level = "none"
    (place,) = profiled(servers, ServerGrid((2,), (4,), rounds=2)).places
    assert place.speculative.step_ms == pytest.approx(1e3 * SPECULATIVE_S)
    assert place.mean_acceptance_length == pytest.approx(2.5, abs=0.1)


def test_steps_that_somebody_else_shared_are_not_counted(servers: tuple[FakeServer, FakeServer]) -> None:
    servers[1].level = "none"

    async def crowded(server: FakeServer, body: dict[str, Any], writer: Any) -> None:
        if body["max_tokens"] >= OUTPUT_TOKENS[0]:
            server.counters["done"] += 1
        await well(server, body, writer)

    servers[1].script.extend([crowded] * 40)
    with pytest.raises(NoDataError, match="its steps cannot be counted"):
        profiled(servers, ServerGrid((2,), (4,), rounds=2))


@pytest.mark.parametrize(("proposer", "says"), [("ngram", "ngram drafts depends"), ("suffix", "suffix drafts depends")])
def test_what_has_no_fixed_depth_is_refused(servers: tuple[FakeServer, FakeServer], proposer: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        profiled(servers, proposer=proposer, draft=None)
    assert servers[0].bodies == []


def test_what_does_not_fit_is_refused(servers: tuple[FakeServer, FakeServer]) -> None:
    with pytest.raises(InputError, match=r"a context of 950 tokens leaves no room: at most 944 here"):
        profiled(servers, replace(GRID, contexts=(4, 950)))
    with pytest.raises(ModelError, match="num_speculative_tokens is 5"):
        profiled(servers, num_speculative_tokens=5)


def test_a_request_that_fails_ends_the_profile(servers: tuple[FakeServer, FakeServer]) -> None:
    """What remained would be of another load."""
    servers[0].script.extend([well, well, well, status(400)])
    with pytest.raises(ServerError, match="HTTP 400"):
        profiled(servers, ServerGrid((1,), (4,), rounds=2))


# Kept by depth.


def surface(depths: Sequence[int], contexts: Sequence[int] = (64,), step_ms: float = 1.0) -> ProfiledCosts:
    points = tuple(StepCost(2, depth, context, 1.0, 0.0, 0.0, step_ms) for depth in depths for context in contexts)
    key = CostKey("vllm/0.32.0", "cpu", "float32", "draft_model", "t", "d", "rejection", is_greedy=True)
    return ProfiledCosts(key, None, points)  # type: ignore[arg-type]


def test_other_depths_are_kept_where_the_places_are_the_same() -> None:
    both = surface((0, 4), step_ms=2.0).with_depths_of(surface((0, 2, 4)))
    assert [(each.num_speculative_tokens, each.step_ms) for each in both.points] == [(0, 2.0), (4, 2.0), (2, 1.0)]
    other = surface((0, 4))
    assert other.with_depths_of(surface((0, 2), (64, 128))) is other
