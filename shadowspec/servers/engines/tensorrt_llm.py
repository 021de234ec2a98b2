"""TensorRT-LLM: its metrics, and a YAML file for `trtllm-serve --config`; its steps cannot be counted yet.

Its API is OpenAI's, so that it is identified as any server is.  Metrics are read from
`tensorrt_llm/metrics/collector.py` as stored for revision 89fd9b74; it was not run here.  It has no n-gram lookup like
others' (a pool of all requests' n-grams), and a draft's distribution follows top-k and top-p too
(`one_model_sampler.py`).  What it makes of messages is in `tensorrt_llm/serve/chat_utils.py` at revision 0c351902.

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

from typing import Final

from shadowspec.servers.engines.engine import ServingEngine
from shadowspec.servers.engines.export_parts import (
    BatchRange,
    DepthSchedule,
    Export,
    comment_lines,
    counterpart,
    left_out,
    yaml_lines,
)
from shadowspec.servers.engines.rules import EngineRules
from shadowspec.servers.metrics_page import MetricNames
from shadowspec.types import COMPUTE, END_TO_END, FIRST_TOKEN, PER_TOKEN, QUEUE, DraftSampling, VerifyRule
from shadowspec.types.prompt_rules import BrokenArguments, PromptRules

DECODING_TYPES: Final = {"draft_model": "Draft_Target", "eagle3": "Eagle3"}
_METRICS: Final = MetricNames(
    prefix="trtllm_",
    counters={
        "num_output_tokens": "generation_tokens_total",
        "num_requests": "request_success_total",
        "num_prompt_tokens": "prompt_tokens_total",
        "num_cached_tokens": "prompt_cached_tokens_total",
    },
    latencies={
        FIRST_TOKEN: "time_to_first_token_seconds",
        PER_TOKEN: "time_per_output_token_seconds",
        END_TO_END: "e2e_request_latency_seconds",
        QUEUE: "request_queue_time_seconds",
        COMPUTE: "request_inference_time_seconds",
    },
    running="num_requests_running",
    position_label="token_position",
    drafted_per_pos="spec_decode_drafted_tokens_total",
    accepted_per_pos="spec_decode_accepted_tokens_total",
)


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
    unmeasurable = (
        "TensorRT-LLM does not report the accepted tokens of each step, so it cannot be measured. Its answers hold a "
        "mean (avg_decoded_tokens_per_iter), and its /perf_metrics totals of a request: no position's acceptance "
        "follows"
    )

    def export(self, schedule: DepthSchedule, beside: str) -> Export:
        head = comment_lines([schedule.basis])
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
