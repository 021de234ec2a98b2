"""The rows of one arm while they are decoded: tokens, lengths, counters, and when each row ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from shadowspec.engine.randomness import uniforms
from shadowspec.engine.sampling import BatchSampling, to_device
from shadowspec.types import SamplingParameters, SpeculationCounts
from shadowspec.types.failures import EARLY_STEPS, is_early_rejection

# Dropping slots costs a copy of the rows that move; below this share of finished ones it costs more than it saves.
MIN_RELEASED_SHARE = 1 / 8

Detokenize = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to decode with the random numbers of `seed`."""

    prompt: tuple[int, ...]
    sampling: SamplingParameters
    seed: int

    def end_ids(self, end_token_ids: frozenset[int]) -> frozenset[int]:
        """The tokens that end this request, given those that end the model's texts."""
        stop_token_ids = frozenset(self.sampling.stop_token_ids)
        return stop_token_ids if self.sampling.ignore_eos else stop_token_ids | end_token_ids


def needed_capacity(requests: Sequence[Request], num_speculative_tokens: int) -> int:
    """Columns of the cache that decoding these requests together may fill."""
    # One step may write K + 1 tokens past the last one that can be emitted.
    longest = max(len(request.prompt) + request.sampling.max_tokens for request in requests)
    return longest + num_speculative_tokens + 2


class Row:
    """One request in its slot: output so far and counters, cut at the last emitted token."""

    def __init__(
        self, request: Request, num_speculative_tokens: int, end_ids: frozenset[int], detokenize: Detokenize | None
    ) -> None:
        self.request = request
        self.output: list[int] = []
        self.finish_reason: str | None = None
        self._end_ids = end_ids
        self._detokenize = detokenize
        self._depth = num_speculative_tokens
        self.num_drafts = self.num_plain_steps = self.num_cut_steps = 0
        self.num_draft_tokens = self.num_cut_draft_tokens = self.num_cut_accepted_tokens = 0
        self.num_early_rejections = 0
        self.histogram = [0] * (num_speculative_tokens + 1)

    def emit(self, tokens: Sequence[int]) -> int:
        """Append tokens until one of them ends the row; how many were emitted."""
        for count, token in enumerate(tokens, start=1):
            self.output.append(token)
            self.finish_reason = self._reason_to_stop(token)
            if self.finish_reason is not None:
                return count
        return len(tokens)

    def _reason_to_stop(self, token: int) -> str | None:
        sampling = self.request.sampling
        if len(self.output) >= sampling.min_tokens:
            if token in self._end_ids:
                return "stop"
            if sampling.stop and self._detokenize is not None:
                text = self._detokenize(self.output)
                if any(stop in text for stop in sampling.stop):
                    return "stop"
        return "length" if len(self.output) >= sampling.max_tokens else None

    def note_step(self, drafted: int, accepted: int, emitted: int) -> None:
        """Count one step with these numbers of drafted and accepted tokens, and `emitted` of accepted + 1.

        A drafted token after the last emitted one counts in neither accepted nor drafted tokens.
        """
        was_cut = emitted < accepted + 1
        self.num_cut_steps += was_cut
        if drafted == 0:
            self.num_plain_steps += 1
            return
        kept_accepted = min(accepted, emitted)
        kept_drafted = min(drafted, emitted) if self.finish_reason is not None else drafted
        self.num_drafts += 1
        self.num_early_rejections += self.num_drafts <= EARLY_STEPS and kept_accepted == 0
        self.num_draft_tokens += kept_drafted
        self.num_cut_draft_tokens += drafted - kept_drafted
        self.num_cut_accepted_tokens += accepted - kept_accepted
        self.histogram[kept_accepted] += 1

    def was_rejected_early(self) -> bool | None:
        """Whether the draft was rejected from the start; None of too few steps."""
        return is_early_rejection(min(self.num_drafts, EARLY_STEPS), self.num_early_rejections)

    def counts(self) -> SpeculationCounts:
        """The counters of the whole request."""
        per_pos = tuple(sum(self.histogram[position + 1 :]) for position in range(self._depth))
        return SpeculationCounts(
            num_drafts=self.num_drafts,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=sum(per_pos),
            num_accepted_tokens_per_pos=per_pos,
            acceptance_histogram=tuple(self.histogram),
            num_output_tokens=len(self.output),
            num_prompt_tokens=len(self.request.prompt),
            num_plain_steps=self.num_plain_steps,
            num_cut_steps=self.num_cut_steps,
            num_cut_draft_tokens=self.num_cut_draft_tokens,
            num_cut_accepted_tokens=self.num_cut_accepted_tokens,
        )


