"""Published JSON Schemas: they are what the types say, and they refuse what the types do not allow.

Every document that a test of this folder gets from a command is checked against its schema (conftest.py).
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

import jsonschema
import pytest

from docs.generate.schemas import FOLDER, schemas
from shadowspec.cli.json_documents import JSON_DOCUMENTS, json_schema
from shadowspec.cli.override import OverrideClearDocument, override_document
from shadowspec.types import Override, OverrideRecord, Verdict
from shadowspec.types.codec import to_builtins
from tests.builders.workspace import require_valid_document

ORDER = Override(1, "chat", "tier=a", None, Verdict.DISABLE, "slow", "me", datetime(2026, 1, 31, tzinfo=UTC))


def test_the_published_schemas_are_current() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    assert committed == schemas(), "run `make docs`"


@pytest.mark.parametrize("command", JSON_DOCUMENTS)
def test_a_schema_is_valid_and_wants_the_version(command: str) -> None:
    schema = json_schema(command)
    jsonschema.Draft202012Validator.check_schema(schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({}, schema)
    assert "schema_version" in schema["$defs"][JSON_DOCUMENTS[command].__name__]["required"]


@pytest.mark.parametrize(
    ("name", "value"), [("verdict", "MAYBE"), ("created_at", 3), ("slice", None), ("load", {"concurrency": "8"})]
)
def test_a_schema_refuses_what_the_type_does_not_allow(name: str, value: object) -> None:
    shown = override_document(OverrideRecord(ORDER, None), datetime.now(UTC))
    document = to_builtins(OverrideClearDocument(override=shown))
    words = ["override", "clear", "1", "--json"]
    require_valid_document(words, json.dumps(document))
    document["override"][name] = value
    with pytest.raises(jsonschema.ValidationError):
        require_valid_document(words, json.dumps(document))
