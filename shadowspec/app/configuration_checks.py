"""The checks of a configuration, and of what it would measure of a recording."""

from __future__ import annotations

import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from rich.markup import escape

from shadowspec.app.before_loading import (
    load_scorers,
    load_tokenizers,
    name_loads,
    require_inputs,
    sampling_doubt,
    survey_tokenizers,
    with_endpoint_context,
)
from shadowspec.app.progress_bar import notes
from shadowspec.app.scheduled_jobs import wanted_export
from shadowspec.app.try_out.sample import read_sample
from shadowspec.app.try_out.survey import Survey, refusals, remedy_for, survey_endpoints
from shadowspec.config import (
    MAKE_A_SECRET,
    Config,
    EndpointConfig,
    find_config,
    load_config,
    load_hash_secret,
    load_previous_secret,
    served_sampling,
)
from shadowspec.errors import ConfigError, NoDataError, ServiceUnavailableError, ShadowSpecError
from shadowspec.gate.evidence.guardrails import SCORES
from shadowspec.gate.verdict.current_decision import read_endpoint_decisions
from shadowspec.live.guard import promise_of
from shadowspec.live.promise import UNWATCHED, unwatched_because
from shadowspec.live.scrape import failures, scrape_all
from shadowspec.quality.custom_scores import score_name
from shadowspec.scheduler.cron import crons_of
from shadowspec.scheduler.http_pages import EXPORTS
from shadowspec.scheduler.job_settings import ReceiverSettings
from shadowspec.scheduler.receivers import require_place, require_secret
from shadowspec.scheduler.target_settings import HttpTarget
from shadowspec.scheduler.targets import require_target
from shadowspec.servers.probing import (
    counts_source,
    facts_text,
    probe_both,
    remarks,
    require_dtype,
    require_length,
    slot_remarks,
)
from shadowspec.store import Store, head
from shadowspec.tap.formats import FieldMap
from shadowspec.tap.sources import require_file
from shadowspec.text import plural, span_text
from shadowspec.types import LiveScrape, SpeculationConfig
from shadowspec.types.extras import ENGINE, has_extra
from shadowspec.types.public_documents import PublicDocument, PublicValue, public
from shadowspec.types.serving_engines import IN_PROCESS, verdict_engine

MIN_DIFFERENT_CHARACTERS = 8  # of a secret: 16 random hexadecimal digits have 10


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check; a failure's text says how to fix it."""

    check: str
    ok: bool
    found: str
    exit_code: int = 0


class CheckedDocument(PublicValue, frozen=True, kw_only=True):
    """The result of one check."""

    check: str
    ok: bool
    found: str


class DoctorDocument(PublicDocument, frozen=True, kw_only=True):
    """The checks of `doctor --json`."""

    checks: list[CheckedDocument]


def doctor_document(results: Sequence[CheckResult]) -> DoctorDocument:
    """The checks as `doctor --json` prints them."""
    return DoctorDocument(checks=[public(CheckedDocument, result) for result in results])


def examine(
    config_path: Path | None, traffic: str | None = None, field_map: FieldMap | None = None
) -> list[CheckResult]:
    """Every check in turn; only the first ones if the configuration or the recording cannot be read."""
    try:
        config = load_config(find_config(config_path))
    except ShadowSpecError as error:
        return [CheckResult("configuration", False, str(error), error.exit_code)]
    names = ", ".join(config.endpoints) or "no endpoint yet"
    policy = "" if config.policy_path == config.path else f"; policy: {config.policy_path}"
    findings = [CheckResult("configuration", True, f"{config.path}: {names}{policy}")]
    try:
        if traffic is not None:
            require_file(traffic)
    except ShadowSpecError as error:
        return [*findings, CheckResult("traffic", False, str(error), error.exit_code)]
    if has_extra(ENGINE):
        name_loads({}, asks_device=True)  # first: the checks before it may wait for a broker
    findings += [
        _run_check(name, check, config)
        for name, check in (
            ("secret", _secret),
            ("database", _database),
            ("broker", _broker),
            ("schedule", _schedule),
            *((f"receiver {receiver.name}", _receiver(receiver)) for receiver in config.schedule.receivers.values()),
            *((f"target {name}", _target(name)) for name in config.schedule.targets),
            ("scores", _scores),
            ("serving engine", _serving_engines),
            ("sampling", _sampling),
            ("audits", _audits),
            ("device", _device),
            ("models", _models),
            *_server_checks(config),
            *(
                (f"live {name}", _live(name))
                for name, endpoint in config.endpoints.items()
                if endpoint.live is not None
            ),
        )
    ]
    return findings if traffic is None else [*findings, *_traffic(config, traffic)]


