"""The configuration: one TOML file, read strictly and turned into the values of the inner layers."""

from shadowspec.config.dashboard import DashboardSettings
from shadowspec.config.file import (
    CONFIG_VARIABLE,
    DATABASE_VARIABLE,
    DEFAULT_CONFIG_NAME,
    SECRET_VARIABLE,
    Config,
    EndpointConfig,
    EngineSettings,
    WorkerSettings,
    find_config,
    load_config,
    load_hash_secret,
)
from shadowspec.config.kafka import PASSWORD_VARIABLE
from shadowspec.config.policy_template import policy_template
from shadowspec.config.template import DEFAULT_POLICY_NAME, config_template

__all__ = [
    "CONFIG_VARIABLE",
    "DATABASE_VARIABLE",
    "DEFAULT_CONFIG_NAME",
    "DEFAULT_POLICY_NAME",
    "PASSWORD_VARIABLE",
    "SECRET_VARIABLE",
    "Config",
    "DashboardSettings",
    "EndpointConfig",
    "EngineSettings",
    "WorkerSettings",
    "config_template",
    "find_config",
    "load_config",
    "load_hash_secret",
    "policy_template",
]
