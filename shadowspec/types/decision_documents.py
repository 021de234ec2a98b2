"""Decisions and test results as documents: what is stored beside the columns, and what the command line shows.

The stored document of a decision or test holds the fields that have no column, as `shadowspec.types.codec` writes them,
with its version.  Those of the command line (schema 1) are flat, by the names of their figures; `watch`, `graph`,
`mix_reference` and `frozen_parameters`, which are objects, are JSON strings there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, fields
from datetime import datetime
from typing import Any, Final, get_type_hints

from shadowspec.types.codec import from_builtins, require_version, to_document
from shadowspec.types.verdicts import (
    Composition,
    Decision,
    EvidenceSummary,
    Figure,
    MixChange,
    Supersession,
    TestResult,
)

Document = Mapping[str, Any]

VERSION: Final = 1
MEANS: Final = ("speedup", "acceptance")  # of an endpoint, made of those of its slices
ADVICE: Final = "drift_advice"
HAS_SHIFTED: Final = "mix_has_shifted"
REOPENING: Final = "reopen_"  # how the detectors of a DISABLE begin
_WATCHED = (*MEANS, "tail", "z_low", "z_high")
DETECTORS: Final = {
    **{name: f"drift_{name}" for name in _WATCHED},
    **{f"{REOPENING}{name}": f"{REOPENING}{name}" for name in _WATCHED if name != "acceptance"},
}


def _names_before(kind: type[Any], first: str) -> tuple[str, ...]:
    names = [field.name for field in fields(kind)]
    return tuple(names[: names.index(first)])


def _parts_after(kind: type[Any], last: str, stop: str | None = None) -> dict[str, Any]:
    """The types of the fields after `last`, up to, but without, `stop`, by name."""
    names, hints = [field.name for field in fields(kind)], get_type_hints(kind)
    end = len(names) if stop is None else names.index(stop)
    return {name: hints[name] for name in names[names.index(last) + 1 : end]}


# Fields that the store has in columns; those after them are in the document.
DECISION_FIELDS: Final = _names_before(Decision, "engine")
TEST_FIELDS: Final = _names_before(TestResult, "is_required")
_COUNTS = tuple(
    field.name for field in fields(EvidenceSummary) if field.name.startswith("num_") or field.name == "span_s"
)
_DECISION_PARTS: Final = _parts_after(Decision, "decision_id", "override")
_TEST_PARTS: Final = _parts_after(TestResult, "units_needed")
_WHAT: Final = "the document of a decision"


def stored_details(decision: Decision) -> dict[str, Any]:
    """The stored part of a decision beside its columns."""
    return to_document({name: getattr(decision, name) for name in _DECISION_PARTS}, VERSION)


def shown_details(decision: Decision) -> dict[str, Figure]:
    """The same, as documents of the command line show it: figures by name."""
    return {name: shown_figure(value) for name, value in decision_figures(decision).items()}


def shown_figure(value: Any) -> Figure:
    """A figure as documents of schema 1 have it: objects as JSON strings."""
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else value


def stored_test_details(result: TestResult) -> dict[str, Any]:
    """The stored part of a test beside its columns."""
    return to_document({name: getattr(result, name) for name in _TEST_PARTS}, VERSION)


def shown_test_details(result: TestResult) -> dict[str, Figure]:
    """The same, as documents of the command line show it."""
    details: dict[str, Figure] = {}
    if (betting := result.betting) is not None:
        details |= {
            "mean": betting.mean,
            "observed_weight": betting.observed_weight,
            "log10_capital_pass": betting.log10_capital_pass,
            "log10_capital_fail": betting.log10_capital_fail,
            "fail_alpha": betting.fail_alpha,
            "is_undecidable": int(betting.is_undecidable),
            "num_missing": betting.num_missing,
        }
        if betting.unprovable is not None:
            details["unprovable"] = betting.unprovable
    if result.dependence is not None:
        details["r1"] = result.dependence.r1
        if result.dependence.batch_agreement is not None:
            details["batch_agreement"] = result.dependence.batch_agreement
    if result.state is not None:
        details |= {"start_unit": result.state.start_unit, "merged_units": result.state.merged_units}
    return {**details, **result.figures, "is_required": int(result.is_required)}


def read_decision(columns: Document, document: Document) -> Decision:
    """The decision of its `columns` (DECISION_FIELDS) and its stored document; parts that are never stored are None.

    Raises:
        InputError: another version wrote the document.
    """
    return Decision(**columns, **_read_parts(document, _DECISION_PARTS))


def read_test(columns: Document, document: Document) -> TestResult:
    """The test result of its `columns` (TEST_FIELDS) and its document.

    Raises:
        InputError: another version wrote the document.
    """
    return TestResult(**columns, **_read_parts(document, _TEST_PARTS))


def read_evidence(document: Document) -> EvidenceSummary:
    """How much evidence a decision rests on, of its document."""
    summary: EvidenceSummary = _read_part(document, "evidence")
    return summary


def read_supersession(document: Document) -> Supersession | None:
    """The fingerprint that replaced a decision's, of its document; None without one."""
    supersession: Supersession | None = _read_part(document, "supersession")
    return supersession


