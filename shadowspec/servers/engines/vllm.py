"""vLLM: OpenAI's API with its fields, its metrics, and the JSON of `--speculative-config`.

Names were tried on 0.32.0.  Its model runner V2, which runs on GPUs (`VllmConfig.use_v2_model_runner`), copies from
the latest of several occurrences of an n-gram and fills what is left (`worker/gpu/spec_decode/ngram/speculator.py`);
V1, which runs on CPUs, takes the earliest (`spec_decode/ngram_proposer.py`).  A draft's distribution follows only
temperature (`llm_base_proposer.py`), and drafts go on beyond a request's limit of output tokens.  Sampling defaults
are those of the model's generation_config.json (`ModelConfig.get_diff_sampling_param`; none with `--generation-config
vllm`), and a seed of -1 is none (`SamplingParams`).  What it makes of messages and tools is in
`renderers/chat_utils.py` and `renderers/hf.py`.

Read in vLLM's source (fields, versions and licence: tests/data/peers/vllm.json), and relied upon here:
- the ranges of `num_speculative_tokens_per_batch_size` are inclusive, begin at 1 and do not overlap; a batch size
  that none of them holds gets the depth of the range before it, so that every off is written out, the last
  without end;
- depths are cut to `num_speculative_tokens`;
- with data parallelism the ranges are dropped with a warning and the full depth runs at every batch size;
- the suffix method asserts that every step has the full depth and so ends the server at a range with another one
  (vllm-project/vllm#46399): none is written for it, and it runs at every batch size that the server allows;
- a draft model drafts as many tokens as it may, at any confidence;
- an unknown key is refused, so that no decision id can be written;
- a draft model of another vocabulary drafts the arg-max of the shared tokens (`use_heterogeneous_vocab`), no samples;
- 0.33 has no Medusa and no `mlp_speculator` any more;
- on model runner V1 the ranges make full CUDA graphs piecewise (`_maybe_override_dynamic_sd_cudagraph_mode`);
- from 0.33 on, runner V2 lowers max_model_len to the draft's (`_limit_max_model_len_to_draft`);
- with speculation a request with min_p or logit_bias is answered with 400 (`_validate_spec_decode`).

The config of a vLLM server that drafted by its `method` is written unchanged, with no ranges of batch sizes: not every
method takes them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from shadowspec.servers.engines.engine import (
    GENERATION_DEFAULTS,
    Ask,
    Lack,
    ReportedDrafts,
    ServerIdentity,
    ServerPages,
    ServingEngine,
    listed_ids,
)
from shadowspec.servers.engines.export_parts import (
    BatchRange,
    DepthSchedule,
    Export,
    MethodKeys,
    left_out,
)
from shadowspec.servers.engines.launching import Launcher, ServerStart, with_defaults
from shadowspec.servers.engines.reported_facts import vllm_dtype, vllm_facts
from shadowspec.servers.engines.rules import EngineRules
from shadowspec.servers.kv_capacity import KvCapacity
from shadowspec.servers.metrics_page import MetricNames, MetricsPage, families_on, parse
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.step_counts import (
    Accepted,
    CountsSource,
    OtherDepthError,
    UncountableError,
    from_steps,
    integers,
)
from shadowspec.servers.stream import Completion, ServerError
from shadowspec.types import (
    COMPUTE,
    END_TO_END,
    FIRST_TOKEN,
    PER_TOKEN,
    QUEUE,
    ConstraintForm,
    DraftSampling,
    LiveCounts,
    NgramOccurrence,
    OutputConstraint,
    SpeculationConfig,
    VerifyRule,
)
from shadowspec.types.prompt_rules import OMITTED, PromptRules
from shadowspec.types.served_methods import plain_method
from shadowspec.types.server_facts import FactName

STRUCTURED_SINCE: Final = (0, 11)  # the first version whose requests know `structured_outputs`; before: `guided_*`
# Of a chat's body what /tokenize reads.
RENDERED: Final = ("messages", "tools", "chat_template_kwargs", "documents", "continue_final_message")
DETAILED: Final = "--per-request-spec-decode-metrics detailed"
# With which a server that is started here reports what its figures need, and logs no requests.
REPORTING: Final = (
    *("--enable-per-request-metrics", "--enable-prompt-tokens-details"),
    *("--no-enable-log-requests", "--disable-uvicorn-access-log"),
)
HALF: Final = "0.45"  # of the device's memory, for each of two servers
CACHE_CONFIG: Final = "vllm:cache_config_info"  # one sample for each engine core of a server
SIZING: Final = ("gpu_memory_utilization", "num_gpu_blocks_override", "kv_cache_memory_bytes")
MAX_BATCH_SIZE: Final = 2**31 - 1  # means a range without end
DATA_PARALLEL: Final = (
    "with --data-parallel-size above 1 vLLM drops the batch-size ranges and speculates at every batch size: "
    "do not use this there"
)
SUFFIX: Final = (
    "vLLM's cache of outputs counts requests and not tokens, and holds outputs that are still being written. Its "
    "proposals may differ from those that were measured"
)
SCHEDULE: Final = (
    "each depth was measured by itself, and this schedule was not: confirm it on the speculative server. On model "
    "runner V1 it also makes full CUDA graphs piecewise (vllm-project/vllm#49548)"
)
REFUSED: Final = (
    "with speculation vLLM answers 400 to requests with min_p or logit_bias: let no such request reach this server"
)
SHORTER: Final = (
    "from 0.33 on vLLM lowers max_model_len to the draft model's where that is shorter, and refuses longer requests"
)
GONE_SINCE: Final = {"medusa": "0.33", "mlp_speculator": "0.33"}  # methods, and the first version without them
HETEROGENEOUS: Final = "heterogeneous_draft_model"
HETEROGENEOUS_SAMPLED: Final = (
    "vLLM drafts the arg-max of shared tokens where vocabularies differ, and rejection was measured: exported as off"
)
SHARED_TOKENS: Final = (
    "vLLM finds shared tokens by their spelling: of other kinds of tokenizers fewer may be shared than here"
)
PROCESS_STARTED: Final = re.compile(r"^process_start_time_seconds (\S+)$", re.MULTILINE)
FIRST_RUNNER: Final = frozenset({"suffix", "custom_class", "p_eagle", HETEROGENEOUS})  # run on model runner V1 only
SYNCHRONOUS: Final = frozenset({"ngram", "suffix", "medusa", "custom_class"})  # switch asynchronous scheduling off
PROPOSERS: Final = frozenset({"draft_model", HETEROGENEOUS, "ngram", "suffix", "eagle3"})
_STRUCTURED: Final[Mapping[ConstraintForm, str]] = {  # of vLLM's structured_outputs
    ConstraintForm.JSON_OBJECT: "json_object",
    ConstraintForm.JSON_SCHEMA: "json",
    ConstraintForm.REGEX: "regex",
    ConstraintForm.CHOICE: "choice",
    ConstraintForm.GRAMMAR: "grammar",
    ConstraintForm.STRUCTURAL_TAG: "structural_tag",
}
_METRICS: Final = MetricNames(
    prefix="vllm:",
    counters={
        "num_drafts": "spec_decode_num_drafts_total",
        "num_draft_tokens": "spec_decode_num_draft_tokens_total",
        "num_accepted_tokens": "spec_decode_num_accepted_tokens_total",
        "num_output_tokens": "generation_tokens_total",
        "num_requests": "request_success_total",
        "num_prompt_tokens": "prefix_cache_queries_total",
        "num_cached_tokens": "prefix_cache_hits_total",
        "num_preemptions": "num_preemptions_total",
    },
    latencies={
        FIRST_TOKEN: "time_to_first_token_seconds",
        PER_TOKEN: "request_time_per_output_token_seconds",
        END_TO_END: "e2e_request_latency_seconds",
        QUEUE: "request_queue_time_seconds",
        COMPUTE: "request_inference_time_seconds",
    },
    running="num_requests_running",
    waiting="num_requests_waiting",
    kv_use="kv_cache_usage_perc",
    position_label="position",
    accepted_per_pos="spec_decode_num_accepted_tokens_per_pos_total",
    failed=("request_success_total", "finished_reason", frozenset({"abort", "error"})),
)


def _drafting_values(config: SpeculationConfig) -> dict[str, object]:
    """The keys of `--speculative-config` for n-grams or a model, beside its depth."""
    if config.proposer == "ngram":
        return {"method": "ngram", "prompt_lookup_min": config.ngram_min, "prompt_lookup_max": config.ngram_max}
    if config.proposer == HETEROGENEOUS:
        return {"method": "draft_model", "model": config.draft, "use_heterogeneous_vocab": True}
    is_sampling = config.verify_rule is VerifyRule.REJECTION
    return {
        "method": config.proposer,
        "model": config.draft,
        "draft_sample_method": "probabilistic" if is_sampling else "greedy",
    }


def _command_line(start: ServerStart, program: Sequence[str]) -> list[str]:
    """`vllm serve` takes the model as its first argument, the module as an option."""
    words, target = list(program), ["--model", start.target]
    if "serve" in words:
        words.insert(words.index("serve") + 1, start.target)
        target = []
    words += [*target, "--served-model-name", start.model, "--host", start.host, "--port", str(start.port), *REPORTING]
    if start.drafting is not None:
        depth = {"num_speculative_tokens": start.drafting.num_speculative_tokens}
        words += [*DETAILED.split(), "--speculative-config", json.dumps(_drafting_values(start.drafting) | depth)]
    return with_defaults(words, {("--gpu-memory-utilization",): HALF})


class Vllm(ServingEngine):
    """vLLM, and any server of OpenAI's API that names no engine that is known."""

    name = "vllm"
    title = "vLLM"
    owner = "vllm"
    metrics = _METRICS
    rules = EngineRules(NgramOccurrence.LATEST_FILLED, DraftSampling.TEMPERATURE, drafts_within_limit=False)
    cpu_rules = replace(rules, ngram_occurrence=NgramOccurrence.EARLIEST)
    prompt_rules = PromptRules(
        tool_fields=(("name", None), ("description", None), ("parameters", None), ("strict", OMITTED))
    )
    speculation_flags = "--speculative-config"
    launcher = Launcher(
        ("vllm", "serve"),
        _command_line,
        module="vllm.entrypoints.openai.api_server",
        # The working directory is no place for its modules, as -m would have it.
        variables={"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONSAFEPATH": "1"},
    )
    method_keys = MethodKeys("method", "num_speculative_tokens", "model")
    counts_source = CountsSource("response", "each answer")
    uncounted = f"does not report its accepted tokens; start vLLM with {DETAILED}"
    remedies: ClassVar[Mapping[Lack, str]] = {
        Lack.QUEUE_TIMES: "--enable-per-request-metrics",
        Lack.CACHED_TOKENS: "--enable-prompt-tokens-details",
        Lack.SCORES: "vLLM: --max-logprobs at least score_logprobs, --logprobs-mode not one of logits",
        Lack.METHOD: "vLLM says it with VLLM_SERVER_DEV_MODE=1",
        Lack.CAPACITY: "vLLM: /metrics",
        Lack.PREFIX_CACHE: "start vLLM with --enable-prefix-caching",
    }
    reports_masked_places = True
    counts_empty_drafts = True
    generation_defaults = (*GENERATION_DEFAULTS, "max_new_tokens")

    def __init__(self, version: str = "") -> None:
        super().__init__(version)
        self._told: tuple[tuple[str, str], Mapping[str, Any]] | None = None  # of a server's start, /server_info

    def counts_chat(self, answer: Completion) -> bool:
        return True

    def body_of(self, request: ServerRequest, model: str, salt: str) -> dict[str, Any]:
        """The body of /v1/completions, with an output's constraint in the fields that the version knows."""
        body = super().body_of(request, model, salt)
        if request.constraint is None:
            return body
        numbers = re.match(r"(\d+)\.(\d+)", self.version)
        is_old = numbers is not None and (int(numbers[1]), int(numbers[2])) < STRUCTURED_SINCE
        return body | (guided_fields(request.constraint) if is_old else structured_fields(request.constraint))

    def chat_ids(self, ask: Ask, body: Mapping[str, Any], model: str) -> Sequence[int] | None:
        asked = {name: body[name] for name in RENDERED if name in body}
        return listed_ids(ask("tokenize", {"model": model, **asked}))

    def text_ids(self, ask: Ask, text: str, model: str) -> Sequence[int] | None:
        return listed_ids(ask("tokenize", {"model": model, "prompt": text}))

    async def identify(self, server: ServerPages, entry: Mapping[str, Any]) -> ServerIdentity:
        """As any server of OpenAI's API, with the facts that vLLM's pages report."""
        identity, page = await super().identify(server, entry), await server.look("metrics")
        lines = [line for line in (page or "").splitlines() if line.startswith(CACHE_CONFIG)]
        try:
            labels = [sample.labels for family in families_on("\n".join([*lines, ""])) for sample in family.samples]
        except ValueError as error:
            raise ServerError(server.name, "garbage", "/metrics is not in Prometheus' text format") from error
        info = await self._own_info(server, identity, page)
        return replace(identity, reported_facts=vllm_facts(labels, info), dtype=vllm_dtype(info))

    async def _own_info(self, server: ServerPages, identity: ServerIdentity, page: str | None) -> Mapping[str, Any]:
        """How it was started, which vLLM tells with VLLM_SERVER_DEV_MODE=1; else nothing.

        vLLM looks at its whole environment for an answer, for seconds, and each time anew where it finds no pip there
        and fails.  It is therefore asked once for each start, which its `page` of metrics names.
        """
        if identity.engine != self.owner:
            return {}
        found = PROCESS_STARTED.search(page or "")
        if found is None:
            return await self._read_info(server)
        if self._told is None or self._told[0] != (server.name, found[1]):
            self._told = (server.name, found[1]), await self._read_info(server)
        return self._told[1]

    async def _read_info(self, server: ServerPages) -> Mapping[str, Any]:
        try:
            info: Any = json.loads(await server.look("server_info?config_format=json") or "{}")
        except ServerError as fault:
            if fault.code == "unreachable":  # else it would be taken for another server
                raise
            return {}  # it is nothing that a measurement needs
        except ValueError:
            return {}
        return info if isinstance(info, dict) else {}

    async def drafts_of(
        self, server: ServerPages, identity: ServerIdentity, answer: Completion | None, model: str
    ) -> ReportedDrafts:
        """By the answer's metrics, else by its counters, which a vLLM that speculates has from its start."""
        text = await server.look("metrics")
        try:
            page = None if text is None else parse(text, self.metrics, model)
        except ValueError as error:
            raise ServerError(server.name, "garbage", "/metrics is not in Prometheus' text format") from error
        counters = None if page is None else _counters(page)
        reported = (answer.speculation if answer is not None else None) or {}
        number = reported.get("num_spec_tokens")
        if type(number) is not int:
            number = None
            if counters is not None:
                number = len(counters.num_accepted_tokens_per_pos) or None
            elif page is not None and page.is_known:
                number = 0
        return ReportedDrafts(
            number,
            counts_by_request=bool(number)
            and bool(reported)
            and ("per_step_accepted" in reported or not reported.get("num_spec_steps")),
            has_counters=counters is not None,
            has_metrics=page is not None and page.is_known,
            settings=await self._drafting(server, identity, text),
        )

    async def _drafting(
        self, server: ServerPages, identity: ServerIdentity, page: str | None
    ) -> tuple[tuple[str, str], ...]:
        """How vLLM says that it drafts, which it does when started with VLLM_SERVER_DEV_MODE=1; else nothing."""
        config: Any = await self._own_info(server, identity, page)
        for name in ("vllm_config", "speculative_config"):
            config = config.get(name) if isinstance(config, dict) else None
        return tuple((str(key), str(value)) for key, value in config.items()) if isinstance(config, dict) else ()

    async def capacity_of(self, server: ServerPages, identity: ServerIdentity) -> KvCapacity | None:
        page = await server.look("metrics")
        return None if page is None else capacity_on(page, identity.max_model_len)

    def forced_facts(self, config: SpeculationConfig) -> Collection[FactName]:
        """As `VllmConfig` of 0.33 decides (`config/vllm.py`)."""
        method, names = plain_method(config.proposer), set[FactName]()
        is_parallel = config.server_settings.get("parallel_drafting") is True and method not in ("dflash", "dspark")
        if method in FIRST_RUNNER or is_parallel or config.server_settings.get("use_heterogeneous_vocab") is True:
            names.add("model_runner")
        if method in SYNCHRONOUS:
            names.add("async_scheduling")
        return names

    def remarks_on(self, drafts: ReportedDrafts) -> list[str]:
        passes = f"acceptance takes a second, untimed pass, which {DETAILED} would save"
        remarks = [] if drafts.counts_by_request else [passes]
        return remarks if drafts.has_metrics else [*remarks, "the speculative server shows no /metrics of vLLM's"]

    def longest_draft_in(self, answer: Completion) -> int:
        reported = answer.speculation or {}
        counts = [reported.get("num_spec_tokens"), *(reported.get("per_step_drafted") or ())]
        return max((count for count in counts if type(count) is int), default=0) or int(_has_steps(reported))

    def counters_on(self, page: str, model: str) -> LiveCounts | None:
        return _counters(parse(page, self.metrics, model))

    def count(
        self, answer: Completion, num_prompt_tokens: int, num_speculative_tokens: int, *, drafts_always: bool
    ) -> Accepted:
        """From its `metrics.speculative_decoding`, at its level `detailed`."""
        reported = answer.speculation or {}
        accepted, drafted = (integers(reported.get(name)) for name in ("per_step_accepted", "per_step_drafted"))
        if len(drafted) != len(accepted) or len(drafted) != reported.get("num_spec_steps"):
            raise UncountableError("per_step_accepted and per_step_drafted are missing: the level is not detailed")
        depth = reported.get("num_spec_tokens")
        if type(depth) is int and depth != num_speculative_tokens:
            raise OtherDepthError(depth, num_speculative_tokens)
        counted = from_steps(
            drafted, accepted, answer, num_prompt_tokens, num_speculative_tokens, drafts_always=drafts_always
        )
        _require_totals(reported, drafted, accepted, num_speculative_tokens)
        return counted

    def steps_of(self, answer: Completion) -> list[tuple[int, int]] | None:
        reported = answer.speculation or {}
        drafted, accepted = reported.get("per_step_drafted"), reported.get("per_step_accepted")
        if not isinstance(drafted, list) or not isinstance(accepted, list) or len(drafted) != len(accepted):
            return None
        return list(zip(drafted, accepted, strict=True))

    def export(self, schedule: DepthSchedule, beside: str) -> Export:
        """The value of `--speculative-config`; `null` where nothing is on."""
        config = schedule.config
        if config is None:
            return _nothing()
        if config.is_served_method:
            return self._served_method(schedule, config)
        if config.is_adaptive or config.proposer not in PROPOSERS:
            return self._off(schedule)
        if config.proposer == "suffix":
            return self._suffix(schedule, config, schedule.leading_ranges())
        is_sampling = config.verify_rule is VerifyRule.REJECTION
        if config.proposer == HETEROGENEOUS and is_sampling:
            return _nothing((HETEROGENEOUS_SAMPLED,))
        values: dict[str, object] = {
            "num_speculative_tokens": max(batches.num_speculative_tokens for batches in schedule.ranges)
        }
        remarks = [DATA_PARALLEL, SCHEDULE, *self.rule_remarks(config), *_refused(config)]
        values |= _drafting_values(config)
        remarks += [SHORTER] if config.proposer == "draft_model" else []
        remarks += [SHARED_TOKENS] if config.proposer == HETEROGENEOUS else []
        values["num_speculative_tokens_per_batch_size"] = [
            [batches.first, batches.last or MAX_BATCH_SIZE, batches.num_speculative_tokens]
            for batches in schedule.ranges
        ]
        return Export(json.dumps(values) + "\n", tuple(remarks))

    def _suffix(self, schedule: DepthSchedule, config: SpeculationConfig, leading: Sequence[BatchRange]) -> Export:
        """One depth from batch size 1 on, and how far the server may go with it."""
        if not leading:
            return self._off(schedule)
        last = leading[0].last
        assert last is not None, "no schedule is on without end"
        values: dict[str, object] = {
            "num_speculative_tokens": leading[0].num_speculative_tokens,
            "method": "suffix",
            "suffix_decoding_max_tree_depth": config.suffix_decoding_max_tree_depth,
            "suffix_decoding_max_spec_factor": config.suffix_decoding_max_spec_factor,
            "suffix_decoding_min_token_prob": config.suffix_decoding_min_token_prob,
        }
        if config.suffix_memory_tokens == 0:
            values["suffix_decoding_max_cached_requests"] = 0
        remarks = [
            f"vLLM's suffix method speculates at every batch size: run the server with --max-num-seqs {last}, "
            "the largest that was measured",
            SUFFIX,
            *_refused(config),
        ]
        remarks += left_out(schedule, last)
        return Export(json.dumps(values) + "\n", tuple(remarks))

    def _served_method(self, schedule: DepthSchedule, config: SpeculationConfig) -> Export:
        """The configuration as it went in, to be run up to the largest batch size that was measured."""
        served = self.served_settings(schedule, config)
        if served.values is None:
            return _nothing(served.remarks)
        ends_itself = config.off_from is not None and config.off_from <= served.max_batch_size + 1
        limit = (
            []
            if ends_itself
            else [
                f"{config.proposer} speculates at every batch size: run the server with --max-num-seqs "
                f"{served.max_batch_size}, the largest that was measured"
            ]
        )
        gone = GONE_SINCE.get(plain_method(config.proposer))
        until = (
            []
            if gone is None
            else [f"vLLM {gone} and later have no method {config.proposer}: run the version measured"]
        )
        return Export(json.dumps(served.values) + "\n", (*limit, *until, *served.remarks))

    def _off(self, schedule: DepthSchedule) -> Export:
        return _nothing(tuple(self.off_remarks(schedule, PROPOSERS)))


