"""Servers' self-description and their answers to one tiny request, and whether a pair of them can be measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from shadowspec.errors import ConfigError, ModelError
from shadowspec.servers.answer_parity import can_score
from shadowspec.servers.client import ServerClient, open_client, run_async, trust
from shadowspec.servers.engines import Lack, ReportedDrafts, ServerIdentity, ServingEngine, engine_of, speculation_flags
from shadowspec.servers.identity import identify, known_facts
from shadowspec.servers.kv_capacity import KvCapacity
from shadowspec.servers.prefix_caches import require_fillable
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.server_checks import CacheBehaviour, cache_behaviour, read_capacity, require_prefix_cache
from shadowspec.servers.server_settings import NamedServer, ServerSettings
from shadowspec.servers.step_counts import CENSORED, COUNTERS, NO_DRAFTS, CountsSource
from shadowspec.servers.stream import ServerError
from shadowspec.types import Arm, SamplingParameters, SpeculationConfig
from shadowspec.types.exactness import censoring_setting, lossy_setting
from shadowspec.types.served_methods import (
    DRAFT_KEYS,
    METHOD_KEYS,
    SCHEDULE_KEY,
    is_lookup,
    is_reported,
    is_same_method,
    plain_key,
    setting,
)
from shadowspec.types.server_facts import FACT, FACTS, Fact, differing_facts, fact_details

# Tokens that begin again: lookup of up to 16 of them finds one place, which 64 others follow, if the answer goes on as
# there.  llama.cpp shows the depth of a lookup once it has drafted something.
TINY: Final = ServerRequest(
    (*range(5, 85), *range(5, 21)),
    SamplingParameters(temperature=0.0, max_tokens=24, ignore_eos=True),
    0,
    only_token=21,
)
NUM_SCORED: Final = 16  # of its tokens: some engines take a request for each
# A template renders it, and the log probabilities of a few tokens say nothing: only whether it is answered counts.
TINY_CHAT: Final = ServerRequest(
    (),
    SamplingParameters(temperature=0.0, max_tokens=4),
    0,
    chat=b'{"messages": [{"role": "user", "content": "Hello"}]}',
)
SAME_CAPACITY: Final = 0.02  # by which equal servers' caches may differ: each measures memory at its start


@dataclass(frozen=True, slots=True)
class Probe:
    """One server's facts."""

    identity: ServerIdentity
    drafts: ReportedDrafts
    returns_token_ids: bool
    reports_queue: bool
    reports_cached: bool
    scores_outputs: bool | None = None  # reports the log probabilities that score sampled outputs; None: not checked
    kv_capacity: KvCapacity | None = None  # its KV cache capacity; None: not reported
    facts: Mapping[str, Fact] = field(default_factory=dict)  # read from it, or declared by the operator
    cache: CacheBehaviour | None = None  # of its prefix cache; None: it does not say, or was not asked
    chat_fault: str | None = None  # the reason for which it refuses chats; None: it does, or was not asked

    @property
    def engine(self) -> ServingEngine:
        """The engine that the server runs."""
        return engine_of(self.identity.engine, self.identity.version)

    @property
    def has_salts(self) -> bool:
        """Whether its prefix cache keeps prompts of different salts apart, as far as is known."""
        return self.engine.has_salts and (self.cache is None or self.cache.has_salts)

    @property
    def num_speculative_tokens(self) -> int | None:
        """0 where it does not speculate; None if unreported."""
        return self.drafts.num_speculative_tokens


async def probe(client: ServerClient, model: str, score_logprobs: int = 0, *, asks_chat: bool = False) -> Probe:
    """Read a server's description and send it one tiny request; where outputs are to be scored, another one.

    With `asks_chat` it is sent a tiny chat as well.

    Raises:
        ServerError: it cannot be reached, does not serve the model, or gives no usable answer.
    """
    identity = await identify(client, model)
    engine = engine_of(identity.engine, identity.version)
    client = client.speaking_to(engine)
    answer, scored = await client.complete(TINY, "probe"), TINY.prompt_token_ids[:NUM_SCORED]
    return Probe(
        identity,
        await engine.drafts_of(client, identity, answer, model),
        returns_token_ids=answer.token_ids is not None,
        reports_queue=answer.queue_ms is not None,
        reports_cached=answer.cached_tokens is not None,
        scores_outputs=await can_score(client, scored, score_logprobs) if score_logprobs else None,
        kv_capacity=await read_capacity(client, identity),
        chat_fault=await _chat_fault(client) if asks_chat else None,
    )