def _run_check(name: str, check: Callable[[Config], str], config: Config) -> CheckResult:
    try:
        with notes.status(f"checking {escape(name)}"):
            return CheckResult(name, True, check(config))
    except ShadowSpecError as error:
        return CheckResult(name, False, str(error), error.exit_code)


def _live(endpoint: str) -> Callable[[Config], str]:
    """The check of the engines whose counters an endpoint's live guard reads; nothing is kept."""

    def check(config: Config) -> str:
        source = config.live_jobs(endpoint)[endpoint].source
        plain = source.plain_replicas
        scrapes = scrape_all(source)
        if failed := failures(scrapes):
            raise ServiceUnavailableError("; ".join(failure.message for failure in failed))
        drafting = [
            scrape for scrape in scrapes if isinstance(scrape, LiveScrape) and scrape.counts.num_drafts is not None
        ]
        if drafting_plain := [
            reading.replica for reading in drafting if reading.counts.num_drafts and reading.replica in plain
        ]:
            raise ConfigError(
                f"{', '.join(drafting_plain)}: of plain_metrics_urls, but drafts; start it without speculation"
            )
        guard = config.live_jobs(endpoint)[endpoint].guard
        blind = {
            reading.replica: why
            for reading in scrapes
            if isinstance(reading, LiveScrape) and reading.replica not in plain
            if (why := unwatched_because(reading.counts, guard)) is not None
        }
        words = "; ".join(f"{replica}: {why}" for replica, why in blind.items())
        if blind and _is_enabled(config, endpoint):
            raise ConfigError(
                f"{words}: {UNWATCHED}; serve the model with speculation, by a version that counts its drafts "
                "(docs/live.md)"
            )
        control = f"; control: {plural(len(plain), 'plain replica')}" if plain else ""
        silent = [
            scrape.replica
            for scrape in scrapes
            if isinstance(scrape, LiveScrape) and scrape.counts.num_preemptions is None and scrape.kv_use is None
        ]
        return (
            f"{plural(len(scrapes), 'replica')} of {source.engine} read; {len(drafting)} count drafts{control}"
            + (f"; no ENABLE would be watched there: {words}" if blind else "")
            + (
                f"; memory pressure is not watched on {', '.join(silent)}: neither preemptions nor KV-cache use is "
                "reported"
                if silent
                else ""
            )
        )

    return check


def _is_enabled(config: Config, endpoint: str) -> bool:
    """Whether an ENABLE promises something; a database that cannot be read is the matter of another check."""
    try:
        with Store.open(config.database_url) as store:
            policy = config.endpoints[endpoint].policy
            return promise_of(read_endpoint_decisions(store, endpoint, policy, datetime.now(UTC)).current) is not None
    except ShadowSpecError:
        return False


def _secret(config: Config) -> str:
    secret, previous = load_hash_secret(config), load_previous_secret(config)
    doubts = [
        f"{name} has few different characters; make one with: {MAKE_A_SECRET}"
        for name, value in (("it", secret), ("the previous one", previous))
        if value is not None and len(set(value)) < MIN_DIFFERENT_CHARACTERS
    ]
    paths = [
        path
        for path in (config.hash_secret_file, config.hash_secret_previous_file)
        if path is not None and path.exists() and path.stat().st_mode & stat.S_IROTH
    ]
    doubts += [f"{path} can be read by others; chmod 600 {path}" for path in paths]
    rotation = "" if previous is None else ", and a previous one"
    return "; ".join([f"{len(secret)} bytes{rotation}", *(f"warning: {doubt}" for doubt in doubts)])


