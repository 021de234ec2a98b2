"""The configuration: one TOML file, read strictly and turned into the values of the inner packages.

In: a TOML file and environment variables.
Out: frozen settings, or an error that names file, key and remedy.
Imports: scheduler, rollout, gate, servers, tap, quality, text, model_folder, types, errors.
"""

from shadowspec.config.dashboard_settings import DashboardSettings
from shadowspec.config.file import (
    CONFIG_VARIABLE,
    DATABASE_VARIABLE,
    DEFAULT_CONFIG_NAME,
    MAKE_A_SECRET,
    PASSWORD_VARIABLE,
    SECRET_VARIABLE,
    Config,
    EndpointConfig,
    find_config,
    load_config,
    load_hash_secret,
    load_previous_secret,
)
from shadowspec.config.served_sampling import SAMPLED_BY, ServedSampling, served_sampling
from shadowspec.config.template import DEFAULT_POLICY_NAME, config_template, filled_template, policy_template

__all__ = [
    "CONFIG_VARIABLE",
    "DATABASE_VARIABLE",
    "DEFAULT_CONFIG_NAME",
    "DEFAULT_POLICY_NAME",
    "MAKE_A_SECRET",
    "PASSWORD_VARIABLE",
    "SAMPLED_BY",
    "SECRET_VARIABLE",
    "Config",
    "DashboardSettings",
    "EndpointConfig",
    "ServedSampling",
    "config_template",
    "filled_template",
    "find_config",
    "load_config",
    "load_hash_secret",
    "load_previous_secret",
    "policy_template",
    "served_sampling",
]
