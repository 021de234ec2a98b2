"""Decisions and test results as JSON documents: the one place that knows the names of their fields.

A decision's document is flat, but for `graph`, `watch`, `mix_reference` and `frozen_parameters`, which are objects.
Documents of the command line (schema 1) have them as JSON strings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, fields
from datetime import datetime
from typing import Any, Final

from shadowspec.types.codec import require_version
from shadowspec.types.verdicts import (
    BettingFigures,
    Composition,
    Decision,
    Dependence,
    DetectorFigures,
    DriftFigures,
    EvidenceSummary,
    Figure,
    LevelGraph,
    MixChange,
    RateChange,
    SliceCounts,
    SliceCover,
    SliceState,
    Supersession,
    TestResult,
    TestState,
    Trial,
    Verdict,
    Watch,
    WatchedMean,
    WeightedBounds,
)

Document = Mapping[str, Any]

VERSION: Final = 1
MEANS: Final = ("speedup", "acceptance")  # of an endpoint, made of those of its slices
ADVICE: Final = "drift_advice"
HAS_SHIFTED: Final = "mix_has_shifted"
DETECTORS: Final = {name: f"drift_{name}" for name in (*MEANS, "tail", "z_low", "z_high")}


def _names_before(kind: type[Any], first: str) -> tuple[str, ...]:
    names = [field.name for field in fields(kind)]
    return tuple(names[: names.index(first)])


# Fields that the store has in columns; those after them are in the document.
DECISION_FIELDS: Final = _names_before(Decision, "engine")
TEST_FIELDS: Final = _names_before(TestResult, "is_required")
_COUNTS = tuple(
    field.name for field in fields(EvidenceSummary) if field.name.startswith("num_") or field.name == "span_s"
)
_SLICE_COUNTS = tuple(field.name for field in fields(SliceCounts))
_TEST_NAMES = frozenset({"version", "is_required", "r1", "batch_agreement", "start_unit", "merged_units"})
_BETTING_NAMES = _TEST_NAMES | {field.name for field in fields(BettingFigures)}


def stored_details(decision: Decision) -> dict[str, Any]:
    """The stored part of a decision beside its columns."""
    return {"version": VERSION, **decision_figures(decision)}


def shown_details(decision: Decision) -> dict[str, Figure]:
    """The same, as documents of the command line show it: figures by name."""
    return {name: shown_figure(value) for name, value in decision_figures(decision).items()}


def shown_figure(value: Any) -> Figure:
    """A figure as documents of schema 1 have it: objects as JSON strings."""
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else value


def stored_test_details(result: TestResult) -> dict[str, Figure]:
    """The stored part of a test beside its columns."""
    return {"version": VERSION, **shown_test_details(result)}


def shown_test_details(result: TestResult) -> dict[str, Figure]:
    """The same, as documents of the command line show it."""
    found: dict[str, Figure] = {}
    if (betting := result.betting) is not None:
        found |= {
            "mean": betting.mean,
            "observed_weight": betting.observed_weight,
            "log10_capital_pass": betting.log10_capital_pass,
            "log10_capital_fail": betting.log10_capital_fail,
            "fail_alpha": betting.fail_alpha,
            "is_undecidable": int(betting.is_undecidable),
            "num_missing": betting.num_missing,
        }
        if betting.unprovable is not None:
            found["unprovable"] = betting.unprovable
    if result.dependence is not None:
        found["r1"] = result.dependence.r1
        if result.dependence.batch_agreement is not None:
            found["batch_agreement"] = result.dependence.batch_agreement
    if result.state is not None:
        found |= {"start_unit": result.state.start_unit, "merged_units": result.state.merged_units}
    return {**found, **result.figures, "is_required": int(result.is_required)}


def read_decision(columns: Document, details: Document) -> Decision:
    """The decision of its `columns` (DECISION_FIELDS) and its stored document; parts that are never stored are None.

    Raises:
        InputError: another version wrote the document.
    """
    document = _check_version(details)
    return Decision(
        **columns,
        engine=str(document.get("engine") or "unknown"),
        serving_engine=document.get("serving_engine"),
        run=_read_run(document),
        frozen_parameters=_object(document, "frozen_parameters"),
        evidence=read_evidence(document),
        verdict_since=read_iso(document.get("verdict_since")),
        watch=_read_watch(document),
        drift=_read_drift(document),
        ends_run=bool(document.get("ends_run")),
        supersession=read_supersession(document),
        composition=_read_composition(document),
        recording_only=bool(document.get("recording_only")),
    )


def read_test(columns: Document, details: Document) -> TestResult:
    """The test result of its `columns` (TEST_FIELDS) and its document.

    Raises:
        InputError: another version wrote the document.
    """
    document = _check_version(details)
    state, betting, names = None, None, _TEST_NAMES
    if "start_unit" in document:
        state = TestState(document["start_unit"], document["merged_units"])
    if "log10_capital_pass" in document:
        names = _BETTING_NAMES
        betting = BettingFigures(
            mean=document["mean"],
            observed_weight=document["observed_weight"],
            log10_capital_pass=document["log10_capital_pass"],
            log10_capital_fail=document["log10_capital_fail"],
            fail_alpha=document["fail_alpha"],
            num_missing=document["num_missing"],
            is_undecidable=bool(document["is_undecidable"]),
            unprovable=document.get("unprovable"),
        )
    return TestResult(
        **columns,
        is_required=bool(document.get("is_required", 1)),
        dependence=Dependence(document.get("r1"), state, document.get("batch_agreement"))
        if state is not None or "r1" in document
        else None,
        betting=betting,
        figures={name: value for name, value in document.items() if name not in names},
    )


def read_evidence(details: Document) -> EvidenceSummary:
    """How much evidence a decision rests on, of its document."""
    document = _check_version(details)
    return EvidenceSummary(
        counts=SliceCounts(**{name: document[name] for name in _SLICE_COUNTS if name in document}),
        **{name: document[name] for name in _COUNTS if name in document},
        missing_share=document.get("missing_share"),
        late_share=document.get("late_share"),
        newest_evidence=read_iso(document.get("newest_evidence")),
        newest_record=read_iso(document.get("newest_record")),
        watermark_held_by=document.get("watermark_held_by"),
    )


def read_supersession(details: Document) -> Supersession | None:
    """The fingerprint that replaced a decision's, of its document; None without one."""
    document = _check_version(details)
    by = document.get("superseded_by")
    return None if by is None else Supersession(by, Verdict(document["superseded_verdict"]))


