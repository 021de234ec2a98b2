"""The JSON Schemas of the commands' documents, and the list of them."""

from __future__ import annotations

import json
from pathlib import Path

from shadowspec.cli.json_documents import JSON_DOCUMENTS, json_schema

FOLDER = Path(__file__).parents[1] / "schemas"


def file_name(command: str) -> str:
    """The file of a command's schema."""
    return command.replace(" --", "-").replace(" ", "-") + ".json"


def schemas() -> dict[str, str]:
    """The text of every file in the folder."""
    return {
        file_name(command): json.dumps(json_schema(command), indent=1, ensure_ascii=False) + "\n"
        for command in JSON_DOCUMENTS
    }


def write_schemas() -> None:
    """Write every file, and remove those of no command."""
    FOLDER.mkdir(exist_ok=True)
    wanted = schemas()
    for path in FOLDER.glob("*.json"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def documents() -> str:
    """The list of commands and schemas."""
    return "\n".join(f"- [`{command}`](schemas/{file_name(command)})" for command in JSON_DOCUMENTS)
