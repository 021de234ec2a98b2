"""Which decision is current: for which fingerprint, as expected or not, and whether it is fresh.

The one rule for every module that acts on decisions or shows them: gate, rollouts, check, export, board, live guard,
reports, Loads page.  Callers differ only in the age that they allow.  Everything here is about one endpoint, and pure
but for `read_endpoint_decisions`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from shadowspec.errors import NoDataError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.current_verdict import CurrentVerdict, active, current_verdict, for_what_serves
from shadowspec.gate.verdict.trial_levels import Seen, current_fingerprint, is_superseded
from shadowspec.types import (
    MAX_CLOCK_AHEAD,
    Decision,
    FingerprintedConfig,
    Override,
    OverrideRecord,
    ReasonCode,
    Verdict,
)
from shadowspec.types.serving_engines import is_measured_on

MIN_PREFIX: Final = 8  # characters of a digest by which it may be named
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


class MeasuredSpan(Protocol):
    """The first and last hour (its start, event time) in which a slice was measured with a config at a load."""

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
    """The deployment that a caller expects; None: any.

    A fingerprint or a revision of the target's weights in full or by MIN_PREFIX characters or more of its beginning, an
    engine by name or by name and version (`shadowspec.types.serving_engines`).
    """

    fingerprint: str | None = None
    model_revision: str | None = None
    engine: str | None = None

    def difference(self, fingerprint: str, engine: str, config: FingerprintedConfig | None) -> str | None:
        """How a measured config (None: not known) differs from the expected one; None if it does not."""
        if self.fingerprint is not None and not _names(self.fingerprint, fingerprint):
            return f"its fingerprint is {fingerprint}, not {self.fingerprint}"
        revisions = config.target_revisions if config is not None else ()
        revision = self.model_revision
        if revision is not None and not any(_names(revision, target_revision) for target_revision in revisions):
            return f"its target's revision is {' or '.join(revisions) or 'unknown'}, not {revision}"
        if self.engine is not None and not is_measured_on(self.engine, engine):
            return f"its engine is {engine or 'unknown'}, not {self.engine}"
        return None


class DecisionSource(Protocol):
    """A store, as far as `read_endpoint_decisions` asks it."""

    def latest_decisions(self, endpoint: str, /) -> Collection[Decision]: ...
    def overrides(self, endpoint: str, /) -> Iterable[OverrideRecord]: ...
    def traffic(self, endpoint: str, /) -> Collection[MeasuredSpan]: ...
    def fingerprints(self) -> Mapping[str, FingerprintedConfig]: ...


@dataclass(frozen=True, slots=True)
class LatestDecision:
    """The latest decision on a hypothesis, as the engine that serves and overrides leave it.

    `is_current` says that its fingerprint is its candidate's current one, `evidence_at` when the newest
    of its evidence happened (None: unknown).
    """

    current: CurrentVerdict
    is_current: bool
    evidence_at: datetime | None

    @property
    def decision(self) -> Decision:
        """The decision in force."""
        assert self.current.decision is not None, "something was decided"
        return self.current.decision


@dataclass(frozen=True, slots=True)
class EndpointDecisions:
    """The latest decisions of an endpoint, its overrides, and each candidate's current fingerprint."""

    latest: tuple[LatestDecision, ...]
    overrides: tuple[Override, ...]
    fingerprints: Mapping[str, str]  # by the candidate's name

    @property
    def current(self) -> list[Decision]:
        """Those of current fingerprints."""
        return [latest.decision for latest in self.latest if latest.is_current]


def endpoint_decisions(
    decisions: Collection[Decision],
    policy: GatePolicy | None,
    overrides: Iterable[Override],
    now: datetime,
    *,
    measured: Collection[MeasuredSpan],
    configs: Mapping[str, FingerprintedConfig],
) -> EndpointDecisions:
    """The latest `decisions` as one may act on them: of the engine that serves, overrides in force laid over.

    `policy` is the endpoint's (None: no engine is named); `measured` and `configs` are as of `current_fingerprints`.
    """
    fingerprints = current_fingerprints(decisions, measured, configs)
    overrides = tuple(overrides)
    latest = [
        LatestDecision(
            current_verdict(decision.endpoint, decision.slice_key, decision.concurrency, decision, overrides, now),
            fingerprints[decision.config.name] == decision.fingerprint and not is_superseded(decision),
            evidence_time(decision, measured),
        )
        for decision in (decisions if policy is None else for_what_serves(decisions, policy))
    ]
    return EndpointDecisions(tuple(latest), overrides, fingerprints)