async def _chat_fault(client: ServerClient) -> str | None:
    """The code of the error with which the server refuses a chat, as where its model has no template.

    Any other fault may pass, and stands in the funnel where it does not.
    """
    try:
        await client.complete(TINY_CHAT, "probe-chat")
    except ServerError as error:
        return error.code if error.code.startswith("http_4") else None
    return None


def probe_both(settings: ServerSettings, candidate: str = "") -> tuple[Probe, Probe]:
    """The baseline and the server of one candidate (`probe_servers`), by its name where there are several."""
    baseline, (speculative,) = probe_servers(settings, [candidate])
    return baseline, speculative


def probe_servers(settings: ServerSettings, candidates: Sequence[str]) -> tuple[Probe, list[Probe]]:
    """The baseline and the servers of these candidates, one after the other.

    Raises:
        ServerError: one of them gives no usable answer.
        ConfigError: the key's variable is not set, or the file of certificates cannot be read.
        ModelError: prefix caches are needed, and the baseline's is off, or one cannot be filled; or a server
            contradicts a declared fact.
    """
    context = trust(settings.ca_file)

    async def look(server: NamedServer, arm: Arm) -> Probe:
        async with open_client(server.label, server.url, settings, context, 1) as client:
            num_logprobs = settings.score_logprobs if arm is Arm.BASELINE else 0
            known = await probe(client, settings.model, num_logprobs, asks_chat=settings.api == "chat")
            known = replace(known, facts=known_facts(known.identity, server))
            if not settings.measures_conversations:
                return known
            client = client.speaking_to(known.engine)
            known = replace(known, cache=await cache_behaviour(client, known.identity.max_model_len))
            if arm is Arm.BASELINE:
                require_prefix_cache(client, known.cache, settings.prefix_cache)
            if settings.prefix_cache == "evicted":
                require_fillable(client.name, known.engine, known.kv_capacity)
            return known

    async def look_at_all() -> tuple[Probe, list[Probe]]:
        baseline = await look(settings.baseline, Arm.BASELINE)
        return baseline, [await look(settings.server_of(name), Arm.SPECULATIVE) for name in candidates]

    return run_async(look_at_all())


def counts_source(config: SpeculationConfig, baseline: Probe, speculative: Probe) -> CountsSource:
    """Where the accepted tokens are read, once the pair fits the config.

    Raises:
        ModelError: it cannot be measured with these servers; the message names what is missing.
    """
    if config.is_deployment:
        return _deployments_source(config, baseline, speculative)
    wanted, number = config.num_speculative_tokens, speculative.num_speculative_tokens
    where, drafts, engine = f"candidate {config.name!r}", speculative.drafts, speculative.engine
    if baseline.num_speculative_tokens:
        raise ModelError(f"{where}: the baseline server speculates ({baseline.num_speculative_tokens} tokens)")
    if drafts.uncountable is not None:
        raise ModelError(f"{where}: {drafts.uncountable}")
    if not number:
        clause = "does not speculate" if number == 0 else "does not report that it speculates"
        raise ModelError(f"{where}: the speculative server {clause}; start {speculation_flags()}")
    reported = setting(dict(drafts.settings), METHOD_KEYS)
    if config.is_served_method and reported is not None and not is_same_method(config.proposer, reported):
        raise ModelError(
            f"{where}: method is {config.proposer!r}, and the speculative server says that it drafts by {reported!r}"
        )
    if (lossy := lossy_setting(dict(drafts.settings)) or lossy_setting(config.server_settings)) is not None:
        raise ModelError(
            f"{where}: with {lossy} the server also accepts tokens that the target would not draw, and a verdict "
            "speaks of lossless speculation: start it without"
        )
    if number != wanted:
        raise ModelError(f"{where}: num_speculative_tokens is {wanted}, and the speculative server drafts {number}")
    if config.is_served_method:
        _require_settings(where, config, speculative)
    if (refusal := engine.refusal_of(config)) is not None:
        raise ModelError(f"{where}: {refusal}")
    censoring = _censoring(config, speculative)
    if drafts.counts_by_request:
        return engine.counts_source if censoring is None else engine.counts_source.censored
    if drafts.has_counters and censoring is None and speculative.returns_token_ids and config.drafts_in_every_step:
        return COUNTERS
    raise ModelError(f"{where}: the speculative server {engine.uncounted}")


