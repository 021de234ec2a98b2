"""`shadowspec init` and `shadowspec doctor`: write a configuration, and find out what keeps it from working."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from shadowspec.app.console import notes, print_json, results
from shadowspec.cli.options import ConfigOption, JsonOption

if TYPE_CHECKING:
    from shadowspec.config import Config
    from shadowspec.scheduler.job_settings import ReceiverSettings


def init(
    path: Annotated[Path, typer.Argument(help="File to write, or a folder to write it to.")] = Path("shadowspec.toml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
    serving_engine: Annotated[
        str | None,
        typer.Option(
            help="What serves: vllm, sglang, llama.cpp, ...; shadowspec-torch is the engine in this process. "
            "Default: asked for at a terminal, else shadowspec-torch."
        ),
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="Take the serving engine from this server, by what it reports.")
    ] = None,
) -> None:
    """Write a commented configuration and a commented policy to begin from, the policy beside the configuration.

    Verdicts are for the serving engine that the configuration names.
    """
    from shadowspec.cli.report import write_file
    from shadowspec.config import DEFAULT_POLICY_NAME, config_template, policy_template
    from shadowspec.config.file import DEFAULT_CONFIG_NAME
    from shadowspec.errors import UsageError

    if path.is_dir():
        path /= DEFAULT_CONFIG_NAME
    policy_path = path.parent / DEFAULT_POLICY_NAME
    for each in (path, policy_path):
        if each.exists() and not force:
            raise UsageError(f"{each} exists already; --force overwrites it")
    engine = choose_serving_engine(serving_engine, server)
    write_file(path, config_template(str(policy_path), engine))
    write_file(policy_path, policy_template())
    notes.print(f"written: {path} and {policy_path}; make them your own, then run:", highlight=False)
    notes.print("shadowspec db upgrade && shadowspec doctor", highlight=False)
    notes.print(f"serving_engine: {verdicts_for(engine)}", highlight=False, markup=False, soft_wrap=True)


def choose_serving_engine(named: str | None, server: str | None) -> str:
    """What serves: as it is named, as a server reports it, as it is answered at a terminal, or the engine in process.

    Raises:
        UsageError: two ways are given, or the name is none.
        ServiceUnavailableError: the server cannot be reached, or does not say what it is.
    """
    import sys

    from shadowspec.errors import UsageError
    from shadowspec.types.engine_names import IN_PROCESS, SERVING_ENGINES, parse_engines

    if server is not None:
        from shadowspec.servers.identity import engine_name

        if named is not None:
            raise UsageError("--serving-engine or --server: give one of them")
        return engine_name(server)
    if named is None and not sys.stdin.isatty():
        return IN_PROCESS
    if named is None:
        question = f"What serves your endpoint ({', '.join(SERVING_ENGINES)}: the engine in this process)"
        named = str(typer.prompt(question, default=IN_PROCESS, err=True))
    if len(parse_engines(named)) != 1:
        raise UsageError(f'--serving-engine {named!r}: expected one engine, such as vllm, or "vllm 0.32"')
    return " ".join(named.split())


def verdicts_for(engine: str) -> str:
    """What an engine's name in a configuration means for an endpoint that is measured in this process."""
    from shadowspec.types.engine_names import IN_PROCESS, parse_engines

    if parse_engines(engine)[0].name == IN_PROCESS:
        return f"verdicts are for {engine}, which serves nobody; `export` for another engine refuses them"
    return f"verdicts are for {engine}; latency must be measured on it, through two servers (docs/servers.md)"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found; `mend` says what to do where it failed."""

    check: str
    is_ok: bool
    found: str
    exit_code: int = 0


def doctor(config_path: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Check configuration, secret, database, broker, schedule, receivers, scores, device, models and servers.

    Say how to mend what is wrong. Nothing is sent to a receiver; each server is asked one tiny request.
    """
    findings = examine(config_path)
    if as_json:
        print_json({"checks": [{"check": f.check, "ok": f.is_ok, "found": f.found} for f in findings]})
    else:
        table = Table("check", "", "found", box=None)
        for finding in findings:
            word = "[green]ok[/]" if finding.is_ok else "[bold red]wrong[/]"
            table.add_row(finding.check, word, escape(finding.found))
        results.print(table)
    failed = [finding.exit_code for finding in findings if not finding.is_ok]
    if failed:
        raise typer.Exit(failed[0])


