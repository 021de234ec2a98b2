"""Checks before models are loaded: the configuration has endpoints, and their models, scores and input files exist.

Torch and transformers take seconds to load, so that importing this module loads neither.  Servers and tokenizers are
here too: servers need neither, and a tokenizer needs nothing of the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from shadowspec.app.progress_bar import notes
from shadowspec.app.try_out.sample import read_sample
from shadowspec.app.try_out.survey import NO_ENDPOINT, refusals, survey_endpoints
from shadowspec.config import Config, EndpointConfig, load_hash_secret, load_previous_secret, served_sampling
from shadowspec.errors import ConfigError, ModelError, NoDataError
from shadowspec.model_folder import TargetTokenizer, download_remedy, require_settings, require_weights
from shadowspec.quality.contracts import require_sql
from shadowspec.quality.custom_scores import Scorer, load_scorer
from shadowspec.servers.connecting import connect
from shadowspec.servers.judging import OutputAuditor
from shadowspec.servers.measure_servers import ServerEngine
from shadowspec.servers.served_tokenizer import connect_tokenizer
from shadowspec.store import Store
from shadowspec.tap.endpoints import EndpointRule
from shadowspec.tap.hashing import KeyedHash, RotatedHash
from shadowspec.tap.kafka import KafkaSettings
from shadowspec.tap.reading import NoTokenizer, Tokenizer
from shadowspec.tap.sources import is_rereadable, require_file
from shadowspec.types import Contract, FingerprintedConfig, sampling_defaults
from shadowspec.types.extras import ENGINE, has_extra

log = logging.getLogger(__name__)
AnyTokenizer = TypeVar("AnyTokenizer", bound=TargetTokenizer)


def require_endpoints(config: Config) -> None:
    """Raise ConfigError where there is nothing to measure."""
    if not config.endpoints:
        raise ConfigError(f"{config.path}: no endpoint is configured; add [endpoints.NAME] (see `shadowspec init`)")


def require_mirror(config: Config) -> KafkaSettings:
    """The mirror's settings; ConfigError where none is configured."""
    if config.kafka is None:
        raise ConfigError(f"{config.path}: no mirror is configured; add [kafka] (see `shadowspec init`)")
    return config.kafka


def require_database(config: Config) -> None:
    """Raise the error of a database that is not there, or not of this version."""
    with Store.open(config.database_url):
        pass


def open_keyed_hash(config: Config, store: Store) -> KeyedHash:
    """The hash of ids; during a rotation with the identities that are stored under the previous secret.

    They are those of the time after which admission and gate forget a session anyway.

    Raises:
        ConfigError: there is no secret, or one cannot be used.
    """
    secret, previous = load_hash_secret(config), load_previous_secret(config)
    if previous is None:
        return KeyedHash(secret)
    known: set[str] = set()
    for name, endpoint in config.endpoints.items():
        known |= store.recent_identities(name, datetime.now(UTC), endpoint.rule.forget_unit_after)
    return RotatedHash(secret, previous, known)


def require_records(config: Config, files: Sequence[str]) -> None:
    """Check that the first lines of each file hold a record of an endpoint; pipes are not read.

    Raises:
        InputError: a file is broken.
        NoDataError: a file's first lines hold no record, or the whole file none of a configured endpoint.
    """
    rules = [endpoint.rule for endpoint in config.endpoints.values()]
    for file in filter(is_rereadable, files):
        sample = read_sample(file, config.file_format)
        if sample.num_sampled < sample.num_lines:
            continue  # a later line may match
        surveys, refused = survey_endpoints(sample, rules, any_tokenizers(rules), load_hash_secret(config))
        if not surveys and not refused.keys() - {""}:
            raise NoDataError(f"{file}: no record is of a configured endpoint ({refusals(refused[''])}); {NO_ENDPOINT}")


def any_tokenizers(rules: Sequence[EndpointRule]) -> Mapping[str, Tokenizer]:
    """A stand-in for each endpoint's tokenizer where no tokens are needed: every prompt is one token."""
    return {rule.name: NoTokenizer() for rule in rules}


