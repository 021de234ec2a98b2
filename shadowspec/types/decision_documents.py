"""Decisions and test results as JSON documents: the one place that knows the names of what they hold.

A decision's document is flat.  Version 2 holds `watch`, `mix_reference` and `frozen_parameters` as objects; version 1,
of documents without a number, held JSON strings there, and so do the documents of the command line (schema 1).  Both
versions are read, to equal values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, fields
from datetime import datetime
from typing import Any, Final

from shadowspec.errors import InputError
from shadowspec.types.twins import fast_constructor
from shadowspec.types.verdicts import (
    BettingFigures,
    Composition,
    Decision,
    Dependence,
    DetectorFigures,
    DriftFigures,
    EvidenceSummary,
    Figure,
    MixChange,
    RateChange,
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

VERSION: Final = 2
MEANS: Final = ("speedup", "acceptance")  # of an endpoint, made of those of its slices
DETECTORS: Final = {name: f"drift_{name}" for name in MEANS}


def _names_before(kind: type[Any], first: str) -> tuple[str, ...]:
    names = [field.name for field in fields(kind)]
    return tuple(names[: names.index(first)])


# Fields that the store has in columns; those after them are in the document.
DECISION_FIELDS: Final = _names_before(Decision, "engine")
TEST_FIELDS: Final = _names_before(TestResult, "is_required")
_COUNTS = tuple(
    field.name for field in fields(EvidenceSummary) if field.name.startswith("num_") or field.name == "span_s"
)
_TEST_NAMES = frozenset({"version", "is_required", "r1", "start_unit", "merged_units"})
_BETTING_NAMES = _TEST_NAMES | {field.name for field in fields(BettingFigures)}
# A dashboard reads thousands of these at once.
_test_result, _betting_figures = fast_constructor(TestResult), fast_constructor(BettingFigures)
_dependence, _test_state = fast_constructor(Dependence), fast_constructor(TestState)


def stored_details(decision: Decision) -> dict[str, Any]:
    """What the store keeps of a decision beside its columns."""
    return {"version": VERSION, **_details(decision)}


def shown_details(decision: Decision) -> dict[str, Figure]:
    """The same, as documents of the command line show it: figures by name."""
    return {
        name: json.dumps(value, sort_keys=True) if isinstance(value, dict) else value
        for name, value in _details(decision).items()
    }


def stored_test_details(result: TestResult) -> dict[str, Figure]:
    """What the store keeps of a test beside its columns."""
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
    if result.state is not None:
        found |= {"start_unit": result.state.start_unit, "merged_units": result.state.merged_units}
    return {**found, **result.figures, "is_required": int(result.is_required)}


def read_decision(columns: Document, details: Document) -> Decision:
    """The decision of its `columns` (DECISION_FIELDS) and its stored document; what is never stored is None.

    Raises:
        InputError: a later version wrote the document.
    """
    own = _check_version(details)
    return Decision(
        **columns,
        engine=str(own.get("engine") or "unknown"),
        serving_engine=own.get("serving_engine"),
        run=_read_run(own),
        frozen_parameters=_object(own, "frozen_parameters"),
        evidence=read_evidence(own),
        verdict_since=_time(own.get("verdict_since")),
        watch=_read_watch(own),
        drift=_read_drift(own),
        ends_run=bool(own.get("ends_run")),
        supersession=read_supersession(own),
        composition=_read_composition(own),
    )


def read_test(columns: Document, details: Document) -> TestResult:
    """The test result of its `columns` (TEST_FIELDS) and its document.

    Raises:
        InputError: a later version wrote the document.
    """
    own = _check_version(details)
    state, betting, names = None, None, _TEST_NAMES
    if "start_unit" in own:
        state = _test_state(own["start_unit"], own["merged_units"])
    if "log10_capital_pass" in own:
        names = _BETTING_NAMES
        betting = _betting_figures(
            mean=own["mean"],
            observed_weight=own["observed_weight"],
            log10_capital_pass=own["log10_capital_pass"],
            log10_capital_fail=own["log10_capital_fail"],
            fail_alpha=own["fail_alpha"],
            num_missing=own["num_missing"],
            is_undecidable=bool(own["is_undecidable"]),
            unprovable=own.get("unprovable"),
        )
    return _test_result(
        **columns,
        is_required=bool(own.get("is_required", 1)),
        dependence=_dependence(own.get("r1"), state) if state is not None or "r1" in own else None,
        betting=betting,
        figures={name: value for name, value in own.items() if name not in names},
    )


def read_evidence(details: Document) -> EvidenceSummary:
    """How much evidence a decision rests on, of its document."""
    own = _check_version(details)
    return EvidenceSummary(
        **{name: own[name] for name in _COUNTS if own.get(name) is not None},
        missing_share=own.get("missing_share"),
        late_share=own.get("late_share"),
        newest_evidence=_time(own.get("newest_evidence")),
        newest_record=_time(own.get("newest_record")),
        watermark_held_by=own.get("watermark_held_by"),
    )


def read_supersession(details: Document) -> Supersession | None:
    """What replaced a decision's fingerprint, of its document; None where nothing has."""
    own = _check_version(details)
    by = own.get("superseded_by")
    return None if by is None else Supersession(by, Verdict(own["superseded_verdict"]))


