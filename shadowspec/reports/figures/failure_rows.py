"""The failures of one hypothesis as pages show them: counts with what they are shares of, and what is suspected.

Counts are plain sums over the measured requests; shares are formed here by `shadowspec.metrics.ratio`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shadowspec.metrics import ratio
from shadowspec.reports.figures.taxonomy import SliceFigures, Suspicion, suspicions
from shadowspec.store import GroupSums
from shadowspec.store.read.rollup_reads import FailureKey
from shadowspec.types import Arm, Contract, Intervention, SpeculationCounts, Validity
from shadowspec.types import failures as names
from shadowspec.types.failures import EARLY_STEPS, MIN_EARLY_REJECTIONS

CONTRACT_TITLE = {
    Contract.JSON: "JSON",
    Contract.TOOL_CALL: "Tool call",
    Contract.SQL: "SQL",
    Contract.GRAMMAR: "Grammar",
}
CONTRACT_MEANING = {
    Contract.JSON: "the whole output is one JSON value (RFC 8259), as the request's JSON schema has it where it names "
    "one",
    Contract.TOOL_CALL: "every call in the output is well formed, of a tool that was offered, with arguments as its "
    "schema has them",
    Contract.SQL: "the whole output parses as SQL statements",
    Contract.GRAMMAR: "the whole output matches the request's regular expression, or is one of its choices",
}
INTERVENTION_MEANING = {
    Intervention.FILTERED: "Production's output was withheld, in part or whole (finish_reason content_filter).",
    Intervention.REWRITTEN: "A guardrail delivered another text than production's model wrote.",
    Intervention.REJECTED: "A guardrail failed the call because of the text of production's model.",
}
NOT_LOOKED_AT = "No failures were counted here: either an older version measured these requests, or none was answered."
NO_CONTRACT = (
    "No output here had a contract: no request asked for JSON or offered tools, and the endpoint's configuration names "
    "no contract."
)


@dataclass(frozen=True, slots=True)
class FailureRow:
    """One failure: how often, of how many it could have been, and what it means."""

    name: str
    title: str
    definition: str
    count: int
    of: int
    share: float | None


@dataclass(frozen=True, slots=True)
class IntervenedAcceptance:
    """First-position acceptance with and without the requests whose production output was changed; pooled, plain."""

    num_intervened: int
    with_them: float | None
    without_them: float | None


@dataclass(frozen=True, slots=True)
class Failures:
    """What was counted of one hypothesis.  `num_looked_at` is 0 where nobody looked."""

    num_looked_at: int
    rows: tuple[FailureRow, ...]
    intervened: IntervenedAcceptance
    suspicions: tuple[Suspicion, ...]
    has_contract: bool

    @property
    def notes(self) -> tuple[str, ...]:
        """Why something is not shown."""
        if not self.num_looked_at:
            return (NOT_LOOKED_AT,)
        return () if self.has_contract else (NO_CONTRACT,)


def failures_of(
    figures: SliceFigures,
    others: Sequence[SliceFigures],
    *,
    num_repetition_loops: int,
    num_drafts: int,
    num_first_accepted: int,
) -> Failures:
    """The failures of a slice, or of the whole endpoint (`others`: none).

    Args:
        own, others: as for `suspicions`.
        num_repetition_loops: answered requests that ended in a loop.
        num_drafts, num_first_accepted: plain sums over the same requests as `own`.
    """
    counts = figures.counts
    failures = sum(counts.get(intervention.value, 0) for intervention in Intervention)
    left_drafts = num_drafts - counts.get(names.INTERVENED_DRAFTS, 0)
    left_accepted = num_first_accepted - counts.get(names.INTERVENED_FIRST_ACCEPTED_TOKENS, 0)
    return Failures(
        num_looked_at=counts.get(names.LOOKED_AT, 0),
        rows=tuple(_rows(counts, figures.num_requests, num_repetition_loops)),
        intervened=IntervenedAcceptance(
            failures, ratio(num_first_accepted, num_drafts), ratio(left_accepted, left_drafts)
        ),
        suspicions=suspicions(figures, others),
        has_contract=any(_num_judged(counts, contract, arm) for contract in Contract for arm in Arm),
    )


def _rows(counts: Mapping[str, int], num_answered: int, num_repetition_loops: int) -> Iterator[FailureRow]:
    loops = "The output ends in a repeating pattern; loops are easy to draft and inflate acceptance."
    yield _row("repetition_loops", "Repetition loop", loops, num_repetition_loops, num_answered)
    if not counts.get(names.LOOKED_AT):
        return
    early = (
        f"The draft was rejected from the start: at least {MIN_EARLY_REJECTIONS} of the first {EARLY_STEPS} "
        "propose-and-verify steps accepted nothing. Counted for requests with at least these steps."
    )
    known = counts.get(names.EARLY_KNOWN, 0)
    yield _row(names.EARLY_REJECTIONS, "Early rejection", early, counts.get(names.EARLY_REJECTIONS, 0), known)
    num_examined = counts[names.LOOKED_AT]
    beyond = "Prompt and output are longer than the draft's context; from there on nothing is drafted."
    number = counts.get(names.BEYOND_DRAFT_CONTEXT, 0)
    num_known = names.num_draft_context_known(counts)
    yield _row(names.BEYOND_DRAFT_CONTEXT, "Beyond the draft's context", beyond, number, num_known)
    for contract in Contract:
        for arm in Arm:
            yield from _contract_rows(counts, contract, arm)
    for intervention in Intervention:
        title = f"{intervention.value.capitalize()} behind the model"
        yield _row(
            intervention.value,
            title,
            INTERVENTION_MEANING[intervention],
            counts.get(intervention.value, 0),
            num_examined,
        )


def _contract_rows(counts: Mapping[str, int], contract: Contract, arm: Arm) -> Iterator[FailureRow]:
    judged = _num_judged(counts, contract, arm)
    if not judged:
        return
    number = {validity: counts.get(names.validity_name(contract, arm, validity), 0) for validity in Validity}
    title, name = f"{CONTRACT_TITLE[contract]}, {arm.value}", f"{contract}_{arm}"
    invalid = f"Valid means that {CONTRACT_MEANING[contract]}. Of the outputs that ended by themselves."
    ended = number[Validity.VALID] + number[Validity.INVALID]
    yield _row(f"{name}_invalid", f"{title}: invalid", invalid, number[Validity.INVALID], ended)
    cut = "Cut at its token limit, and so neither valid nor invalid. Of all outputs under this contract."
    yield _row(f"{name}_unfinished", f"{title}: unfinished", cut, number[Validity.UNFINISHED], judged)


def _num_judged(counts: Mapping[str, int], contract: Contract, arm: Arm) -> int:
    return sum(counts.get(names.validity_name(contract, arm, validity), 0) for validity in Validity)


def _row(name: str, title: str, definition: str, count: int, of: int) -> FailureRow:
    return FailureRow(name, title, definition, count, of, ratio(count, of))


FAILURE_SUMS = (  # what of each slice's rollups failures are held against
    *("num_runs", "num_failed", "num_repetition_loops", "weighted_drafts", "weighted_first_accepted_tokens"),
)


def stored_failures(
    slice_key: str,
    place: tuple[str, int],
    sums: Sequence[GroupSums],
    counts: Mapping[FailureKey, Mapping[str, int]],
    pooled: SpeculationCounts | None,
) -> Failures:
    """The failures of a hypothesis from rollups.

    Args:
        slice_key: the slice; "" for the whole endpoint, which is the sum of its slices.
        place: fingerprint and load.
        sums: `FAILURE_SUMS` of the endpoint's slices, of any fingerprint and load.
        counts: counts of failures of the same hours.
        pooled: the hypothesis's counters of steps in the same hours (None: there are none).
    """
    beside = [group for group in sums if (group.fingerprint, group.concurrency) == place]
    slices = [_slice_figures(group, counts.get((group.slice_key, *place), {})) for group in beside]
    figures = [slice_figures for slice_figures in slices if slice_key in ("", slice_figures.slice_key)]
    total: Counter[str] = Counter()
    for figure in figures:
        total.update(figure.counts)
    return failures_of(
        SliceFigures(
            slice_key,
            sum(slice_figures.num_requests for slice_figures in figures),
            sum(slice_figures.num_drafts for slice_figures in figures),
            sum(slice_figures.num_first_accepted for slice_figures in figures),
            total,
        ),
        slices if slice_key else [],
        num_repetition_loops=sum(
            group.sums.num_repetition_loops for group in beside if slice_key in ("", group.slice_key)
        ),
        num_drafts=0 if pooled is None else pooled.num_drafts,
        num_first_accepted=pooled.num_accepted_tokens_per_pos[0]
        if pooled and pooled.num_accepted_tokens_per_pos
        else 0,
    )


def _slice_figures(group: GroupSums, counts: Mapping[str, int]) -> SliceFigures:
    sums = group.sums
    return SliceFigures(
        group.slice_key,
        sums.num_runs - sums.num_failed,
        sums.weighted_drafts,
        sums.weighted_first_accepted_tokens,
        counts,
    )
