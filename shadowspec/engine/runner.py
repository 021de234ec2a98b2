"""A causal language model with a ragged cache: the one way in which both arms and the draft call a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from shadowspec.engine.forward import Forward, HiddenStates, TransformersForward
from shadowspec.engine.kv_cache import ColumnSpan, RaggedCache
from shadowspec.engine.llama import DirectLlama

if TYPE_CHECKING:
    from shadowspec.engine.static_passes import StaticPasses
    from shadowspec_kernels.dispatch import Kernels

# Rows are prefilled together while padding them to the longest wastes at most this share of the tokens.
MAX_PADDING_SHARE = 0.25
# Columns of a longer prompt that one pass of a prefill takes: its memory does not grow with the prompt.
CHUNK = 512
# Tokens of a prefix from which on sharing it saves more than copying its keys and values costs.
LEAST_SHARED = 32


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
        *,
        shares_prefixes: bool = False,
    ) -> None:
        """
        Args:
            cache: with at least this number of slots and columns, of any content; None: a new one.
            kernels: append to a new one (None: torch).
            shares_prefixes: whether prompts that are prefilled together compute a long prefix that they share once.
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
        self._shares_prefixes = shares_prefixes
        self.hidden_states: torch.Tensor | None = None

    def prefill(self, prompts: Sequence[Sequence[int]], slots: Sequence[int] | None = None) -> torch.Tensor:
        """Fill the row in slot i with prompt i, over any content (`slots`: those to fill; None: the first ones).

        Returns:
            Logits after the last token of each prompt, float [prompts, vocabulary].
        """
        if not prompts:
            raise ValueError("nothing to prefill")
        self.hidden_states = None
        places = range(len(prompts)) if slots is None else slots
        # Hidden states of whole prompts need a pass over all their columns.
        prefixes = shared_prefixes(prompts) if self._shares_prefixes and not self._of_prompt else {}
        leaders = [row for row in range(len(prompts)) if row not in prefixes]
        logits = self._prefill_rows(prompts, places, leaders, {})
        if prefixes:
            for row, (leader, length) in prefixes.items():
                self.cache.copy_columns(places[leader], places[row], length)
            begins = {row: length for row, (_, length) in prefixes.items()}
            logits[[*prefixes]] = self._prefill_rows(prompts, places, [*prefixes], begins)[[*prefixes]]
        if self.hidden_states is not None and self._of_prompt:
            self.hidden_states = self.hidden_states[:, :-1]
        return logits

    def _prefill_rows(
        self, prompts: Sequence[Sequence[int]], places: Sequence[int], rows: Sequence[int], begins: Mapping[int, int]
    ) -> torch.Tensor:
        """Prefill some of the prompts, each from its column `begins` (or 0) on.

        Returns:
            Logits after their last tokens, float [prompts, vocabulary]; rows of other prompts hold anything.
        """
        logits: torch.Tensor | None = None
        for group in prefill_groups([len(prompts[row]) - begins.get(row, 0) for row in rows]):
            chosen = [rows[index] for index in group]
            last = self._prefill_group(prompts, places, chosen, [begins.get(row, 0) for row in chosen])
            if logits is None:
                logits = last.new_empty((len(prompts), last.shape[-1]))
            logits[chosen] = last
        assert logits is not None, "there are rows"
        return logits

    def _prefill_group(
        self, prompts: Sequence[Sequence[int]], places: Sequence[int], rows: Sequence[int], begins: Sequence[int]
    ) -> torch.Tensor:
        """Prefill these prompts together; logits after their last tokens, float [rows, vocabulary]."""
        texts = [prompts[row][begin:] for row, begin in zip(rows, begins, strict=True)]
        longest = max(len(text) for text in texts)
        slots = torch.tensor([places[row] for row in rows], device=self.device)
        # Left padding aligns the last tokens, so that one column of logits serves every row.
        tokens = torch.tensor([[0] * (longest - len(text)) + list(text) for text in texts], device=self.device)
        first = torch.tensor([[longest - len(text)] for text in texts], device=self.device)
        column = torch.arange(longest, device=self.device)[None]
        begun = torch.tensor(begins, device=self.device)[:, None]
        positions = torch.where(column >= first, column - first + begun, -1)  # [rows, longest]
        is_whole = longest <= CHUNK and not any(begins)
        for start in range(0, longest, CHUNK):
            chunk = slice(start, min(start + CHUNK, longest))
            here = positions[:, chunk]
            if is_whole:
                mask = self.cache.begin_prefill(slots, here, self._dtype)
            else:
                missing = longest - chunk.stop  # of every row, after this chunk
                width = max(1, *(begin + len(text) - missing for text, begin in zip(texts, begins, strict=True)))
                mask = self.cache.begin_chunk(slots, here, width, self._dtype)
            # Past the context of a draft that is shorter than its target's nothing is drafted: any angle will do.
            angles = self._forward.angles(here.clamp(0, self._last_position))
            logits, states = self._forward.forward(tokens[:, chunk], angles, mask, self.cache, 1, self._layers)
            if states is not None and (self._of_prompt or chunk.stop == longest):
                self._place(states, torch.tensor(rows, device=self.device), here, prompts)
        return logits[:, 0]

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

    def begin(self, span: ColumnSpan, column: int = 0) -> None:
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
        self.begin(ColumnSpan.after(lengths, longest, tokens.shape[1], self._dtype))
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
    shares_prefixes: bool = False,
) -> Runner:
    """The runner of a model over this number of rows of up to `capacity` tokens, by its static passes if any."""
    if passes is not None:
        return passes.runner(slots, capacity, hidden, shares_prefixes=shares_prefixes)
    return Runner(model, slots, capacity, hidden, kernels=kernels, shares_prefixes=shares_prefixes)


def shared_prefixes(prompts: Sequence[Sequence[int]]) -> dict[int, tuple[int, int]]:
    """By prompt which other one has computed its prefix, and how many tokens that is.

    The other one shares no prefix itself.  The last token of a prompt is left to compute: its logits are wanted.
    """
    leaders: list[int] = []
    shared: dict[int, tuple[int, int]] = {}
    for row, prompt in enumerate(prompts):
        lengths = [(min(_common(prompts[leader], prompt), len(prompt) - 1), -leader) for leader in leaders]
        longest, leader = max(lengths, default=(0, 0))
        if longest >= LEAST_SHARED:
            shared[row] = (-leader, longest)
        else:
            leaders.append(row)
    return shared


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Tokens that two texts have in common at their beginning."""
    together = zip(first, second, strict=False)
    return next((place for place, (a, b) in enumerate(together) if a != b), min(len(first), len(second)))


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
