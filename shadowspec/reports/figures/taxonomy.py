"""What kind of failure a slice shows: domain mismatch, sampling regime, long context, tool calling, structured output.

A pure function of a slice's labels, counts and acceptance, held against the endpoint's other slices at the same load
and with the same config.  It names the kinds that are suspected and the figures that they are suspected on, and no
more: it is no test, has no error rate, and no verdict reads it.

| kind | suspected where |
|---|---|
| domain mismatch | acceptance lies `GAP` below that of the slices with the same sampling regime and context whose \
other labels differ; or `EARLY_SHARE` of the requests are early rejections |
| tool calling, structured output | the same in a slice of that prompt class; or `BROKEN_SHARE` more of the \
speculative arm's outputs break their contract than of the baseline's |
| sampling regime | acceptance lies `GAP` below that of the slices that differ only in a cooler sampling regime |
| long context | acceptance lies `GAP` below that of the slices that differ only in a shorter context; or \
`BEYOND_SHARE` of the requests are longer than the draft's context |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from shadowspec.metrics import ratio
from shadowspec.tap.context_buckets import CONTEXT_BUCKETS, LARGEST_CONTEXT_BUCKET
from shadowspec.tap.prompt_class import STRUCTURED, TOOL_CALLING
from shadowspec.text import percent, plural
from shadowspec.types import Arm, Contract, SamplingRegime, Validity, parse_slice_key
from shadowspec.types.failures import (
    BEYOND_DRAFT_CONTEXT,
    EARLY_KNOWN,
    EARLY_REJECTIONS,
    num_draft_context_known,
    validity_name,
)

# Requests on either side: of 20, each of some 20 steps, pooled acceptance has a standard error of about .05.
MIN_REQUESTS = 20
# Of first-position acceptance: two such standard errors; at K = 4 it is about a third of a token per step.
GAP = 0.10
# Of requests: at the default floor 2% are early rejections by chance (`shadowspec.types.failures`).
EARLY_SHARE = 0.25
BEYOND_SHARE = 0.05  # of requests: from there on their plain steps weigh on the slice's mean
BROKEN_SHARE = 0.05  # of outputs: the default of a guardrail's margin
MIN_BROKEN = 5  # outputs: fewer differ by chance where requests are sampled

_REGIME: Final = "sampling_regime"
_CONTEXT: Final = "context_bucket"
_ORDER: Final[Mapping[str, Sequence[str]]] = {  # from where a draft is at its best
    _REGIME: tuple(SamplingRegime),
    _CONTEXT: (*(name for _, name in CONTEXT_BUCKETS), LARGEST_CONTEXT_BUCKET),
}


class FailureKind(StrEnum):
    """Why a slice may lag behind the others of its endpoint."""

    DOMAIN_MISMATCH = "domain mismatch"
    SAMPLING_REGIME = "sampling regime"
    LONG_CONTEXT = "long context"
    TOOL_CALLING = "tool calling"
    STRUCTURED_OUTPUT = "structured output"


@dataclass(frozen=True, slots=True)
class SliceFigures:
    """What a slice is judged by; drafts and accepted first tokens may be weighted by inclusion rates."""

    slice_key: str
    num_requests: int  # that were answered
    num_drafts: float
    num_first_accepted: float
    counts: Mapping[str, int]  # of `shadowspec.types.failures`


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A kind of failure, and each figure that speaks for it, in a sentence."""

    kind: FailureKind
    figures: tuple[str, ...]


def suspicions(slice_figures: SliceFigures, others: Sequence[SliceFigures]) -> tuple[Suspicion, ...]:
    """The kinds of failure that are suspected of a slice, in the order of `FailureKind`; none of one with few requests.

    Args:
        slice_figures: of the slice, or the whole endpoint, which is compared with nothing.
        others: the endpoint's slices at the same load and with the same config; a slice is not its peer.
    """
    if slice_figures.num_requests < MIN_REQUESTS:
        return ()
    labels = parse_slice_key(slice_figures.slice_key)
    lines_by_kind: dict[FailureKind, list[str]] = {kind: [] for kind in FailureKind}
    content = _kind_of_content(labels)
    for kind, peers, of in (
        (content, _peers(labels, others, _differs_in_content), "of other content"),
        (FailureKind.SAMPLING_REGIME, _peers(labels, others, _is_cooler(_REGIME)), "at a cooler sampling regime"),
        (FailureKind.LONG_CONTEXT, _peers(labels, others, _is_cooler(_CONTEXT)), "with a shorter context"),
    ):
        lines_by_kind[kind] += _lags(slice_figures, peers, of)
    counts = slice_figures.counts
    lines_by_kind[content] += _share(
        counts, EARLY_REJECTIONS, counts.get(EARLY_KNOWN, 0), EARLY_SHARE, "rejected the draft from the start"
    )
    lines_by_kind[FailureKind.LONG_CONTEXT] += _share(
        counts,
        BEYOND_DRAFT_CONTEXT,
        num_draft_context_known(counts),
        BEYOND_SHARE,
        "are longer than the draft's context",
    )
    for contract in Contract:
        is_call = contract is Contract.TOOL_CALL
        lines_by_kind[FailureKind.TOOL_CALLING if is_call else FailureKind.STRUCTURED_OUTPUT] += _breaks(
            slice_figures, contract
        )
    return tuple(Suspicion(kind, tuple(figures)) for kind, figures in lines_by_kind.items() if figures)