def _deployments_source(config: SpeculationConfig, baseline: Probe, speculative: Probe) -> CountsSource:
    """Where the accepted tokens are read, of two deployments of which none, one or both speculate."""
    where, number = f"candidate {config.name!r}", speculative.num_speculative_tokens
    if (number or 0) != config.num_speculative_tokens:
        raise ModelError(
            f"{where}: num_speculative_tokens is {config.num_speculative_tokens}, and the second server drafts {number}"
        )
    drafting = [probe for probe in (speculative, baseline) if probe.num_speculative_tokens]
    for probe in drafting:
        if probe.drafts.uncountable is not None:
            raise ModelError(f"{where}: {probe.drafts.uncountable}")
        if not probe.drafts.counts_by_request:
            raise ModelError(f"{where}: a server that speculates {probe.engine.uncounted}")
    return drafting[0].engine.counts_source if drafting else NO_DRAFTS


def require_dtype(config: SpeculationConfig, dtype: str, baseline: Probe, speculative: Probe) -> None:
    """Refuse servers that say that they compute in another type: rounding is told from faults by it.

    Raises:
        ModelError: one of them does; a second deployment may.
    """
    for arm, probe in _arms(baseline, speculative):
        if probe.identity.dtype in (None, dtype) or (config.is_deployment and probe is speculative):
            continue
        raise ModelError(
            f"candidate {config.name!r}: servers.dtype is {dtype}, and the {arm} server computes in "
            f'{probe.identity.dtype}: set dtype = "{probe.identity.dtype}", because rounding is judged by it'
        )


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
    if config is not None and config.is_deployment:
        return [*_deployment_remarks(baseline, speculative), *_answer_remarks(baseline, speculative)]
    identity, other = baseline.identity, speculative.identity
    texts = []
    if identity.name != other.name:
        texts.append(f"the servers differ in more than speculation: {identity.name}, {other.name}")
    if identity.root != other.root:
        texts.append("the servers took their weights from different places")
    if identity.max_model_len != other.max_model_len:
        texts.append(f"the servers differ in max_model_len: {identity.max_model_len}, {other.max_model_len}")
    texts += _fact_remarks(baseline, speculative, config)
    if baseline.num_speculative_tokens is None:
        texts.append("the baseline server does not say whether it speculates")
    texts += speculative.engine.remarks_on(speculative.drafts)
    texts += _answer_remarks(baseline, speculative)
    texts += [] if config is None else _method_remarks(config, speculative)
    has_weights = config is None or not is_lookup(config.proposer)
    return [*texts, *_memory_remarks(baseline, speculative, has_weights=has_weights)]


def _deployment_remarks(baseline: Probe, speculative: Probe) -> list[str]:
    """The differences of two deployments, all of which are measured."""
    identity, other = baseline.identity, speculative.identity
    pairs = {
        "engine": (identity.name, other.name),
        "weights": (identity.root, other.root),
        "max_model_len": (identity.max_model_len, other.max_model_len),
        "drafted tokens": (baseline.num_speculative_tokens, speculative.num_speculative_tokens),
    }
    named = [f"{name} ({one}, {two})" for name, (one, two) in pairs.items() if one != two]
    named += [difference.text for difference in differing_facts(fact_details(baseline.facts, speculative.facts))]
    return [f"the deployments differ in {', '.join(named) or 'nothing that they report'}"]