def _database(config: Config) -> str:
    with Store.open(config.database_url) as store:
        return f"reachable, at revision {head()}, {plural(len(store.endpoints()), 'endpoint')} measured"


def _broker(config: Config) -> str:
    if config.kafka is None:
        return "no mirror is configured ([kafka]); files need none"
    from shadowspec.tap.kafka.broker_clients import describe

    return describe(config.kafka)


def _schedule(config: Config) -> str:
    crons = crons_of(config.path, config.schedule.jobs)
    if not config.schedule.jobs:
        return "no job is configured ([schedule]); run `shadowspec report` by hand"
    now = datetime.now(UTC)
    due = min((moment for cron in crons.values() if (moment := cron.next_after(now)) is not None), default=None)
    return plural(len(config.schedule.jobs), "job") + ("" if due is None else f"; next due {due:%Y-%m-%d %H:%M:%S} UTC")


def _receiver(receiver: ReceiverSettings) -> Callable[[Config], str]:
    """The check of one receiver; nothing is sent to it."""

    def check(config: Config) -> str:
        require_secret(receiver)
        require_place(receiver)
        jobs = [job.name for job in config.schedule.jobs.values() if receiver.name in job.receivers]
        return f"of {', '.join(jobs)}" if jobs else "no job uses it"

    return check


def _target(name: str) -> Callable[[Config], str]:
    """The check of one target; nothing is written to it."""

    def check(config: Config) -> str:
        target = config.schedule.targets[name]
        wanted_export(config, target)
        if isinstance(target, HttpTarget):
            return f"served at http://{config.schedule.metrics_address}{EXPORTS}{name}"
        require_target(target)
        jobs = [job.name for job in config.schedule.jobs.values() if name in job.targets]
        return f"of {', '.join(jobs)}" if jobs else "no job uses it"

    return check


def _scores(config: Config) -> str:
    wanted = {"structured_validity": '"json_valid" or "contract_valid"', "score": "a function of yours"}
    for name, endpoint in config.endpoints.items():
        scored = {score_name(scorer) for scorer in endpoint.scores}
        for margin, score in SCORES.items():
            if getattr(endpoint.policy, margin) is not None and score not in scored:
                raise ConfigError(
                    f"{config.path}: endpoints.{name}.scores: add {wanted[score]}, because the policy sets {margin}; "
                    "without it the endpoint stays on HOLD"
                )
        if endpoint.policy.task_margin is not None and endpoint.servers is None:
            raise ConfigError(
                f"{config.path}: endpoints.{name}: the policy sets task_margin, and a task set needs servers to ask "
                '(engine = "openai"); without it the endpoint stays on HOLD'
            )
    names = sorted({scorer for endpoint in config.endpoints.values() for scorer in endpoint.scores})
    return ", ".join(names) or "no output is scored; no policy asks for it"


def _serving_engines(config: Config) -> str:
    """The engine that the verdicts on each endpoint are for; naming none is no failure."""
    engines = []
    for name, endpoint in config.endpoints.items():
        serving = endpoint.policy.serving_engine
        if serving is not None:
            engines.append(f"{name}: {serving}")
            if endpoint.servers is None and endpoint.policy.other_engine(IN_PROCESS) is not None:
                engines[-1] += f", but latency is measured on {IN_PROCESS}: such verdicts are HOLD (docs/servers.md)"
        elif endpoint.servers is None:
            engines.append(f"{name} names none: verdicts are for {verdict_engine(None, IN_PROCESS)}")
        else:
            engines.append(f"{name} names none: verdicts are for the engine that its servers report")
    return "; ".join(engines) or "no endpoint yet"


