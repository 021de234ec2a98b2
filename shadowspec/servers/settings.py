"""Which servers an endpoint is measured through, and how long one waits for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MAX_RETRY_WAIT_S = 30.0  # a server that asks for more time than this is not waited for


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds after which an answer is given up; none of them is ever tried again."""

    connect_s: float = 5.0
    first_token_s: float = 60.0  # from sending
    token_s: float = 30.0  # between two chunks that bring tokens
    total_s: float = 300.0  # from sending to the last token


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Two deployments of one target behind the OpenAI API.

    URLs are those of the servers' roots, without /v1.  Nothing but these two hosts is ever contacted.  The key itself
    is never part of this value: it is read from `api_key_variable` when a client is made.
    """

    baseline_url: str
    speculative_url: str
    model: str  # the name under which both serve the target
    device: str  # what both run on, in the operator's words
    dtype: str
    api_key_variable: str | None = None
    ca_file: Path | None = None  # None: the system's authorities
    waits: Waits = Waits()
    max_model_len: int | None = None  # tokens of prompt and output that both take; None: as many as the target
    max_attempts: int = 3  # at a request that was refused for now, or whose answer was cut off
    reachable_within_s: float = 60.0  # that a server may be away before a block begins
    score_logprobs: int = 20  # of the likeliest tokens, asked for at each place of a sampled output; 0: none is scored
