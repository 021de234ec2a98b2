"""Checks before models are loaded: the configuration has endpoints, and their models, scores and input files exist.

Torch and transformers take seconds to load, so nothing of them is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from shadowspec.app.console import notes
from shadowspec.app.try_out.model_folders import download_remedy
from shadowspec.config import Config, EndpointConfig
from shadowspec.errors import ConfigError, ModelError
from shadowspec.quality.contracts import require_sql
from shadowspec.quality.custom_scores import Scorer, load_scorer
from shadowspec.tap.sources import require_file
from shadowspec.types import Contract


def require_endpoints(config: Config) -> None:
    """Raise ConfigError where there is nothing to measure."""
    if not config.endpoints:
        raise ConfigError(f"{config.path}: no endpoint is configured; add [endpoints.NAME] (see `shadowspec init`)")


def require_inputs(config: Config, files: Sequence[str], endpoint: str | None = None) -> None:
    """Check files of records (- is standard input), then the model folders of an endpoint (None: of all).

    Raises:
        ConfigError: no endpoint is configured, or none of this name.
        InputError: a file or a model folder is missing or unreadable.
        NoDataError: a file is empty.
    """
    require_endpoints(config)
    for file in files:
        require_file(file)
    for name, settings in config.chosen(endpoint).items():
        folders = {"target": settings.target}
        if settings.servers is None:
            drafts = {f"candidates.{each.name}.draft": each.draft for each in settings.candidates}
            folders |= {key: draft for key, draft in drafts.items() if draft is not None}
        for key, folder in folders.items():
            if not (Path(folder) / "config.json").is_file():
                raise ModelError(f"{config.path}: endpoints.{name}.{key}: {_missing_model(Path(folder))}")


def _missing_model(folder: Path) -> str:
    """Why this is no model folder, and how to get one."""
    if folder.is_dir():
        return f"{folder} has no config.json; give the folder that holds the model"
    if folder.is_file():
        return f"{folder} is a file; give the folder that holds the model"
    return f"there is no folder {folder}; {download_remedy(folder)}"


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


def name_loads(endpoints: Mapping[str, EndpointConfig]) -> None:
    """Name on stderr torch and the folders of these endpoints, which are loaded next."""
    folders: dict[str, None] = {}  # each once, in the order of the endpoints
    for endpoint in endpoints.values():
        if endpoint.servers is not None:
            folders[f"the tokenizer of {endpoint.target}"] = None
        else:
            drafts = (candidate.draft for candidate in endpoint.candidates if candidate.draft is not None)
            folders |= dict.fromkeys((endpoint.target, *drafts))
    notes.print(f"loading {', '.join(('torch', *folders))}", markup=False, highlight=False, soft_wrap=True)
