"""TensorRT-LLM: its completions and their counts of drafts, its metrics, and a YAML file for `trtllm-serve --config`.

Its API is OpenAI's, so that it is identified as any server is.  It refuses fields that it does not know
(`serve/openai_protocol.py`, revision 0076e939), and returns an output as text or as token ids (`detokenize`): ids are
asked for.  With `per_request_spec_decode_stats: true` the last choice of an answer has `speculative_decoding`: how many
steps accepted how many tokens, before an output is cut at its end; a step without a draft is not counted
(`tests/unittest/llmapi/apps/test_spec_decode_stats*.py`, `_accumulate_spec_dec_stats`).  Metrics are those of
`metrics/collector.py` (revision 050f80d).  It was not run here.  It has no n-gram lookup like others' (a pool of all
requests' n-grams), and a draft's distribution follows top-k and top-p too (`one_model_sampler.py`).  What it makes of
messages is in `serve/chat_utils.py` (revision 0c351902).

Relied upon by the export (fields, version and licence: tests/data/peers/tensorrt_llm.json):
- `draft_len_schedule` changed its meaning: its keys were the smallest batch size of a depth, then became the
  largest.  Every range is therefore written with both ends and the first batch size that is off with a 0, which
  reads the same either way;
- its smallest key must have `max_draft_len`, which must be the largest depth;
- it excludes `max_concurrency`, which has the same effect for a single depth and is preferred for it;
- a draft model cannot be switched off at run time in every version (a depth of 0 is raised to 1), so that
  `max_batch_size` keeps the server within the measured loads;
- its acceptance gate turns speculation off forever on a rolling mean; none is exported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from shadowspec.servers.engines.engine import (
    Lack,
    ReportedDrafts,
    ServerIdentity,
    ServerPages,
    ServingEngine,
)
from shadowspec.servers.engines.export_parts import (
    BatchRange,
    DepthSchedule,
    Export,
    MethodKeys,
    comment_lines,
    counterpart,
    left_out,
    yaml_lines,
)
from shadowspec.servers.engines.rules import EngineRules
from shadowspec.servers.metrics_page import MetricNames, families_on
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.step_counts import (
    Accepted,
    CountsSource,
    OtherDepthError,
    UncountableError,
    from_histogram,
    integers,
    mean_draft,
)
from shadowspec.servers.stream import Completion, ServerError, StreamedAnswer
from shadowspec.types import (
    COMPUTE,
    END_TO_END,
    FIRST_TOKEN,
    PER_TOKEN,
    QUEUE,
    DraftSampling,
    SpeculationConfig,
    VerifyRule,
)
from shadowspec.types.prompt_rules import BrokenArguments, PromptRules

STATS: Final = "per_request_spec_decode_stats: true"
CONFIG_INFO: Final = "trtllm_speculative_config_info"  # a gauge, whose labels are settings
METRICS_PATH: Final = "prometheus/metrics"
_FOREIGN: Final = ("return_token_ids", "return_tokens_as_token_ids", "cache_salt")  # fields that it would refuse
_SETTINGS: Final = {  # by the labels of its gauge
    "spec_method": "decoding_type",
    "spec_num_tokens": "max_draft_len",
    "spec_draft_model": "speculative_model",
}
UNREPORTED: Final = (
    "TensorRT-LLM does not report whether it relaxes acceptance (use_relaxed_acceptance_for_thinking) or drafts a tree "
    "(use_dynamic_tree, eagle_choices): measure without them"
)
NO_DEPTH: Final = (
    "TensorRT-LLM drafts another number of tokens at other batch sizes: start it without draft_len_schedule"
)
DECODING_TYPES: Final = {"draft_model": "Draft_Target", "eagle3": "Eagle3"}
_METRICS: Final = MetricNames(
    prefix="trtllm_",
    counters={
        "num_output_tokens": "generation_tokens_total",
        "num_requests": "request_success_total",
        "num_prompt_tokens": "prompt_tokens_total",
        "num_cached_tokens": "prompt_cached_tokens_total",
        # In place of those by position, where a server has none.
        "num_draft_tokens": "spec_decode_num_draft_tokens_total",
        "num_accepted_tokens": "spec_decode_num_accepted_tokens_total",
    },
    latencies={
        FIRST_TOKEN: "time_to_first_token_seconds",
        PER_TOKEN: "time_per_output_token_seconds",
        END_TO_END: "e2e_request_latency_seconds",
        QUEUE: "request_queue_time_seconds",
        COMPUTE: "request_inference_time_seconds",
    },
    running="num_requests_running",
    waiting="num_requests_waiting",
    kv_use="kv_cache_utilization",
    position_label="token_position",
    drafted_per_pos="spec_decode_drafted_tokens_total",
    accepted_per_pos="spec_decode_accepted_tokens_total",
    # Requests that it refuses (4xx) were the client's fault.
    failed=("request_error_total", "http_code", frozenset(str(status) for status in range(500, 600))),
    fails_apart=True,
)


class _CountedAnswer(StreamedAnswer):
    """Takes the events of one answer, whose last choice has the counts of its drafts."""

    def _take_choice(self, choice: Any, now_s: float) -> bool:
        counts = choice.get("speculative_decoding") if isinstance(choice, dict) else None
        if isinstance(counts, dict):
            self._metrics = {"speculative_decoding": counts}
        return super()._take_choice(choice, now_s)


class TensorRtLlm(ServingEngine):
    """TensorRT-LLM's `trtllm-serve`."""

    name = "tensorrt-llm"
    title = "TensorRT-LLM"
    owner = "tensorrt_llm"
    metrics = _METRICS
    rules = EngineRules(None, DraftSampling.REQUEST)
    prompt_rules = PromptRules(
        developer_is_system=False, reasoning_shown=("reasoning_content",), broken_arguments=BrokenArguments.KEPT
    )
    speculation_flags = f"speculative_config and {STATS}"
    method_keys = MethodKeys("decoding_type", "max_draft_len", "speculative_model")
    counts_source = CountsSource("speculative_decoding", "each answer's speculative_decoding")
    uncounted = f"does not report its accepted tokens; start TensorRT-LLM's PyTorch backend with {STATS}"
    remedies: ClassVar[Mapping[Lack, str]] = {
        Lack.SCORES: "TensorRT-LLM reports none in /v1/completions",
        Lack.CAPACITY: "TensorRT-LLM's is not read",
        Lack.PREFIX_CACHE: "start TensorRT-LLM with enable_block_reuse: true",
    }
    answer_type = _CountedAnswer
    returns_text = False

    def lacking(self, request: ServerRequest) -> str | None:
        """Constraints are not asked for: without its text nobody could say whether an output satisfies one."""
        return None if request.constraint is None else "constraint"

    def body_of(self, request: ServerRequest, model: str, salt: str) -> dict[str, Any]:
        """The body of /v1/completions, with the fields that it knows."""
        body = super().body_of(request, model, salt)
        return {name: value for name, value in body.items() if name not in _FOREIGN} | {"detokenize": False}

    async def drafts_of(
        self, server: ServerPages, identity: ServerIdentity, answer: Completion | None, model: str
    ) -> ReportedDrafts:
        """By the answer's counts, else by the labels of its metrics, which it has with `return_perf_metrics: true`."""
        labels = await _config_labels(server)
        counts = (answer.speculation if answer is not None else None) or {}
        number = counts.get("num_spec_tokens") if counts else _depth_of(labels)
        return ReportedDrafts(
            number if type(number) is int else None,
            counts_by_request=bool(counts),
            uncountable=NO_DEPTH if counts and number is None else None,
            settings=tuple((_SETTINGS[name], value) for name, value in (labels or {}).items() if name in _SETTINGS),
        )

    def refusal_of(self, config: SpeculationConfig) -> str | None:
        if config.drafts_in_every_step:
            return None
        return f"TensorRT-LLM does not count steps without a draft, which {config.proposer} has"

    def remarks_on(self, drafts: ReportedDrafts) -> list[str]:
        return [UNREPORTED]

    def longest_draft_in(self, answer: Completion) -> int:
        """As many as it proposed in each verification; at least 1 where something was verified."""
        counts = answer.speculation or {}
        return mean_draft(counts.get("total_draft_tokens"), counts.get("num_spec_steps"))

    def count(
        self, answer: Completion, num_prompt_tokens: int, num_speculative_tokens: int, *, drafts_always: bool
    ) -> Accepted:
        """From `speculative_decoding`; every step drafts a chain of as many tokens as were configured."""
        counts = answer.speculation or {}
        if not counts and answer.num_output_tokens > 1:
            raise UncountableError(f"the answer does not report its drafts: {STATS} is not set, or nothing was drafted")
        histogram = integers(counts.get("acceptance_histogram")) or [0] * (num_speculative_tokens + 1)
        depth, steps = counts.get("num_spec_tokens", num_speculative_tokens), sum(histogram)
        if type(depth) is not int:
            raise UncountableError("the depth changes with the batch size (draft_len_schedule)")
        if depth != num_speculative_tokens or len(histogram) != depth + 1:
            raise OtherDepthError(max(depth, len(histogram) - 1), num_speculative_tokens)
        accepted = sum(number * count for number, count in enumerate(histogram))
        if (
            min(histogram) < 0
            or counts.get("num_spec_steps", 0) != steps
            or counts.get("total_accepted_draft_tokens", 0) != accepted
        ):
            raise UncountableError("the histogram has other steps, or other accepted tokens, than were counted")
        if counts.get("total_draft_tokens", 0) != steps * depth:
            raise UncountableError("a step drafted fewer tokens than were configured")
        return from_histogram(histogram, answer, num_prompt_tokens)

    def export(self, schedule: DepthSchedule, beside: str) -> Export:
        head = comment_lines([schedule.basis])
        if schedule.config is not None and schedule.config.is_served_method:
            return self._served_method(schedule, schedule.config, head)
        leading = schedule.leading_ranges()
        decoding_type = counterpart(schedule.config, DECODING_TYPES)
        if schedule.config is None or decoding_type is None or not leading:
            remarks = self.off_remarks(schedule, DECODING_TYPES)
            return Export.of([*head, "speculative_config: null"], remarks)
        remarks = self.rule_remarks(schedule.config)
        depth = leading[0].num_speculative_tokens
        kept = []
        for batches in leading:
            if batches.num_speculative_tokens > depth:  # the first depth must be the largest
                break
            kept.append(batches)
        last = kept[-1].last
        assert last is not None, "no schedule is on without end"
        remarks += left_out(schedule, last)
        values: dict[str, object] = {
            "decoding_type": decoding_type,
            "max_draft_len": depth,
            "speculative_model": schedule.config.draft,
        }
        if schedule.config.verify_rule is VerifyRule.REJECTION:
            values["use_rejection_sampling"] = True
        if len(kept) == 1:
            values["max_concurrency"] = last
        else:
            values["draft_len_schedule"] = draft_len_schedule(kept)
        remarks.append(f"max_batch_size {last} keeps the server at batch sizes that were measured")
        lines = yaml_lines({"max_batch_size": last, "speculative_config": values})
        return Export.of([*head, *lines], remarks)

    def _served_method(self, schedule: DepthSchedule, config: SpeculationConfig, head: list[str]) -> Export:
        """The settings as the measured server was given them, and how far it may go with them."""
        served = self.served_settings(schedule, config)
        if served.values is None:
            return Export.of([*head, "speculative_config: null"], served.remarks)
        limit = f"max_batch_size {served.max_batch_size} keeps the server at batch sizes that were measured"
        lines = yaml_lines({"max_batch_size": served.max_batch_size, "speculative_config": dict(served.values)})
        return Export.of([*head, *lines], (limit, *served.remarks))


async def _config_labels(server: ServerPages) -> Mapping[str, str] | None:
    """The labels in which it says how it speculates; None where it shows no such page, or none of them."""
    try:
        page = await server.look(METRICS_PATH)
        families = families_on("" if page is None else page)
    except (ServerError, ValueError):  # it is nothing that a measurement needs
        return None
    return next((sample.labels for family in families if family.name == CONFIG_INFO for sample in family.samples), None)


def _depth_of(labels: Mapping[str, str] | None) -> int | None:
    """The configured depth; 0 where it says that it does not speculate, None where it does not say."""
    if labels is None:
        return None
    if labels.get("spec_enabled", "true").lower() == "false":
        return 0
    number = labels.get("spec_num_tokens", "")
    return int(number) if number.isdigit() else None


def draft_len_schedule(ranges: list[BatchRange]) -> dict[str, int]:
    """Ranges without a gap from 1, by both their ends, then off."""
    schedule: dict[str, int] = {}
    for batches in ranges:
        assert batches.last is not None, "no schedule is on without end"
        schedule |= {
            str(batches.first): batches.num_speculative_tokens,
            str(batches.last): batches.num_speculative_tokens,
        }
        end = batches.last
    return schedule | {str(end + 1): 0}
