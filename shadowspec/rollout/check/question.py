"""What is asked of an endpoint's standing decisions, and what the answer is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from shadowspec.errors import UsageError
from shadowspec.gate.verdict.current_decision import EndpointDecisions, Expectation
from shadowspec.store import Traffic
from shadowspec.types import FingerprintedConfig


@dataclass(frozen=True, slots=True)
class Question:
    """May speculation be on here?

    Without `slice_labels` the endpoint as a whole is meant, else every slice that has all these labels; without
    `concurrency` all of the endpoint's loads, by their shares.  What is expected (None: anything) is compared with
    the speculation configs that are measured now, as `Expectation` says.
    """

    endpoint: str
    slice_labels: Mapping[str, str] = field(default_factory=dict)
    concurrency: int | None = None
    max_age: timedelta | None = None
    expected_fingerprint: str | None = None
    model_revision: str | None = None
    expected_engine: str | None = None

    @property
    def expected(self) -> Expectation:
        return Expectation(self.expected_fingerprint, self.model_revision, self.expected_engine)


@dataclass(frozen=True, slots=True)
class CheckInput:
    """What a check is answered from: the decisions in force at an endpoint, and what they are weighted with.

    `configs` are every measured one by fingerprint; `load_shares` and `candidates` the operator's (none: as measured).
    A load without a bound counts as a speedup at plus or minus `log_speedup_clip`, the end of the range.
    """

    decisions: EndpointDecisions
    configs: Mapping[str, FingerprintedConfig]
    traffic: Sequence[Traffic]
    load_shares: Mapping[int, float]
    candidates: Sequence[str]
    log_speedup_clip: float


def parse_labels(texts: Sequence[str]) -> dict[str, str]:
    """Labels given as `name=value`, several of them also in one text, with commas between.

    Raises:
        UsageError: one is not of this form, or a label is given twice.
    """
    labels: dict[str, str] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        name, equals, value = part.partition("=")
        if not (name and equals and value):
            raise UsageError(f"--slice {part!r}: expected label=value, such as prompt_class=code")
        if name in labels:
            raise UsageError(f"--slice: the label {name!r} is given twice")
        labels[name] = value
    return labels
