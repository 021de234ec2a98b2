"""A causal language model with a ragged cache: the one way in which both arms and the draft call a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from shadowspec.engine.forward import Forward, HiddenStates, TransformersForward
from shadowspec.engine.kv_cache import RaggedCache, Span
from shadowspec.engine.llama import DirectLlama

if TYPE_CHECKING:
    from shadowspec.engine.static_passes import StaticPasses
    from shadowspec_kernels.dispatch import Kernels

# Rows are prefilled together while padding them to the longest wastes at most this share of the tokens.
MAX_PADDING_SHARE = 0.25
# Columns of a longer prompt that one pass of a prefill takes: its memory does not grow with the prompt.
CHUNK = 512


class Runner:
    """Runs `model`, transformers' or a `DirectLlama`, over `slots` rows of up to `capacity` tokens.

    `hidden_states` are those asked for, of the columns of the latest pass, [slots, columns, layers * hidden]; after a
    prefill [prompts, columns, ...], where the column is the position, or there is one for each prompt's last token.
    """

    def __init__(
        self,
        model: Any,
        slots: int,
        capacity: int,
        hidden: HiddenStates | None = None,
        cache: RaggedCache | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        """
        Args:
            cache: with at least this number of slots and columns, of any content; None: a new one.
            kernels: append to a new one (None: torch).
        """
        self.device: torch.device = model.device
        if cache is None:
            cache = RaggedCache(model.config.num_hidden_layers, slots, capacity, self.device, kernels)
        self.cache = cache
        self._forward: Forward = model if isinstance(model, DirectLlama) else TransformersForward(model)
        self._dtype: torch.dtype = model.dtype
        self._last_position = int(model.config.max_position_embeddings) - 1
        self._layers = hidden.layers if hidden is not None else ()
        self._of_prompt = hidden is not None and hidden.of_prompt
        self.hidden_states: torch.Tensor | None = None

    def prefill(self, prompts: Sequence[Sequence[int]], slots: Sequence[int] | None = None) -> torch.Tensor:
        """Fill the row in slot i with prompt i, over any content (`slots`: those to fill; None: the first ones).

        Returns:
            Logits after the last token of each prompt, float [prompts, vocabulary].
        """
        logits: torch.Tensor | None = None
        self.hidden_states = None
        for group in prefill_groups([len(prompt) for prompt in prompts]):
            rows = torch.tensor(group, device=self.device)
            places = rows if slots is None else torch.tensor([slots[row] for row in group], device=self.device)
            longest = max(len(prompts[row]) for row in group)
            # Left padding aligns the last tokens, so that one column of logits serves every row.
            padded = [[0] * (longest - len(prompts[row])) + list(prompts[row]) for row in group]
            tokens = torch.tensor(padded, device=self.device)  # [group, longest]
            lengths = torch.tensor([len(prompts[row]) for row in group], device=self.device)
            positions = torch.arange(longest, device=self.device)[None] - (longest - lengths)[:, None]
            for start in range(0, longest, CHUNK):
                chunk = slice(start, min(start + CHUNK, longest))
                here = positions[:, chunk].clamp(min=-1)
                if longest <= CHUNK:
                    mask = self.cache.begin_prefill(places, here, self._dtype)
                else:
                    mask = self.cache.begin_chunk(places, here, chunk.stop, self._dtype)
                # Past the context of a draft that is shorter than its target's nothing is drafted: any angle will do.
                angles = self._forward.angles(here.clamp(0, self._last_position))
                every, states = self._forward.forward(tokens[:, chunk], angles, mask, self.cache, 1, self._layers)
                if states is not None and (self._of_prompt or chunk.stop == longest):
                    self._place(states, rows, here, prompts)
            group_logits = every[:, 0]
            if logits is None:
                logits = group_logits.new_empty((len(prompts), group_logits.shape[-1]))
            logits[rows] = group_logits
        if logits is None:
            raise ValueError("nothing to prefill")
        if self.hidden_states is not None and self._of_prompt:
            self.hidden_states = self.hidden_states[:, :-1]
        return logits

    def _place(
        self, states: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor, prompts: Sequence[Sequence[int]]
    ) -> None:
        """Keep the hidden states of a prefilled group (int64 [group] rows), left-padded as the `positions` say."""
        if self.hidden_states is None:
            # Padding goes to one column more, which is cut off in the end.
            columns = max(len(prompt) for prompt in prompts) + 1 if self._of_prompt else 1
            self.hidden_states = states.new_zeros((len(prompts), columns, states.shape[-1]))
        if self._of_prompt:
            self.hidden_states[rows[:, None], positions.clamp(min=-1)] = states
        else:
            self.hidden_states[rows] = states[:, -1:]

    def begin(self, span: Span, column: int = 0) -> None:
        """Let the next `append` write from this column of the span on."""
        self._span, self._column = span, column
        # Tokens past the model's context can never be emitted; their rotary angle does not matter.
        self._angles = self._forward.angles(span.columns.clamp(max=self._last_position))

    def append(self, tokens: torch.Tensor, keep: int) -> torch.Tensor:
        """Append `tokens` (int64 [slots, tokens]) to every row; logits of the last `keep` columns.

        Returns:
            Float [slots, keep, vocabulary].
        """
        start, stop = self._column, self._column + tokens.shape[1]
        self._column = stop
        mask = self.cache.begin_step(self._span, start, stop)
        angles = self._angles[:, start:stop]
        logits, self.hidden_states = self._forward.forward(tokens, angles, mask, self.cache, keep, self._layers)
        return logits

    def step(
        self,
        tokens: torch.Tensor,  # int64 [slots, tokens]
        lengths: torch.Tensor,  # int64 [slots]: tokens already in each row
        longest: int,  # upper bound of `lengths` known to the host
        keep: int,
    ) -> torch.Tensor:
        """`append` after `lengths`, for a single pass."""
        self.begin(Span.after(lengths, longest, tokens.shape[1], self._dtype))
        return self.append(tokens, keep)

    def keep(self, slots: list[int]) -> None:
        """Drop all slots but these, which take the first places in this order."""
        self.cache.keep(slots)

    def cache_bytes(self) -> int:
        """Bytes of keys and values that the rows take."""
        return self.cache.allocated_bytes()


def runner_for(
    model: Any,
    slots: int,
    capacity: int,
    *,
    hidden: HiddenStates | None = None,
    passes: StaticPasses | None,
    kernels: Kernels | None,
) -> Runner:
    """The runner of a model over this number of rows of up to `capacity` tokens, by its static passes if any."""
    if passes is not None:
        return passes.runner(slots, capacity, hidden)
    return Runner(model, slots, capacity, hidden, kernels=kernels)


def prefill_groups(lengths: Sequence[int]) -> list[list[int]]:
    """Rows to prefill together, longest first, so that padding stays within MAX_PADDING_SHARE."""
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    groups: list[list[int]] = []
    used = 0
    for row in order:
        if groups:
            longest = lengths[groups[-1][0]]
            padded = longest * (len(groups[-1]) + 1)
            if padded - (used + lengths[row]) <= MAX_PADDING_SHARE * padded:
                groups[-1].append(row)
                used += lengths[row]
                continue
        groups.append([row])
        used = lengths[row]
    return groups