def require_inputs(
    config: Config, files: Sequence[str], endpoint: str | None = None, *, needs_weights: bool = True
) -> None:
    """Check files of records (- is standard input), then the model folders of an endpoint (None: of all).

    Args:
        needs_weights: of models that this process may load; otherwise folders without any will do.

    Raises:
        ConfigError: no endpoint is configured, or none of this name; or files are given and there is no secret.
        InputError: a file or a model folder is missing, unreadable or damaged.
        NoDataError: a file is empty.
    """
    require_endpoints(config)
    for file in files:
        require_file(file)
    if files:
        load_hash_secret(config)
    for name, settings in config.chosen(endpoint).items():
        folders = {"target": settings.target} if settings.has_folder else {}
        if settings.loads_models:
            drafts = {f"candidates.{candidate.name}.draft": candidate.draft for candidate in settings.candidates}
            folders |= {key: draft for key, draft in drafts.items() if draft is not None}
        for key, folder in folders.items():
            where, path = f"{config.path}: endpoints.{name}.{key}", Path(folder)
            if not (path / "config.json").is_file():
                raise ModelError(f"{where}: {_missing_model(path)}")
            require_settings(f"{where}: {folder}", path)
            if settings.loads_models and (needs_weights or any(path.glob("*.safetensors"))):
                require_weights(f"{where}: {folder}", path)


def _missing_model(folder: Path) -> str:
    """Why this is no model folder, and how to get one."""
    if folder.is_dir():
        return f"{folder} has no config.json; give the folder that holds the model"
    if folder.is_file():
        return f"{folder} is a file; give the folder that holds the model"
    return f"there is no folder {folder}; {download_remedy(folder)}, or correct the path"


def load_scorers(config: Config) -> dict[str, Scorer]:
    """The scorer of each endpoint.

    Raises:
        ConfigError: a function that scores outputs is not there, or what judges SQL.
    """
    scorers = {}
    for name, endpoint in config.endpoints.items():
        try:
            scorers[name] = load_scorer(endpoint.scores)
        except ConfigError as error:
            raise ConfigError(f"{config.path}: endpoints.{name}.{error}") from error
    for name, endpoint in config.endpoints.items():
        for contract in endpoint.rule.contracts.values():
            if contract.kind is Contract.SQL:
                try:
                    require_sql(contract.dialect)
                except ConfigError as error:
                    raise ConfigError(f"{config.path}: endpoints.{name}: {error}") from error
    return scorers


@contextmanager
def with_endpoint_context(config: Config, name: str) -> Iterator[None]:
    """The error of a model that cannot be used names the file and the endpoint that ask for it."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{config.path}: endpoints.{name}: {error}") from error


def load_tokenizers(config: Config) -> dict[str, TargetTokenizer]:
    """The target tokenizer of each endpoint, without the weights; each folder is read once.

    Raises:
        ModelError: a folder holds no usable tokenizer.
        ConfigError: an endpoint has no folder; or transformers is needed, and is not installed.
    """
    return tokenizers_by(load_target_tokenizer, config)


@contextmanager
def open_tokenizers(config: Config) -> Iterator[Mapping[str, Tokenizer]]:
    """The same for what reads and measures in turn, so that the servers may be asked where there is no folder.

    Raises:
        ServerError: a server that is asked gives no usable answer.
        ModelError: a folder holds no usable tokenizer, or a server does not say which tokens it makes.
        ConfigError: transformers is needed, and is not installed.
    """
    folders = {name: endpoint for name, endpoint in config.endpoints.items() if endpoint.has_folder}
    with ExitStack() as stack:
        asked = {
            name: stack.enter_context(closing(connect_tokenizer(endpoint.servers)))
            for name, endpoint in config.endpoints.items()
            if not endpoint.has_folder and endpoint.servers is not None
        }
        yield {**load_tokenizers(replace(config, endpoints=folders)), **asked}


def survey_tokenizers(config: Config) -> Mapping[str, Tokenizer]:
    """The tokenizers for a look at records; without a folder nothing is counted."""
    folders = {name: endpoint for name, endpoint in config.endpoints.items() if endpoint.has_folder}
    return dict.fromkeys(config.endpoints, NoTokenizer()) | load_tokenizers(replace(config, endpoints=folders))


def tokenizers_by(load: Callable[[EndpointConfig], AnyTokenizer], config: Config) -> dict[str, AnyTokenizer]:
    """The tokenizers of all endpoints, as one is loaded; each folder is read once.

    Raises:
        ModelError: a folder holds no usable tokenizer.
        ConfigError: an endpoint has no folder.
    """
    read: dict[tuple[str, bool], AnyTokenizer] = {}
    found = {}
    for name, endpoint in config.endpoints.items():
        if not endpoint.has_folder:
            raise ConfigError(
                f"{config.path}: endpoints.{name}: this command needs the target's tokenizer, and asks no server for "
                "it; set target, its folder"
            )
        key = endpoint.target, endpoint.loads_models
        if key not in read:
            with with_endpoint_context(config, name):
                read[key] = load(endpoint)
        found[name] = _as_served(read[key], endpoint)
    return found


def load_target_tokenizer(endpoint: EndpointConfig) -> TargetTokenizer:
    """The tokenizer of an endpoint's target: where models are loaded, as transformers reads it with them.

    Raises:
        ModelError: the folder holds no usable tokenizer.
        ConfigError: models are loaded, and transformers is not installed.
    """
    if not endpoint.loads_models:
        return load_served_tokenizer(endpoint.target)
    from shadowspec.engine.tokenizer import load_tokenizer

    return load_tokenizer(endpoint.target)


def load_served_tokenizer(folder: str) -> TargetTokenizer:
    """The tokenizer of a target that servers have: by the folder's files alone, so that it is the same everywhere.

    A folder that only transformers can read is read by it, where it is installed.

    Raises:
        ModelError: the folder holds no usable tokenizer.
    """
    from shadowspec.model_folder.plain_tokenizer import OnlyTransformersError, load_plain_tokenizer

    try:
        return load_plain_tokenizer(folder)
    except OnlyTransformersError:
        if not has_extra(ENGINE):
            raise
    from shadowspec.engine.tokenizer import load_tokenizer

    return load_tokenizer(folder)


def _as_served(tokenizer: AnyTokenizer, endpoint: EndpointConfig) -> AnyTokenizer:
    """The tokenizer with the length that the endpoint's servers take, where they are configured to take less."""
    most = endpoint.servers.max_model_len if endpoint.servers is not None else None
    return tokenizer if most is None else tokenizer.with_context(min(tokenizer.context_length, most))


