"""One request as either side counted it, in the two senses of counting: before and after the cut at its last token."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from kernels.benchmarks.engines.collecting import Answered
from shadowspec.engine.decode import Decoded
from shadowspec.servers.step_counts import from_steps
from shadowspec.servers.stream import Completion
from shadowspec.types import SpeculationCounts


@dataclass(frozen=True, slots=True)
class Uncut:
    """Steps with a draft, and what they drafted and accepted, as vLLM counts: the last step in full."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int


@dataclass(frozen=True, slots=True)
class Counted:
    """One request's output and counters."""

    tokens: tuple[int, ...]
    uncut: Uncut
    counts: SpeculationCounts  # ours: cut at the last emitted token
    is_sure: bool = True  # else up to K - 1 tokens of the last step are counted that were not emitted

    @classmethod
    def of_loop(cls, decoded: Decoded) -> Counted:
        """As our loop counted it."""
        counts = decoded.counts
        uncut = Uncut(
            counts.num_drafts,
            counts.num_draft_tokens + counts.num_cut_draft_tokens,
            counts.num_accepted_tokens + counts.num_cut_accepted_tokens,
        )
        return cls(decoded.output, uncut, counts)

    @classmethod
    def of_server(cls, answer: Answered, num_prompt_tokens: int, depth: int, *, drafts_always: bool) -> Counted:
        """As vLLM counted it, and what `servers.step_counts` makes of that."""
        completion = Completion(
            token_ids=answer.tokens,
            chunk_sizes=answer.chunk_sizes,
            text="",
            finish_reason=answer.finish_reason,
            num_output_tokens=len(answer.tokens),
            sent_s=0.0,
            first_token_s=0.0,
            last_token_s=0.0,
        )
        accepted = from_steps(
            answer.drafted, answer.accepted, completion, num_prompt_tokens, depth, drafts_always=drafts_always
        )
        uncut = Uncut(len(answer.drafted), sum(answer.drafted), sum(answer.accepted))
        return cls(answer.tokens, uncut, accepted.counts, accepted.is_sure)

    def written(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)

    @classmethod
    def read(cls, values: dict[str, Any]) -> Counted:
        """From a file."""
        counts = {name: tuple(value) if isinstance(value, list) else value for name, value in values["counts"].items()}
        return cls(tuple(values["tokens"]), Uncut(**values["uncut"]), SpeculationCounts(**counts), values["is_sure"])
