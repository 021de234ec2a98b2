"""Results of replay, and the audits of replay and engine: outputs replayed, and acceptance by session."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Final

from shadowspec.types.requests import LoggedResponse, RecordKey
from shadowspec.types.speculation import FingerprintedConfig

# Share of the tokens by which rounding may shift the mean difference between engine and replay: teacher-forced passes
# and single steps round logits differently, and a drafted arg-max that is nearly tied turns over once in some hundred
# tokens, either way.
AUDIT_TOLERANCE: Final = 0.005


@dataclass(frozen=True, slots=True)
class ExpectedCounts:
    """The expectation of `SpeculationCounts` given the response, over the engine's random numbers.

    The names and identities are those of `SpeculationCounts`.  Acceptance beyond the end of the response cannot be
    known from it, so there is no `num_cut_accepted_tokens`.  The last three are second moments of the engine's counts
    given the response: all 0 where a draft proposes one token with certainty.
    """

    num_drafts: float
    num_draft_tokens: float
    num_accepted_tokens: float
    num_accepted_tokens_per_pos: tuple[float, ...]
    acceptance_histogram: tuple[float, ...]
    num_output_tokens: int
    num_prompt_tokens: int
    num_plain_steps: float = 0.0
    num_cut_steps: float = 0.0
    num_cut_draft_tokens: float = 0.0
    drafts_variance: float = 0.0
    accepted_variance: float = 0.0
    drafts_accepted_covariance: float = 0.0


@dataclass(frozen=True, slots=True)
class AuditedRun:
    """One speculative output with replay's expectation of it.

    `expected_accepted_tokens` is the expectation of `num_accepted_tokens` given the output; None: replay refuses the
    output as impossible for the target.  `tolerance` is the share of the tokens by which the mean of their difference
    may depart from zero.
    """

    key: RecordKey
    fingerprint: str
    num_output_tokens: int
    num_accepted_tokens: int
    expected_accepted_tokens: float | None
    tolerance: float = AUDIT_TOLERANCE


@dataclass(frozen=True, slots=True)
class ServedOutput:
    """A server's speculative answer to one request, with its count of accepted draft tokens.

    `num_uncertain_tokens`: the largest error of the count, whatever was drafted.
    """

    response: LoggedResponse = field(repr=False)
    num_accepted_tokens: int
    num_uncertain_tokens: int = 0


@dataclass(frozen=True, slots=True)
class AuditedUnit:
    """An audited run as the audit's sequences take it in."""

    slice_key: str
    run: AuditedRun


@dataclass(frozen=True, slots=True)
class StoredAudit:
    """How far the audit of one slice ("": the whole endpoint) and config has come."""

    slice_key: str
    fingerprint: str
    document: Mapping[str, float | int | str | None]


@dataclass(frozen=True, slots=True)
class ReplayedRecord:
    """The expected counts of one logged response, for each config (and with it each number of speculative tokens)."""

    key: RecordKey
    endpoint: str
    slice_key: str
    unit_key: str  # the session, or its substitute; hashed
    event_time: datetime  # aware, UTC
    counts: tuple[tuple[FingerprintedConfig, ExpectedCounts], ...]


@dataclass(frozen=True, slots=True)
class LoopSpan:
    """A selection of an endpoint's runs: with these configs from `since` to `until`, both included."""

    endpoint: str
    fingerprints: Collection[str]
    since: datetime  # event times; aware, UTC
    until: datetime


@dataclass(frozen=True, slots=True)
class AcceptanceSums:
    """Counts of one slice and config added up over requests, and over units (sessions) their squares and products.

    Of the loop they are integers that were counted, of replay expectations.
    """

    slice_key: str
    fingerprint: str
    num_requests: int
    num_units: int
    num_drafts: float
    num_draft_tokens: float
    num_accepted_tokens: float
    num_first_accepted_tokens: float
    drafts_squares: float  # of a unit's drafts, as the next two
    accepted_drafts: float
    accepted_squares: float
    first_event: datetime
    last_event: datetime

    @property
    def num_accepted_tokens_per_pos(self) -> tuple[float]:
        """Of the first position only; no other is summed."""
        return (self.num_first_accepted_tokens,)

    def plus(self, other: AcceptanceSums) -> AcceptanceSums:
        """Both together, under this slice and config; a session that is in both counts as two units."""
        names = (field.name for field in fields(self) if field.type in ("int", "float"))
        return replace(
            self,
            first_event=min(self.first_event, other.first_event),
            last_event=max(self.last_event, other.last_event),
            **{name: getattr(self, name) + getattr(other, name) for name in names},
        )