def connect_servers(
    config: Config,
    endpoint: EndpointConfig,
    scorer: Scorer,
    new_auditor: Callable[[FingerprintedConfig], OutputAuditor] | None = None,
) -> ServerEngine:
    """The engine of an endpoint with servers; all are looked at.  Without `new_auditor` it audits nothing.

    Raises:
        ServerError: one of them gives no usable answer.
        ModelError: they do not fit the candidates.
    """
    assert endpoint.servers is not None, "only an endpoint with servers has them"
    if scorer.takes_prompt:
        if not endpoint.has_folder:
            raise ConfigError(
                f"{config.path}: endpoints.{endpoint.rule.name}.scores: a function that takes the prompt needs the "
                "tokenizer; set target, its folder"
            )
        scorer = replace(scorer, decode=load_target_tokenizer(endpoint).decode_marked)
    engine = connect(
        endpoint.servers,
        endpoint.candidates,
        config.engine,
        requests_per_slot=endpoint.rule.requests_per_slot,
        default_sampling=endpoint.rule.default_sampling,
        prompt_rules=endpoint.rule.prompt_rules,
        max_turns=endpoint.rule.max_turns,
        has_folder=endpoint.has_folder,
        scorer=scorer,
        new_auditor=new_auditor,
    )
    for name in dict.fromkeys(known.engine for known in engine.configs):
        if (doubt := sampling_doubt(endpoint, name)) is not None:
            log.warning("endpoints.%s: %s", endpoint.rule.name, doubt)
    return engine


def sampling_doubt(endpoint: EndpointConfig, engine: str) -> str | None:
    """What to set where the servers' engine has sampling defaults that an endpoint without `serving_engine` lacks.

    Args:
        engine: as the servers report it.
    """
    configured = endpoint.sampling
    if configured.engine is not None:
        return None
    reported = served_sampling(endpoint.folder, engine, applies=configured.applies, configured=configured.defaults)
    defaults = sampling_defaults(reported.defaults)
    if defaults == sampling_defaults(configured.defaults):
        return None
    return (
        f"the servers' engine ({engine}) samples requests that set nothing with {defaults}, and the endpoint does not: "
        "set serving_engine, or default_sampling as production has it"
    )


def require_engine() -> None:
    """Refuse, before anything is written or loaded, what holds models where the extra for it is missing.

    Raises:
        ConfigError: it is not installed; the message names it.
    """
    import shadowspec.engine  # noqa: F401  # the package says it


def name_loads(endpoints: Mapping[str, EndpointConfig], *, asks_device: bool = False) -> None:
    """Name on stderr the folders of these endpoints, which are loaded next, and torch where it is.

    Raises:
        ConfigError: torch is needed, and is not installed.
    """
    folders: dict[str, None] = {}  # each once, in the order of the endpoints
    for endpoint in endpoints.values():
        if not endpoint.loads_models:
            folders |= {f"the tokenizer of {endpoint.target}": None} if endpoint.has_folder else {}
        else:
            drafts = (candidate.draft for candidate in endpoint.candidates if candidate.draft is not None)
            folders |= dict.fromkeys((endpoint.target, *drafts))
    if asks_device or any(endpoint.loads_models for endpoint in endpoints.values()):
        require_engine()
        folders = {"torch": None} | folders
    if folders:
        notes.print(f"loading {', '.join(folders)}", markup=False, highlight=False, soft_wrap=True)
