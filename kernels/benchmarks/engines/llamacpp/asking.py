"""Acceptance as llama.cpp's servers report it: every request's tokens and counters, collected once and kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from kernels.benchmarks.engines.collecting import WAITS, ask_server, server_requests, write_whole
from kernels.benchmarks.engines.pair import Prompt
from kernels.benchmarks.engines.servers import SERVED_MODEL, SLOTS
from shadowspec.servers.engines.llamacpp import LlamaCpp
from shadowspec.servers.request import ServerRequest
from shadowspec.types import SamplingParameters, SpeculationCounts


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
        counts = {name: tuple(value) if isinstance(value, list) else value for name, value in values["counts"].items()}
        return cls(**values | {"tokens": tuple(values["tokens"]), "counts": SpeculationCounts(**counts)})


def ask(
    url: str, prompts: Sequence[Prompt], sampling: SamplingParameters, depth: int, *, drafts_always: bool
) -> list[LlamaAnswer]:
    """All answers of a server, as many at a time as it has slots, each from a seed that is its place's.

    Raises:
        ServerError: a request was not answered.
        UncountableError: what a server counted contradicts itself.
    """
    requests, answers = server_requests(prompts, sampling, 0), []
    for request, answer in zip(requests, ask_server(url, requests, SLOTS, LlamaCpp()), strict=True):
        said, length = answer.speculation or {}, len(request.prompt_token_ids)
        counted = LlamaCpp().count(answer, length, max(depth, 1), drafts_always=drafts_always)
        tokens = answer.token_ids if answer.token_ids is not None else _whole(url, request)
        hidden = answer.num_output_tokens - (len(said["progress"]) - 1)
        answers.append(LlamaAnswer(tokens, answer.finish_reason, counted.counts, counted.is_sure, hidden))
    return answers


def _whole(url: str, request: ServerRequest) -> tuple[int, ...]:
    """The output's tokens, not streamed: then those within a character come too."""
    body = LlamaCpp().body_of(request, SERVED_MODEL, "") | {"stream": False}
    answer = httpx.post(f"{url}/completion", json=body, timeout=WAITS.total_s, trust_env=False)
    answer.raise_for_status()
    return tuple(answer.json()["tokens"])


def kept(path: Path) -> list[LlamaAnswer] | None:
    """What was collected, in the order of the prompts; None: nothing yet."""
    if not path.exists():
        return None
    return [LlamaAnswer.read(values) for values in json.loads(path.read_text(encoding="utf-8"))]


def keep(path: Path, answers: Sequence[LlamaAnswer]) -> None:
    """Whole or not at all: what is there is not asked for again."""
    write_whole(path, [asdict(answer) for answer in answers])
