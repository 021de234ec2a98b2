"""The tap's view of an endpoint: which records belong to it, and how they are sliced and drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import Field

from shadowspec.errors import ConfigError
from shadowspec.tap.asked_output import ToolCallFormat
from shadowspec.types import OUTPUT_CONSTRAINT, REASONING, UNSEEDED, OutputContract
from shadowspec.types.prompt_rules import UNNAMED, PromptRules
from shadowspec.types.settings import Positive, Text

DEFAULT_SLICE_BY = ("prompt_class", "sampling_regime")


@dataclass(frozen=True, slots=True)
class MatchRule:
    """Globs on a record's fields; all that are given must match.  None: anything."""

    endpoint: Text | None = None
    model: Text | None = None
    path: Text | None = None

    def matches(self, *, endpoint: str | None, model: str | None, path: str | None) -> bool:
        asked = ((self.endpoint, endpoint), (self.model, model), (self.path, path))
        return all(glob is None or (value is not None and fnmatchcase(value, glob)) for glob, value in asked)


@dataclass(frozen=True, slots=True)
class Load:
    """One concurrency to measure at, and its share of the traffic (shares need not add up to 1)."""

    concurrency: Positive
    share: Annotated[float, Field(gt=0)] = 1.0


@dataclass(frozen=True, slots=True)
class EndpointRule:
    """One endpoint as the tap sees it.

    `sample_rate` is the share of (session, slice) pairs that may be measured, `min_rate` the one to which decided
    slices drop.  `timed_positions` is the number of places in a session from which the timed one is drawn.  `max_age`
    is the age against the newest event time beyond which a record is expired (None: never).  `block_max_wait` is how
    long, in event time, a block waits to be full.  `time_block` is the unit of requests without session and user.
    `forget_unit_after` is the event time since a unit's first request after which nothing of it is remembered: two of
    the spans (`unit_span`) in each of which a session or user is a new unit.  `labels` are the metadata keys that
    become slice labels, with the values that they may have.  `client_labels`: the request's metadata, which its client
    writes, make labels too.  `default_sampling` has the server's defaults for parameters that a request leaves out
    (names of SamplingParameters), and `unseeded` the seeds by which a request asks it for none.  `max_new_tokens` caps
    the generated tokens (None: the request's value).  `contracts` are the contracts of outputs by prompt class ("":
    every class), for any request.  `takes_constraints`: the measuring engine can restrict outputs to a grammar, as
    servers do.  `takes_chats`: it renders chats itself, so that a chat travels with the client's own body.
    `tool_call_format` is how its target writes tool calls (None: not known, so that strict tools are refused).
    `measures_conversations`: all of a session's first `timed_positions` requests are measured, in their order, in one
    place of one block, instead of a drawn one of them.  `window` is the event time in which `blocks_per_window` blocks
    of each slice and load are measured, on average (None: all that the traffic fills).  `prompt_rules` are those of
    the engine that serves it.  `is_trial`: the policy speaks of one recording only, so that records may lack times,
    the model's name and sampling parameters.
    """

    name: str
    served_models: tuple[str, ...]
    match: MatchRule = MatchRule()
    slice_by: tuple[str, ...] = DEFAULT_SLICE_BY
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    client_labels: bool = False
    sample_rate: float = 1.0
    min_rate: float = field(kw_only=True)
    timed_positions: int = field(kw_only=True)
    loads: tuple[Load, ...] = (Load(4),)
    requests_per_slot: int = 1  # 1: a block is one batch; above, a queue that refills slots as requests finish
    block_max_wait: timedelta = field(kw_only=True)
    time_block: timedelta = field(kw_only=True)
    forget_unit_after: timedelta = field(kw_only=True)
    window: timedelta | None = field(default=None, kw_only=True)
    blocks_per_window: int = field(default=1, kw_only=True)
    max_age: timedelta | None = None
    max_new_tokens: int | None = None
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    unseeded: frozenset[int] = UNSEEDED
    contracts: Mapping[str, OutputContract] = field(default_factory=dict)
    takes_constraints: bool = False
    takes_chats: bool = False
    tool_call_format: ToolCallFormat | None = None
    measures_conversations: bool = False
    prompt_rules: PromptRules = UNNAMED
    is_trial: bool = False

    def __post_init__(self) -> None:
        def require(holds: bool, what: str) -> None:
            if not holds:
                raise ConfigError(f"endpoint {self.name!r}: {what}")

        require(bool(self.served_models), "served_models must name at least one model")
        require(bool(self.slice_by), "slice_by must name at least one label")
        require(0.0 < self.sample_rate <= 1.0, "sample_rate must be above 0 and at most 1")
        require(0.0 < self.min_rate <= 1.0, "min_rate must be above 0 and at most 1")
        require(self.timed_positions >= 1, "timed_positions must be at least 1")
        require(bool(self.loads), "loads must hold at least one load")
        require(all(load.concurrency >= 1 and load.share > 0 for load in self.loads), "a load must be positive")
        concurrencies = [load.concurrency for load in self.loads]
        require(len(set(concurrencies)) == len(concurrencies), "loads must differ in concurrency")
        require(self.requests_per_slot >= 1, "requests_per_slot must be at least 1")
        require(min(self.time_block, self.forget_unit_after) > timedelta(0), "a span of time must be above 0")
        require(self.block_max_wait >= timedelta(0), "block_max_wait must not be negative")
        require(self.window is None or self.window > timedelta(0), "window must be above 0")
        require(self.blocks_per_window >= 1, "blocks_per_window must be at least 1")
        require(self.max_new_tokens is None or self.max_new_tokens >= 1, "max_new_tokens must be at least 1")

    @property
    def unit_span(self) -> timedelta:
        """Event time in which a session or user is one unit; records of it may come late by as much again."""
        return self.forget_unit_after / 2

    @property
    def max_turns(self) -> int:
        """Requests of a session that go into one block."""
        return self.timed_positions if self.measures_conversations else 1

    @property
    def slice_labels(self) -> tuple[str, ...]:
        """The labels that a slice may have."""
        own = (OUTPUT_CONSTRAINT, *((REASONING,) if self.takes_chats else ())) if self.takes_constraints else ()
        return (*self.slice_by, *(name for name in own if name not in self.slice_by))

    @property
    def longest_wait(self) -> timedelta:
        """How long a block waits to be full."""
        return max(self.block_max_wait, self.window or timedelta(0))

    def places(self, concurrency: int) -> int:
        """Requests, or conversations, of a full block at a load."""
        return concurrency * self.requests_per_slot


def match_endpoint(
    rules: Iterable[EndpointRule], *, endpoint: str | None, model: str | None, path: str | None
) -> EndpointRule | None:
    """The first rule, in the order of the configuration, that the record matches; None if it matches none."""
    for rule in rules:
        if rule.match.matches(endpoint=endpoint, model=model, path=path):
            return rule
    return None