def _answer_remarks(baseline: Probe, speculative: Probe) -> list[str]:
    """The figures that the servers' answers lack."""
    texts = [
        f"the {arm} server refuses chats ({server.chat_fault}), so that every chat will fail there: give its model "
        'a chat template, or set api = "completions"'
        for arm, server in _arms(baseline, speculative)
        if server.chat_fault is not None
    ]
    if not (baseline.returns_token_ids and speculative.returns_token_ids):
        texts.append("no token ids are returned: parity stays unknown")
    if baseline.scores_outputs is False:
        texts.append(
            "sampled outputs cannot be scored, so that their parity stays unknown. The baseline server must report "
            f"the likeliest tokens of a prompt's places{_remedy(baseline, Lack.SCORES)}"
        )
    if not (baseline.reports_queue and speculative.reports_queue):
        texts.append(f"queue times are not reported, and so not shown{_remedy(speculative, Lack.QUEUE_TIMES)}")
    if baseline.cache is not None and not baseline.cache.finds_prefix:
        texts.append("the baseline server's prefix cache is off: no request finds anything there")
    elif speculative.cache is not None and not speculative.cache.finds_prefix:
        texts.append(
            "the speculative server found nothing of a prompt that it had just answered in its prefix cache: it is "
            "off, or speculation loses its hits"
        )
    if baseline.cache is not None and not (baseline.has_salts and speculative.has_salts):
        texts.append(
            "a server's prefix cache knows no salts, and would hold a prompt that is sent again: no baseline runs "
            "twice, and noise is not measured"
        )
    if not (baseline.reports_cached and speculative.reports_cached):
        texts.append(f"cached tokens are not reported{_remedy(speculative, Lack.CACHED_TOKENS)}")
    return texts


def facts_text(baseline: Probe, speculative: Probe) -> str:
    """Every fact of the two servers, and whether it is read, declared or unknown."""
    details = fact_details(baseline.facts, speculative.facts)
    known: dict[str, list[str]] = {"read": [], "declared": [], "unknown": []}
    for name in FACTS:
        given = [probe.facts[name] for probe in (baseline, speculative) if name in probe.facts]
        source = "unknown" if not given else "read" if all(fact.is_read for fact in given) else "declared"
        known[source].append(name if not given else f"{name} {details[FACT + name]}")
    return "facts " + ", ".join(f"{source}: {', '.join(names)}" for source, names in known.items() if names)


def _fact_remarks(baseline: Probe, speculative: Probe, config: SpeculationConfig | None) -> list[str]:
    """Facts in which the servers differ: those that the drafting method forces are part of what is measured."""
    forced = frozenset() if config is None else frozenset(speculative.engine.forced_facts(config))
    differences = differing_facts(fact_details(baseline.facts, speculative.facts))
    groups: dict[str, list[str]] = defaultdict(list)
    for difference in differences:
        is_known = difference.baseline is not None and difference.speculative is not None
        kind = "forced" if difference.name in forced else "own" if is_known else "unknown"
        groups[kind].append(difference.text)
    unsaid = sorted(forced - baseline.facts.keys() - speculative.facts.keys())
    texts = {
        "own": "the servers differ in more than speculation: {}",
        "unknown": "of one server only is known: {}; declare it in servers.facts",
        "forced": "the servers differ in {}: the drafting method forces it, and its figures include it",
    }
    remarks = [text.format(", ".join(groups[kind])) for kind, text in texts.items() if groups[kind]]
    if unsaid:
        remarks.append(
            f"the drafting method may change {', '.join(unsaid)}, which the servers do not report: its "
            "figures include such a difference"
        )
    return remarks


def _remedy(server: Probe, lack: Lack) -> str:
    """How a server of that engine reports or has it, in brackets; "" where no way is known."""
    remedy = server.engine.remedies.get(lack)
    return "" if remedy is None else f" ({remedy})"


