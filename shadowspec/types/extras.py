"""The extras of the package: which modules each brings, and what is said where one is missing.

In: the name of an extra.  Out: whether it is installed, and the error where it is not.  Imports: errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

from shadowspec.errors import ConfigError

ENGINE: Final = "engine"
# What a part imports of its extra; pyproject.toml says which packages bring it.
MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "backfill": ("aiohttp", "fsspec", "psutil", "pyarrow", "ray"),
    "capture": ("grpc", "uvicorn"),
    "classify": ("uvicorn",),
    "dashboard": ("authlib", "streamlit"),
    ENGINE: ("safetensors", "torch", "transformers"),
    "schedule": ("apprise",),
    "simulate": ("scipy",),
    "sql": ("sqlglot",),
}


def install_command(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'shadowspec[{extra}]'"


def has_extra(extra: str) -> bool:
    """Whether everything that an extra brings is installed; nothing of it is imported."""
    return all(find_spec(module) is not None for module in MODULES[extra])


def missing_extra(what: str, extra: str) -> ConfigError:
    """The error of a part that is not installed: what needs it, and how to install it."""
    return ConfigError(f"{what} needs the extra `{extra}`: {install_command(extra)} (in the checkout '.[{extra}]')")


def require_extra(what: str, extra: str) -> None:
    """Raise the error of an extra that is not installed."""
    if not has_extra(extra):
        raise missing_extra(what, extra)
