"""The configuration: one TOML file, read strictly and turned into the values of the inner layers."""

from shadowspec.config.file import (
    CONFIG_VARIABLE,
    DATABASE_VARIABLE,
    DEFAULT_CONFIG_NAME,
    SECRET_VARIABLE,
    Config,
    EndpointConfig,
    EngineSettings,
    find_config,
    load_config,
    load_hash_secret,
)
from shadowspec.config.template import config_template

__all__ = [
    "CONFIG_VARIABLE",
    "DATABASE_VARIABLE",
    "DEFAULT_CONFIG_NAME",
    "SECRET_VARIABLE",
    "Config",
    "EndpointConfig",
    "EngineSettings",
    "config_template",
    "find_config",
    "load_config",
    "load_hash_secret",
]