def examine(config_path: Path | None) -> list[Finding]:
    """Every check in turn; without a configuration there is nothing further to check."""
    from shadowspec.app.before_loading import name_loads
    from shadowspec.config import find_config, load_config
    from shadowspec.errors import ShadowSpecError

    try:
        config = load_config(find_config(config_path))
    except ShadowSpecError as error:
        return [Finding("configuration", False, str(error), error.exit_code)]
    name_loads({})  # said at the start: the checks before it may wait for a broker
    names = ", ".join(config.endpoints) or "no endpoint yet"
    policy = "" if config.policy_path == config.path else f"; policy: {config.policy_path}"
    findings = [Finding("configuration", True, f"{config.path}: {names}{policy}")]
    findings += [
        _run_check(name, check, config)
        for name, check in (
            ("secret", _secret),
            ("database", _database),
            ("broker", _broker),
            ("schedule", _schedule),
            *((f"receiver {receiver.name}", _receiver(receiver)) for receiver in config.schedule.receivers.values()),
            ("scores", _scores),
            ("serving engine", _serving_engines),
            ("audits", _audits),
            ("device", _device),
            ("models", _models),
            *(
                (f"servers {name}", _servers(name))
                for name, endpoint in config.endpoints.items()
                if endpoint.servers is not None
            ),
            *(
                (f"live {name}", _live(name))
                for name, endpoint in config.endpoints.items()
                if endpoint.live is not None
            ),
        )
    ]
    return findings


def _run_check(name: str, check: Callable[[Config], str], config: Config) -> Finding:
    from shadowspec.errors import ShadowSpecError

    try:
        with notes.status(f"checking {escape(name)}"):
            return Finding(name, True, check(config))
    except ShadowSpecError as error:
        return Finding(name, False, str(error), error.exit_code)


def _live(endpoint: str) -> Callable[[Config], str]:
    """The check of the engines whose counters an endpoint's live guard reads; nothing is kept."""

    def check(config: Config) -> str:
        from shadowspec.cli.live import live_jobs
        from shadowspec.errors import ServiceUnavailableError
        from shadowspec.live.scrape import failures, scrape_all
        from shadowspec.text import plural
        from shadowspec.types import LiveScrape

        source = live_jobs(config, endpoint)[endpoint].source
        scrapes = scrape_all(source)
        if failed := failures(scrapes):
            raise ServiceUnavailableError("; ".join(failure.message for failure in failed))
        drafting = [
            scrape for scrape in scrapes if isinstance(scrape, LiveScrape) and scrape.counts.num_drafts is not None
        ]
        return f"{plural(len(scrapes), 'replica')} of {source.engine} read; {len(drafting)} count drafts"

    return check


def _secret(config: Config) -> str:
    from shadowspec.config import load_hash_secret

    return f"{len(load_hash_secret(config))} bytes"


def _database(config: Config) -> str:
    from shadowspec.store import Store, head

    with Store.open(config.database_url) as store:
        return f"reachable, at revision {head()}, {len(store.endpoints())} endpoints measured"


def _broker(config: Config) -> str:
    if config.kafka is None:
        return "no mirror is configured ([kafka]); files need none"
    from shadowspec.tap.kafka.broker_clients import describe

    return describe(config.kafka)


def _schedule(config: Config) -> str:
    from datetime import UTC, datetime

    from shadowspec.scheduler.cron import crons_of
    from shadowspec.text import plural

    crons = crons_of(config.path, config.schedule.jobs)
    if not crons:
        return "no job is configured ([schedule]); reports are made by hand"
    now = datetime.now(UTC)
    due = min(moment for cron in crons.values() if (moment := cron.next_after(now)) is not None)
    return f"{plural(len(crons), 'job')}; next due {due:%Y-%m-%d %H:%M:%S} UTC"


def _receiver(receiver: ReceiverSettings) -> Callable[[Config], str]:
    """The check of one receiver; nothing is sent to it."""

    def check(config: Config) -> str:
        from shadowspec.scheduler.receivers import require_place, require_secret

        require_secret(receiver)
        require_place(receiver)
        jobs = [job.name for job in config.schedule.jobs.values() if receiver.name in job.receivers]
        return f"of {', '.join(jobs)}" if jobs else "of no job: nothing is sent to it"

    return check


def _scores(config: Config) -> str:
    from shadowspec.errors import ConfigError
    from shadowspec.gate.evidence.guardrails import SCORES
    from shadowspec.quality.custom_scores import score_name

    wanted = {"structured_validity": '"json_valid" or "contract_valid"', "score": "a function of yours"}
    for name, endpoint in config.endpoints.items():
        scored = {score_name(each) for each in endpoint.scores}
        for margin, score in SCORES.items():
            if getattr(endpoint.policy, margin) is not None and score not in scored:
                raise ConfigError(
                    f"{config.path}: endpoints.{name}.scores: needs {wanted[score]}, for the policy sets {margin}: "
                    "without it the test never sees an output and the endpoint stays on HOLD"
                )
    names = sorted({each for endpoint in config.endpoints.values() for each in endpoint.scores})
    return ", ".join(names) or "no output is scored; no policy asks for it"