def read_mix_change(document: Document) -> MixChange | None:
    """The change of an endpoint's traffic since its ENABLE, of its document; None where nothing is compared."""
    composition: Composition | None = _read_part(document, "composition")
    return None if composition is None else composition.mix_change


def _read_part(document: Document, name: str) -> Any:
    return _read_parts(document, {name: _DECISION_PARTS[name]})[name]


def _read_parts(document: Document, parts: Mapping[str, Any]) -> dict[str, Any]:
    require_version(document, VERSION, _WHAT)
    return {name: from_builtins(document[name], kind, _WHAT) for name, kind in parts.items()}


def decision_figures(decision: Decision) -> dict[str, Any]:
    """Every figure of a decision that is not a column, by name; objects where several belong together."""
    evidence, run = decision.evidence, decision.run
    figures: dict[str, Any] = {
        "level": decision.level,
        "missing_share": evidence.missing_share,
        "late_share": evidence.late_share,
        **asdict(evidence.counts),
        **{name: getattr(evidence, name) for name in _COUNTS},
        "newest_evidence": iso(evidence.newest_evidence),
        "newest_record": iso(evidence.newest_record),
        "engine": decision.engine,
        "serving_engine": decision.serving_engine,
        "verdict_since": iso(decision.verdict_since),
        "frozen_parameters": None if decision.frozen_parameters is None else dict(decision.frozen_parameters),
    }
    if run is not None:
        figures |= {
            "share": run.share,
            "num_restarts": run.num_restarts,
            "start_blocks": run.start_blocks,
            "start_clusters": run.start_clusters,
            "start_lost": run.start_lost,
            "supersedes": run.supersedes,
            "reopens": int(run.reopens),
            "graph": {
                **asdict(run.graph),
                "num_before": run.num_before,
                "in_slot": run.in_slot,
                "reuse": run.reuse,
                "has_passed": run.has_passed,
            },
        }
    if decision.watch is not None:
        figures["watch"] = {
            "num_blocks": decision.watch.num_blocks,
            "num_clusters": decision.watch.num_clusters,
            "promises": {name: [promise.promise, promise.best] for name, promise in decision.watch.promises.items()},
            "proven": {name: [bounds.lower, bounds.upper] for name, bounds in decision.watch.proven.items()},
        }
    if decision.drift is not None:
        figures |= {ADVICE: decision.drift.advice, "drift_threshold_log10": decision.drift.threshold_log10}
        for name, detector in decision.drift.detectors.items():
            figures |= {f"{DETECTORS[name]}_units": detector.num_units, f"{DETECTORS[name]}_log10": detector.log10}
    if decision.drift is not None or decision.ends_run:
        figures["ends_run"] = int(decision.ends_run)
    if decision.supersession is not None:
        figures["superseded_by"] = decision.supersession.by
        figures["superseded_verdict"] = decision.supersession.verdict.value
    if decision.recording_only:
        figures["recording_only"] = 1
    if decision.composition is not None:
        figures |= _composition_details(decision.composition)
    if evidence.watermark_held_by is not None:
        figures["watermark_held_by"] = evidence.watermark_held_by
    if decision.override is not None:
        figures |= {
            "override_id": decision.override.override_id,
            "override_expires_at": iso(decision.override.expires_at),
            "overridden_verdict": decision.override.verdict.value,
            "overridden_reason": decision.override.reason,
        }
    if (reservations := decision.reservations) is not None:
        if not reservations.is_load_configured:
            figures["is_load_configured"] = 0
        if reservations.forbidden_by is not None:
            figures["forbidden_by"] = "; ".join(reservations.forbidden_by) or None
    return figures


def _composition_details(composition: Composition) -> dict[str, Any]:
    details: dict[str, Any] = {"is_named": int(composition.is_named)}
    if composition.cover is not None:
        details["traffic_share"] = composition.cover.traffic_share
        details["is_shown_under_parent"] = int(composition.cover.is_shown_under_parent)
        details["covering_verdict"] = (
            None if composition.cover.covering_verdict is None else composition.cover.covering_verdict.value
        )
    for name, bounds in composition.bounds.items():
        details[f"mix_{name}_lower"] = bounds.lower
        details[f"mix_{name}_upper"] = bounds.upper
        details[f"mix_{name}_known_share"] = bounds.known_share
    if composition.mix_reference is not None:
        details["mix_reference"] = {key: list(astuple(state)) for key, state in composition.mix_reference.items()}
    if composition.mix_change is not None:
        details["mix_log10_evidence"] = composition.mix_change.log10_evidence
        details[HAS_SHIFTED] = int(composition.mix_change.has_shifted)
        for name, rate in composition.mix_change.rates.items():
            details[f"mix_part_{name}"] = rate.mix_part
            details[f"within_part_{name}"] = rate.within_part
            details[f"change_of_{name}"] = rate.text
    return details


def iso(time: datetime | None) -> str | None:
    """A time as documents hold it."""
    return None if time is None else time.isoformat()
