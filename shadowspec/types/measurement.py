"""Measurements: blocks, the counters and timings of their runs, and parity."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from msgspec import Struct

from shadowspec.types.audits import AuditedRun
from shadowspec.types.block_memory import BlockMemory
from shadowspec.types.flags import NO_FLAGS, RunFlags
from shadowspec.types.requests import RecordKey, ShadowPrompt


class Arm(StrEnum):
    """The two ways each prompt is run."""

    BASELINE = "baseline"
    SPECULATIVE = "speculative"


REPEAT_EVERY: Final = 10  # one block in so many runs its baseline twice: 1 / 10 of the baseline's device time


class Block(Struct, frozen=True):
    """Requests that go through both arms together, at one load.  `fillers` are untimed copies."""

    block_id: str  # hash of endpoint, slice, load and measured requests' keys: the same on every pass over the input
    sequence: int  # start order within the endpoint and input
    endpoint: str
    slice_key: str
    concurrency: int  # the load b
    requests: tuple[ShadowPrompt, ...]  # 1..n_max; turns of one session follow each other, all others are units apart
    fillers: tuple[ShadowPrompt, ...]
    first_arm: Arm  # of the baseline and the first candidate, the one that runs before the other
    requests_per_slot: int = 1  # 1: one batch; above, a queue that refills slots as requests finish
    max_turns: int = 1  # turns that a conversation may have; 1: every request is measured by itself
    repeats_baseline: bool = False  # the baseline arm runs twice: one of `REPEAT_EVERY` blocks, drawn by hash
    stands_for: float = 1.0  # blocks of the traffic that it represents: itself, and those that were not measured

    @property
    def num_places(self) -> int:
        """Conversations of a full block, fillers included; without turns each request is one."""
        return self.concurrency * self.requests_per_slot

    @property
    def n_max(self) -> int:
        """Requests of a full block, fillers included."""
        return self.num_places * self.max_turns

    @property
    def conversations(self) -> tuple[tuple[ShadowPrompt, ...], ...]:
        """The requests and then the fillers, together the turns of each conversation in their order."""
        conversations: list[list[ShadowPrompt]] = []
        for part in (self.requests, self.fillers):
            last: list[ShadowPrompt] = []
            for prompt in part:
                is_turn = self.max_turns > 1 and prompt.session_hash is not None
                # A conversation that fills several places begins again where one of its turns comes again.
                if is_turn and last and _continues(prompt, last):
                    last.append(prompt)
                else:
                    last = [prompt]
                    conversations.append(last)
        return tuple(map(tuple, conversations))

    def arm_order(self, num_candidates: int) -> list[int | None]:
        """The order in which all arms run, each possible one as often: places of candidates, None the baseline.

        `first_arm` is a fair draw of the order of two; each further candidate takes any place with equal chance, drawn
        by hash.  Where the baseline repeats, its second run follows its first at once.
        """
        order: list[int | None] = [None, 0] if self.first_arm is Arm.BASELINE else [0, None]
        for candidate in range(1, num_candidates):
            digest = hashlib.sha256(f"arm_order\0{candidate}\0{self.block_id}".encode()).digest()
            order.insert(int.from_bytes(digest) % (len(order) + 1), candidate)
        if self.repeats_baseline:
            order.insert(order.index(None), None)
        return order


def _continues(prompt: ShadowPrompt, turns: list[ShadowPrompt]) -> bool:
    """Whether the prompt is a further turn of the session that these are of."""
    return prompt.conversation_key == turns[-1].conversation_key and all(prompt.key != turn.key for turn in turns)


@dataclass(frozen=True, slots=True)
class SpeculationCounts:
    """Counters of one speculative run, after the cut at the last emitted token.

    With K = num_speculative_tokens: `num_accepted_tokens_per_pos` has K entries and
    `acceptance_histogram` K + 1 (index j: steps that accepted exactly j).
    Identity: num_output_tokens = 1 + num_drafts + num_plain_steps + num_accepted_tokens - num_cut_steps.
    """

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: tuple[int, ...]
    acceptance_histogram: tuple[int, ...]
    num_output_tokens: int
    num_prompt_tokens: int
    num_plain_steps: int = 0
    num_cut_steps: int = 0
    num_cut_draft_tokens: int = 0
    num_cut_accepted_tokens: int = 0

    @property
    def num_first_accepted(self) -> int:
        """Accepted tokens at the first position; none of a server that does not speculate."""
        return self.num_accepted_tokens_per_pos[0] if self.num_accepted_tokens_per_pos else 0

    @property
    def target_passes(self) -> int:
        """Of one run 1 + num_drafts + num_plain_steps; written so that it holds of pooled counts too."""
        return self.num_output_tokens - self.num_accepted_tokens + self.num_cut_steps


@dataclass(frozen=True, slots=True)
class ArmTiming:
    """Latency of one request in one arm, milliseconds, as a client waits for it.

    In rows that servers' blocks left before this was so, the queue is outside the prefill.
    """

    queue_ms: float  # a part of the prefill, shown only: in the server's queue, and for failed attempts
    prefill_ms: float  # time to first token, from the first attempt on
    decode_ms: float
    draft_ms: float = 0.0  # wall time of drafting while this request was active, as are the next two
    verify_ms: float = 0.0  # the target's pass, with the accept test
    other_ms: float = 0.0
    num_output_tokens: int = 0
    concurrency: float | None = (
        None  # realised: mean number of requests in progress while this one was, itself included
    )
    longest_gap_ms: float | None = None  # between two arrivals of tokens; None: there was one, or it was not noted

    @property
    def end_to_end_ms(self) -> float:
        """Prefill and decode of this arm; verdicts judge this time."""
        return self.prefill_ms + self.decode_ms


@dataclass(frozen=True, slots=True)
class ArmOrder:
    """What the device ran right before each arm of a run, and the baseline's second time.

    None: not known, as of the first block after a start.  The times are of one request, end to end, milliseconds;
    `baseline_repeat_ms` is None where the block does not repeat its baseline, or the second run failed.
    """

    baseline_ran_after: Arm | None = None
    speculative_ran_after: Arm | None = None
    baseline_repeat_ms: float | None = None

    @classmethod
    def of(cls, order: Sequence[int | None], candidate: int, before: Arm | None) -> ArmOrder:
        """That of the candidate at this place, in a block whose arms ran in this `order`, after the arm `before`."""
        arms = [before, *(Arm.BASELINE if place is None else Arm.SPECULATIVE for place in order)]
        return cls(arms[order.index(None)], arms[order.index(candidate)])


@dataclass(frozen=True, slots=True)
class Parity:
    """Whether the speculative output is the target's.

    Greedy requests: `first_divergence` is the output position at which the arms differ (None: equal),
    `divergence_gap` the target's top-2 logit gap there, `rerun_differs` whether the baseline at another
    batch shape differs from itself (only measured where the arms differ).
    Sampled requests: sums over emitted tokens of 1[y = argmax] - target(argmax), teacher-forced; `z_sum` may be off by
    `z_error` either way where a server reported too few probabilities (None: it is exact).
    """

    first_divergence: int | None = None
    divergence_gap: float | None = None
    rerun_differs: bool | None = None
    z_sum: float | None = None
    z_tokens: int | None = None
    baseline_z_sum: float | None = None
    baseline_z_tokens: int | None = None
    z_error: float | None = None


@dataclass(frozen=True, slots=True)
class PairedScore:
    """A figure of quality of one request's output in both arms, each from 0 to 1; None where it was not measured."""

    baseline: float | None
    speculative: float | None


