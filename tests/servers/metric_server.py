"""A production engine's page of metrics on a real socket: counters that go on, begin anew, or are nonsense."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BOUNDS = (0.1, 0.5, 1.0)


@dataclass
class Production:
    """What one replica has counted since it began, told in vLLM's words."""

    model: str = "m"
    depth: int | None = 4  # None: it does not speculate
    started_at: float | None = None
    drafts: int = 0
    per_pos: list[int] = field(default_factory=lambda: [0] * 4)
    tokens: int = 0
    requests: int = 0
    running: int | None = None  # requests in progress; None: the page does not say
    waiting: int | None = None  # in the queue
    kv_use: float | None = None  # share of the KV cache in use, of its second rank; half of it of its first
    preemptions: int | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    times: list[int] = field(default_factory=lambda: [0] * 4)  # end to end, by bin
    seconds: float | None = None  # their sum; None: the page does not say
    failed: int | None = None  # requests that were aborted; None: the page does not say
    answer: tuple[int, dict[str, str], bytes] | None = None  # instead of the page
    url: str = ""
    headers: list[dict[str, str]] = field(default_factory=list)  # of what was asked

    def serve(self, drafts: int, rate: float, requests: int = 10) -> None:
        """Requests with so many drafts, of which this share accepts its first token, and half of that each further."""
        self.drafts += drafts if self.depth is not None else 0
        accepted = 0
        for place in range(self.depth or 0):
            number = round(drafts * rate / 2**place)
            self.per_pos[place] += number
            accepted += number
        self.tokens += requests + drafts + accepted
        self.requests += requests
        self.prompt_tokens += 100 * requests
        self.cached_tokens += 25 * requests
        self.times[1] += requests - 1
        self.times[2] += 1

    def restart(self, depth: int | None = 4, started_at: float | None = None) -> None:
        """Everything from zero."""
        self.depth, self.started_at = depth, started_at
        self.drafts = self.tokens = self.requests = self.prompt_tokens = self.cached_tokens = 0
        self.per_pos, self.times = [0] * (depth or 0), [0] * 4

    def page(self) -> str:
        text = f'engine="0",model_name="{self.model}"'
        lines = [] if self.started_at is None else [f"process_start_time_seconds {self.started_at}"]
        lines += [
            f"vllm:generation_tokens_total{{{text}}} {self.tokens}.0",
            f'vllm:request_success_total{{{text},finished_reason="stop"}} {self.requests}.0',
            f"vllm:prefix_cache_queries_total{{{text}}} {self.prompt_tokens}.0",
            f"vllm:prefix_cache_hits_total{{{text}}} {self.cached_tokens}.0",
        ]
        if self.running is not None:  # two ranks of one server
            for rank, number in enumerate((self.running // 2, self.running - self.running // 2)):
                lines.append(f'vllm:num_requests_running{{engine="{rank}",model_name="{self.model}"}} {number}.0')
        if self.waiting is not None:
            lines.append(f"vllm:num_requests_waiting{{{text}}} {self.waiting}.0")
        for rank in (0, 1) if self.kv_use is not None else ():
            use = self.kv_use / (2 - rank)
            lines.append(f'vllm:kv_cache_usage_perc{{engine="{rank}",model_name="{self.model}"}} {use}')
        if self.preemptions is not None:
            lines.append(f"vllm:num_preemptions_total{{{text}}} {self.preemptions}.0")
        if self.failed is not None:
            lines.append(f'vllm:request_success_total{{{text},finished_reason="abort"}} {self.failed}.0')
        if self.seconds is not None:
            lines.append(f"vllm:e2e_request_latency_seconds_sum{{{text}}} {self.seconds}")
        reached = 0
        for bound, number in zip((*BOUNDS, "+Inf"), self.times, strict=True):
            reached += number
            lines.append(f'vllm:e2e_request_latency_seconds_bucket{{{text},le="{bound}"}} {reached}.0')
        if self.depth is not None:
            lines += [
                f"vllm:spec_decode_num_drafts_total{{{text}}} {self.drafts}.0",
                f"vllm:spec_decode_num_draft_tokens_total{{{text}}} {self.drafts * self.depth}.0",
                f"vllm:spec_decode_num_accepted_tokens_total{{{text}}} {sum(self.per_pos)}.0",
            ]
            name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            lines += [f'{name}{{{text},position="{place}"}} {number}' for place, number in enumerate(self.per_pos)]
        return "\n".join(lines) + "\n"


@contextmanager
def producing(*replicas: Production) -> Iterator[None]:
    """The replicas' pages at ports of their own, as long as the block lasts."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(replica)) for replica in replicas]
    threads = [threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True) for server in servers]
    for replica, server, thread in zip(replicas, servers, threads, strict=True):
        replica.url = f"http://127.0.0.1:{server.server_port}/metrics"
        thread.start()
    try:
        yield
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join(10)


def _handler(production: Production) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            production.headers.append(dict(self.headers.items()))
            status, headers, content = production.answer or (200, {}, production.page().encode())
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            try:
                self.wfile.write(content)
            except ConnectionError:
                self.close_connection = True  # a reader may stop where it has enough

        def log_message(self, *_: Any) -> None:
            return

    return Handler