def _refused(config: SpeculationConfig) -> list[str]:
    """The request parameters that a server would have refused, of a config that was measured in this process."""
    return [] if config.is_served else [REFUSED]


def _nothing(remarks: Sequence[str] = ()) -> Export:
    without = "speculation is off: start vLLM without --speculative-config"
    return Export("null\n", tuple(remarks), instead=without)  # vLLM reads it as no speculation


def _require_totals(
    reported: Mapping[str, Any], drafted: Sequence[int], accepted: Sequence[int], num_speculative_tokens: int
) -> None:
    """Raise UncountableError where an answer's totals are not those of its steps.

    Drafted tokens may be counted before a step's draft is cut to the room that is left.
    """
    totals = (reported.get(name) for name in ("num_draft_tokens", "num_accepted_draft_tokens"))
    num_drafted, num_accepted = (total if type(total) is int else None for total in totals)
    histogram = integers(reported.get("acceptance_histogram"))
    counted = {number: accepted.count(number) for number in accepted}
    if (
        (num_drafted is not None and not sum(drafted) <= num_drafted <= num_speculative_tokens * len(drafted))
        or num_accepted not in (None, sum(accepted))
        or (histogram and {number: count for number, count in enumerate(histogram) if count} != counted)
    ):
        raise UncountableError("its totals of drafted and accepted tokens are not those of its steps")


