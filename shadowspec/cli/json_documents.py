"""The documents that commands print with `--json`, by command; docs/schemas has the JSON Schema of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from shadowspec.app.configuration_checks import DoctorDocument
from shadowspec.app.endpoint_plans import PlanDocument
from shadowspec.app.exports import ExportDocument
from shadowspec.app.fleet_plans import FleetDocument
from shadowspec.app.live_documents import LiveDocument
from shadowspec.app.public_decisions import DemoDocument, ExplainDocument, GateDocument
from shadowspec.app.scheduled_jobs import DeliveriesDocument, ScheduleDocument
from shadowspec.cli.backfill import BackfillDocument
from shadowspec.cli.classify import ClassifyDocument
from shadowspec.cli.database import (
    ConsumerDocument,
    GrantDocument,
    RemovalDocument,
    RevisionDocument,
    SchemaDocument,
    UpgradeDocument,
)
from shadowspec.cli.dead_letters import LettersDocument, ReplayedLettersDocument
from shadowspec.cli.evaluate import EvaluateDocument
from shadowspec.cli.export_training import TrainingDocument
from shadowspec.cli.override import OverrideClearDocument, OverrideListDocument, OverrideSetDocument
from shadowspec.cli.produce import ProduceDocument
from shadowspec.cli.profile_device import ProfileDocument
from shadowspec.cli.profile_server import ServerProfileDocument
from shadowspec.cli.replay import ReplayDocument
from shadowspec.cli.run import RunDocument
from shadowspec.cli.simulate import SimulateDocument
from shadowspec.cli.trial_view import TryDocument
from shadowspec.reports.period.period_document import PeriodDocument
from shadowspec.reports.report.report_document import ReportDocument
from shadowspec.rollout.check.answer import CheckDocument
from shadowspec.types.public_documents import PublicDocument

JSON_DOCUMENTS: Final[Mapping[str, type[PublicDocument]]] = {
    "backfill": BackfillDocument,
    "backfill --loop": RunDocument,
    "check": CheckDocument,
    "classify": ClassifyDocument,
    "db check": SchemaDocument,
    "db current": RevisionDocument,
    "db forget-consumer": ConsumerDocument,
    "db grant": GrantDocument,
    "db retain": RemovalDocument,
    "db upgrade": UpgradeDocument,
    "dead-letters list": LettersDocument,
    "dead-letters replay": ReplayedLettersDocument,
    "demo": DemoDocument,
    "doctor": DoctorDocument,
    "evaluate": EvaluateDocument,
    "export": ExportDocument,
    "export-training": TrainingDocument,
    "gate": GateDocument,
    "gate --explain": ExplainDocument,
    "live": LiveDocument,
    "override clear": OverrideClearDocument,
    "override list": OverrideListDocument,
    "override set": OverrideSetDocument,
    "plan": PlanDocument,
    "plan --fleet": FleetDocument,
    "produce": ProduceDocument,
    "profile-device": ProfileDocument,
    "profile-server": ServerProfileDocument,
    "replay": ReplayDocument,
    "report": ReportDocument,
    "report --period": PeriodDocument,
    "report --since": PeriodDocument,
    "run": RunDocument,
    "schedule --list": ScheduleDocument,
    "schedule --once": DeliveriesDocument,
    "simulate": SimulateDocument,
    "try": TryDocument,
}


def json_schema(command: str) -> dict[str, Any]:
    """The JSON Schema (2020-12) of what a command prints."""
    kind = JSON_DOCUMENTS[command]
    schema = msgspec.json.schema(kind)
    schema["$defs"][kind.__name__]["required"].insert(0, "schema_version")  # its default never leaves it out
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"shadowspec {command}", **schema}
