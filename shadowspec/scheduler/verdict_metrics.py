"""Verdicts and their evidence as Prometheus metrics, read from the database at each scrape.

Rollout controllers query them (Flagger, Argo Rollouts), and alert rules use them.  Every scheduler serves the same
figures, whether it leads or not.  docs/metrics.md describes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shadowspec.gate.verdict.current_verdict import active
from shadowspec.reports.content.definitions import find_test
from shadowspec.rollout.check.answer import CheckInput, EndpointTerms, Question
from shadowspec.rollout.check.judge import asked, read_check_input
from shadowspec.rollout.check.outcome import Outcome
from shadowspec.store import Store
from shadowspec.types import AUDITOR, GUARD, Decision, ReasonCode, Stage, Verdict

FINGERPRINT_CHARACTERS: Final = 12  # as the worker's metrics name configs
_HYPOTHESIS: Final = ("endpoint", "slice", "load", "config", "name")
# Name without its prefix, meaning, labels.
FAMILIES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "check": (
        "1 for the answer of `shadowspec check`, at one load or (no load) over all; 0 for the other three.",
        ("endpoint", "load", "outcome"),
    ),
    "verdict": ("1 for the verdict in force, overrides included; 0 for the other two.", (*_HYPOTHESIS, "verdict")),
    "speedup_ratio": (
        "Speedup: its estimate and its anytime-valid bounds, where they are finite.",
        (*_HYPOTHESIS, "bound"),
    ),
    "evidence_sessions": ("Measured sessions of the evidence.", _HYPOTHESIS),
    "evidence_timestamp_seconds": ("When the newest request of the evidence happened, in Unix time.", _HYPOTHESIS),
    "alarm": ("1 while the live guard, an audit or a drift detector keeps speculation off.", ("endpoint",)),
    "rollout_stage": ("1 for the stage of the rollout; 0 for the other two.", ("endpoint", "load", "stage")),
    "rollout_share_ratio": ("Share of the enabled traffic to serve with speculation.", ("endpoint", "load")),
}


@dataclass(frozen=True, slots=True, eq=False)  # a registry hashes it
class VerdictMetrics(Collector):
    """Reads the current decisions of the configured endpoints at every scrape."""

    store: Store
    terms: Mapping[str, EndpointTerms] = field(default_factory=dict)

    def describe(self) -> Iterator[Metric]:
        """The families without samples: registering reads no database."""
        return iter(_families().values())

    def collect(self) -> Iterator[Metric]:
        """All families.

        Raises:
            ServiceUnavailableError, StoreError: the database is gone or refuses; the scrape fails.
        """
        return iter(self.families(datetime.now(UTC)).values())

    def families(self, now: datetime) -> Mapping[str, GaugeMetricFamily]:
        """All families by the name without its prefix, as of `now`."""
        families = _families()
        for endpoint, terms in self.terms.items():
            inputs = read_check_input(self.store, endpoint, terms, now)
            decisions = inputs.decisions
            _add_answers(families["check"], endpoint, inputs, now)
            for latest in decisions.latest:
                if latest.is_current:
                    _add_decision(families, latest.decision, latest.evidence_at)
            orders = active(self.store.overrides(endpoint), now)
            has_drifted = any(
                latest.is_current and latest.decision.reason_code == ReasonCode.DRIFT for latest in decisions.latest
            )
            is_alarmed = has_drifted or any(order.author in (GUARD, AUDITOR) for order in orders)
            families["alarm"].add_metric([endpoint], float(is_alarmed))
            for rollout in inputs.rollouts:
                place = [endpoint, str(rollout.concurrency)]
                families["rollout_share_ratio"].add_metric(place, rollout.share)
                for stage in Stage:
                    families["rollout_stage"].add_metric([*place, stage.value], float(stage is rollout.stage))
        return families


def _add_answers(family: GaugeMetricFamily, endpoint: str, inputs: CheckInput, now: datetime) -> None:
    """The outcome of `check` over all loads and at each; UNUSABLE where it refuses."""
    decided = {latest.decision.concurrency for latest in inputs.decisions.latest}
    for load in (None, *sorted(decided | set(inputs.terms.load_shares))):
        answer = asked(Question(endpoint, concurrency=load), inputs, now)
        outcome = Outcome.UNUSABLE if answer is None else answer.outcome
        for known in Outcome:
            family.add_metric([endpoint, "" if load is None else str(load), known.value], float(known is outcome))


def _families() -> dict[str, GaugeMetricFamily]:
    return {
        name: GaugeMetricFamily(f"shadowspec_{name}", meaning, labels=labels)
        for name, (meaning, labels) in FAMILIES.items()
    }


def _add_decision(families: Mapping[str, GaugeMetricFamily], decision: Decision, evidence_at: datetime | None) -> None:
    config = decision.fingerprint[:FINGERPRINT_CHARACTERS]
    labels = [decision.endpoint, decision.slice_key, str(decision.concurrency), config, decision.config.name]
    for verdict in Verdict:
        families["verdict"].add_metric([*labels, verdict.value], float(verdict is decision.verdict))
    families["evidence_sessions"].add_metric(labels, decision.num_clusters)
    if evidence_at is not None:
        families["evidence_timestamp_seconds"].add_metric(labels, evidence_at.timestamp())
    if (speedup := find_test(decision, "speedup")) is not None:
        for bound in ("estimate", "lower", "upper"):
            value = getattr(speedup, bound)
            if value is not None and abs(value) != float("inf"):
                families["speedup_ratio"].add_metric([*labels, bound], value)