def _sampling(config: Config) -> str:
    """How each endpoint's production samples requests that set nothing."""
    for name, endpoint in config.endpoints.items():
        with with_endpoint_context(config, name):
            served_sampling(endpoint.folder, None, configured={})  # raises where the file is damaged
    return "; ".join(f"{name}: {endpoint.sampling.text}" for name, endpoint in config.endpoints.items()) or (
        "no endpoint yet"
    )


def _audits(config: Config) -> str:
    """The endpoints whose outputs are replayed after measuring, and the others."""
    share = config.engine.audit_share
    in_process = [name for name, endpoint in config.endpoints.items() if endpoint.servers is None]
    audits = [f"{share:.0%} of the outputs of {', '.join(in_process)} are replayed"] if in_process and share else []
    unaudited = []
    for name, endpoint in config.endpoints.items():
        if endpoint.servers is not None and endpoint.servers.audit_share:
            audits.append(f"{endpoint.servers.audit_share:.0%} of the outputs of {name}'s servers are replayed")
        elif endpoint.servers is not None:
            unaudited.append(name)
    if unaudited:
        audits.append(f"outputs of servers are not ({', '.join(unaudited)}; audit_share in docs/servers.md)")
    return "; ".join(audits) or "no output is replayed"


def _device(config: Config) -> str:
    if not has_extra(ENGINE) and not any(endpoint.loads_models for endpoint in config.endpoints.values()):
        return f"none: no endpoint is measured in this process, and the extra `{ENGINE}` is not installed"
    from shadowspec.engine.device import choose_device, choose_dtype, choose_kernels, choose_recorder, device_name

    device = choose_device(config.engine.device)
    dtype = str(choose_dtype(config.engine.dtype, device)).removeprefix("torch.")
    new_recorder = choose_recorder(config.engine.passes, device)
    passes = "dynamic" if new_recorder is None else new_recorder().name
    kernels = choose_kernels(config.engine.kernels, device)
    return f"{device_name(device)}, {dtype}, passes: {passes}, kernels: {kernels.backend if kernels else 'torch'}"


def _models(config: Config) -> str:
    """The models of this process; they are loaded only if their files leave a doubt."""
    require_inputs(config, ())
    loaded = {name: endpoint for name, endpoint in config.endpoints.items() if endpoint.loads_models}
    if not loaded:
        return "no endpoint is measured in this process"
    from shadowspec.engine.device import choose_device
    from shadowspec.engine.ordinary import are_settled

    load_scorers(replace(config, endpoints=loaded))
    _device(config)  # raises if it is missing
    is_on_cpu = choose_device(config.engine.device).type == "cpu"
    pairs = {(endpoint.target, endpoint.candidates) for endpoint in loaded.values()}
    is_usual = config.engine.passes != "graphs" and config.engine.dtype != "int8"
    settled = {pair for pair in pairs if is_usual and are_settled(*pair, is_on_cpu=is_on_cpu)}
    unsettled = {
        name: endpoint for name, endpoint in loaded.items() if (endpoint.target, endpoint.candidates) not in settled
    }
    if unsettled:
        name_loads(unsettled)
        from shadowspec.app.measure_files import build_engines

        build_engines(replace(config, endpoints=unsettled))
    configs = {candidate.name for endpoint in loaded.values() for candidate in endpoint.candidates}
    targets = {endpoint.target for endpoint in loaded.values()}
    return f"{plural(len(targets), 'target')}; candidates: {', '.join(sorted(configs))}"


