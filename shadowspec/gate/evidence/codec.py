"""A hypothesis's evidence as one JSON document and one block of bytes, and back, without loss.

The document holds counts and sums by name, the bytes the capital tables: per test in the document's order the nulls
[G], then the sums of the lower and of the upper table [G, 4] each, as little-endian doubles; then the sums over batches
of the lower and of the upper side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, fields
from typing import Any

import numpy as np

from shadowspec.gate.evidence.hypothesis import HypothesisEvidence, TestEvidence
from shadowspec.gate.evidence.quantiles import LatencyHistogram
from shadowspec.gate.evidence.totals import RunTotals
from shadowspec.gate.stats.autocorrelation import BATCH_LENGTHS, BatchSums, Moments
from shadowspec.gate.stats.betting import Floats, Side, Sums, UnitSeries
from shadowspec.gate.stats.capital import NUM_FRACTIONS, CapitalTable
from shadowspec.types import SliceCounts, TestState
from shadowspec.types.codec import require_version
from shadowspec.types.decision_documents import iso, read_iso

VERSION = 3
FOLD_AGAIN = "run `shadowspec gate`, which folds it again"  # the remedy for evidence of another version

Document = Mapping[str, Any]

_DOUBLE = np.dtype("<f8")
_COUNTS = ("num_clusters", "num_capped_clusters", "num_days", "newest_day")
_TIMES = ("first_event", "last_event", "newest_event")
_SCALARS = ("num_seen", "num_units", "observed_value", "observed_weight", "null", "num_missing")
_SIDES: tuple[Side, ...] = ("lower", "upper")
_BATCHES = 9 * len(BATCH_LENGTHS)  # numbers that the sums over batches of one side take
_MOMENTS = tuple(field.name for field in fields(Moments))


def encode(evidence: HypothesisEvidence) -> tuple[dict[str, Any], bytes]:
    """The evidence as a document and bytes."""
    tables: list[Floats] = []
    for test in evidence.tests.values():
        tables += [test.lower.thetas, test.lower.logs.ravel(), test.upper.logs.ravel()]
        tables += [
            table.ravel() for side in _SIDES for table in (test.batches[side].unfinished, test.batches[side].sums)
        ]
    document = {
        "version": VERSION,
        "tests": {name: _test_document(test) for name, test in evidence.tests.items()},
        "runs": asdict(evidence.runs),
        "latencies": {arm: sorted(counts.items()) for arm, counts in evidence.latencies.counts.items()},
        "latency_moments": {arm: astuple(moment) for arm, moment in evidence.latencies.moments.items()},
        "watchers": {name: dict(state) for name, state in evidence.watchers.items()},
        "counts": asdict(evidence.counts),
        **{name: getattr(evidence, name) for name in _COUNTS},
        **{name: iso(getattr(evidence, name)) for name in _TIMES},
    }
    return document, np.concatenate(tables).astype(_DOUBLE).tobytes() if tables else b""


def decode(document: Document, tables: bytes) -> HypothesisEvidence:
    """The evidence that was encoded.

    Raises:
        InputError: it was written by another version of this code.
    """
    require_version(document, VERSION, "stored evidence", FOLD_AGAIN)
    doubles, at = np.frombuffer(tables, dtype=_DOUBLE), 0
    tests = {}
    for name, stored in document["tests"].items():
        size = stored["num_nulls"] * (1 + 2 * NUM_FRACTIONS) + 2 * _BATCHES
        tests[name] = _test_evidence(stored, doubles[at : at + size])
        at += size
    gaps = {"largest_gaps": tuple(document["runs"]["largest_gaps"])}
    return HypothesisEvidence(
        tests=tests,
        runs=RunTotals(**{**document["runs"], **gaps}),
        latencies=_latencies(document),
        watchers=document["watchers"],
        counts=SliceCounts(**document["counts"]),
        **_decode_counts(document),
    )


def _latencies(document: Document) -> LatencyHistogram:
    counts = {arm: dict(stored) for arm, stored in document["latencies"].items()}
    moments = {arm: Moments(*moment) for arm, moment in document["latency_moments"].items()}
    return LatencyHistogram(counts, moments)


def _test_document(evidence: TestEvidence) -> dict[str, Any]:
    waiting = evidence.waiting
    document: dict[str, Any] = {name: getattr(evidence, name) for name in _SCALARS}
    document |= {
        "start_unit": evidence.state.start_unit,
        "merged_units": evidence.state.merged_units,
        "num_nulls": len(evidence.lower.thetas),
        "weights": evidence.lower.weights,
        "moments": [getattr(evidence.moments, name) for name in _MOMENTS],
        "totals": dict(evidence.totals),
        "lowest": waiting.lowest,
        "highest": waiting.highest,
        "upper_worst": waiting.upper_worst,
        "has_light_extremes": waiting.has_light_extremes,
        "has_dependence": waiting.dependence is not None,
    }
    if waiting.num_units:
        document["waiting"] = {
            "lower": _sums_lists(waiting.lower),
            "upper": _sums_lists(waiting.upper),
            "observed": _sums_lists(waiting.observed),
            "dependence": None if waiting.dependence is None else waiting.dependence.tolist(),
        }
    return document


def _test_evidence(document: Document, doubles: Floats) -> TestEvidence:
    size = document["num_nulls"]
    lowest, highest, upper_worst = document["lowest"], document["highest"], document["upper_worst"]
    has_light_extremes = document["has_light_extremes"]
    described = lowest, highest, upper_worst, has_light_extremes
    thetas = doubles[:size]
    end = size * (1 + 2 * NUM_FRACTIONS)
    lower, upper = doubles[size:end].reshape(2, size, NUM_FRACTIONS)
    weights = tuple(document["weights"])
    waiting = document.get("waiting") or {"dependence": [] if document["has_dependence"] else None}
    return TestEvidence(
        state=TestState(document["start_unit"], document["merged_units"]),
        lower=CapitalTable.of_sums("lower", thetas, lower, *described, weights),
        upper=CapitalTable.of_sums("upper", thetas, upper, *described, weights),
        batches=_batches(doubles[end:]),
        moments=Moments(*document["moments"]),
        waiting=UnitSeries(
            lower=_sums(waiting.get("lower", ((), ()))),
            upper=_sums(waiting.get("upper", ((), ()))),
            observed=_sums(waiting.get("observed", ((), ()))),
            lowest=lowest,
            highest=highest,
            upper_worst=upper_worst,
            dependence=None if waiting["dependence"] is None else np.array(waiting["dependence"], dtype=np.float64),
            has_light_extremes=has_light_extremes,
        ),
        totals=document["totals"],
        **{name: document[name] for name in _SCALARS},
    )


def _batches(doubles: Floats) -> dict[Side, BatchSums]:
    num = len(BATCH_LENGTHS)
    parts = doubles.reshape(len(_SIDES), _BATCHES)
    return {
        side: BatchSums(part[: 3 * num].reshape(num, 3), part[3 * num :].reshape(num, 6))
        for side, part in zip(_SIDES, parts, strict=True)
    }


def _decode_counts(document: Document) -> dict[str, Any]:
    times = {name: document[name] for name in _TIMES}
    return {name: document[name] for name in _COUNTS} | {name: read_iso(time) for name, time in times.items()}


def _sums_lists(sums: Sums) -> list[list[float]]:
    return [sums.values.tolist(), sums.weights.tolist()]


def _sums(lists: Any) -> Sums:
    return Sums(np.array(lists[0], dtype=np.float64), np.array(lists[1], dtype=np.float64))