def _serving_engines(config: Config) -> str:
    """What the verdicts on each endpoint are for; nothing is wrong with one that names no engine, but it is said."""
    from shadowspec.types.engine_names import IN_PROCESS, verdict_engine

    found = []
    for name, endpoint in config.endpoints.items():
        serving = endpoint.policy.serving_engine
        if serving is not None:
            found.append(f"{name}: {serving}")
            if endpoint.servers is None and endpoint.policy.other_engine(IN_PROCESS) is not None:
                found[-1] += f", but latency is measured on {IN_PROCESS}: such verdicts are HOLD (docs/servers.md)"
        elif endpoint.servers is None:
            found.append(f"{name} names none: verdicts are for {verdict_engine(None, IN_PROCESS)}")
        else:
            found.append(f"{name} names none: verdicts are for what its servers report")
    return "; ".join(found) or "no endpoint yet"


def _audits(config: Config) -> str:
    """Of which endpoints outputs are replayed after they were measured, and of which not."""
    share = config.engine.audit_share
    audited = [name for name, endpoint in config.endpoints.items() if endpoint.servers is None]
    served = [name for name in config.endpoints if name not in audited]
    found = [f"{share:.0%} of the outputs of {', '.join(audited)} are replayed"] if audited and share else []
    if served:
        found.append(f"outputs of servers are not ({', '.join(served)}; docs/servers.md)")
    return "; ".join(found) or "no output is replayed"


def _device(config: Config) -> str:
    from shadowspec.engine.device import choose_device, choose_dtype, choose_kernels, choose_recorder, device_name

    device = choose_device(config.engine.device)
    dtype = str(choose_dtype(config.engine.dtype, device)).removeprefix("torch.")
    new_recorder = choose_recorder(config.engine.passes, device)
    passes = "dynamic" if new_recorder is None else new_recorder().name
    kernels = choose_kernels(config.engine.kernels, device)
    return f"{device_name(device)}, {dtype}, passes: {passes}, kernels: {kernels.backend if kernels else 'torch'}"


def _models(config: Config) -> str:
    """What is measured in this process; models are loaded only where their files leave a doubt."""
    from dataclasses import replace

    from shadowspec.app.before_loading import load_scorers, name_loads, require_endpoints
    from shadowspec.engine.device import choose_device
    from shadowspec.engine.ordinary import are_settled

    require_endpoints(config)
    in_process = {name: endpoint for name, endpoint in config.endpoints.items() if endpoint.servers is None}
    if not in_process:
        return "no endpoint is measured in this process"
    load_scorers(replace(config, endpoints=in_process))
    _device(config)  # nothing can be loaded onto one that is not there
    is_on_cpu = choose_device(config.engine.device).type == "cpu"
    pairs = {(endpoint.target, endpoint.candidates) for endpoint in in_process.values()}
    settled = {pair for pair in pairs if config.engine.passes == "dynamic" and are_settled(*pair, is_on_cpu=is_on_cpu)}
    unsettled = {
        name: endpoint for name, endpoint in in_process.items() if (endpoint.target, endpoint.candidates) not in settled
    }
    if unsettled:
        name_loads(unsettled)
        from shadowspec.app.measure_files import build_engines

        build_engines(replace(config, endpoints=unsettled))
    configs = {candidate.name for endpoint in in_process.values() for candidate in endpoint.candidates}
    targets = {endpoint.target for endpoint in in_process.values()}
    return f"{len(targets)} target(s); candidates: {', '.join(sorted(configs))}"


def _servers(name: str) -> Callable[[Config], str]:
    """The check of one endpoint's two servers, each asked one tiny request."""

    def check(config: Config) -> str:
        from shadowspec.app.measure_files import load_tokenizers
        from shadowspec.servers.probing import counts_source, probe_both, remarks, require_length, slot_remarks

        endpoint = config.endpoints[name]
        assert endpoint.servers is not None, "an endpoint without servers has none to check"
        baseline, speculative = probe_both(endpoint.servers)
        source = counts_source(endpoint.candidates[0], baseline, speculative)
        length = load_tokenizers(config)[name].context_length
        require_length(f"{config.path}: endpoints.{name}.servers", length, baseline, speculative)
        found = (
            f"{endpoint.servers.model} on {baseline.identity.name}, and with {speculative.num_speculative_tokens} "
            f"speculative tokens on {speculative.identity.name}; acceptance from {source.meaning}"
        )
        slots = slot_remarks(max(load.concurrency for load in endpoint.rule.loads), baseline, speculative)
        return "; ".join([found, *remarks(baseline, speculative, endpoint.candidates[0]), *slots])

    return check
