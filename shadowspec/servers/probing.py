"""Two servers' self-description and their answers to one tiny request, and whether a pair of them can be measured."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final

import httpx

from shadowspec.errors import ConfigError, ModelError
from shadowspec.servers import llamacpp, sglang
from shadowspec.servers.answer_parity import can_score
from shadowspec.servers.behaviour import finds_its_prefix, require_prefix_cache
from shadowspec.servers.client import Client, open_client, run_async, trust
from shadowspec.servers.counters import CountsSource, scrape
from shadowspec.servers.dialects import Dialect
from shadowspec.servers.identity import Identity, identify
from shadowspec.servers.kv_capacity import KvCapacity, read_capacity
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.server_settings import ServerSettings
from shadowspec.servers.stream import ServerError
from shadowspec.types import SamplingParameters, SpeculationConfig, VerifyRule
from shadowspec.types.served_methods import DRAFT_KEYS, METHOD_KEYS, is_same_method, plain_key, setting

VLLM: Final = "vllm"  # as its /v1/models says
TENSORRT_LLM: Final = "tensorrt_llm"  # likewise
NO_STEPS: Final = (
    "TensorRT-LLM does not report the accepted tokens of each step, so it cannot be measured. Its answers hold a mean "
    "(avg_decoded_tokens_per_iter), and its /perf_metrics totals of a request: no position's acceptance follows"
)
TINY: Final = ServerRequest((5, 6, 7, 8) * 4, SamplingParameters(temperature=0.0, max_tokens=24, ignore_eos=True), 0)
SAME_CAPACITY: Final = 0.02  # by which equal servers' caches may differ: each measures memory at its start
DETAILED: Final = "--per-request-spec-decode-metrics detailed"
_BY_REQUEST: Final = {
    Dialect.OPENAI: CountsSource.RESPONSE,
    Dialect.SGLANG: CountsSource.META_INFO,
    Dialect.LLAMACPP: CountsSource.TIMINGS,
}


@dataclass(frozen=True, slots=True)
class Probe:
    """One server's facts.  `num_speculative_tokens`: 0 where it does not speculate, None if unreported."""

    identity: Identity
    num_speculative_tokens: int | None
    counts_by_request: bool  # each answer reports the accepted tokens of each step
    has_counters: bool
    has_metrics: bool
    returns_token_ids: bool
    reports_queue: bool
    reports_cached: bool
    scores_outputs: bool | None = None  # reports the log probabilities that score sampled outputs; None: not checked
    uncountable: str | None = None  # why its accepted tokens can never be counted
    drafting: tuple[tuple[str, str], ...] = ()  # its settings of drafting, as it reports them; (): it reports none
    kv_capacity: KvCapacity | None = None  # its KV cache capacity; None: not reported
    finds_prefix: bool | None = None  # whether a turn finds the one before it; None: it does not say, or was not asked


async def probe(client: Client, model: str, score_logprobs: int = 0) -> Probe:
    """Read a server's description and send it one tiny request; where outputs are to be scored, another one.

    Raises:
        ServerError: it cannot be reached, does not serve the model, or gives no usable answer.
        ModelError: it does not report its accepted tokens.
    """
    identity = await identify(client, model)
    if identity.engine == TENSORRT_LLM:
        raise ModelError(f"{client.name}: {NO_STEPS}")
    client = client.speaking(Dialect.of(identity.engine))
    if client.dialect is Dialect.SGLANG:
        return await _probe_sglang(client, identity, score_logprobs)
    if client.dialect is Dialect.LLAMACPP:
        return await _probe_llamacpp(client, identity, score_logprobs)
    found = await scrape(client, model)
    answer = await client.complete(TINY, "probe")
    speculation = answer.speculation or {}
    said = speculation.get("num_spec_tokens")
    number: int | None = None
    if type(said) is int:
        number = said
    elif found.counters is not None:
        number = len(found.counters.num_accepted_tokens_per_pos)
    elif found.is_known:
        number = 0  # a vLLM that speculates has those counters from its start
    return Probe(
        identity,
        number,
        counts_by_request=bool(number)
        and bool(speculation)
        and ("per_step_accepted" in speculation or not speculation.get("num_spec_steps")),
        has_counters=found.counters is not None,
        has_metrics=found.is_known,
        returns_token_ids=answer.token_ids is not None,
        reports_queue=answer.queue_ms is not None,
        reports_cached=answer.cached_tokens is not None,
        scores_outputs=await can_score(client, TINY.prompt_token_ids, score_logprobs) if score_logprobs else None,
        drafting=await _reported_drafting(client, identity),
        kv_capacity=await read_capacity(client, identity),
    )


