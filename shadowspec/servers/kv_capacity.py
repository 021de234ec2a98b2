"""A server's KV cache capacity, as the server reports it: one function for each engine.

A server takes its memory at its start and gives the rest beside the weights to its cache.  The memory of speculation
(weights and cache of a draft) is therefore the difference between the baseline's and the speculative server's cache.
It is read before each block and stored with it; it is in no fingerprint.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from shadowspec.servers import llamacpp
from shadowspec.servers.client import Client
from shadowspec.servers.dialects import Dialect
from shadowspec.servers.identity import Identity, sglang_info
from shadowspec.servers.stream import ServerError
from shadowspec.types import ServedMemory

log = logging.getLogger(__name__)

CACHE_CONFIG: Final = "vllm:cache_config_info"  # one sample for each engine core of a server
VLLM_SIZING: Final = ("gpu_memory_utilization", "num_gpu_blocks_override", "kv_cache_memory_bytes")
SGLANG_SIZING: Final = ("mem_fraction_static", "max_total_tokens")
SHARES: Final = ("gpu_memory_utilization", "mem_fraction_static")  # of the device's memory, weights included


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """Tokens that the KV cache of a server holds, over all of its engine cores, and requests of full length at once.

    A request of full length is one of as many tokens as the server accepts.  `sizing` names the options that the size
    follows from, as far as the server reports them.
    """

    tokens: int
    requests: float | None = None  # None: it is not known how long a request may be
    sizing: tuple[tuple[str, str], ...] = ()

    @property
    def shares(self) -> tuple[tuple[str, str], ...]:
        """The share of the device's memory that the server may take, by the option's name."""
        return tuple(each for each in self.sizing if each[0] in SHARES)

    @property
    def fixed_by(self) -> str | None:
        """The option that sets the size itself, so that the weights of a draft take nothing of it; None: none does."""
        return next((name for name, _ in self.sizing if name not in SHARES), None)


async def read_capacity(client: Client, identity: Identity) -> KvCapacity | None:
    """The capacity of the server's cache; None where it is not reported, or the server cannot be reached now."""
    try:
        if client.dialect is Dialect.SGLANG:
            return of_sglang(await sglang_info(client), identity.max_model_len)
        if client.dialect is Dialect.LLAMACPP:
            return of_llamacpp(identity)
        page = await client.look("metrics")
        return None if page is None else of_vllm(page, identity.max_model_len)
    except (ServerError, ValueError) as error:  # no reason to end a measurement
        log.warning("%s: its KV cache capacity is unknown (%s)", client.name, type(error).__name__)
        return None


def served_memory(baseline: KvCapacity | None, speculative: KvCapacity | None, engine: str) -> ServedMemory | None:
    """The capacity of both servers' caches; None where one is unknown, or may take another share of its memory."""
    if baseline is None or speculative is None or baseline.shares != speculative.shares:
        return None
    return ServedMemory(baseline.tokens, speculative.tokens, baseline.requests, speculative.requests, engine)


def of_vllm(page: str, max_model_len: int | None) -> KvCapacity | None:
    """From the labels of `vllm:cache_config_info` on a page of vLLM's /metrics.

    vLLM says how many tokens and requests of full length its cache holds (0.32: `kv_cache_size_tokens`,
    `kv_cache_max_concurrency`); older versions say blocks and their size, which is the same for a model whose layers
    all attend to every token, and may be more where some do not.

    Raises:
        ValueError: the page is not in Prometheus' text format.
    """
    found = [
        _of_labels(sample.labels, max_model_len)
        for family in text_string_to_metric_families(page)
        if family.name == CACHE_CONFIG
        for sample in family.samples
    ]
    known = [each for each in found if each is not None]
    if not known or len(known) < len(found):
        return None
    requests = [each.requests for each in known if each.requests is not None]
    return KvCapacity(
        sum(each.tokens for each in known),
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
    sizing = ((name, labels.get(name, "None")) for name in VLLM_SIZING)
    return KvCapacity(int(tokens), requests, tuple((name, value) for name, value in sizing if value != "None"))


def _positive(text: str | None) -> float | None:
    """A number above 0 of a label, which may be "None"."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0.0 < number < math.inf else None


def of_sglang(info: Mapping[str, Any], max_model_len: int | None) -> KvCapacity | None:
    """From SGLang's /server_info: `max_total_num_tokens` of one rank of data parallelism, of which there are several.

    Each rank says how many it holds in `internal_states` (`memory_usage.token_capacity`); where they do not, all count
    as the first.
    """
    states = info.get("internal_states")
    usages = [each.get("memory_usage") for each in states if isinstance(each, dict)] if isinstance(states, list) else []
    held = [each.get("token_capacity") for each in usages if isinstance(each, dict)]
    counts = [each for each in held if type(each) is int and each > 0]
    first = info.get("max_total_num_tokens")
    if type(first) is int and first > 0 and not counts:
        size = info.get("dp_size")
        counts = [first] * (size if type(size) is int and size > 0 else 1)
    if not counts:
        return None
    tokens = sum(counts)
    sizing = ((name, info.get(name)) for name in SGLANG_SIZING)
    return KvCapacity(
        tokens,
        tokens / max_model_len if max_model_len else None,
        tuple((name, str(value)) for name, value in sizing if value is not None),
    )


def of_llamacpp(identity: Identity) -> KvCapacity | None:
    """llama.cpp's slots, each with a separate context, as it was started (`--parallel`, `--ctx-size`).

    With `--kv-unified`, which it does not report, all slots share the context that counts here for one.
    """
    slots, length = llamacpp.num_slots(dict(identity.reported_settings)), identity.max_model_len
    if slots is None or length is None:
        return None
    return KvCapacity(slots * length, float(slots), (("--ctx-size", str(slots * length)),))
