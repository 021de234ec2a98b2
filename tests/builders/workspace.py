"""A folder with a configuration, traffic and bundled models, in which commands run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema

from shadowspec.cli.json_documents import JSON_DOCUMENTS, json_schema
from tests.cli_process import Result

CONFIG = """\
[database]
url = "sqlite:///shadow.db"

[privacy]
hash_secret_file = "secret"

[gate]
min_span_s = 0.0
window_s = 0.0  # units are blocks
timed_positions = 1
entry_clusters = 2

[endpoints.letters]
target = "{target}"
served_models = ["m"]
match = {{ model = "m" }}
loads = [{{ concurrency = 2 }}]

[[endpoints.letters.candidates]]
name = "draft"
proposer = "draft_model"
draft = "{draft}"
num_speculative_tokens = 3
"""
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def record(number: int, **changes: Any) -> dict[str, Any]:
    """One mirrored completion request; `changes` go into the body."""
    body = {"model": "m", "prompt": "abcdefgh"[number % 7 :], "max_tokens": 6, "temperature": 0.0, **changes}
    return {
        "timestamp": (NOON + timedelta(seconds=number)).isoformat(),
        "session_id": f"session-{number}",
        "request_id": f"request-{number}",
        "path": "/v1/completions",
        "request": body,
    }


def write_traffic(path: Path, records: Iterable[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(item)}\n" for item in records), encoding="utf-8")
    return path


@dataclass(frozen=True)
class Workspace:
    """The folder in which commands run."""

    folder: Path
    run: Callable[..., Result]
    migrated: Path  # a database file at the code's revision, to be copied

    def migrate(self, name: str = "shadow.db") -> None:
        """Leave a database, the configured one by default, as `db upgrade` does, without running every migration."""
        shutil.copyfile(self.migrated, self.folder / name)

    def replace_in_config(self, old: str, new: str) -> None:
        path = self.folder / "shadowspec.toml"
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")


def require_valid_document(arguments: Sequence[str], out: str) -> None:
    """Check what a command printed as JSON against its published schema."""
    if {"--json", "json"}.intersection(arguments) and out:
        names = (" ".join(arguments[:2]), *(f"{arguments[0]} {argument}" for argument in arguments), arguments[0])
        command = next(name for name in names if name in JSON_DOCUMENTS)
        jsonschema.validate(json.loads(out), json_schema(command), format_checker=jsonschema.FormatChecker())