async def _reported_drafting(client: Client, identity: Identity) -> tuple[tuple[str, str], ...]:
    """How vLLM says that it drafts, which it does when started with VLLM_SERVER_DEV_MODE=1; else nothing."""
    if identity.engine != VLLM:
        return ()
    try:
        found: Any = json.loads(await client.look("server_info?config_format=json") or "{}")
        for name in ("vllm_config", "speculative_config"):
            found = found.get(name) if isinstance(found, dict) else None
    except (ServerError, ValueError):  # it is nothing that a measurement needs
        return ()
    return tuple((str(key), str(value)) for key, value in found.items()) if isinstance(found, dict) else ()


async def _probe_sglang(client: Client, identity: Identity, score_logprobs: int) -> Probe:
    """How it drafts SGLang says of itself."""
    reported_settings = dict(identity.reported_settings)
    answer = await client.complete(TINY, "probe")
    number = sglang.chain_length(reported_settings)
    return Probe(
        identity,
        number,
        counts_by_request=bool(number) and bool(sglang.spec_fields(answer.speculation or {})),
        has_counters=False,
        has_metrics=False,
        returns_token_ids=answer.token_ids is not None,
        reports_queue=answer.queue_ms is not None,
        reports_cached=answer.cached_tokens is not None,
        scores_outputs=await can_score(client, TINY.prompt_token_ids, score_logprobs) if score_logprobs else None,
        uncountable=sglang.uncountable(reported_settings),
        drafting=tuple(each for each in identity.reported_settings if each[0].startswith("speculative_")),
        kv_capacity=await read_capacity(client, identity),
    )


async def _probe_llamacpp(client: Client, identity: Identity, score_logprobs: int) -> Probe:
    """Its counters have a place for each token of the longest draft that llama.cpp may make, once it made one."""
    answer = await client.complete(TINY, "probe")
    page, slots = await _look_if_shown(client, "metrics"), await _look_if_shown(client, "slots")
    progress = (answer.speculation or {}).get("progress")
    number = llamacpp.longest_draft(page, progress, slots)
    return Probe(
        identity,
        number,
        counts_by_request=bool(number) and bool(progress),
        has_counters=False,
        has_metrics=page is not None,
        returns_token_ids=answer.token_ids is not None,
        reports_queue=answer.queue_ms is not None,
        reports_cached=answer.cached_tokens is not None,
        scores_outputs=await can_score(client, TINY.prompt_token_ids, score_logprobs) if score_logprobs else None,
        kv_capacity=await read_capacity(client, identity),
    )


async def _look_if_shown(client: Client, path: str) -> str | None:
    """The text at a path; None where the server was started without it, which llama.cpp answers with 501."""
    try:
        return await client.look(path)
    except ServerError as fault:
        if fault.code != f"http_{httpx.codes.NOT_IMPLEMENTED}":
            raise
        return None


def probe_both(settings: ServerSettings) -> tuple[Probe, Probe]:
    """The baseline and the speculative server, one after the other.

    Raises:
        ServerError: one of them gives no usable answer.
        ConfigError: the key's variable is not set, or the file of certificates cannot be read.
        ModelError: prefix caches are to be on, and the baseline's is off.
    """

    async def look() -> tuple[Probe, Probe]:
        context = trust(settings.ca_file)
        async with (
            open_client("baseline", settings.baseline_url, settings, context, 1) as baseline,
            open_client("speculative", settings.speculative_url, settings, context, 1) as speculative,
        ):
            plain = await probe(baseline, settings.model, settings.score_logprobs)
            speculating = await probe(speculative, settings.model)
            if not settings.measures_conversations:
                return plain, speculating
            plain, speculating = await _with_prefix(baseline, plain), await _with_prefix(speculative, speculating)
            require_prefix_cache(baseline.name, plain.finds_prefix)
            return plain, speculating

    return run_async(look())


