"""Blocks of requests for two servers."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from msgspec import structs

from shadowspec.servers.connecting import connect
from shadowspec.servers.measure_servers import ServerEngine
from shadowspec.servers.server_settings import ServerSettings
from shadowspec.types import (
    Arm,
    Block,
    RecordKey,
    SamplingParameters,
    ShadowPrompt,
    SpeculationConfig,
    VerifyRule,
)
from shadowspec.types.settings import EngineSettings
from tests.servers.fake_server import FakeServer, place_logprobs

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
CONFIG = SpeculationConfig("draft", "t", "d", "draft_model", 3, VerifyRule.REJECTION, backend="openai")


def prompt(line: int, temperature: float = 0.0) -> ShadowPrompt:
    sampling = SamplingParameters(temperature=temperature, max_tokens=10 + line % 3, ignore_eos=True)
    ids = tuple(range(2, 5 + line % 4))
    return ShadowPrompt(RecordKey("f" * 64, 0, line), "e", NOON, {}, ids, sampling)


def block(number: int, fillers: int = 0, *, load: int = 2, per_slot: int = 3, first: Arm = Arm.BASELINE) -> Block:
    prompts = tuple(prompt(line) for line in range(number))
    return Block("b" * 64, 0, "e", "", load, prompts, tuple(prompt(90) for _ in range(fillers)), first, per_slot)


COLD = EngineSettings(warmup_blocks=0)


def settings(servers: tuple[FakeServer, FakeServer], **changes: Any) -> ServerSettings:
    """Every request is cold, unless told otherwise."""
    plain, speculative = (server.url for server in servers)
    server = ServerSettings(
        plain, "m", "cpu", "float32", speculative, max_attempts=2, reachable_within_s=0.0, prefix_cache="off"
    )
    return replace(server, **changes)


def connected(servers: tuple[FakeServer, FakeServer], **changes: Any) -> ServerEngine:
    engine = connect(settings(servers, **changes), [CONFIG], COLD, requests_per_slot=3, default_sampling={})
    for server in servers:
        server.bodies.clear()
    return engine


def sampled(**changes: Any) -> Block:
    shadow_prompt = prompt(1, temperature=1.0)
    return structs.replace(
        block(1),
        requests=(structs.replace(shadow_prompt, sampling=structs.replace(shadow_prompt.sampling, **changes)),),
    )


def told_score(body: dict[str, Any], output: list[int]) -> float:
    """Of an output by the whole distribution that the fake server pretends to have."""
    context, total = list(body["prompt"]), 0.0
    for token in output:
        every = place_logprobs(context)
        total += (every.index(max(every)) == token) - math.exp(max(every))
        context.append(token)
    return total
