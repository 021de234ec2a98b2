"""Where the counters of an endpoint's production engines are, and how each engine names them on its page of metrics.

vLLM's names were tried on 0.32.0.  SGLang's are read from `python/sglang/srt/observability/metrics_collector.py` as it
is stored for revision 44cedc2b of its repository, TensorRT-LLM's from `tensorrt_llm/metrics/collector.py` as stored for
revision 89fd9b74; neither engine was run here.  llama.cpp's were tried on build 0c1e570.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field

from shadowspec.types import COMPUTE, END_TO_END, FIRST_TOKEN, PER_TOKEN, QUEUE
from shadowspec.types.settings import HttpUrl, PathText, Seconds, Text, Variable

MODEL_LABEL: Final = "model_name"  # of all but llama.cpp, whose server has one model


@dataclass(frozen=True, slots=True)
class MetricNames:
    """Names of one engine's metrics, without its prefix.

    `counters` are by the fields of `LiveCounts`, `latencies` by their names there.  Where draft tokens and accepted
    tokens are counted by position `drafted_per_pos` and `accepted_per_pos` name the metrics, with the label of the
    position.

    `failed` names the requests that failed: a metric, and the label and its values that count (no label: every sample).
    `num_digits`: digits to which counters are rounded when printed; 0: exact.  Those by position are always exact.
    `excludes_cached`: prompt tokens are counted without those from the prefix cache.  `running` names the gauge of the
    requests in progress.
    """

    prefix: str
    counters: Mapping[str, str]
    latencies: Mapping[str, str]
    running: str
    position_label: str = ""
    drafted_per_pos: str | None = None
    accepted_per_pos: str | None = None
    num_digits: int = 0
    excludes_cached: bool = False
    failed: tuple[str, str, frozenset[str]] | None = None


VLLM: Final = MetricNames(
    prefix="vllm:",
    counters={
        "num_drafts": "spec_decode_num_drafts_total",
        "num_draft_tokens": "spec_decode_num_draft_tokens_total",
        "num_accepted_tokens": "spec_decode_num_accepted_tokens_total",
        "num_output_tokens": "generation_tokens_total",
        "num_requests": "request_success_total",
        "num_prompt_tokens": "prefix_cache_queries_total",
        "num_cached_tokens": "prefix_cache_hits_total",
    },
    latencies={
        FIRST_TOKEN: "time_to_first_token_seconds",
        PER_TOKEN: "request_time_per_output_token_seconds",
        END_TO_END: "e2e_request_latency_seconds",
        QUEUE: "request_queue_time_seconds",
        COMPUTE: "request_inference_time_seconds",
    },
    running="num_requests_running",
    position_label="position",
    accepted_per_pos="spec_decode_num_accepted_tokens_per_pos_total",
    failed=("request_success_total", "finished_reason", frozenset({"abort", "error"})),
)
SGLANG: Final = MetricNames(
    prefix="sglang:",
    counters={
        "num_drafts": "spec_verify_calls_total",  # older versions have only gauges, which do not add up
        "num_output_tokens": "generation_tokens_total",
        "num_requests": "num_requests_total",
        "num_prompt_tokens": "prompt_tokens_total",
        "num_cached_tokens": "cached_tokens_total",
    },
    latencies={
        FIRST_TOKEN: "time_to_first_token_seconds",
        PER_TOKEN: "inter_token_latency_seconds",
        END_TO_END: "e2e_request_latency_seconds",
        QUEUE: "queue_time_seconds",
    },
    running="num_running_reqs",
    failed=("num_aborted_requests_total", "", frozenset()),
)
TENSORRT_LLM: Final = MetricNames(
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
LLAMACPP: Final = MetricNames(
    prefix="llamacpp:",
    counters={
        "num_drafts": "spec_decode_num_drafts_total",
        "num_draft_tokens": "spec_decode_num_draft_tokens_total",
        "num_accepted_tokens": "spec_decode_num_accepted_tokens_total",
        "num_output_tokens": "tokens_predicted_total",
        "num_prompt_tokens": "prompt_tokens_total",
        "num_cached_tokens": "prompt_tokens_cached_total",
    },
    latencies={},
    running="requests_processing",
    position_label="position",
    accepted_per_pos="spec_decode_num_accepted_tokens_per_pos_total",
    num_digits=6,
    excludes_cached=True,
)
ENGINES: Final[Mapping[str, MetricNames]] = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "tensorrt-llm": TENSORRT_LLM,
    "llama.cpp": LLAMACPP,
}


@dataclass(frozen=True, slots=True)
class LiveSource:
    """Where the counters of one endpoint's production engines are.

    `plain_urls` are those of the replicas without speculation while a rollout is partial: the control.  The key is
    never part of this value: it is read from `api_key_variable` when the pages are read.

    Raises:
        ValueError: two URLs name the same page, or the engine counts no times that a control could compare.
    """

    urls: Annotated[tuple[HttpUrl, ...], Field(alias="metrics_urls", min_length=1)]  # one per replica
    model: Text  # the name under which they serve it
    engine: Literal["vllm", "sglang", "tensorrt-llm", "llama.cpp"] = "vllm"
    api_key_variable: Variable | None = None
    ca_file: PathText | None = None  # None: the system's authorities
    timeout_s: Seconds = 10.0
    plain_urls: Annotated[tuple[HttpUrl, ...], Field(alias="plain_metrics_urls")] = ()

    def __post_init__(self) -> None:
        if len({url.partition("://")[2] for url in self.all_urls}) != len(self.all_urls):
            keys = "metrics_urls and plain_metrics_urls" if self.plain_urls else "metrics_urls"
            raise ValueError(f"{keys}: the same URL is listed twice")
        if self.plain_urls and END_TO_END not in ENGINES[self.engine].latencies:
            raise ValueError(f"plain_metrics_urls: {self.engine} counts no times, so that pools cannot be compared")

    @property
    def all_urls(self) -> tuple[str, ...]:
        """The pages of both pools."""
        return (*self.urls, *self.plain_urls)

    @property
    def replicas(self) -> tuple[str, ...]:
        """Names of the speculative pool's replicas (the only pool where there is no other): URLs without the scheme."""
        return tuple(replica_name(url) for url in self.urls)

    @property
    def plain_replicas(self) -> tuple[str, ...]:
        """Names of the plain pool's replicas."""
        return tuple(replica_name(url) for url in self.plain_urls)


def replica_name(url: str) -> str:
    """A replica as it is stored and named in messages."""
    parts = urlsplit(url)
    return f"{parts.netloc}{parts.path}"
