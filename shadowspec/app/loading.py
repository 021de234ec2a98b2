"""What stands between a configuration and its models: that there is something to load, and what it is.

Torch and transformers take seconds to load, so nothing of them is imported here.
"""

from __future__ import annotations

from shadowspec.app.console import notes
from shadowspec.config import Config
from shadowspec.errors import ConfigError


def require_endpoints(config: Config) -> None:
    """Raise ConfigError where there is nothing to measure."""
    if not config.endpoints:
        raise ConfigError(f"{config.path}: no endpoint is configured; add [endpoints.NAME] (see `shadowspec init`)")


def name_loads(config: Config) -> None:
    """Name on stderr what is loaded next: torch, and the folders of the configuration."""
    folders: dict[str, None] = {}  # each once, in the order of the endpoints
    for endpoint in config.endpoints.values():
        if endpoint.servers is not None:
            folders[f"the tokenizer of {endpoint.target}"] = None
        else:
            drafts = (candidate.draft for candidate in endpoint.candidates if candidate.draft is not None)
            folders |= dict.fromkeys((endpoint.target, *drafts))
    notes.print(f"loading {', '.join(('torch', *folders))}", markup=False, highlight=False, soft_wrap=True)
