"""The protocol of a serving engine: one class holds everything in which it differs from the others.

The defaults are those of OpenAI's API: a body with token ids in and out, a streamed answer with its usage, models at
/v1/models.  An engine class says what is sent, how answers are read, what a server reports of itself, how its counts
become ours, how its metrics are named, and what an export writes for it.  It does no input or output of its own: it
reads a server's pages through `ServerPages`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final, Protocol

from shadowspec.servers.chat_answer import ChatAnswer
from shadowspec.servers.engines.export_parts import DepthSchedule, Export, MethodKeys, ServedSettings, left_out
from shadowspec.servers.engines.launching import Launcher
from shadowspec.servers.engines.rules import EngineRules, differences
from shadowspec.servers.kv_capacity import KvCapacity
from shadowspec.servers.metrics_page import MetricNames
from shadowspec.servers.request import ServerRequest, body_of, chat_body_of, scoring_body_of
from shadowspec.servers.step_counts import Accepted, CountsSource, UncountableError
from shadowspec.servers.stream import Completion, ServerError, StreamedAnswer
from shadowspec.types import UNSEEDED, LiveCounts, SpeculationConfig
from shadowspec.types.prompt_rules import PromptRules
from shadowspec.types.served_methods import DEPTH_KEYS, DRAFT_KEYS, METHOD_KEYS, setting
from shadowspec.types.server_facts import Dtype, FactName
from shadowspec.types.serving_engines import parse_engines, plain_name

UNKNOWN: Final = "unknown"
# Sampling parameters of a generation_config.json that engines take as defaults.
GENERATION_DEFAULTS: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
BATCH_SIZE_1: Final = "speculation is off at batch size 1, which cannot be expressed: exported as off"


# The JSON object that a server answers to one at a path; None where there is no such path.
Ask = Callable[[str, Mapping[str, Any]], Mapping[str, Any] | None]


class ServerPages(Protocol):
    """A server whose pages can be read."""

    name: str  # for messages

    async def look(self, path: str) -> str | None:
        """The text at a path; None where there is none (404).

        Raises:
            ServerError: it cannot be reached, or answers with an error.
        """


class Lack(StrEnum):
    """What a server may lack or not report, for which its engine may have a remedy."""

    QUEUE_TIMES = "queue times"
    CACHED_TOKENS = "cached tokens"
    SCORES = "scores"
    METHOD = "method"
    CAPACITY = "capacity"
    PREFIX_CACHE = "prefix cache"


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """A server as it describes itself; another answer is another server."""

    engine: str  # e.g. "vllm"
    version: str
    root: str  # where it took the model's weights from
    max_model_len: int | None
    reported_settings: tuple[tuple[str, str], ...] = ()  # of its speculation; () where it reports none
    reported_facts: tuple[tuple[str, str], ...] = ()  # the rest on which figures depend (`types.server_facts`)
    dtype: Dtype | None = None  # in which it computes, where it says so: "bfloat16"

    @property
    def name(self) -> str:
        """Engine and version, as a fingerprint has them."""
        return f"{self.engine}/{self.version}"


@dataclass(frozen=True, slots=True)
class ReportedDrafts:
    """What a server reports of its drafts.  `num_speculative_tokens`: 0: it does not speculate; None: unknown."""

    num_speculative_tokens: int | None
    counts_by_request: bool  # each answer reports the accepted tokens of each step
    has_counters: bool = False
    has_metrics: bool = False
    uncountable: str | None = None  # why its accepted tokens can never be counted
    settings: tuple[tuple[str, str], ...] = ()  # of drafting, as it reports them; (): it reports none


class ServingEngine(ABC):
    """One serving engine.  An instance is that of one server, with the version that the server reports."""

    name: ClassVar[str]  # as a configuration and a fingerprint name it
    title: ClassVar[str]  # as people write it
    owner: ClassVar[str]  # `owned_by` in its /v1/models
    has_salts: ClassVar[bool] = True  # its prefix cache keeps prompts of different salts apart
    metrics: ClassVar[MetricNames]
    rules: ClassVar[EngineRules] = EngineRules()
    cpu_rules: ClassVar[EngineRules | None] = None  # of its build for CPUs, where they differ
    prompt_rules: ClassVar[PromptRules] = PromptRules()
    returns_text: ClassVar[bool] = True  # beside token ids
    speculation_flags: ClassVar[str | None] = None  # with which a server of it speculates
    launcher: ClassVar[Launcher | None] = None  # that starts a server of it on this machine
    counts_source: ClassVar[CountsSource]  # of answers that report the accepted tokens of each step
    uncounted: ClassVar[str] = ""  # why neither answers nor counters of a server have them, as a clause
    remedies: ClassVar[Mapping[Lack, str]] = {}
    method_keys: ClassVar[MethodKeys]  # where a server's drafting method is exported
    reports_masked_places: ClassVar[bool] = False  # likeliest tokens of each generated place, after a grammar's mask
    answer_type: ClassVar[type[StreamedAnswer]] = StreamedAnswer
    counts_empty_drafts: ClassVar[bool] = False  # its counters take a step for a draft whose grammar forbade all of it
    beside_suffix: ClassVar[str] = ""  # of the file beside an export, where the engine has one
    path: ClassVar[str] = "v1/completions"  # where completions are asked for
    chat_answer_type: ClassVar[type[ChatAnswer]] = ChatAnswer
    headers: ClassVar[Mapping[str, str]] = {}  # of every completion
    # How it samples a request that leaves parameters open: what it takes from the model's generation_config.json,
    # unless it is told otherwise, and its own defaults where they are not neutral.
    generation_defaults: ClassVar[Collection[str]] = ()
    own_sampling: ClassVar[Mapping[str, float]] = {}
    unseeded: ClassVar[frozenset[int]] = UNSEEDED

    def __init__(self, version: str = "") -> None:
        self.version = version

    # What is sent, and how answers are read.

    def lacking(self, request: ServerRequest) -> str | None:
        """The name of a parameter that cannot be asked for; None where all can."""
        return None

    def body_of(self, request: ServerRequest, model: str, salt: str) -> dict[str, Any]:
        """The body of a request for a streamed answer; `salt` keeps its prompt apart in the server's prefix cache."""
        return body_of(request, model, salt)

    def counts_chat(self, answer: Completion) -> bool:
        """Whether a chat's answer reports tokens and steps as a completion's does."""
        return False

    def chat_body_of(self, request: ServerRequest, models: Collection[str], model: str, salt: str) -> dict[str, Any]:
        """The body of a chat: the client's, made explicit (`chat_body_of`)."""
        return chat_body_of(request, models, model, salt)

    def scored_together(self, length: int, start: int) -> list[range]:
        """The places of a prompt from `start` on, by the requests that ask for them."""
        return [range(start, length)]

    def scoring_body_of(
        self, token_ids: Sequence[int], start: int, num_logprobs: int, model: str, salt: str
    ) -> dict[str, Any]:
        """The request for the likeliest tokens at each place of a prompt from `start` on."""
        return scoring_body_of(token_ids, num_logprobs, model, salt)

    def prompt_logprobs_of(self, answer: Mapping[str, Any], token_ids: Sequence[int], start: int) -> list[Any]:
        """Each place of that answer from `start` on: log probabilities by token, or None where it has none."""
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        logprobs = choice.get("prompt_logprobs") if isinstance(choice, dict) else None
        if not isinstance(logprobs, list) or len(logprobs) != len(token_ids):
            return [None] * (len(token_ids) - start)
        return [_logprobs_of(place) for place in logprobs[start:]]

    def chat_ids(self, ask: Ask, body: Mapping[str, Any], model: str) -> Sequence[int] | None:
        """The token ids that a server makes of a chat's body, as it says itself; None where it does not.

        Raises:
            ServerError: it cannot be reached, or refuses the chat.
        """
        return None

    def text_ids(self, ask: Ask, text: str, model: str) -> Sequence[int] | None:
        """The same of a text, special tokens included."""
        return None

    # What a server reports of itself.

    async def identify(self, server: ServerPages, entry: Mapping[str, Any]) -> ServerIdentity:
        """The server as it describes itself; `entry` is the model's in /v1/models.

        Raises:
            ServerError: it cannot be reached, or its description is incomplete.
        """
        text = await server.look("version")
        version = UNKNOWN if text is None else str(document_of(server, text, "/version").get("version", UNKNOWN))
        return ServerIdentity(
            str(entry.get("owned_by") or UNKNOWN), version, str(entry.get("root") or UNKNOWN), max_model_len_of(entry)
        )

    async def drafts_of(
        self, server: ServerPages, identity: ServerIdentity, answer: Completion | None, model: str
    ) -> ReportedDrafts:
        """What the server reports of its drafts, in its pages and, where there is one, in an answer.

        Raises:
            ServerError: it cannot be reached.
        """
        return ReportedDrafts(None, counts_by_request=False)

    async def capacity_of(self, server: ServerPages, identity: ServerIdentity) -> KvCapacity | None:
        """The capacity of the server's KV cache; None where it is not reported.

        Raises:
            ServerError: it cannot be reached.
            ValueError: its page is in another format.
        """
        return None

    def num_slots(self, identity: ServerIdentity) -> int | None:
        """How many requests the server serves at once at most, by its own report; None without one."""
        return None

    # How its counts become ours.

    def refusal_of(self, config: SpeculationConfig) -> str | None:
        """Why a candidate cannot be measured on it; None where it can."""
        return None

    def forced_facts(self, config: SpeculationConfig) -> Collection[FactName]:
        """The facts that a drafting method changes by itself: such a difference is part of what it costs."""
        return ()

    def remarks_on(self, drafts: ReportedDrafts) -> list[str]:
        """Shortcomings of a speculative server that can be measured."""
        return []

    def longest_draft_in(self, answer: Completion) -> int:
        """The largest number of tokens in a draft by what an answer reports; 0 where it reports no draft."""
        return 0

    def counters_on(self, page: str, model: str) -> LiveCounts | None:
        """The counters of drafts on its page of metrics; None where they cannot replace counts of answers.

        Raises:
            ValueError: the page is in another format.
        """
        return None

    def count(
        self, answer: Completion, num_prompt_tokens: int, num_speculative_tokens: int, *, drafts_always: bool
    ) -> Accepted:
        """The counters of one request, from its answer.

        Args:
            drafts_always: the proposer has a draft in every step, as models and heads do, and lookup does not.

        Raises:
            UncountableError: the answer's counts are incomplete, or contradictory.
        """
        raise UncountableError("the engine's answers report no steps")

    def steps_of(self, answer: Completion) -> list[tuple[int, int]] | None:
        """Drafted and accepted tokens of each step with a draft, in their order; None where it does not report them."""
        return None

    def uncertain_tokens(self, finish_reason: str, num_speculative_tokens: int, *, drafts_always: bool) -> int:
        """Accepted tokens by which the count of such an answer may be wrong: all of them lie in its last step.

        It depends on nothing that was drafted, so that a bound made of it holds on average given the output.
        """
        return 0 if drafts_always else num_speculative_tokens - 1

    # What an export writes.

    def has_one_depth(self, config: SpeculationConfig) -> bool:
        """Whether a server of it drafts this config to one depth at every batch size."""
        return False

    @abstractmethod
    def export(self, schedule: DepthSchedule, beside: str) -> Export:
        """The part of a server's configuration that concerns speculation.

        Args:
            beside: where a file beside the export will lie, as the server sees it (`Export.beside`).
        """

    def served_settings(self, schedule: DepthSchedule, config: SpeculationConfig) -> ServedSettings:
        """The start settings of a server that drafts by its method as measured, unchanged, and only on this engine."""
        measured = {engine.name for text in schedule.engines for engine in parse_engines(text)}
        if set(map(plain_name, measured)) != {plain_name(self.name)}:
            names = ", ".join(sorted(measured)) or "an unknown engine"
            reason = f"{config.proposer} is a method of {names}, not of {self.title}: exported as off"
            return ServedSettings(None, 0, (reason,))
        leading = schedule.leading_ranges()
        if not leading:
            return ServedSettings(None, 0, (BATCH_SIZE_1,))
        last = leading[0].last
        assert last is not None, "no schedule is on without end"
        assert leading[0].num_speculative_tokens == config.num_speculative_tokens, "the settings are of another depth"
        values, keys = dict(config.server_settings), self.method_keys
        if setting(values, METHOD_KEYS) is None:
            values[keys.method] = config.proposer
        if setting(values, DEPTH_KEYS) is None:
            values[keys.depth] = config.num_speculative_tokens
        if config.draft is not None and setting(values, DRAFT_KEYS) is None:
            values[keys.draft] = config.draft
        return ServedSettings(values, last, tuple(left_out(schedule, last)))

    def rule_remarks(self, config: SpeculationConfig) -> list[str]:
        """Remarks where the exported config drafted by another rule, so that its acceptance may differ."""
        return [difference.text for difference in differences(config, self.rules, self.title)]

    def off_remarks(self, schedule: DepthSchedule, proposers: Collection[str]) -> list[str]:
        """Why an engine that knows these proposers, and depths from batch size 1 on, gets nothing of the schedule."""
        config = schedule.config
        if config is None:
            return []
        if config.is_adaptive:
            return [f"{self.title} has no counterpart of the measured draft_confidence_threshold: exported as off"]
        if config.proposer not in proposers:
            return [f"{self.title} has no counterpart of the measured proposer {config.proposer}: exported as off"]
        return [BATCH_SIZE_1]


