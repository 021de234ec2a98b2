"""Answers whose times are those of a clock that counts steps, so that no machine's speed is in a profile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from shadowspec.servers import server_profile
from shadowspec.servers.client import ServerClient
from shadowspec.servers.closed_loop import Outcome, run_arm
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.stream import Completion

PREFILL_S = 0.5


def time_by_steps(
    monkeypatch: pytest.MonkeyPatch,
    baseline_s: float,
    speculative_s: float,
    count: Callable[[ServerRequest, Completion], int],
) -> None:
    """Give every answer of a profile the time of its steps.

    Args:
        baseline_s, speculative_s: of a step of either server.
        count: the steps of an answer of the speculative server after the prefill; the baseline's emit a token each.
    """

    async def timed(
        client: ServerClient, requests: Sequence[ServerRequest], slots: int, salt: str
    ) -> tuple[Outcome, ...]:
        answers = await run_arm(client, requests, slots, salt)
        return tuple(
            at_clock(client, request, answer) if isinstance(answer, Completion) else answer
            for request, answer in zip(requests, answers, strict=True)
        )

    def at_clock(client: ServerClient, request: ServerRequest, answer: Completion) -> Completion:
        if "speculative" in client.name:
            took_s = speculative_s * count(request, answer)
        else:
            took_s = baseline_s * (answer.num_output_tokens - 1)
        return replace(answer, sent_s=0.0, first_token_s=PREFILL_S, last_token_s=PREFILL_S + took_s)

    monkeypatch.setattr(server_profile, "run_arm", timed)