def read_endpoint_decisions(
    source: DecisionSource,
    endpoint: str,
    policy: GatePolicy | None,
    now: datetime,
    latest: Collection[Decision] | None = None,
) -> EndpointDecisions:
    """`endpoint_decisions` of the stored decisions; `latest` are these where the caller knows them."""
    return endpoint_decisions(
        source.latest_decisions(endpoint) if latest is None else latest,
        policy,
        active(source.overrides(endpoint), now),
        now,
        measured=source.traffic(endpoint),
        configs=source.fingerprints(),
    )


def require_promotable(endpoint: str, found: EndpointDecisions) -> None:
    """Refuse what no promotion and no export may use: a trial policy's verdicts, and ENABLE or REPLACE of blocks.

    Blocks of one incident are many units, so that their verdict holds for the recording that was measured.

    Raises:
        NoDataError: a current decision is of a trial policy, or an ENABLE or REPLACE whose units are blocks.
    """
    if any(decision.recording_only for decision in found.current):
        raise NoDataError(
            f"endpoint {endpoint!r}: its verdicts are of a trial policy (recording_only = true) and speak of this "
            "recording only; to promote, run `shadowspec gate` with a production policy (docs/policy.md)"
        )
    if any(_promotes(decision) and has_block_units(decision) for decision in found.current):
        raise NoDataError(
            f"endpoint {endpoint!r}: the units of its verdict are blocks (window_s = 0); to promote, remove that from "
            "its policy and gate new traffic (docs/policy.md)"
        )


def _promotes(decision: Decision) -> bool:
    return decision.verdict is Verdict.ENABLE or decision.reason_code == ReasonCode.MAY_REPLACE


def has_block_units(decision: Decision) -> bool:
    """Whether a decision rests on blocks and not on windows of event time."""
    speedup = decision.find_test("speedup")
    return speedup is not None and speedup.unit == "block"


def current_fingerprints(
    decisions: Iterable[Decision], measured: Iterable[MeasuredSpan], configs: Mapping[str, FingerprintedConfig]
) -> dict[str, str]:
    """The current fingerprint of each candidate, decided or only measured, by the candidate's name.

    This applies the gate's rule (`trial_levels.current_fingerprint`) to the hours in which each was measured, so that a
    verdict with a replaced fingerprint is out of force before the next gate run.  Where two were last measured in the
    same hour, one that the gate has not seen precedes the one that it judged last.  Without a measurement the result is
    the one that the gate judged last.

    Args:
        decisions: the latest on each hypothesis.
        measured: every measured span.
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
        hours_of_row, known = Seen(row.first_hour, row.newest_hour), seen.get(row.fingerprint)
        seen[row.fingerprint] = hours_of_row if known is None else known.join(hours_of_row)
        if row.fingerprint in configs and row.fingerprint not in looks:
            by_name[configs[row.fingerprint].config.name].add(row.fingerprint)
    current = {}
    for name, fingerprints in by_name.items():
        in_order = sorted(
            fingerprints,
            key=lambda fingerprint: (fingerprint not in looks, looks.get(fingerprint, _NEVER), fingerprint),
        )
        hours = {fingerprint: seen[fingerprint] for fingerprint in in_order if fingerprint in seen}
        current[name] = current_fingerprint(hours) or in_order[-1]
    return current


def evidence_time(decision: Decision, measured: Iterable[MeasuredSpan]) -> datetime | None:
    """Event time of the decision's newest evidence; at most the time of the decision, None if unknown or impossible.

    For a decision without it, the start of the newest hour in which its hypothesis was measured: evidence never counts
    as younger than it is.  Evidence from a recorded file is as old as its newest event, whenever it was measured.
    """
    hours = (
        row.newest_hour
        for row in measured
        if decision.slice_key in ("", row.slice_key)
        and (row.concurrency, row.fingerprint) == (decision.concurrency, decision.fingerprint)
    )
    newest = decision.evidence.newest_evidence
    if newest is not None and newest - decision.decided_at > MAX_CLOCK_AHEAD:
        return None
    newest = newest or max(hours, default=None)
    return None if newest is None else min(newest, decision.decided_at)


def is_stale(evidence_at: datetime | None, max_age: timedelta | None, now: datetime) -> bool:
    """Whether evidence of that time is older than `max_age` (None: any age will do).

    Evidence of an unknown time is, and so is evidence of the future, of which no clock knows the age.
    """
    if max_age is None:
        return False
    return evidence_at is None or now - evidence_at > max_age or evidence_at - now > MAX_CLOCK_AHEAD


def _names(given: str, digest: str) -> bool:
    return given == digest or (len(given) >= MIN_PREFIX and digest.startswith(given))
