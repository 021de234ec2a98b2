"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

ConfigOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Configuration file; default: SHADOWSPEC_CONFIG, else ./shadowspec.toml."),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
