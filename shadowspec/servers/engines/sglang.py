"""SGLang: its `/generate`, its self-description, its metrics, and the files of its flags.

The answers of `/generate` have `meta_info`: how often drafts were verified, and how many steps accepted how many
tokens, counted before an output is cut at its end (`_resolve_spec_v2_tokens`, `_calculate_spec_decoding_metrics`).
Written after the sources of 0.5.23 (docs/servers.md).  It has no n-gram lookup like others' (a trie of all requests'
outputs), and a draft's distribution follows only temperature (`sample_draft_proposal`).  What it makes of messages and
tools is in `serving_chat.py` (revision 002897c2) and `protocol.py` of `entrypoints/openai`, and
`parser/jinja_template_utils.py`.

Relied upon by the export, a YAML file for `--config` and the JSON of `--speculative-adaptive-config` (fields, version
and licence: tests/data/peers/sglang.json):
- a key of the adaptive config is the smallest batch size at which its entry applies, and batch sizes are first
  rounded up to a captured CUDA graph: so only speculation without a gap from batch size 1 is exported;
- an entry with one candidate step is fixed; `[0]` is off; keys that are no numbers are ignored, and so may name
  decisions;
- only EAGLE and EAGLE3 adapt.  Given to another algorithm the adaptive config is dropped with a warning and the
  full depth runs at every batch size.  There `max-running-requests` keeps the server within the measured loads;
- without it SGLang sets 48 requests when speculation is on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar, Final, TypeGuard

from shadowspec.servers.chat_answer import ChatAnswer
from shadowspec.servers.engines.engine import (
    GENERATION_DEFAULTS,
    UNKNOWN,
    Ask,
    Lack,
    ReportedDrafts,
    ServerIdentity,
    ServerPages,
    ServingEngine,
    document_of,
    listed_ids,
    max_model_len_of,
)
from shadowspec.servers.engines.export_parts import (
    DepthSchedule,
    Export,
    MethodKeys,
    ServedSettings,
    comment_lines,
    counterpart,
    yaml_lines,
)
from shadowspec.servers.engines.reported_facts import sglang_facts
from shadowspec.servers.engines.rules import EngineRules
from shadowspec.servers.kv_capacity import KvCapacity
from shadowspec.servers.metrics_page import PARALLEL_RANKS, MetricNames
from shadowspec.servers.request import ANY_OBJECT, ServerRequest, choice_rule
from shadowspec.servers.step_counts import (
    Accepted,
    CountsSource,
    OtherDepthError,
    UncountableError,
    from_histogram,
    mean_draft,
)
from shadowspec.servers.stream import Completion, StreamedAnswer
from shadowspec.types import (
    END_TO_END,
    FIRST_TOKEN,
    PER_TOKEN,
    QUEUE,
    ConstraintForm,
    DraftSampling,
    OutputConstraint,
    SpeculationConfig,
    VerifyRule,
)
from shadowspec.types.prompt_rules import BrokenArguments, PromptRules
from shadowspec.types.served_methods import BLOCK_METHODS, STEPS_KEY, WINDOW_KEYS, plain_key, plain_method, setting
from shadowspec.types.server_facts import FactName, known_dtype

# Algorithms that draft a chain in each step if they have one branch, and those that draft a block in one pass: of these
# `speculative_num_draft_tokens` is the verified window, which begins with the last token (`_handle_dflash`,
# `_handle_dspark`).  All draft as many tokens in every step.
CHAINS: Final = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "FROZEN_KV_MTP")
REPORTED_OF_CHATS: Final = (
    "return_spec_tokens_details",
    "return_input_ids_in_sglext",
    "return_output_ids_in_sglext",
)
TOLD_AT_EACH_EVENT: Final = {"include_usage": True, "continuous_usage_stats": True}
STREAMED: Final = frozenset({"stream", "stream_options", "max_tokens", "n", "logprobs", "top_logprobs"})
BLOCKS: Final = ("DFLASH", "DSPARK")
# Why the counts of the others are not ours.
UNCOUNTED: Final[Mapping[str, str]] = {
    "NGRAM": "it drafts a tree of tokens from all requests' outputs, and fills it up where it finds less",
    "UNO": "each of its steps emits two tokens besides the accepted ones",
}
CAPPED: Final = (
    "SGLang verifies only a part of some drafts, and counts all of them as proposed: start it with "
    "SGLANG_RAGGED_VERIFY_MODE=static"
)
DEVICE: Final = "device"
BY_ARG_MAX: Final = ("cpu", "xpu")  # devices where `_verify_uses_greedy`
REPORTED_SETTINGS: Final = (  # its settings on which figures depend
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_adaptive",
    "speculative_draft_model_path",
    "speculative_accept_threshold_single",
    "speculative_accept_threshold_acc",
    DEVICE,
    "weight_version",
)
ADAPTIVE_ALGORITHMS: Final = {"eagle": "EAGLE", "eagle3": "EAGLE3"}
ALGORITHMS: Final = {"draft_model": "STANDALONE", **ADAPTIVE_ALGORITHMS}
SIZING: Final = ("mem_fraction_static", "max_total_tokens")
_PARAMETERS: Final[Mapping[ConstraintForm, str]] = {  # of sampling_params
    ConstraintForm.JSON_OBJECT: "json_schema",
    ConstraintForm.JSON_SCHEMA: "json_schema",
    ConstraintForm.REGEX: "regex",
    ConstraintForm.CHOICE: "ebnf",
    ConstraintForm.GRAMMAR: "ebnf",
    ConstraintForm.STRUCTURAL_TAG: "structural_tag",
}
_METRICS: Final = MetricNames(
    prefix="sglang:",
    counters={
        "num_drafts": "spec_verify_calls_total",  # older versions have only gauges, which do not add up
        "num_output_tokens": "generation_tokens_total",
        "num_requests": "num_requests_total",
        "num_prompt_tokens": "prompt_tokens_total",
        "num_cached_tokens": "cached_tokens_total",
        "num_preemptions": "num_retracted_requests_total",
    },
    latencies={
        FIRST_TOKEN: "time_to_first_token_seconds",
        PER_TOKEN: "request_time_per_output_token_seconds",
        END_TO_END: "e2e_request_latency_seconds",
        QUEUE: "queue_time_seconds",
    },
    running="num_running_reqs",
    waiting="num_queue_reqs",
    kv_use="token_usage",
    late=frozenset({"num_preemptions"}),
    failed=("num_aborted_requests_total", "", frozenset()),
    kinds=frozenset({"is_streaming"}),
    copies=PARALLEL_RANKS | {"moe_ep_rank", "moe_dp_rank", "attn_tp_rank", "attn_cp_rank"},  # dp_rank's are shares
)


class _GenerateAnswer(StreamedAnswer):
    """Takes the events of one answer of /generate.

    An event holds the tokens so far, or, where the server streams increments, the further ones.
    """

    def _take_event(self, event: Mapping[str, Any], now_s: float) -> bool:
        meta, ids, text = event.get("meta_info"), event.get("output_ids"), event.get("text", "")
        if event.get("error"):
            return super()._take_event(event, now_s)
        if not isinstance(meta, dict) or not isinstance(ids, list) or not isinstance(text, str):
            raise self._fault("garbage", "an event has no tokens, or no metadata of them")
        number = meta.get("completion_tokens")
        if type(number) is not int:
            raise self._fault("miscounted", "an event does not say how many tokens there are")
        is_whole = len(ids) >= number
        if not is_whole and len(self._ids) + len(ids) != number:
            raise self._fault("miscounted", "the server counts another number of output tokens than it sent")
        if is_whole and ids[: len(self._ids)] != self._ids:
            raise self._fault("garbage", "tokens that were already sent have changed")
        reason = meta.get("finish_reason")
        choice = {
            "text": "" if is_whole else text,
            "token_ids": ids[len(self._ids) :] if is_whole else ids,
            "finish_reason": reason.get("type") if isinstance(reason, dict) else reason,
            "logprobs": _first_top(meta.get("output_top_logprobs")),
        }
        details = {"prompt_tokens_details": {"cached_tokens": meta.get("cached_tokens")}}
        usage = {"prompt_tokens": meta.get("prompt_tokens"), "completion_tokens": number} | details
        waited_s: Any = meta.get("queue_time")  # in the server, which tells it with --enable-metrics
        queue = {"queue_time_ms": 1e3 * waited_s} if type(waited_s) in (int, float) else {}
        translated = {"choices": [choice], "usage": usage, "metrics": {"speculative_decoding": meta} | queue}
        brought = super()._take_event(translated, now_s)
        if is_whole:
            self._texts = [text]
        return brought


class _ChatAnswer(ChatAnswer):
    """Takes the events of one chat: its ids and its steps come in one event behind its text (`SglExt`).

    Each event counts the tokens so far.  Retractions are not told; where the steps do not add up to the output, one is
    seen.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._counted: list[int] = []  # the tokens so far, at each event that brought some
        self._listed: list[int] | None = None  # the ids of the answer; None: not told

    @property
    def _num_tokens(self) -> int:
        return self._counted[-1] if self._counted else 0

    def _take_event(self, event: Mapping[str, Any], now_s: float) -> bool:
        usage, extension = event.get("usage"), event.get("sglext")
        number = usage.get("completion_tokens") if isinstance(usage, dict) and event.get("choices") else None
        if type(number) is int and number > self._num_tokens:
            self._counted.append(number)
        if isinstance(extension, dict):
            self._take_extension(extension)
        return super()._take_event(event, now_s)

    def _take_extension(self, extension: Mapping[str, Any]) -> None:
        outputs, details = extension.get("output_ids"), extension.get("spec_tokens_details")
        ids = outputs[0] if isinstance(outputs, list) and len(outputs) == 1 else None
        if not _are_ids(ids) or not _are_ids(extension.get("input_ids")):
            return
        self._listed, self._prompt_ids = ids, tuple(extension["input_ids"])
        self._metrics = {"speculative_decoding": details if isinstance(details, dict) else {}}

    def completion(self) -> Completion:
        if self._listed is None:
            return super().completion()
        self._ids, self._has_ids = self._listed, True
        sizes = [later - earlier for earlier, later in pairwise((0, *self._counted))]
        self._sizes = sizes if sum(sizes) == len(self._listed) else []  # without them the last step is not sure
        return super().completion()