def document_of(server: ServerPages, text: str | None, path: str) -> Mapping[str, Any]:
    """The JSON object on a page.

    Raises:
        ServerError: it is missing, or no object.
    """
    try:
        document = json.loads(text or "")
    except ValueError as error:
        raise ServerError(server.name, "garbage", f"{path} is missing or not JSON") from error
    if not isinstance(document, dict):
        raise ServerError(server.name, "garbage", f"{path} is not an object")
    return document


def listed_ids(answer: Mapping[str, Any] | None, name: str = "tokens") -> Sequence[int] | None:
    """The token ids under a name of an answer; None without any."""
    ids = None if answer is None else answer.get(name)
    return ids if isinstance(ids, list) else None


def max_model_len_of(entry: Mapping[str, Any]) -> int | None:
    """The tokens of prompt and output that a model takes, by its entry in /v1/models."""
    length = entry.get("max_model_len")
    return length if type(length) is int else None


def _logprobs_of(logprobs: Any) -> dict[int, Any] | None:
    """Log probabilities by token, from the entry of one place."""
    if not isinstance(logprobs, dict) or not all(isinstance(entry, dict) for entry in logprobs.values()):
        return None
    if not all(name.isdigit() for name in logprobs):
        return None
    return {int(name): entry.get("logprob") for name, entry in logprobs.items()}