Differs = Callable[[Mapping[str, str], Mapping[str, str]], bool]


def _kind_of_content(labels: Mapping[str, str]) -> FailureKind:
    """What a slice's content fails as: that of its prompt class, where there is one for it."""
    by_class = {TOOL_CALLING: FailureKind.TOOL_CALLING, STRUCTURED: FailureKind.STRUCTURED_OUTPUT}
    return by_class.get(labels.get("prompt_class", ""), FailureKind.DOMAIN_MISMATCH)


def _peers(labels: Mapping[str, str], others: Sequence[SliceFigures], differs: Differs) -> list[SliceFigures]:
    if not labels:
        return []
    return [other for other in others if differs(labels, parse_slice_key(other.slice_key))]


def _differs_in_content(entry: Mapping[str, str], other: Mapping[str, str]) -> bool:
    return entry != other and all(entry.get(name) == other.get(name) for name in _ORDER)


def _is_cooler(name: str) -> Differs:
    """Whether another slice differs only in this label, and comes before in its order."""
    order = _ORDER[name]

    def differs(entry: Mapping[str, str], other: Mapping[str, str]) -> bool:
        here, there = entry.get(name), other.get(name)
        if here not in order or there not in order or {**other, name: here} != entry:
            return False
        return order.index(there) < order.index(here)

    return differs


def _lags(figures: SliceFigures, peers: Sequence[SliceFigures], of: str) -> list[str]:
    """That acceptance lies below that of the peers, pooled, where both have enough requests."""
    if sum(peer.num_requests for peer in peers) < MIN_REQUESTS:
        return []
    here = ratio(figures.num_first_accepted, figures.num_drafts)
    there = ratio(sum(peer.num_first_accepted for peer in peers), sum(peer.num_drafts for peer in peers))
    if here is None or there is None or there - here < GAP:
        return []
    return [f"acceptance {percent(here)} against {percent(there)} of {plural(len(peers), 'slice')} {of}"]


def _share(counts: Mapping[str, int], count: str, of: int, limit: float, what: str) -> list[str]:
    number = counts.get(count, 0)
    share = ratio(number, of)
    if of < MIN_REQUESTS or share is None or share < limit:
        return []
    return [f"{number:,} of {plural(of, 'request')} {what} ({percent(share)})"]


def _breaks(figures: SliceFigures, contract: Contract) -> list[str]:
    """That more of the speculative arm's outputs break a contract than of the baseline's."""

    def outputs(arm: Arm, *validities: Validity) -> int:
        return sum(figures.counts.get(validity_name(contract, arm, validity), 0) for validity in validities)

    broken = {arm: outputs(arm, Validity.INVALID) for arm in Arm}
    ended = {arm: outputs(arm, Validity.INVALID, Validity.VALID) for arm in Arm}
    if min(ended.values()) < MIN_REQUESTS or broken[Arm.SPECULATIVE] - broken[Arm.BASELINE] < MIN_BROKEN:
        return []
    shares = {arm: broken[arm] / ended[arm] for arm in Arm}
    if shares[Arm.SPECULATIVE] - shares[Arm.BASELINE] < BROKEN_SHARE:
        return []
    name = contract.upper() if contract in (Contract.JSON, Contract.SQL) else contract.replace("_", " ")
    return [
        f"{percent(shares[Arm.SPECULATIVE])} of the speculative arm's outputs are invalid {name}, "
        f"{percent(shares[Arm.BASELINE])} of the baseline's"
    ]