class Sglang(ServingEngine):
    """SGLang by its own API."""

    name = "sglang"
    title = "SGLang"
    owner = "sglang"
    metrics = _METRICS
    rules = EngineRules(None, DraftSampling.TEMPERATURE)
    prompt_rules = PromptRules(
        part_separator=" ",
        drops_empty_parts=False,
        wraps_texts=False,
        media_means_parts=True,
        developer_is_system=False,
        reasoning_read=("reasoning_content",),
        reasoning_shown=("reasoning_content",),
        empties_arguments=False,
        broken_arguments=BrokenArguments.REFUSED,
        ends_on_user=True,
        hides_refused_tools=True,
        tool_fields=(("description", None), ("name", None), ("parameters", None), ("strict", False)),
    )
    speculation_flags = "--speculative-algorithm"
    method_keys = MethodKeys("speculative-algorithm", "speculative-num-steps", "speculative-draft-model-path")
    counts_source = CountsSource("meta_info", "each answer's meta_info")
    uncounted = "sends meta_info without a histogram of steps: SGLang is too old"
    remedies: ClassVar[Mapping[Lack, str]] = {
        Lack.QUEUE_TIMES: "--enable-metrics",
        Lack.PREFIX_CACHE: "start SGLang without --disable-radix-cache",
    }
    answer_type = _GenerateAnswer
    chat_answer_type = _ChatAnswer
    beside_suffix = ".adaptive.json"
    generation_defaults = GENERATION_DEFAULTS  # with its `--sampling-defaults model`, which is the default
    path = "generate"

    def chat_ids(self, ask: Ask, body: Mapping[str, Any], model: str) -> Sequence[int] | None:
        """Of an answer of one token: SGLang tells them there since 0.5.13, and renders no chat without answering it."""
        asked = {name: value for name, value in body.items() if name not in STREAMED}
        own = {"model": model, "max_completion_tokens": 1, "stream": False, "return_prompt_token_ids": True}
        answer = ask("v1/chat/completions", asked | own)
        choices = None if answer is None else answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        return listed_ids(choice if isinstance(choice, dict) else None, "prompt_token_ids")

    def text_ids(self, ask: Ask, text: str, model: str) -> Sequence[int] | None:
        return listed_ids(ask("tokenize", {"model": model, "prompt": text}))

    def body_of(self, request: ServerRequest, model: str, salt: str) -> dict[str, Any]:
        """The body of /generate, streamed, with every sampling parameter spelled out.

        The salt is sent under both names that versions know; one that knows neither ignores them.
        """
        asked = request.sampling
        sampling: dict[str, Any] = {
            "max_new_tokens": asked.max_tokens,
            "min_new_tokens": asked.min_tokens,
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "top_k": asked.top_k or -1,
            "min_p": asked.min_p,
            "repetition_penalty": asked.repetition_penalty,
            "presence_penalty": asked.presence_penalty,
            "frequency_penalty": asked.frequency_penalty,
            "ignore_eos": asked.ignore_eos,
            "skip_special_tokens": not request.keeps_special_tokens,
            "stop": list(asked.stop),
            "stop_token_ids": list(asked.stop_token_ids),
            "sampling_seed": request.seed,
            "n": 1,
        }
        if request.constraint is not None:
            sampling |= constraint_parameters(request.constraint)
        body = {
            "input_ids": list(request.prompt_token_ids),
            "sampling_params": sampling,
            "stream": True,
            "extra_key": salt,
            "cache_salt": salt,
        }
        if request.num_logprobs:
            body |= {"return_logprob": True, "top_logprobs_num": request.num_logprobs}
        return body

    def chat_body_of(self, request: ServerRequest, models: Collection[str], model: str, salt: str) -> dict[str, Any]:
        """The body of a chat, with the salt under both names, that asks for ids and steps; 0.5.23 reports them."""
        body = super().chat_body_of(request, models, model, salt)
        told = dict.fromkeys(REPORTED_OF_CHATS, True)
        return body | told | {"extra_key": salt, "stream_options": TOLD_AT_EACH_EVENT}

    def counts_chat(self, answer: Completion) -> bool:
        return answer.token_ids is not None

    def scoring_body_of(
        self, token_ids: Sequence[int], start: int, num_logprobs: int, model: str, salt: str
    ) -> dict[str, Any]:
        """The body of /generate, not streamed, that asks for the likeliest tokens at each place from `start` on."""
        return {
            "input_ids": list(token_ids),
            "sampling_params": {"max_new_tokens": 1, "temperature": 1.0, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": start - 1,
            "top_logprobs_num": num_logprobs,
            "stream": False,
            "extra_key": salt,
            "cache_salt": salt,
        }

    def prompt_logprobs_of(self, answer: Mapping[str, Any], token_ids: Sequence[int], start: int) -> list[Any]:
        token_ids = token_ids[start:]
        meta = answer.get("meta_info")
        chosen, likeliest = (
            (meta.get(name) if isinstance(meta, dict) else None)
            for name in ("input_token_logprobs", "input_top_logprobs")
        )
        if (
            not isinstance(chosen, list)
            or not isinstance(likeliest, list)
            or not len(token_ids) <= len(chosen) == len(likeliest)
        ):
            return [None] * len(token_ids)
        first = len(chosen) - len(token_ids)
        return [
            None if drawn is None or drawn.keys() != {token} or every is None else every | drawn
            for token, drawn, every in zip(
                token_ids,
                (_by_id([entry]) for entry in chosen[first:]),
                (_by_id(entries) for entries in likeliest[first:]),
                strict=True,
            )
        ]

    async def identify(self, server: ServerPages, entry: Mapping[str, Any]) -> ServerIdentity:
        """SGLang says of itself how it was started."""
        info = await _server_info(server)
        return ServerIdentity(
            self.name,
            str(info.get("version", UNKNOWN)),
            str(info.get("model_path", UNKNOWN)),
            max_model_len_of(entry),
            tuple((name, str(info[name])) for name in REPORTED_SETTINGS if name in info),
            sglang_facts(info),
            known_dtype(info.get("dtype")),
        )

    async def drafts_of(
        self, server: ServerPages, identity: ServerIdentity, answer: Completion | None, model: str
    ) -> ReportedDrafts:
        """By its start settings."""
        settings = dict(identity.reported_settings)
        number, meta = _chain_length(settings), (answer.speculation if answer is not None else None) or {}
        return ReportedDrafts(
            number,
            counts_by_request=bool(number) and bool(_spec_fields(meta)),
            uncountable=_uncountable(settings) or (CAPPED if _is_capped(meta) else None),
            settings=tuple(
                (name, value)
                for name, value in identity.reported_settings
                if name.startswith("speculative_") or name == DEVICE
            ),
        )

    def remarks_on(self, drafts: ReportedDrafts) -> list[str]:
        """Where it verifies every request by the arg-max, whatever its temperature."""
        device = dict(drafts.settings).get(DEVICE)
        if device not in BY_ARG_MAX or not drafts.num_speculative_tokens:
            return []
        return [
            f"on a device {device!r} SGLang verifies sampled requests by the arg-max, so that they come out greedy: "
            "measure greedy requests there"
        ]

    def forced_facts(self, config: SpeculationConfig) -> Collection[FactName]:
        return ("max_num_seqs", "async_scheduling")  # 48 with speculation, and no overlap with some algorithms

    def longest_draft_in(self, answer: Completion) -> int:
        """As many as it proposed in each verification; at least 1 where something was verified."""
        meta = answer.speculation or {}
        return mean_draft(_num_proposed(meta), meta.get("spec_verify_ct"))

    async def capacity_of(self, server: ServerPages, identity: ServerIdentity) -> KvCapacity | None:
        return capacity_in(await _server_info(server), identity.max_model_len)

    def count(
        self, answer: Completion, num_prompt_tokens: int, num_speculative_tokens: int, *, drafts_always: bool
    ) -> Accepted:
        """From `meta_info`; every step drafts a chain of as many tokens as were configured."""
        meta = answer.speculation or {}
        if _num_retractions(meta):
            raise UncountableError("the request was thrown out of its batch, and a token of it made without a draft")
        if _is_capped(meta):
            raise UncountableError("only a part of a draft was verified")
        steps = _spec_fields(meta)
        if steps is None and answer.num_output_tokens > 1:
            raise UncountableError("meta_info holds no histogram of steps")
        verified, step_counts = steps or (0, [])
        histogram = [*step_counts, *[0] * (num_speculative_tokens + 1 - len(step_counts))]
        if sum(histogram) != verified:
            raise UncountableError("the histogram has other steps than were verified")
        if len(histogram) != num_speculative_tokens + 1:
            raise OtherDepthError(len(histogram) - 1, num_speculative_tokens)
        if _num_proposed(meta) not in (None, verified * num_speculative_tokens):
            raise OtherDepthError(self.longest_draft_in(answer), num_speculative_tokens)
        accepted = sum(number * count for number, count in enumerate(histogram))
        if meta.get("spec_num_correct_drafts", accepted) != accepted:
            raise UncountableError("the histogram has other accepted tokens than were counted")
        return from_histogram(histogram, answer, num_prompt_tokens)

    def has_one_depth(self, config: SpeculationConfig) -> bool:
        """Whether its algorithm cannot adapt the depth to the batch size."""
        return config.proposer not in ADAPTIVE_ALGORITHMS or config.is_served_method

    def served_settings(self, schedule: DepthSchedule, config: SpeculationConfig) -> ServedSettings:
        """As of any engine; a block's depth is said by its window."""
        served = super().served_settings(schedule, config)
        if served.values is None or plain_method(config.proposer) not in BLOCK_METHODS:
            return served
        values = {key: value for key, value in served.values.items() if plain_key(key) != STEPS_KEY}
        if setting(values, (*WINDOW_KEYS, "speculative_dspark_block_size")) is None:
            values["speculative-num-draft-tokens"] = config.num_speculative_tokens + 1
        return replace(served, values=values)

    def export(self, schedule: DepthSchedule, beside: str) -> Export:
        """The flags; beside them lies the adaptive config."""
        head = comment_lines([schedule.basis])
        if schedule.config is not None and schedule.config.is_served_method:
            return self._served_method(schedule, schedule.config, head)
        leading = schedule.leading_ranges()
        algorithm = counterpart(schedule.config, ALGORITHMS)
        if schedule.config is None or algorithm is None or not leading:
            return self._off(schedule, head)

        remarks = self.rule_remarks(schedule.config)
        is_adaptive = not self.has_one_depth(schedule.config)
        if not is_adaptive:
            leading = leading[:1]  # one depth only
        last = leading[-1].last
        assert last is not None, "no schedule is on without end"
        if schedule.largest_load_on > last:
            remarks.append(f"speculation above batch size {last} cannot be expressed and is left out")
        depth = max(batches.num_speculative_tokens for batches in leading)
        flags: dict[str, object] = {
            "speculative-algorithm": algorithm,
            "speculative-draft-model-path": schedule.config.draft,
            "speculative-num-steps": depth,
            "speculative-eagle-topk": 1,
            "speculative-num-draft-tokens": depth + 1,
        }
        if schedule.config.verify_rule is VerifyRule.REJECTION:
            flags["speculative-use-rejection-sampling"] = True
        files = {}
        if is_adaptive:
            flags |= {"speculative-adaptive": True, "speculative-adaptive-config": beside}
            entries: dict[str, object] = {
                str(batches.first): _fix_steps(batches.num_speculative_tokens) for batches in leading
            }
            entries |= {str(last + 1): _fix_steps(0), "shadowspec_decisions": list(schedule.decision_ids)}
            files[self.beside_suffix] = json.dumps(entries, indent=2) + "\n"
        flags["max-running-requests"] = last
        remarks.append(f"max-running-requests {last} keeps the server at batch sizes that were measured")
        return Export.of([*head, *yaml_lines(flags)], remarks, files)

    def _served_method(self, schedule: DepthSchedule, config: SpeculationConfig, head: list[str]) -> Export:
        """The flags as the measured server was given them, and how far it may go with them."""
        served = self.served_settings(schedule, config)
        if served.values is None:
            return Export.of([*head, *comment_lines(["speculation is off"]), "{}"], served.remarks)
        flags = {**served.values, "max-running-requests": served.max_batch_size}
        limit = f"max-running-requests {served.max_batch_size} keeps the server at batch sizes that were measured"
        return Export.of([*head, *yaml_lines(flags)], (limit, *served.remarks))

    def _off(self, schedule: DepthSchedule, head: list[str]) -> Export:
        remarks = self.off_remarks(schedule, ALGORITHMS)
        # Speculation is off where no flag is given.
        return Export.of([*head, *comment_lines(["speculation is off"]), "{}"], remarks)


async def _server_info(server: ServerPages) -> Mapping[str, Any]:
    """SGLang's start settings and its capacity.

    Raises:
        ServerError: it cannot be reached, or does not report them.
    """
    text = await server.look("server_info")
    return document_of(server, text if text is not None else await server.look("get_server_info"), "/server_info")


def capacity_in(info: Mapping[str, Any], max_model_len: int | None) -> KvCapacity | None:
    """From SGLang's /server_info: `max_total_num_tokens` of one rank of data parallelism, of which there are several.

    Each rank says how many it holds in `internal_states` (`memory_usage.token_capacity`); where they do not, all count
    as the first.
    """
    states = info.get("internal_states")
    usages = (
        [state.get("memory_usage") for state in states if isinstance(state, dict)] if isinstance(states, list) else []
    )
    held = [usage.get("token_capacity") for usage in usages if isinstance(usage, dict)]
    counts = [tokens for tokens in held if type(tokens) is int and tokens > 0]
    first = info.get("max_total_num_tokens")
    if type(first) is int and first > 0 and not counts:
        size = info.get("dp_size")
        counts = [first] * (size if type(size) is int and size > 0 else 1)
    if not counts:
        return None
    tokens = sum(counts)
    sizing = ((name, info.get(name)) for name in SIZING)
    return KvCapacity(
        tokens,
        tokens / max_model_len if max_model_len else None,
        tuple((name, str(value)) for name, value in sizing if value is not None),
    )


def _chain_length(settings: Mapping[str, str]) -> int:
    """How many tokens it drafts in each step; 0 where it does not speculate."""
    algorithm = settings.get("speculative_algorithm", "None")
    if algorithm == "None":
        return 0
    name, beyond = ("num_steps", 0) if algorithm in CHAINS else ("num_draft_tokens", 1)  # NGRAM may report 0 steps
    number = settings.get(f"speculative_{name}", "")
    return max(0, int(number) - beyond) if number.isdigit() else 0


def _uncountable(settings: Mapping[str, str]) -> str | None:
    """Why its accepted tokens cannot be counted as ours; None where they can."""
    algorithm, steps = settings.get("speculative_algorithm", "None"), settings.get("speculative_num_steps", "")
    if algorithm == "None":
        return None
    if algorithm not in CHAINS + BLOCKS:
        why = UNCOUNTED.get(algorithm)
        return (
            f"SGLang's counts with {algorithm} are not supported{'' if why is None else f' ({why})'}; "
            f"supported: {', '.join(CHAINS + BLOCKS)}"
        )
    if settings.get("speculative_adaptive", "False") != "False":
        return "SGLang drafts another number of tokens now and then: start it without --speculative-adaptive"
    if settings.get("speculative_eagle_topk") != "1":
        return "SGLang drafts a tree: start it with --speculative-eagle-topk 1"
    if algorithm in CHAINS and (
        not steps.isdigit() or settings.get("speculative_num_draft_tokens") != str(int(steps) + 1)
    ):
        return "SGLang verifies other tokens than a chain: leave out --speculative-num-draft-tokens"
    return None


def _are_ids(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(token) is int and token >= 0 for token in value)


def _is_capped(meta: Mapping[str, Any]) -> bool:
    """Whether a request's drafts may have been verified in part: the counts still say that all of each was proposed."""
    return any(meta.get(name) for name in ("spec_cap_length", "spec_cap_lens_histogram"))


def _spec_fields(meta: Mapping[str, Any]) -> tuple[int, list[int]] | None:
    """How often drafts were verified, and how many steps accepted how many tokens; None where it does not say.

    Versions have called the second by two names.
    """
    verified = meta.get("spec_verify_ct")
    histogram = meta.get("spec_correct_drafts_histogram", meta.get("spec_accept_histogram"))
    if type(verified) is not int or not isinstance(histogram, list):
        return None
    return (verified, histogram) if all(type(count) is int and count >= 0 for count in histogram) else None


def _num_proposed(meta: Mapping[str, Any]) -> int | None:
    """How many tokens were drafted; None where it does not say."""
    names = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
    return next((meta[name] for name in names if type(meta.get(name)) is int), None)


def _num_retractions(meta: Mapping[str, Any]) -> int:
    """How often the request was removed from its batch and restarted with its tokens so far."""
    return next((meta[name] for name in ("num_retractions", "total_retractions") if type(meta.get(name)) is int), 0)


def _first_top(places: Any) -> dict[str, Any] | None:
    """The first place's likeliest tokens, as OpenAI's answers have them."""
    if not isinstance(places, list) or not places or (first := _by_id(places[0])) is None:
        return None
    return {"top_logprobs": [{str(token): logprob for token, logprob in first.items()}]}


def _by_id(entries: Any) -> dict[int, Any] | None:
    """Log probabilities by token, from entries of log probability, token and text."""
    if not isinstance(entries, list) or not all(isinstance(entry, list) and len(entry) >= 2 for entry in entries):
        return None
    if not all(type(entry[1]) is int for entry in entries):
        return None
    return {entry[1]: entry[0] for entry in entries}


def constraint_parameters(constraint: OutputConstraint) -> dict[str, Any]:
    """Additional sampling parameters of SGLang's /generate, all of them text."""
    return {_PARAMETERS[constraint.form]: _TEXTS.get(constraint.form, _text)(constraint)}


def _text(constraint: OutputConstraint) -> str:
    return constraint.text


def _any_object(_: OutputConstraint) -> str:
    return ANY_OBJECT


def _fix_steps(num_steps: int) -> dict[str, list[int]]:
    return {"candidate_steps": [num_steps]}


def _schema(constraint: OutputConstraint) -> str:
    """The schema; of a call that is named, that of the array of calls in which SGLang expects it."""
    if constraint.tool_name is None:
        return constraint.text
    parameters = json.loads(constraint.text)
    shared = parameters.pop("$defs", None)
    properties = {"name": {"type": "string", "enum": [constraint.tool_name]}, "parameters": parameters}
    call = {"type": "object", "properties": properties, "required": ["name", "parameters"]}
    schema = {"type": "array", "minItems": 1, "items": call}
    return json.dumps(schema | ({} if shared is None else {"$defs": shared}))


_TEXTS: Final[Mapping[ConstraintForm, Callable[[OutputConstraint], str]]] = {
    ConstraintForm.JSON_OBJECT: _any_object,
    ConstraintForm.JSON_SCHEMA: _schema,
    ConstraintForm.CHOICE: choice_rule,
}
