"""Which servers an endpoint is measured through, and how long one waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from shadowspec.types import Arm
from shadowspec.types.server_facts import Dtype, Fact, FactName, fact_text
from shadowspec.types.settings import HttpUrl, PathText, Positive, Seconds, Share, Text, Variable

FactValue = bool | int | Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./+-]{0,63}$")]
PrefixCache = Literal["off", "on", "as_served", "evicted"]
MAX_RETRY_WAIT_S = 30.0  # a server that asks for more time than this is not waited for


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds after which an answer is given up; none of them is ever tried again."""

    connect_s: Annotated[Seconds, Field(alias="connect_timeout_s")] = 5.0
    first_token_s: Annotated[Seconds, Field(alias="first_token_timeout_s")] = 60.0  # from sending
    token_s: Annotated[Seconds, Field(alias="token_timeout_s")] = 30.0  # between two chunks with tokens
    total_s: Annotated[Seconds, Field(alias="total_timeout_s")] = 300.0  # from sending to the last token


@dataclass(frozen=True, slots=True)
class FactsOfArms:
    """A fact in which the baseline and the speculative servers differ."""

    baseline: FactValue
    speculative: FactValue


@dataclass(frozen=True, slots=True)
class SpeculativeServer:
    """The server of one of several candidates; its facts take precedence over those of all servers."""

    candidate: Text
    url: HttpUrl
    facts: dict[FactName, FactValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NamedServer:
    """One of an endpoint's servers: as messages name it, where it is, and what the operator says of it."""

    label: str
    url: str
    facts: Mapping[str, Fact]


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Deployments of one target behind the OpenAI API: one plain, and a speculative one for each candidate.

    URLs are those of the servers' roots, without /v1.  Nothing but these hosts is ever contacted.  The key itself
    is never part of this value: it is read from `api_key_variable` when a client is made.

    Raises:
        ValueError: a URL is not a root, or the speculative servers are given in both ways or in none.
    """

    baseline_url: HttpUrl
    model: Text  # the name under which all serve the target
    device: Text  # of all servers, as the operator names it
    dtype: Dtype
    speculative_url: HttpUrl | None = None  # of the only candidate's server
    speculative: Annotated[
        tuple[SpeculativeServer, ...],
        Field(description="in place of speculative_url, the server of each of several candidates"),
    ] = ()
    api_key_variable: Variable | None = None
    ca_file: PathText | None = None  # None: the system's authorities
    waits: Annotated[Waits, Field(alias="(waits)")] = Waits()
    max_model_len: Positive | None = None  # tokens of prompt and output that all take; None: as many as the target
    # At a request that was refused for now, or whose answer was cut off.
    max_attempts: Annotated[int, Field(ge=1, le=10)] = 3
    reachable_within_s: Annotated[float, Field(ge=0)] = 60.0  # that a server may be away before a block begins
    # "chat": a server gets a chat as the client wrote it and renders it; other prompts, and all of "completions", are
    # sent as token ids.
    api: Literal["chat", "completions"] = "chat"
    prefix_cache: PrefixCache = "as_served"  # what may be found there; all but "off" measure whole conversations
    # Of the likeliest tokens, asked for at each place of a sampled output; 0: none is scored.
    score_logprobs: Annotated[int, Field(ge=0, le=1_000_000)] = 20
    tool_call_format: Literal["hermes"] | None = None  # of the target; None: strict tools are not asked for
    # Of the measured requests, whose speculative outputs this process replays with its copy of target and draft.
    audit_share: Share = 0.0
    # Of an output's tokens, by which the mean of counted less expected acceptance may depart from zero: the servers
    # round otherwise than this process.
    audit_tolerance: Annotated[float, Field(gt=0, le=0.2)] = 0.02

    # Of all servers, where they do not report them; a table gives the value of each arm.
    facts: dict[FactName, FactValue | FactsOfArms] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.speculative_url is None) == (not self.speculative):
            raise ValueError("give speculative_url, or a table in `speculative` for each of several candidates")
        for name, url in zip(self._keys, self.roots, strict=True):
            if url.rstrip("/").endswith("/v1"):
                raise ValueError(f"{name}: is the server's root, without /v1")

    @property
    def measures_conversations(self) -> bool:
        """Whether the turns of a session are measured together."""
        return self.prefix_cache != "off"

    @property
    def roots(self) -> tuple[str, ...]:
        """The URLs of the baseline and of each speculative server."""
        urls = [server.url for server in self.speculative] if self.speculative_url is None else [self.speculative_url]
        return self.baseline_url, *urls

    @property
    def shared_root(self) -> tuple[str, str] | None:
        """The keys of two servers with one URL; None where each has another."""
        keys: dict[str, str] = {}
        for key, root in zip(self._keys, self.roots, strict=True):
            if (other := keys.setdefault(root.rstrip("/"), key)) != key:
                return other, key
        return None

    @property
    def baseline(self) -> NamedServer:
        """The server without speculation."""
        return NamedServer(Arm.BASELINE, self.baseline_url, self._facts(Arm.BASELINE))

    def server_of(self, candidate: str) -> NamedServer:
        """The server that speculates as this candidate says."""
        facts = self._facts(Arm.SPECULATIVE)
        if self.speculative_url is not None:
            return NamedServer(Arm.SPECULATIVE, self.speculative_url, facts)
        server = next(server for server in self.speculative if server.candidate == candidate)
        return NamedServer(f"{Arm.SPECULATIVE} ({candidate})", server.url, facts | _declared(server.facts))

    @property
    def _keys(self) -> tuple[str, ...]:
        if self.speculative_url is not None:
            return "baseline_url", "speculative_url"
        return "baseline_url", *(f"speculative.{server.candidate}.url" for server in self.speculative)

    def _facts(self, arm: Arm) -> dict[str, Fact]:
        """What the operator says of an arm's servers."""
        return _declared(
            {
                name: getattr(value, arm.value) if isinstance(value, FactsOfArms) else value
                for name, value in self.facts.items()
            }
        )


def _declared(facts: Mapping[FactName, FactValue]) -> dict[str, Fact]:
    return {name: Fact(fact_text(value), is_read=False) for name, value in facts.items()}
