"""Our counts against llama.cpp's: request by request where nothing is drawn, else rates within intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernels.benchmarks.engines.comparing import Rate, difference_of, half_width
from kernels.benchmarks.engines.llamacpp.asking import LlamaAnswer
from kernels.benchmarks.engines.llamacpp.ours import LlamaCppOurs
from kernels.benchmarks.engines.llamacpp.ways import DRAFT, LlamaWay
from kernels.benchmarks.engines.pair import Prompt
from shadowspec.gate.policy import NEAR_TIE_LOGIT

NEAR_TIE_GAP = NEAR_TIE_LOGIT["float32"]
STEPS, PLAIN, DRAFTED, ACCEPTED = "num_drafts", "num_plain_steps", "num_draft_tokens", "num_accepted_tokens"


def as_llamacpp(answered: LlamaAnswer, *, is_ours: bool) -> dict[str, int]:
    """Steps with and without a draft, drafted and accepted tokens as llama.cpp counts them: the last step in full.

    A drafted end token that is emitted counts as not accepted there, unless it is the draft's last one: ours counts it.
    """
    counts = answered.counts
    accepted = counts.num_accepted_tokens + counts.num_cut_accepted_tokens
    if is_ours and answered.finish_reason == "stop" and counts.num_cut_steps and counts.num_cut_draft_tokens:
        accepted = counts.num_accepted_tokens - 1
    return {
        STEPS: counts.num_drafts,
        PLAIN: counts.num_plain_steps,
        DRAFTED: counts.num_draft_tokens + counts.num_cut_draft_tokens,
        ACCEPTED: accepted,
    }


def equality(
    way: LlamaWay,
    ours: LlamaCppOurs,
    prompts: Sequence[Prompt],
    theirs: Sequence[LlamaAnswer],
    loop: Sequence[LlamaAnswer],
) -> dict[str, Any]:
    """How many requests are equal in tokens and in llama.cpp's counts, and what the others are.

    `equal_cut` are those of them that have all of our counters too, by position and cut at the last token; `unsure`
    those of which llama.cpp does not say whether the end token had been drafted.
    """

    def gap_at(row: int, position: int) -> float:
        return ours.top_two_gap(prompts[row], loop[row].tokens[: position + 1])

    def smallest_gap(row: int) -> float:
        return ours.smallest_draft_gap(prompts[row], loop[row].tokens)

    draft_gap = smallest_gap if way.proposer == DRAFT else None
    differences = []
    equal_cut = 0
    for row, (other, mine) in enumerate(zip(theirs, loop, strict=True)):
        counted, wanted = as_llamacpp(other, is_ours=False), as_llamacpp(mine, is_ours=True)
        if other.tokens == mine.tokens and counted == wanted:
            equal_cut += other.counts == mine.counts
            continue
        position, gap, kind = difference_of(row, mine.tokens, other.tokens, gap_at, NEAR_TIE_GAP, draft_gap)
        differences.append(
            {"request": row, "position": position, "top_two_gap": gap, "kind": kind, "ours": wanted, "theirs": counted}
        )
    return {
        "requests": len(theirs),
        "equal": len(theirs) - len(differences),
        "equal_cut": equal_cut,
        "equal_tokens": sum(mine.tokens == other.tokens for mine, other in zip(loop, theirs, strict=True)),
        "unsure": sum(not answer.is_sure for answer in theirs),
        "hidden": sum(answer.num_hidden > 0 for answer in theirs),
        **{
            name: sum(as_llamacpp(answer, is_ours=False)[name] for answer in theirs)
            for name in (STEPS, DRAFTED, ACCEPTED)
        },
        "differences": differences,
    }


def acceptance_cell(theirs: Sequence[LlamaAnswer], loop: Sequence[LlamaAnswer]) -> Mapping[str, Any] | None:
    """Accepted over drafted tokens of both sides on the same requests, as llama.cpp counts; None: nothing was drafted.

    `difference_half_width` is that of the difference, request by request.
    """
    rates = []
    for side, is_ours in ((theirs, False), (loop, True)):
        counted = [as_llamacpp(answer, is_ours=is_ours) for answer in side]
        rates.append(Rate.of([counts[ACCEPTED] for counts in counted], [counts[DRAFTED] for counts in counted]))
    theirs_rate, ours_rate = rates
    if theirs_rate is None or ours_rate is None:
        return None
    return {
        "requests": len(theirs),
        "llamacpp": theirs_rate.value,
        "llamacpp_half_width": theirs_rate.half_width,
        "loop": ours_rate.value,
        "is_inside": abs(ours_rate.value - theirs_rate.value) <= theirs_rate.half_width + 1e-9,
        "difference_half_width": half_width(ours_rate.moves - theirs_rate.moves),
    }