async def _with_prefix(client: Client, found: Probe) -> Probe:
    """The probe with the behaviour of the server's prefix cache."""
    client = client.speaking(Dialect.of(found.identity.engine))
    return replace(found, finds_prefix=await finds_its_prefix(client, found.identity.max_model_len))


def counts_source(config: SpeculationConfig, baseline: Probe, speculative: Probe) -> CountsSource:
    """Where the accepted tokens are read, once the pair fits the config.

    Raises:
        ModelError: it cannot be measured with these servers; the message names what is missing.
    """
    wanted, found = config.num_speculative_tokens, speculative.num_speculative_tokens
    where = f"candidate {config.name!r}"
    if baseline.num_speculative_tokens:
        raise ModelError(f"{where}: the baseline server speculates ({baseline.num_speculative_tokens} tokens)")
    if speculative.uncountable is not None:
        raise ModelError(f"{where}: {speculative.uncountable}")
    if not found:
        word = "does not speculate" if found == 0 else "does not report that it speculates"
        raise ModelError(
            f"{where}: the speculative server {word}; start vLLM with --speculative-config, SGLang with "
            "--speculative-algorithm, llama.cpp with --spec-type and --metrics"
        )
    reported = setting(dict(speculative.drafting), METHOD_KEYS)
    if config.is_served_method and reported is not None and not is_same_method(config.proposer, reported):
        raise ModelError(
            f"{where}: method is {config.proposer!r}, and the speculative server says that it drafts by {reported!r}"
        )
    if found != wanted:
        raise ModelError(f"{where}: num_speculative_tokens is {wanted}, and the speculative server drafts {found}")
    dialect = Dialect.of(speculative.identity.engine)
    if dialect is Dialect.LLAMACPP and config.verify_rule is VerifyRule.REJECTION:
        raise ModelError(
            f'{where}: verify_rule is rejection, and llama.cpp verifies by comparing: set verify_rule = "exact_match"'
        )
    if speculative.counts_by_request:
        return _BY_REQUEST[dialect]
    if dialect is Dialect.LLAMACPP:
        raise ModelError(f"{where}: the speculative server's answers hold no timings at each token: it is too old")
    if dialect is Dialect.SGLANG:
        raise ModelError(f"{where}: the speculative server's meta_info holds no histogram of steps: SGLang is too old")
    if speculative.has_counters and speculative.returns_token_ids and config.drafts_in_every_step:
        return CountsSource.COUNTERS
    raise ModelError(f"{where}: the speculative server does not report its accepted tokens; start vLLM with {DETAILED}")


def require_length(where: str, wanted: int, *probes: Probe) -> None:
    """Raise ConfigError where a server takes fewer tokens than requests may have: it would refuse the longer ones."""
    least = min((probe.identity.max_model_len or wanted for probe in probes), default=wanted)
    if least < wanted:
        raise ConfigError(
            f"{where}: a server takes {least} tokens of prompt and output, and the target {wanted}: set "
            f"max_model_len = {least}, so that longer requests are recognised beforehand"
        )


