"""Acceptance as vLLM's servers tell it: every request's tokens and steps, collected once and kept in a folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from rich.console import Console

from kernels.benchmarks.engines.pair import Prompt
from kernels.benchmarks.engines.servers import SERVED_MODEL, SLOTS, Server
from kernels.benchmarks.engines.ways import BASELINE, SAMPLED, SERVED, SHIPPED, WAYS, raw_file
from shadowspec.servers.client import fresh_salt, open_client, run_async, trust
from shadowspec.servers.closed_loop import run_arm
from shadowspec.servers.engines.engine import ServingEngine
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.server_settings import ServerSettings, Waits
from shadowspec.servers.stream import Completion, ServerError
from shadowspec.types import SamplingParameters

GREEDY_REGIME, SAMPLED_REGIME = "greedy", "sampled"
# Nobody's patience is tried here: an answer may take as long as the machine is shared.
WAITS = Waits(first_token_s=600.0, token_s=300.0, total_s=1_200.0)
WARM_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Answered:
    """One request's answer; steps are those that had a draft, as vLLM counts them: before the cut at the last token."""

    tokens: tuple[int, ...]
    finish_reason: str
    chunk_sizes: tuple[int, ...]
    drafted: tuple[int, ...]  # by step
    accepted: tuple[int, ...]

    @classmethod
    def of(cls, completion: Completion) -> Answered:
        """From an answer of the client's."""
        steps = completion.speculation or {}
        return cls(
            completion.token_ids or (),
            completion.finish_reason,
            completion.chunk_sizes,
            tuple(steps.get("per_step_drafted") or ()),
            tuple(steps.get("per_step_accepted") or ()),
        )

    @classmethod
    def read(cls, values: dict[str, Any]) -> Answered:
        """As it was kept."""
        tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        return cls(**tuples)


def ask_server(
    url: str, requests: Sequence[ServerRequest], slots: int, engine: ServingEngine | None = None
) -> tuple[Completion, ...]:
    """All answers of a server, so many requests in flight; `engine`: another one than vLLM.

    Raises:
        ServerError: a request was not answered.
    """

    async def work() -> list[Completion | ServerError]:
        settings = ServerSettings(url, SERVED_MODEL, "cpu", "float32", url, waits=WAITS)
        async with open_client("validated", url, settings, trust(None), slots) as client:
            speaking = client if engine is None else client.speaking_to(engine)
            return await run_arm(speaking, requests, slots, fresh_salt())

    outcomes = run_async(work())
    for outcome in outcomes:
        if isinstance(outcome, ServerError):
            raise outcome
    return tuple(outcomes)


def server_requests(prompts: Sequence[Prompt], sampling: SamplingParameters, course: int) -> list[ServerRequest]:
    """The prompts as requests with random numbers of their own."""
    return [ServerRequest(prompt, sampling, 1_000_000 * course + row) for row, prompt in enumerate(prompts)]


def regimes(served: str) -> dict[str, SamplingParameters]:
    """How the deployment is asked, by name; the baseline is asked both ways."""
    if served == SHIPPED.name:
        return {SAMPLED_REGIME: SAMPLED}
    return {
        GREEDY_REGIME if way.is_greedy else SAMPLED_REGIME: way.sampling
        for way in WAYS
        if served in (BASELINE, way.served.name)
    }


def missing_regimes(folder: Path, served: str, depth: int) -> dict[str, SamplingParameters]:
    """How a deployment is still to be asked."""
    return {
        regime: sampling
        for regime, sampling in regimes(served).items()
        if not raw_file(folder, served, depth, regime).exists()
    }


def collect(
    folder: Path,
    server: Server,
    served: str,
    depth: int,
    prompts: Sequence[Prompt],
    max_tokens: int,
    missing: Mapping[str, SamplingParameters],
) -> None:
    """Ask a server for what is not in the folder yet.

    Args:
        missing: how it is still to be asked, by name.
    """
    for regime, sampling in missing.items():
        Console(stderr=True).print(f"{served} K={depth} {regime}: {len(prompts)} requests")
        sampling_parameters = replace(sampling, max_tokens=max_tokens)
        asked = server_requests(prompts, sampling_parameters, course(served, depth, regime))
        answers = ask_server(server.url, asked, SLOTS)
        rows = [asdict(Answered.of(answer)) for answer in answers]
        write_whole(raw_file(folder, served, depth, regime), {"max_tokens": max_tokens, "answers": rows})


def course(served: str, depth: int, regime: str) -> int:
    """A number of its own for each way of asking, of which its random numbers are made."""
    return (
        100 * [BASELINE, *(deployment.name for deployment in (*SERVED, SHIPPED))].index(served)
        + 10 * depth
        + (regime == SAMPLED_REGIME)
    )


def collected(folder: Path, served: str, depth: int, regime: str) -> list[Answered] | None:
    """What was collected, in the order of the prompts; None: nothing yet."""
    path = raw_file(folder, served, depth, regime)
    if not path.exists():
        return None
    return [Answered.read(values) for values in json.loads(path.read_text(encoding="utf-8"))["answers"]]


def write_whole(path: Path, document: Any) -> None:
    """Whole or not at all: what is there is not asked for again."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(document) + "\n", encoding="utf-8")
    part.rename(path)
