"""Which decision is current: for which fingerprint, as expected or not, and whether it is fresh.

The one answer for whatever acts on decisions or shows them: gate, rollouts, check, export, board, live guard.  Callers
differ in the age that they allow alone.  Everything here is pure, and about one endpoint.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.effective_decisions import effective_decisions, for_what_serves
from shadowspec.gate.verdict.trial import Seen, current_fingerprint, is_superseded
from shadowspec.types import Decision, FingerprintedConfig, OverrideRecord
from shadowspec.types.engine_names import is_measured_on

MIN_PREFIX: Final = 8  # characters of a digest by which it may be named
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


class MeasuredSpan(Protocol):
    """In which hours (their starts) of event time a slice was first and last measured, with what and at which load."""

    @property
    def slice_key(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def concurrency(self) -> int: ...
    @property
    def first_hour(self) -> datetime: ...
    @property
    def newest_hour(self) -> datetime: ...


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a caller deploys; None: anything.

    A fingerprint or a revision of the target's weights in full or by MIN_PREFIX characters or more of its beginning, an
    engine by name or by name and version (`shadowspec.types.engine_names`).
    """

    fingerprint: str | None = None
    model_revision: str | None = None
    engine: str | None = None

    def difference(self, fingerprint: str, engine: str, config: FingerprintedConfig | None) -> str | None:
        """In what a measured config (None: not known) differs from what is expected; None if in nothing."""
        if self.fingerprint is not None and not _names(self.fingerprint, fingerprint):
            return f"its fingerprint is {fingerprint}, not {self.fingerprint}"
        revisions = config.target_revisions if config is not None else ()
        revision = self.model_revision
        if revision is not None and not any(_names(revision, each) for each in revisions):
            return f"its target's revision is {' or '.join(revisions) or 'unknown'}, not {revision}"
        if self.engine is not None and not is_measured_on(self.engine, engine):
            return f"its engine is {engine or 'unknown'}, not {self.engine}"
        return None


def decisions_in_force(
    decisions: Iterable[Decision], policy: GatePolicy | None, records: Iterable[OverrideRecord], now: datetime
) -> list[Decision]:
    """The latest decisions as one may act on them: those of another engine than serves held, overrides laid over.

    `policy` is the endpoint's (None: no engine is named), `records` the whole history of overrides.
    """
    return effective_decisions(decisions if policy is None else for_what_serves(decisions, policy), records, now)


def current_fingerprints(
    decisions: Iterable[Decision], measured: Iterable[MeasuredSpan], configs: Mapping[str, FingerprintedConfig]
) -> dict[str, str]:
    """The fingerprint that each candidate, decided or only measured, stands for now, by the candidate's name.

    The gate's rule (`restarts.current_fingerprint`) on the hours in which each was measured, so that a verdict whose
    fingerprint was replaced is out of force before the next gate run says so.  Hours that do not tell which of two came
    later: one that the gate has not seen goes before the one that it judged last.  Without a measurement it is the one
    that the gate judged last.

    Args:
        decisions: the latest on each hypothesis.
        measured: everything measured lately.
        configs: every config that was measured, by fingerprint.
    """
    looks: dict[str, datetime] = {}
    by_name: dict[str, set[str]] = defaultdict(set)
    for decision in decisions:
        by_name[decision.config.name].add(decision.fingerprint)
        look = _NEVER if is_superseded(decision) else decision.decided_at
        looks[decision.fingerprint] = max(looks.get(decision.fingerprint, look), look)
    seen: dict[str, Seen] = {}
    for row in measured:
        known = seen.get(row.fingerprint, Seen(row.first_hour, row.newest_hour))
        seen[row.fingerprint] = Seen(min(known.first, row.first_hour), max(known.last, row.newest_hour))
        if row.fingerprint in configs and row.fingerprint not in looks:
            by_name[configs[row.fingerprint].config.name].add(row.fingerprint)
    current = {}
    for name, own in by_name.items():
        in_order = sorted(own, key=lambda each: (each not in looks, looks.get(each, _NEVER), each))
        found = current_fingerprint({each: seen[each] for each in in_order if each in seen})
        current[name] = found or in_order[-1]
    return current


def evidence_time(decision: Decision, measured: Iterable[MeasuredSpan] = ()) -> datetime | None:
    """When the newest of what the decision rests on happened; no later than the decision itself, None if unknown.

    Of a decision that does not say so it is the start of the newest hour in which anything of its hypothesis was
    measured: evidence is never taken for younger than it is.
    """
    hours = (
        row.newest_hour
        for row in measured
        if decision.slice_key in ("", row.slice_key)
        and (row.concurrency, row.fingerprint) == (decision.concurrency, decision.fingerprint)
    )
    newest = decision.evidence.newest_evidence or max(hours, default=None)
    return None if newest is None else min(newest, decision.decided_at)


def is_stale(evidence_at: datetime | None, max_age: timedelta | None, now: datetime) -> bool:
    """Whether evidence of that time is older than `max_age` (None: any age will do); that of an unknown time is."""
    return max_age is not None and (evidence_at is None or now - evidence_at > max_age)


def _names(given: str, digest: str) -> bool:
    return given == digest or (len(given) >= MIN_PREFIX and digest.startswith(given))