def remarks(baseline: Probe, speculative: Probe, config: SpeculationConfig | None = None) -> list[str]:
    """Shortcomings of a pair that can be measured.

    With a config also the facts of its method that the speculative server does not confirm.
    """
    identity, other = baseline.identity, speculative.identity
    is_vllm = Dialect.of(other.engine) is Dialect.OPENAI
    found = []
    if identity.name != other.name:
        found.append(f"the servers differ in more than speculation: {identity.name}, {other.name}")
    if identity.root != other.root:
        found.append("the servers took their weights from different places")
    if identity.max_model_len != other.max_model_len:
        found.append(f"the servers differ in max_model_len: {identity.max_model_len}, {other.max_model_len}")
    if baseline.num_speculative_tokens is None:
        found.append("the baseline server does not say whether it speculates")
    if not speculative.counts_by_request and is_vllm:
        found.append(f"acceptance takes a second, untimed pass, which {DETAILED} would save")
    if not speculative.has_metrics and is_vllm:
        found.append("the speculative server shows no /metrics of vLLM's")
    if not (baseline.returns_token_ids and speculative.returns_token_ids):
        found.append("no token ids are returned: parity stays unknown")
    if baseline.scores_outputs is False:
        found.append(
            "sampled outputs cannot be scored, so that their parity stays unknown. The baseline server must report "
            "prompt_logprobs (vLLM: --max-logprobs at least score_logprobs, --logprobs-mode not one of logits)"
        )
    if not (baseline.reports_queue and speculative.reports_queue):
        found.append(
            "queue times are not reported, and so not shown" + (" (--enable-per-request-metrics)" if is_vllm else "")
        )
    if speculative.finds_prefix is False:
        found.append(
            "the speculative server found nothing of a prompt that it had just answered in its prefix cache: it is "
            "off, or speculation loses its hits"
        )
    if not (baseline.reports_cached and speculative.reports_cached):
        found.append("cached tokens are not reported (--enable-prompt-tokens-details)")
    found += [] if config is None else _method_remarks(config, speculative)
    return [*found, *_memory_remarks(baseline.kv_capacity, speculative.kv_capacity)]


def _method_remarks(config: SpeculationConfig, speculative: Probe) -> list[str]:
    """The facts of the drafting method that the server does not report, or that contradict its settings."""
    if not config.is_served_method:
        return []
    reported = {plain_key(key): value for key, value in speculative.drafting}
    if setting(reported, METHOD_KEYS) is None:
        remedy = " (vLLM says it with VLLM_SERVER_DEV_MODE=1)" if speculative.identity.engine == "vllm" else ""
        return [
            f"the speculative server does not say by which method it drafts: {config.proposer!r} and its "
            f"speculative_config are unchecked{remedy}"
        ]
    settings = {plain_key(key): value for key, value in config.server_settings.items()}
    compared = {key: value for key, value in settings.items() if key not in (*METHOD_KEYS, *DRAFT_KEYS)}
    found = [
        f"speculative_config has {key} = {value}, and the speculative server says {reported[key]}"
        for key, value in compared.items()
        if key in reported and not isinstance(value, dict | list) and str(value) != reported[key]
    ]
    if unsaid := sorted(key for key in compared if key not in reported):
        found.append(f"the speculative server does not say {', '.join(unsaid)}: unchecked")
    return found


def slot_remarks(load: int, baseline: Probe, speculative: Probe) -> list[str]:
    """The effect on a load for which llama.cpp has too few slots."""
    found = []
    for each, arm in ((baseline, "baseline"), (speculative, "speculative")):
        slots = llamacpp.num_slots(dict(each.identity.reported_settings))
        if slots is not None and slots < load:
            found.append(
                f"the {arm} server serves {slots} requests at once, and the largest load is {load}. The others wait in "
                f"it, which counts as latency (start it with --parallel {load})"
            )
    return found


def _memory_remarks(baseline: KvCapacity | None, speculative: KvCapacity | None) -> list[str]:
    """Reasons why the difference of two KV caches is not the memory of speculation."""
    if baseline is None or speculative is None:
        return ["the capacity of the KV caches is not reported, so that memory stays unknown (vLLM: /metrics)"]
    found = []
    for capacity, arm in ((baseline, "baseline"), (speculative, "speculative")):
        if capacity.fixed_by is not None:
            found.append(
                f"{capacity.fixed_by} sets the size of the {arm} server's KV cache: a draft's weights take nothing of "
                "it, and are not among the displaced tokens"
            )
    if baseline.shares != speculative.shares:
        found.append(
            f"the servers' KV caches differ by their settings ({_settings(baseline)}; {_settings(speculative)}), and "
            "not only by speculation: give both the same share of the memory"
        )
    elif speculative.tokens > baseline.tokens * (1.0 + SAME_CAPACITY):
        found.append(
            f"the speculative server's KV cache holds more than the baseline's ({speculative.tokens:,} tokens, "
            f"{baseline.tokens:,}): the servers differ in more than speculation"
        )
    return found


def _settings(capacity: KvCapacity) -> str:
    return ", ".join(f"{name} {value}" for name, value in capacity.shares) or "none reported"
