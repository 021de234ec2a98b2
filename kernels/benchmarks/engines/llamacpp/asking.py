"""Acceptance as llama.cpp's servers report it: every request's tokens and counters, collected once and kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
from msgspec.structs import replace

from kernels.benchmarks.engines.llamacpp.servers import SERVED_MODEL, SLOTS, LlamaServer
from kernels.benchmarks.engines.pair import Prompt
from shadowspec.servers.client import fresh_salt, open_client, run_async, trust
from shadowspec.servers.closed_loop import run_arm
from shadowspec.servers.engines.llamacpp import LlamaCpp
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.server_settings import ServerSettings, Waits
from shadowspec.servers.stream import Completion, ServerError
from shadowspec.types import SamplingParameters, SpeculationCounts

WAITS = Waits(first_token_s=600.0, token_s=300.0, total_s=1_200.0)  # the machine is shared: nothing is given up


@dataclass(frozen=True, slots=True)
class LlamaAnswer:
    """One request's output and counters; `num_hidden` tokens came without an event, and were asked for once more."""

    tokens: tuple[int, ...]
    finish_reason: str
    counts: SpeculationCounts  # ours: cut at the last emitted token
    is_sure: bool = True
    num_hidden: int = 0

    @classmethod
    def read(cls, values: dict[str, Any]) -> LlamaAnswer:
        """As it was kept."""
        counts = {name: tuple(each) if isinstance(each, list) else each for name, each in values["counts"].items()}
        return cls(**values | {"tokens": tuple(values["tokens"]), "counts": SpeculationCounts(**counts)})


def ask(
    server: LlamaServer, prompts: Sequence[Prompt], sampling: SamplingParameters, depth: int, *, drafts_always: bool
) -> list[LlamaAnswer]:
    """All answers of a server, as many at a time as it has slots, each from a seed that is its place's.

    Raises:
        ServerError: a request was not answered.
        UncountableError: what a server counted contradicts itself.
    """
    requests = [ServerRequest(prompt, sampling, row) for row, prompt in enumerate(prompts)]

    async def work() -> list[Completion]:
        settings = ServerSettings(server.url, server.url, SERVED_MODEL, "cpu", "float32", waits=WAITS)
        async with open_client("validated", server.url, settings, trust(None), SLOTS) as client:
            outcomes = await run_arm(client.speaking_to(LlamaCpp()), requests, SLOTS, fresh_salt())
        for each in outcomes:
            if isinstance(each, ServerError):
                raise each
        return [each for each in outcomes if isinstance(each, Completion)]

    found = []
    for request, answer in zip(requests, run_async(work()), strict=True):
        said, length = answer.speculation or {}, len(request.prompt_token_ids)
        accepted = LlamaCpp().count(answer, length, max(depth, 1), drafts_always=drafts_always)
        tokens = answer.token_ids if answer.token_ids is not None else _whole(server, request)
        events = len(said["progress"]) - 1
        found.append(
            LlamaAnswer(
                tokens, answer.finish_reason, accepted.counts, accepted.is_sure, answer.num_output_tokens - events
            )
        )
    return found


def _whole(server: LlamaServer, request: ServerRequest) -> tuple[int, ...]:
    """The output's tokens, not streamed: then those within a character come too."""
    body = LlamaCpp().body_of(request, SERVED_MODEL, "") | {"stream": False}
    answer = httpx.post(f"{server.url}/completion", json=body, timeout=WAITS.total_s, trust_env=False)
    answer.raise_for_status()
    return tuple(answer.json()["tokens"])


def kept(path: Path) -> list[LlamaAnswer] | None:
    """What was collected, in the order of the prompts; None: nothing yet."""
    if not path.exists():
        return None
    return [LlamaAnswer.read(each) for each in json.loads(path.read_text(encoding="utf-8"))]


def keep(path: Path, answers: Sequence[LlamaAnswer]) -> None:
    """Whole or not at all: what is there is not asked for again."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps([asdict(each) for each in answers]) + "\n", encoding="utf-8")
    part.rename(path)


def limited(sampling: SamplingParameters, max_tokens: int) -> SamplingParameters:
    """The parameters with a limit of tokens."""
    return replace(sampling, max_tokens=max_tokens)