def _method_remarks(config: SpeculationConfig, speculative: Probe) -> list[str]:
    """The facts of the drafting method that the server does not report, or that contradict its settings."""
    censoring = _censoring(config, speculative)
    texts = [] if censoring is None else [f"{censoring} trims drafts after they are counted; acceptance is {CENSORED}"]
    if not config.is_served_method:
        return texts
    reported = {plain_key(key): value for key, value in speculative.drafts.settings}
    if setting(reported, METHOD_KEYS) is None:
        return [
            *texts,
            f"the speculative server does not say by which method it drafts: {config.proposer!r} and its "
            f"speculative_config are unchecked{_remedy(speculative, Lack.METHOD)}",
        ]
    if unsaid := sorted(key for key in _compared(config) if key not in reported):
        texts.append(f"the speculative server does not say {', '.join(unsaid)}: unchecked")
    return texts


def _compared(config: SpeculationConfig) -> dict[str, Any]:
    """The settings of a server's method that must be those that it reports; method and draft have names of many."""
    settings = {plain_key(key): value for key, value in config.server_settings.items()}
    return {key: value for key, value in settings.items() if key not in (*METHOD_KEYS, *DRAFT_KEYS)}


def _require_settings(where: str, config: SpeculationConfig, speculative: Probe) -> None:
    """Raise ModelError where the server drafts by other settings than the config names, or hides its schedule."""
    reported = {plain_key(key): value for key, value in speculative.drafts.settings}
    for key, value in _compared(config).items():
        if key in reported and not is_reported(value, reported[key]):
            raise ModelError(
                f"{where}: speculative_config has {key} = {value}, and the speculative server says {reported[key]}: "
                "start it as configured, or correct the configuration"
            )
    if SCHEDULE_KEY in _compared(config) and SCHEDULE_KEY not in reported:
        raise ModelError(
            f"{where}: the speculative server does not say by which schedule it drafts, so that none can be "
            f"confirmed{_remedy(speculative, Lack.METHOD)}"
        )


def _censoring(config: SpeculationConfig, speculative: Probe) -> str | None:
    return censoring_setting({**config.server_settings, **dict(speculative.drafts.settings)})


def slot_remarks(load: int, baseline: Probe, speculative: Probe) -> list[str]:
    """The effect on a load for which a server has too few slots."""
    slots = {arm: server.engine.num_slots(server.identity) for arm, server in _arms(baseline, speculative)}
    return [
        f"the {arm} server serves {number} requests at once, and the largest load is {load}. The others wait in it, "
        f"which counts as latency (start it with --parallel {load})"
        for arm, number in slots.items()
        if number is not None and number < load
    ]


def _arms(baseline: Probe, speculative: Probe) -> tuple[tuple[str, Probe], ...]:
    return ("baseline", baseline), ("speculative", speculative)


def _memory_remarks(baseline: Probe, speculative: Probe, *, has_weights: bool) -> list[str]:
    """Reasons why the difference of two KV caches is not the memory of speculation."""
    plain, speculating = baseline.kv_capacity, speculative.kv_capacity
    if plain is None or speculating is None:
        remedy = _remedy(baseline if plain is None else speculative, Lack.CAPACITY)
        return [f"the capacity of the KV caches is not reported, so that memory stays unknown{remedy}"]
    fixed: dict[str, list[str]] = {}
    for arm, capacity in (("baseline", plain), ("speculative", speculating)):
        if has_weights and capacity.fixed_by is not None:
            fixed.setdefault(capacity.fixed_by, []).append(arm)
    texts = [
        f"{option} sets the size of the {' and the '.join(arms)} server's KV cache: a draft's weights take nothing of "
        "it, and are not among the displaced tokens"
        for option, arms in fixed.items()
    ]
    if plain.shares != speculating.shares:
        texts.append(
            f"the servers' KV caches differ by their settings ({_settings(plain)}; {_settings(speculating)}), and "
            "not only by speculation: give both the same share of the memory"
        )
    elif speculating.tokens > plain.tokens * (1.0 + SAME_CAPACITY):
        texts.append(
            f"the speculative server's KV cache holds more than the baseline's ({speculating.tokens:,} tokens, "
            f"{plain.tokens:,}): the servers differ in more than speculation"
        )
    return texts


def _settings(capacity: KvCapacity) -> str:
    return ", ".join(f"{name} {value}" for name, value in capacity.shares) or "none reported"