def read_mix_change(details: Document) -> MixChange | None:
    """What has changed of an endpoint's traffic since its ENABLE, of its document; None where nothing is compared."""
    own = _check_version(details)
    if "mix_log10_evidence" not in own:
        return None
    rates = {
        name: RateChange(own[f"mix_part_{name}"], own[f"within_part_{name}"], own[f"change_of_{name}"])
        for name in MEANS
        if f"mix_part_{name}" in own
    }
    return MixChange(own["mix_log10_evidence"], bool(own["mix_has_shifted"]), rates)


def _details(decision: Decision) -> dict[str, Any]:
    """Every figure of a decision that is no column, by name; objects where several belong together."""
    evidence, run = decision.evidence, decision.run
    found: dict[str, Any] = {
        "level": decision.level,
        "missing_share": evidence.missing_share,
        "late_share": evidence.late_share,
        **{name: getattr(evidence, name) for name in _COUNTS},
        "newest_evidence": _iso(evidence.newest_evidence),
        "newest_record": _iso(evidence.newest_record),
        "engine": decision.engine,
        "serving_engine": decision.serving_engine,
        "verdict_since": _iso(decision.verdict_since),
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
        }
    if decision.watch is not None:
        found["watch"] = {
            "num_blocks": decision.watch.num_blocks,
            "num_clusters": decision.watch.num_clusters,
            "promises": {name: [own.promise, own.highest] for name, own in decision.watch.promises.items()},
        }
    if decision.drift is not None:
        found |= {"drift_advice": decision.drift.advice, "drift_threshold_log10": decision.drift.threshold_log10}
        for name, own in decision.drift.detectors.items():
            found |= {f"{DETECTORS[name]}_units": own.num_units, f"{DETECTORS[name]}_log10": own.log10}
    if decision.drift is not None or decision.ends_run:
        found["ends_run"] = int(decision.ends_run)
    if decision.supersession is not None:
        found["superseded_by"] = decision.supersession.by
        found["superseded_verdict"] = decision.supersession.verdict.value
    if decision.composition is not None:
        found |= _composition_details(decision.composition)
    if evidence.watermark_held_by is not None:
        found["watermark_held_by"] = evidence.watermark_held_by
    if decision.override is not None:
        found |= {
            "override_id": decision.override.override_id,
            "override_expires_at": _iso(decision.override.expires_at),
            "overridden_verdict": decision.override.verdict.value,
            "overridden_reason": decision.override.reason,
        }
    if (reservations := decision.reservations) is not None:
        if not reservations.is_load_configured:
            found["is_load_configured"] = 0
        if reservations.forbidden_by is not None:
            found["forbidden_by"] = "; ".join(reservations.forbidden_by) or None
    return found


