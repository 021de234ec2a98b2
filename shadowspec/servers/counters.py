"""A server's counts of its drafts: where a request's come from, and vLLM's Prometheus counters since it started."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from shadowspec.servers.client import Client
from shadowspec.servers.stream import ServerError

_DRAFTS: Final = "vllm:spec_decode_num_drafts_total"
_DRAFT_TOKENS: Final = "vllm:spec_decode_num_draft_tokens_total"
_ACCEPTED: Final = "vllm:spec_decode_num_accepted_tokens_total"
_PER_POS: Final = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_FINISHED: Final = "vllm:request_success_total"
_GENERATED: Final = "vllm:generation_tokens_total"


class CountsSource(StrEnum):
    """Where the accepted tokens of a request come from."""

    RESPONSE = "response"  # vLLM's metrics.speculative_decoding, of the very request that was timed
    META_INFO = "meta_info"  # SGLang's histogram of that request's steps
    TIMINGS = "timings"  # llama.cpp's draft_n and draft_n_accepted at each token of that request
    COUNTERS = "counters"  # the server's counters around the same request, sent again, by itself and untimed

    @property
    def meaning(self) -> str:
        if self is CountsSource.COUNTERS:
            return "the server's counters, in a separate pass"
        return {CountsSource.META_INFO: "each answer's meta_info", CountsSource.TIMINGS: "each answer's timings"}.get(
            self, "each answer"
        )


@dataclass(frozen=True, slots=True)
class Counters:
    """Sums over all engines of one server, for one model; as vLLM counts, before the cut at the last token."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: tuple[int, ...]
    num_finished: int  # requests of all clients
    num_generated: int  # tokens

    def since(self, before: Counters) -> Counters | None:
        """The counts after `before`; None where the server has restarted meanwhile."""
        if len(self.num_accepted_tokens_per_pos) != len(before.num_accepted_tokens_per_pos):
            return None
        pairs = zip(self.num_accepted_tokens_per_pos, before.num_accepted_tokens_per_pos, strict=True)
        counters = Counters(
            self.num_drafts - before.num_drafts,
            self.num_draft_tokens - before.num_draft_tokens,
            self.num_accepted_tokens - before.num_accepted_tokens,
            tuple(later - earlier for later, earlier in pairs),
            self.num_finished - before.num_finished,
            self.num_generated - before.num_generated,
        )
        least = min(counters.num_drafts, counters.num_draft_tokens, counters.num_finished, counters.num_generated)
        return None if min(least, *counters.num_accepted_tokens_per_pos, counters.num_accepted_tokens) < 0 else counters


@dataclass(frozen=True, slots=True)
class Scrape:
    """The content of /metrics: whether it is a vLLM's, and the counters of drafts, present if it speculates."""

    is_known: bool
    counters: Counters | None


async def scrape(client: Client, model: str) -> Scrape:
    """The server's counters; None where it has no /metrics.

    Raises:
        ServerError: it cannot be reached, or its page is in another format.
    """
    text = await client.look("metrics")
    if text is None:
        return Scrape(is_known=False, counters=None)
    try:
        return parse(text, model)
    except ValueError as error:
        raise ServerError(client.name, "garbage", "/metrics is not in Prometheus' text format") from error


def parse(text: str, model: str) -> Scrape:
    """The counters in a page of Prometheus' text format.

    Raises:
        ValueError: it is not in that format.
    """
    sums: dict[str, int] = {}
    per_pos: dict[int, int] = {}
    is_known = False
    for family in text_string_to_metric_families(text):
        if not family.name.startswith("vllm:"):
            continue
        is_known = True
        for sample in family.samples:
            if sample.labels.get("model_name", model) != model:
                continue
            if sample.name == _PER_POS:
                position = int(sample.labels["position"])
                per_pos[position] = per_pos.get(position, 0) + int(sample.value)
            elif sample.name in (_DRAFTS, _DRAFT_TOKENS, _ACCEPTED, _FINISHED, _GENERATED):
                sums[sample.name] = sums.get(sample.name, 0) + int(sample.value)
    if not {_DRAFTS, _DRAFT_TOKENS, _ACCEPTED} <= set(sums) or sorted(per_pos) != list(range(len(per_pos))):
        return Scrape(is_known, None)
    counters = Counters(
        sums[_DRAFTS],
        sums[_DRAFT_TOKENS],
        sums[_ACCEPTED],
        tuple(per_pos[position] for position in range(len(per_pos))),
        sums.get(_FINISHED, 0),
        sums.get(_GENERATED, 0),
    )
    return Scrape(is_known, counters)
