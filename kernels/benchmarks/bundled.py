"""The bundled traffic as the benchmarks read it, and a command of the product on it."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shadowspec import demo


def answered() -> Iterator[dict[str, Any]]:
    """The records that are requests of a served model with an answer, in their order; the others are bad on purpose."""
    models = set(demo.SERVED_MODELS.values())
    with gzip.open(demo.TRAFFIC, "rt", encoding="utf-8") as file:
        for line in file:
            try:
                record = json.loads(line)
                is_answered = record["request"]["model"] in models and record["response"]["choices"]
            except (ValueError, KeyError, TypeError):
                continue
            if is_answered:
                yield record


def run_command(folder: Path, *arguments: str) -> str:
    """What a command prints that is run in a folder, by the configuration there."""
    environment = os.environ | {
        "SHADOWSPEC_CONFIG": str(folder / "shadowspec.toml"),
        "SHADOWSPEC_HASH_SECRET": demo.DEMO_SECRET,
    }
    command = [sys.executable, "-m", "shadowspec", *arguments]
    return subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, check=True).stdout  # noqa: S603