def _composition_details(own: Composition) -> dict[str, Any]:
    found: dict[str, Any] = {"is_named": int(own.is_named)}
    if own.cover is not None:
        found["traffic_share"] = own.cover.traffic_share
        found["is_shown_under_parent"] = int(own.cover.is_shown_under_parent)
        found["covering_verdict"] = None if own.cover.covering_verdict is None else own.cover.covering_verdict.value
    for name, bounds in own.bounds.items():
        found[f"mix_{name}_lower"] = bounds.lower
        found[f"mix_{name}_upper"] = bounds.upper
        found[f"mix_{name}_known_share"] = bounds.known_share
    if own.mix_reference is not None:
        found["mix_reference"] = {key: list(astuple(state)) for key, state in own.mix_reference.items()}
    if own.mix_change is not None:
        found["mix_log10_evidence"] = own.mix_change.log10_evidence
        found["mix_has_shifted"] = int(own.mix_change.has_shifted)
        for name, rate in own.mix_change.rates.items():
            found[f"mix_part_{name}"] = rate.mix_part
            found[f"within_part_{name}"] = rate.within_part
            found[f"change_of_{name}"] = rate.text
    return found


def _check_version(details: Document) -> Document:
    version = details.get("version", 1)
    if version not in (1, VERSION):
        raise InputError(
            f"details of a decision are of version {version}, and this version of ShadowSpec reads up to {VERSION}: a "
            "later one wrote them"
        )
    return details


def _read_run(own: Document) -> Trial | None:
    if own.get("share") is None:
        return None
    return Trial(
        share=own["share"],
        level=own["level"],
        num_restarts=own["num_restarts"],
        start_blocks=own["start_blocks"],
        start_clusters=own["start_clusters"],
        start_lost=own["start_lost"],
        supersedes=own["supersedes"],
    )


def _read_watch(own: Document) -> Watch | None:
    found = _object(own, "watch")
    if found is None:
        return None
    promises = {name: WatchedMean(*pair) for name, pair in found["promises"].items()}
    return Watch(found["num_blocks"], found["num_clusters"], promises)


def _read_drift(own: Document) -> DriftFigures | None:
    if "drift_advice" not in own:
        return None
    detectors = {
        name: DetectorFigures(own[f"{key}_units"], own[f"{key}_log10"])
        for name, key in DETECTORS.items()
        if f"{key}_units" in own
    }
    return DriftFigures(own.get("drift_threshold_log10"), own["drift_advice"], detectors)


def _read_composition(own: Document) -> Composition | None:
    if "is_named" not in own:
        return None
    covering, reference = own.get("covering_verdict"), _object(own, "mix_reference")
    cover = None
    if "traffic_share" in own:
        verdict = None if covering is None else Verdict(covering)
        cover = SliceCover(own["traffic_share"], bool(own["is_shown_under_parent"]), verdict)
    bounds = {
        name: WeightedBounds(own[f"mix_{name}_lower"], own[f"mix_{name}_upper"], own[f"mix_{name}_known_share"])
        for name in MEANS
        if f"mix_{name}_lower" in own
    }
    return Composition(
        is_named=bool(own["is_named"]),
        cover=cover,
        bounds=bounds,
        mix_reference=None if reference is None else {key: SliceState(*sums) for key, sums in reference.items()},
        mix_change=read_mix_change(own),
    )


def _object(own: Document, name: str) -> Mapping[str, Any] | None:
    """A part that is an object of its own; version 1 has it as a string."""
    found = own.get(name)
    read: Mapping[str, Any] | None = json.loads(found) if isinstance(found, str) else found
    return read


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()