ACCEPTANCE_KEPT: Final = "acceptance_kept"  # such a figure: the acceptance of two deployments that speculate


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A task of an evaluation harness, answered with and without speculation: paired scores by document.

    A document is named by a keyed hash of its content; its text is in no row.
    """

    endpoint: str
    fingerprint: str
    task: str
    metric: str
    measured_at: datetime
    documents: Mapping[str, PairedScore]


WHOLE_STREAM: Final = "whole"  # of a stream without a fault


@dataclass(frozen=True, slots=True)
class StreamParity:
    """The streams of one chat in both arms: "whole", or the code of the first fault (`servers.chat_answer`).

    `is_stream_fault`: the speculative server's fault is proven, as no output of the model explains it.
    """

    baseline_stream: str
    speculative_stream: str
    is_stream_fault: bool

    @property
    def wholeness(self) -> PairedScore:
        """1 for a whole stream, 0 for another one, of each arm."""
        arms = self.baseline_stream, self.speculative_stream
        return PairedScore(*(float(arm == WHOLE_STREAM) for arm in arms))


@dataclass(frozen=True, slots=True)
class Thinking:
    """The part of a chat's answer before its content begins; None where it is not known.

    Steps and tokens are of the speculative arm's drafts that lie wholly in that part.
    """

    baseline_thinking_tokens: int | None = None
    speculative_thinking_tokens: int | None = None
    baseline_thinking_ms: float | None = None
    speculative_thinking_ms: float | None = None
    num_thinking_drafts: int | None = None
    num_thinking_draft_tokens: int | None = None
    num_thinking_accepted_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ServedRun:
    """Facts of a run that exist only where servers answered it.

    `counts_source` names the source of the accepted tokens: "response" or "meta_info", of the request that
    was timed; or "counters", those of the server around the same request sent again by itself; "response_unsure" or
    "meta_info_unsure" where it is unknown how much of the last step was cut.  Cached tokens are those of the prompt
    that came from a server's prefix cache (None: not reported).  Attempts that were thrown away are counted over both
    arms.
    """

    counts_source: str
    baseline_cached_tokens: int | None
    speculative_cached_tokens: int | None
    num_retries: int

    @property
    def cached_tokens(self) -> tuple[int, int] | None:
        """Of the baseline and of speculation; None where a server does not say."""
        if self.baseline_cached_tokens is None or self.speculative_cached_tokens is None:
            return None
        return self.baseline_cached_tokens, self.speculative_cached_tokens


@dataclass(frozen=True, slots=True)
class Run:
    """One request measured with one speculation config beside its baseline.

    A failed run has `failure` set (a short code such as "out_of_memory") and no counts or timings.  `scores` holds
    "structured_validity" (1 valid, 0 not) and the user's "score" where they were measured; None under a name says
    that it does not apply to this request, as validity does not where no structured output was asked for.
    """

    key: RecordKey
    fingerprint: str
    block_id: str
    failure: str | None = None
    counts: SpeculationCounts | None = None
    baseline: ArmTiming | None = None
    speculative: ArmTiming | None = None
    parity: Parity | None = None
    is_repetition_loop: bool = False
    finish_reason: str | None = None
    scores: Mapping[str, PairedScore | None] = field(default_factory=dict)
    flags: RunFlags = NO_FLAGS
    served: ServedRun | None = None  # None: measured by the in-process engine
    order: ArmOrder | None = None  # None: measured before it was stored
    stream: StreamParity | None = None  # None: no chat's answer was streamed
    thinking: Thinking | None = None  # None: no reasoning came apart from the answer


def add_order(runs: Sequence[Run], order: ArmOrder, repeats_ms: Sequence[float | None] | None) -> list[Run]:
    """The runs of a block with one config, in the order of its requests, with the order of their arms.

    Args:
        repeats_ms: by request, the baseline's second time (None: that run failed); None where it ran once.
    """
    times = [None] * len(runs) if repeats_ms is None else repeats_ms[: len(runs)]
    return [replace(run, order=replace(order, baseline_repeat_ms=time)) for run, time in zip(runs, times, strict=True)]


@dataclass(frozen=True, slots=True)
class BlockResult:
    """All runs of a block: one per measured request and candidate config, with the memory of each candidate."""

    block: Block
    started_at: datetime
    runs: tuple[Run, ...]
    memory: Mapping[str, BlockMemory]  # by fingerprint
    num_out_of_memory: int = 0  # times that an arm ran out of memory and was run in halves
    audits: tuple[AuditedRun, ...] = ()  # of the requests drawn for it, by config
    seconds: float | None = None  # that it took: both arms, the checks after them and the audits; None: not known
