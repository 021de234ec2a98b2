"""What stands between a configuration and its models: that there is something to load, what it is, and what scores it.

Torch and transformers take seconds to load, so nothing of them is imported here.
"""

from __future__ import annotations

from collections.abc import Mapping

from shadowspec.app.console import notes
from shadowspec.config import Config, EndpointConfig
from shadowspec.errors import ConfigError
from shadowspec.quality.contracts import require_sql
from shadowspec.quality.custom_scores import Scorer, load_scorer
from shadowspec.types import Contract


def require_endpoints(config: Config) -> None:
    """Raise ConfigError where there is nothing to measure."""
    if not config.endpoints:
        raise ConfigError(f"{config.path}: no endpoint is configured; add [endpoints.NAME] (see `shadowspec init`)")


def load_scorers(config: Config) -> dict[str, Scorer]:
    """What scores the outputs of each endpoint.

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
    """Name on stderr what is loaded next: torch, and the folders of these endpoints."""
    folders: dict[str, None] = {}  # each once, in the order of the endpoints
    for endpoint in endpoints.values():
        if endpoint.servers is not None:
            folders[f"the tokenizer of {endpoint.target}"] = None
        else:
            drafts = (candidate.draft for candidate in endpoint.candidates if candidate.draft is not None)
            folders |= dict.fromkeys((endpoint.target, *drafts))
    notes.print(f"loading {', '.join(('torch', *folders))}", markup=False, highlight=False, soft_wrap=True)