def _traffic(config: Config, path: str) -> list[CheckResult]:
    """What each endpoint would measure of a recording, by its first lines."""
    try:
        with notes.status("reading the traffic"):
            sample = read_sample(path, config.file_format)
            rules = [endpoint.rule for endpoint in config.endpoints.values()]
            surveys, refused = survey_endpoints(sample, rules, survey_tokenizers(config), load_hash_secret(config))
    except ShadowSpecError as error:
        return [CheckResult("traffic", False, str(error), error.exit_code)]
    records = plural(len(sample.opened), "record")
    unplaced = f"; of no endpoint: {refusals(refused[''])}" if refused[""] else ""
    is_any = bool(surveys) or any("not_sampled" in reasons for reasons in refused.values())
    remedy = "" if is_any else remedy_for(sum(refused.values(), start=Counter()))
    findings = [
        CheckResult(
            "traffic", is_any, f"{path}: {records} in its first {sample.num_sampled:,} lines{unplaced}{remedy}",
            NoDataError.exit_code,
        )
    ]  # fmt: skip
    for name, endpoint in config.endpoints.items():
        words = _matched(endpoint, surveys.get(name), refused[name])
        findings.append(CheckResult(f"traffic {name}", is_any, words, NoDataError.exit_code))
    return findings


def _matched(endpoint: EndpointConfig, survey: Survey | None, refused: Counter[str]) -> str:
    """What one endpoint takes of a recording, what it refuses, and what the policy still needs."""
    others = Counter({reason: number for reason, number in refused.items() if reason != "not_sampled"})
    unsampled = f", {refused['not_sampled']:,} of sessions that are not drawn" if refused["not_sampled"] else ""
    not_usable = f"; not usable: {refusals(others)}" if others else ""
    if survey is None:
        return f"no record can be measured{unsampled}{not_usable}"
    span_s = (survey.last - survey.first).total_seconds()
    min_span_s = 0.0 if endpoint.policy.recording_only else endpoint.policy.min_span_s
    wish = f" of the {span_text(min_span_s)} that ENABLE needs (min_span_s)" if span_s < min_span_s else ""
    positions, enough = endpoint.rule.timed_positions, survey.timed_positions
    more = f" (timed_positions is {positions}; {enough} fits these sessions and times more)" * (enough < positions)
    return (
        f"{plural(len(survey.requests), 'usable request')} of {plural(len(survey.sessions), 'session')}{unsampled}; "
        f"about {round(survey.num_timed(positions)):,} of the file would be timed{more}; "
        f"{span_text(span_s)}{wish}{survey.mismatch}{not_usable}"
    )


def _server_checks(config: Config) -> Iterator[tuple[str, Callable[[Config], str]]]:
    """A check for each candidate's server, which names the candidate where there are several."""
    for name, endpoint in config.endpoints.items():
        for candidate in endpoint.candidates if endpoint.servers is not None else ():
            several = len(endpoint.candidates) > 1
            yield f"servers {name} {candidate.name}" if several else f"servers {name}", _servers(name, candidate)


def _servers(name: str, candidate: SpeculationConfig) -> Callable[[Config], str]:
    """The check of an endpoint's baseline and of one candidate's server, each asked one tiny request."""

    def check(config: Config) -> str:
        endpoint = config.endpoints[name]
        assert endpoint.servers is not None, "only endpoints with servers are checked"
        baseline, speculative = probe_both(endpoint.servers, candidate.name)
        source = counts_source(candidate, baseline, speculative)
        require_dtype(candidate, endpoint.servers.dtype, baseline, speculative)
        if endpoint.has_folder:
            length = load_tokenizers(replace(config, endpoints={name: endpoint}))[name].context_length
            require_length(f"{config.path}: endpoints.{name}.servers", length, baseline, speculative)
        served = (
            f"{endpoint.servers.model} on {baseline.identity.name}, and with {speculative.num_speculative_tokens} "
            f"speculative tokens on {speculative.identity.name}; acceptance from {source.meaning}"
        )
        slots = slot_remarks(max(load.concurrency for load in endpoint.rule.loads), baseline, speculative)
        doubt = sampling_doubt(endpoint, speculative.identity.name)
        more = [*remarks(baseline, speculative, candidate), *slots, *([] if doubt is None else [doubt])]
        return "; ".join([served, facts_text(baseline, speculative), *more])

    return check
