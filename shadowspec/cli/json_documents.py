"""The documents that commands print with `--json`, by command; docs/schemas has the JSON Schema of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from shadowspec.app.configuration_checks import DoctorDocument
from shadowspec.app.exports import ExportDocument
from shadowspec.app.live_documents import LiveDocument
from shadowspec.app.public_decisions import DemoDocument, ExplainDocument, GateDocument
from shadowspec.cli.override import OverrideClearDocument, OverrideListDocument, OverrideSetDocument
from shadowspec.cli.run import RunDocument
from shadowspec.cli.schedule import DeliveriesDocument, ScheduleDocument
from shadowspec.cli.try_out import TryDocument
from shadowspec.rollout.check.answer import CheckDocument
from shadowspec.types.public_documents import PublicDocument

JSON_DOCUMENTS: Final[Mapping[str, type[PublicDocument]]] = {
    "backfill --loop": RunDocument,
    "check": CheckDocument,
    "demo": DemoDocument,
    "doctor": DoctorDocument,
    "export": ExportDocument,
    "gate": GateDocument,
    "gate --explain": ExplainDocument,
    "live": LiveDocument,
    "override clear": OverrideClearDocument,
    "override list": OverrideListDocument,
    "override set": OverrideSetDocument,
    "run": RunDocument,
    "schedule --list": ScheduleDocument,
    "schedule --once": DeliveriesDocument,
    "try": TryDocument,
}


def json_schema(command: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of what a command prints.

    Raises:
        KeyError: the command prints no typed document.
    """
    kind = JSON_DOCUMENTS[command]
    schema = msgspec.json.schema(kind)
    schema["$defs"][kind.__name__]["required"].insert(0, "schema_version")  # its default never leaves it out
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"shadowspec {command}", **schema}