def _has_steps(reported: Mapping[str, Any]) -> bool:
    """Whether an answer's metrics count a draft."""
    return any(reported.get(name) for name in ("num_spec_steps", "num_draft_tokens"))


def _counters(page: MetricsPage) -> LiveCounts | None:
    """The counters of drafts, present where a server speculates; of requests and tokens there are none at first."""
    counts = page.counts
    if None in (counts.num_drafts, counts.num_draft_tokens, counts.num_accepted_tokens):
        return None
    return replace(counts, num_requests=counts.num_requests or 0, num_output_tokens=counts.num_output_tokens or 0)


def capacity_on(page: str, max_model_len: int | None) -> KvCapacity | None:
    """From the labels of `vllm:cache_config_info` on a page of vLLM's /metrics.

    vLLM says how many tokens and requests of full length its cache holds (0.32: `kv_cache_size_tokens`,
    `kv_cache_max_concurrency`); older versions say blocks and their size, which is the same for a model whose layers
    all attend to every token, and may be more where some do not.

    Raises:
        ValueError: the page is not in Prometheus' text format.
    """
    capacities = [
        _of_labels(sample.labels, max_model_len)
        for family in families_on(page)
        if family.name == CACHE_CONFIG
        for sample in family.samples
    ]
    known = [capacity for capacity in capacities if capacity is not None]
    if not known or len(known) < len(capacities):
        return None
    requests = [capacity.requests for capacity in known if capacity.requests is not None]
    return KvCapacity(
        sum(capacity.tokens for capacity in known),
        math.fsum(requests) if len(requests) == len(known) else None,
        known[0].sizing,
    )