@dataclass(frozen=True, slots=True)
class Drawing:
    """The random numbers and parameters with which rows are verified."""

    sampling: BatchSampling
    uniforms: torch.Tensor  # float32 [rows, streams, positions]
    emitted: torch.Tensor  # int64 [rows]: tokens emitted so far
    rows: Sequence[Row]


class Batch:
    """All requests of one arm and the slots in which they are decoded.

    At first the first requests are in the slots; those that wait take the slots of finished rows (`admit`).  Once
    none waits a finished row keeps its slot, so that the load stays at the number of slots, until `keep` drops it.
    `rows` are those in slots; `all_rows` is every request in the order given.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        *,
        num_slots: int,
        num_speculative_tokens: int,
        vocabulary: int,
        end_token_ids: frozenset[int],
        detokenize: Detokenize | None,
        device: torch.device,
    ) -> None:
        self.device = device
        ends = [request.end_ids(end_token_ids) for request in requests]
        self.all_rows = tuple(
            Row(request, num_speculative_tokens, end_ids, detokenize)
            for request, end_ids in zip(requests, ends, strict=True)
        )
        self.num_rows = min(num_slots, len(requests))
        self.rows = list(self.all_rows[: self.num_rows])
        self.prompts = [row.request.prompt for row in self.rows]
        self._num_admitted = self.num_rows
        longest_output = max(request.sampling.max_tokens for request in requests)
        self.capacity = needed_capacity(requests, num_speculative_tokens)
        self._every_sampling = BatchSampling(
            [request.sampling for request in requests],
            [request.prompt for request in requests],
            [sorted(end_ids) for end_ids in ends],
            vocabulary,
            device,
        )
        self._every_uniforms = uniforms(
            [request.seed for request in requests], longest_output + num_speculative_tokens + 1, device
        )
        slots = torch.arange(self.num_rows, device=device)
        self.sampling, self.uniforms = self._every_sampling.of(slots), self._every_uniforms[slots]
        self.lengths = torch.tensor([len(prompt) for prompt in self.prompts], device=device)  # in the cache
        self.longest = max(len(prompt) for prompt in self.prompts)
        self.last_tokens = torch.zeros(self.num_rows, dtype=torch.int64, device=device)
        self.previous_tokens = torch.tensor([prompt[-1] for prompt in self.prompts], device=device)
        self.emitted = torch.zeros(self.num_rows, dtype=torch.int64, device=device)
        self.hidden_states: torch.Tensor | None = None  # [rows, columns, size], of the target's latest pass
        self.prompt_states: torch.Tensor | None = None  # [slots, columns, size], of the prompts prefilled last
        self.last_emitted_columns = torch.zeros_like(self.emitted)  # int64 [rows], in hidden_states

    def admit(self) -> list[int]:
        """Put waiting requests into the slots of finished rows; those slots, whose rows are to be prefilled."""
        free = [slot for slot, row in enumerate(self.rows) if row.finish_reason is not None]
        slots = free[: len(self.all_rows) - self._num_admitted]
        if slots:
            numbers = range(self._num_admitted, self._num_admitted + len(slots))
            self._num_admitted = numbers.stop
            for slot, number in zip(slots, numbers, strict=True):
                self.rows[slot] = self.all_rows[number]
                self.prompts[slot] = self.rows[slot].request.prompt
            places, chosen = torch.tensor(slots, device=self.device), torch.tensor([*numbers], device=self.device)
            self.sampling.replace_rows(places, self._every_sampling.of(chosen))
            self.uniforms[places] = self._every_uniforms[chosen]
            self.emitted[places] = 0
        return slots

    def drawing(self, slots: Sequence[int] | None = None) -> Drawing:
        """The random numbers and parameters for verifying the rows in these slots (None: in all)."""
        if slots is None or len(slots) == self.num_rows:
            return Drawing(self.sampling, self.uniforms, self.emitted, self.rows)
        index = torch.tensor(slots, device=self.device)
        rows = [self.rows[slot] for slot in slots]
        return Drawing(self.sampling.of(index), self.uniforms[index], self.emitted[index], rows)

    @property
    def has_waiting(self) -> bool:
        """Whether a request has no slot yet."""
        return self._num_admitted < len(self.all_rows)

    def slots_to_keep(self) -> list[int]:
        """The slots of active rows once it pays to drop the others and no request waits for one; else none.

        Rows from the end move into the slots of finished ones, so that no other row need be copied.
        """
        active = [slot for slot in range(self.num_rows) if self.is_active(slot)]
        count = len(active)
        if self.has_waiting or MIN_RELEASED_SHARE * self.num_rows > self.num_rows - count:
            return []
        movers = [slot for slot in active if slot >= count]
        return [slot if self.is_active(slot) else movers.pop() for slot in range(count)]

    def keep(self, slots: list[int]) -> None:
        """Drop all slots but these, which take the first places in this order."""
        index = torch.tensor(slots, device=self.device)
        self.rows = [self.rows[slot] for slot in slots]
        self.prompts = [self.prompts[slot] for slot in slots]
        self.num_rows = len(slots)
        self.sampling.keep(index)
        self.uniforms = self.uniforms[index]
        self.lengths, self.last_tokens = self.lengths[index], self.last_tokens[index]
        self.previous_tokens, self.emitted = self.previous_tokens[index], self.emitted[index]
        if self.hidden_states is not None:
            self.hidden_states, self.last_emitted_columns = self.hidden_states[index], self.last_emitted_columns[index]

    def see_prompts(self, slots: Sequence[int], hidden_states: torch.Tensor) -> None:
        """Store the hidden states of the target's prefill for the proposer, if it uses them.

        Args:
            slots: those whose prompts were prefilled.
            hidden_states: [slots, columns, size], by position, or only of each prompt's last token.
        """
        self.prompt_states = hidden_states
        last = [min(len(self.prompts[slot]), hidden_states.shape[1]) - 1 for slot in slots]
        hidden_state = hidden_states[
            torch.arange(len(slots), device=self.device), torch.tensor(last, device=self.device)
        ]
        if self.hidden_states is None or len(slots) == self.num_rows:
            self.hidden_states, self.last_emitted_columns = hidden_state[:, None], torch.zeros_like(self.emitted)
        else:
            places = torch.tensor(slots, device=self.device)
            self.hidden_states[places, 0], self.last_emitted_columns[places] = hidden_state, 0

    def see(self, hidden_states: torch.Tensor, last_emitted_columns: torch.Tensor) -> None:
        """Store the hidden states of the target's pass for the proposer, if it uses them.

        Args:
            hidden_states: [rows, columns, size].
            last_emitted_columns: the last column of each row whose token is emitted, int64 [rows].
        """
        self.hidden_states, self.last_emitted_columns = hidden_states, last_emitted_columns

    def last_hidden(self) -> torch.Tensor:
        """The hidden states from which the target made each row's last token, [rows, size]."""
        assert self.hidden_states is not None, "the proposer did not ask for hidden states"
        return self.hidden_states[torch.arange(self.num_rows, device=self.device), self.last_emitted_columns]

    def is_active(self, row: int) -> bool:
        return self.rows[row].finish_reason is None

    @property
    def has_active(self) -> bool:
        """Whether a request is not finished, in a slot or waiting for one."""
        return self.has_waiting or any(row.finish_reason is None for row in self.rows)

    def history(self, row: int) -> npt.NDArray[np.int64]:
        """Prompt and output of a row, int64 [tokens]."""
        return np.asarray((*self.prompts[row], *self.rows[row].output), dtype=np.int64)

    def begin(self, slots: Sequence[int], first_tokens: torch.Tensor) -> None:
        """Take the tokens that prefill sampled for the rows in these slots, int64 [slots]."""
        taken: list[list[int]] = [[] for _ in self.rows]
        for slot, token in zip(slots, first_tokens.tolist(), strict=True):
            self.rows[slot].emit([token])
            taken[slot] = [token]
        self._settle(taken)

    def commit(self, outcomes: list[list[int]]) -> None:
        """Take one step's outcome: per row how many tokens were drafted, how many of them accepted, the recovered
        or bonus token, and the drafted tokens.
        """
        taken: list[list[int]] = []
        for row, (num_drafted, num_accepted, next_token, *drafted) in zip(self.rows, outcomes, strict=True):
            if row.finish_reason is not None:
                taken.append([])
                continue
            tokens = [*drafted[:num_accepted], next_token]
            emitted = row.emit(tokens)
            row.note_step(num_drafted, num_accepted, emitted)
            taken.append(tokens[:emitted])
        self._settle(taken)

    def _settle(self, taken: list[list[int]]) -> None:
        """Move lengths and last tokens on; a finished row is frozen where it can always write K + 1 tokens."""
        if self.sampling.has_penalties:
            self.sampling.note_emitted(taken)
        lengths, last, previous, emitted = [], [], [], []
        for row in self.rows:
            frozen = row.finish_reason is not None
            lengths.append(0 if frozen else len(row.request.prompt) + len(row.output) - 1)
            last.append(row.output[-1])
            previous.append(row.output[-2] if len(row.output) > 1 else row.request.prompt[-1])
            emitted.append(len(row.output))
        # A frozen row continues at length 1: the draft starts one token before a row's end.
        lengths = [max(1, length) for length in lengths]
        state = to_device([lengths, last, previous, emitted], self.device)
        self.lengths, self.last_tokens, self.previous_tokens, self.emitted = state.unbind(0)
        self.longest = max(lengths)