def read_mix_change(details: Document) -> MixChange | None:
    """The change of an endpoint's traffic since its ENABLE, of its document; None where nothing is compared."""
    document = _check_version(details)
    if "mix_log10_evidence" not in document:
        return None
    rates = {
        name: RateChange(document[f"mix_part_{name}"], document[f"within_part_{name}"], document[f"change_of_{name}"])
        for name in MEANS
        if f"mix_part_{name}" in document
    }
    return MixChange(document["mix_log10_evidence"], bool(document[HAS_SHIFTED]), rates)


def decision_figures(decision: Decision) -> dict[str, Any]:
    """Every figure of a decision that is not a column, by name; objects where several belong together."""
    evidence, run = decision.evidence, decision.run
    found: dict[str, Any] = {
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
        found |= {
            "share": run.share,
            "num_restarts": run.num_restarts,
            "start_blocks": run.start_blocks,
            "start_clusters": run.start_clusters,
            "start_lost": run.start_lost,
            "supersedes": run.supersedes,
            "graph": {
                **asdict(run.graph),
                "num_before": run.num_before,
                "in_slot": run.in_slot,
                "has_passed": run.has_passed,
            },
        }
    if decision.watch is not None:
        found["watch"] = {
            "num_blocks": decision.watch.num_blocks,
            "num_clusters": decision.watch.num_clusters,
            "promises": {name: [promise.promise, promise.best] for name, promise in decision.watch.promises.items()},
        }
    if decision.drift is not None:
        found |= {ADVICE: decision.drift.advice, "drift_threshold_log10": decision.drift.threshold_log10}
        for name, detector in decision.drift.detectors.items():
            found |= {f"{DETECTORS[name]}_units": detector.num_units, f"{DETECTORS[name]}_log10": detector.log10}
    if decision.drift is not None or decision.ends_run:
        found["ends_run"] = int(decision.ends_run)
    if decision.supersession is not None:
        found["superseded_by"] = decision.supersession.by
        found["superseded_verdict"] = decision.supersession.verdict.value
    if decision.recording_only:
        found["recording_only"] = 1
    if decision.composition is not None:
        found |= _composition_details(decision.composition)
    if evidence.watermark_held_by is not None:
        found["watermark_held_by"] = evidence.watermark_held_by
    if decision.override is not None:
        found |= {
            "override_id": decision.override.override_id,
            "override_expires_at": iso(decision.override.expires_at),
            "overridden_verdict": decision.override.verdict.value,
            "overridden_reason": decision.override.reason,
        }
    if (reservations := decision.reservations) is not None:
        if not reservations.is_load_configured:
            found["is_load_configured"] = 0
        if reservations.forbidden_by is not None:
            found["forbidden_by"] = "; ".join(reservations.forbidden_by) or None
    return found


def _composition_details(composition: Composition) -> dict[str, Any]:
    found: dict[str, Any] = {"is_named": int(composition.is_named)}
    if composition.cover is not None:
        found["traffic_share"] = composition.cover.traffic_share
        found["is_shown_under_parent"] = int(composition.cover.is_shown_under_parent)
        found["covering_verdict"] = (
            None if composition.cover.covering_verdict is None else composition.cover.covering_verdict.value
        )
    for name, bounds in composition.bounds.items():
        found[f"mix_{name}_lower"] = bounds.lower
        found[f"mix_{name}_upper"] = bounds.upper
        found[f"mix_{name}_known_share"] = bounds.known_share
    if composition.mix_reference is not None:
        found["mix_reference"] = {key: list(astuple(state)) for key, state in composition.mix_reference.items()}
    if composition.mix_change is not None:
        found["mix_log10_evidence"] = composition.mix_change.log10_evidence
        found[HAS_SHIFTED] = int(composition.mix_change.has_shifted)
        for name, rate in composition.mix_change.rates.items():
            found[f"mix_part_{name}"] = rate.mix_part
            found[f"within_part_{name}"] = rate.within_part
            found[f"change_of_{name}"] = rate.text
    return found


def _check_version(details: Document) -> Document:
    require_version(details, VERSION, "the document of a decision")
    return details


def _read_run(document: Document) -> Trial | None:
    if document.get("share") is None:
        return None
    return Trial(
        share=document["share"],
        level=document["level"],
        num_restarts=document["num_restarts"],
        start_blocks=document["start_blocks"],
        start_clusters=document["start_clusters"],
        start_lost=document["start_lost"],
        supersedes=document["supersedes"],
        **_read_graph(document),
    )


def _read_graph(document: Document) -> dict[str, Any]:
    found = document["graph"]
    graph = LevelGraph(*(found[field.name] for field in fields(LevelGraph)))
    return {"graph": graph, **{name: found[name] for name in ("num_before", "in_slot", "has_passed")}}


def _read_watch(document: Document) -> Watch | None:
    found = _object(document, "watch")
    if found is None:
        return None
    promises = {name: WatchedMean(*pair) for name, pair in found["promises"].items()}
    return Watch(found["num_blocks"], found["num_clusters"], promises)


def _read_drift(document: Document) -> DriftFigures | None:
    if ADVICE not in document:
        return None
    detectors = {
        name: DetectorFigures(document[f"{key}_units"], document[f"{key}_log10"])
        for name, key in DETECTORS.items()
        if f"{key}_units" in document
    }
    return DriftFigures(document.get("drift_threshold_log10"), document[ADVICE], detectors)


def _read_composition(document: Document) -> Composition | None:
    if "is_named" not in document:
        return None
    covering, reference = document.get("covering_verdict"), _object(document, "mix_reference")
    cover = None
    if "traffic_share" in document:
        verdict = None if covering is None else Verdict(covering)
        cover = SliceCover(document["traffic_share"], bool(document["is_shown_under_parent"]), verdict)
    bounds = {
        name: WeightedBounds(
            document[f"mix_{name}_lower"], document[f"mix_{name}_upper"], document[f"mix_{name}_known_share"]
        )
        for name in MEANS
        if f"mix_{name}_lower" in document
    }
    return Composition(
        is_named=bool(document["is_named"]),
        cover=cover,
        bounds=bounds,
        mix_reference=None if reference is None else {key: SliceState(*sums) for key, sums in reference.items()},
        mix_change=read_mix_change(document),
    )


def _object(document: Document, name: str) -> Mapping[str, Any] | None:
    """A part that is a separate object."""
    part: Mapping[str, Any] | None = document.get(name)
    return part


def read_iso(text: str | None) -> datetime | None:
    """The time that `iso` wrote."""
    return None if text is None else datetime.fromisoformat(text)


def iso(time: datetime | None) -> str | None:
    """A time as documents hold it."""
    return None if time is None else time.isoformat()