def _of_labels(labels: Mapping[str, str], max_model_len: int | None) -> KvCapacity | None:
    tokens, blocks, size = (
        _positive(labels.get(name)) for name in ("kv_cache_size_tokens", "num_gpu_blocks", "block_size")
    )
    if tokens is None and blocks is not None and size is not None:
        tokens = blocks * size
    if tokens is None:
        return None
    requests = _positive(labels.get("kv_cache_max_concurrency")) or (tokens / max_model_len if max_model_len else None)
    sizing = ((name, labels.get(name, "None")) for name in SIZING)
    return KvCapacity(int(tokens), requests, tuple((name, value) for name, value in sizing if value != "None"))


def _positive(text: str | None) -> float | None:
    """A number above 0 of a label, which may be "None"."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0.0 < number < math.inf else None


def structured_fields(constraint: OutputConstraint) -> dict[str, Any]:
    """Additional fields of a body of vLLM's /v1/completions."""
    return {"structured_outputs": {_STRUCTURED[constraint.form]: _value(constraint)}}


def guided_fields(constraint: OutputConstraint) -> dict[str, Any]:
    """Additional fields of a body of a vLLM before `STRUCTURED_SINCE`."""
    if constraint.form is ConstraintForm.JSON_OBJECT:
        return {"response_format": {"type": "json_object"}}
    if constraint.form is ConstraintForm.STRUCTURAL_TAG:
        return {"response_format": json.loads(constraint.text)}
    return {f"guided_{_STRUCTURED[constraint.form]}": _value(constraint)}


def _value(constraint: OutputConstraint) -> Any:
    """As vLLM takes it: schemas and choices as values, the rest as text."""
    if constraint.form is ConstraintForm.JSON_OBJECT:
        return True
    is_parsed = constraint.form in (ConstraintForm.JSON_SCHEMA, ConstraintForm.CHOICE)
    return json.loads(constraint.text) if is_parsed else constraint.text
