"""A key/value cache for ragged rows, in the form of a transformers `Cache`.

Each slot (row) has its own length.  Layers write keys and values at per-row positions and are read up to the
longest row, so a rejected token costs only a length change: columns beyond a row's length are masked and
overwritten later.  Works with unmodified transformers models that take explicit position ids and a 4-D mask.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

if TYPE_CHECKING:
    from shadowspec_kernels.dispatch import Kernels

HIDDEN = float("-inf")  # added to the score of hidden columns


def look_back(columns: torch.Tensor, order: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The mask of tokens at these columns (int64 [rows, count]) over those in `order` (int64 [width]: 0, 1, ...).

    Returns:
        Float [rows, 1, count, width]: 0 where a token may look (its row up to itself), else -inf.
    """
    is_hidden = order > columns[:, :, None]
    mask = torch.zeros(is_hidden.shape, dtype=dtype, device=columns.device)
    return mask.masked_fill_(is_hidden, HIDDEN)[:, None]


class ColumnSpan:
    """Consecutive columns of every row, prepared once for all passes of a step that write within them."""

    __slots__ = ("_mask", "_order", "columns", "dtype", "longest")

    def __init__(self, columns: torch.Tensor, longest: int, order: torch.Tensor, dtype: torch.dtype) -> None:
        self.columns = columns  # int64 [rows, count]: columns of the cache, which are positions of the text
        self.longest = longest  # upper bound of the first column, known to the host
        self.dtype = dtype  # of the mask
        self._order = order  # int64 [width]: 0, 1, ...
        self._mask: torch.Tensor | None = None

    @classmethod
    def after(cls, lengths: torch.Tensor, longest: int, count: int, dtype: torch.dtype) -> ColumnSpan:
        """`count` columns from `lengths` (int64 [rows]) on; `longest` is the host's upper bound of `lengths`."""
        order = torch.arange(longest + count, device=lengths.device)
        return cls(lengths[:, None] + order[:count], longest, order, dtype)

    @property
    def mask(self) -> torch.Tensor:
        """`look_back` of all columns, made at its first use: passes over static buffers compute theirs."""
        if self._mask is None:
            self._mask = look_back(self.columns, self._order, self.dtype)
        return self._mask


class RaggedLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers ships no types
    """Keys and values of one attention layer in one tensor, [slots, 2 * heads, capacity + 1, head_dim].

    The first half of the heads are keys.  The last column is a rubbish column: padding is written there and
    never read.  Dropped slots are left at the end, so the tensor may hold more than `slots`.
    """

    is_compileable = False
    is_croppable = False

    def __init__(self, slots: int, capacity: int) -> None:
        super().__init__()
        self.slots, self.capacity = slots, capacity
        self.place: tuple[torch.Tensor, torch.Tensor] | None = None  # int64 [rows, 1], [rows, tokens]: slot, column
        self.read_width = 0  # columns read; 0 where the new states are all there is to read
        self.read_rows: torch.Tensor | None = None  # int64 [rows]: slots read; None: all of them

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate for states of this form, [rows, heads, tokens, head_dim]."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.heads, self.key_dim, self.value_dim = key_states.shape[1], key_states.shape[3], value_states.shape[3]
        # Zeros, because masked values are multiplied by 0, and 0 times NaN of uninitialised memory is NaN.
        self.states = key_states.new_zeros(
            (self.slots, 2 * self.heads, self.capacity + 1, max(self.key_dim, self.value_dim))
        )
        self.is_initialized = True

    def update(
        self,
        key_states: torch.Tensor,  # [rows, heads, tokens, key_dim]
        value_states: torch.Tensor,  # [rows, heads, tokens, value_dim]
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new states at this pass's place and return the states that its queries may read."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.place is not None, "no write positions were set for this pass"
        by_token = self.states.transpose(1, 2)  # [slots, capacity + 1, 2 * heads, head_dim]
        by_token[:, :, : self.heads, : self.key_dim].index_put_(self.place, key_states.transpose(1, 2))
        by_token[:, :, self.heads :, : self.value_dim].index_put_(self.place, value_states.transpose(1, 2))
        return self._readable() if self.read_width else (key_states, value_states)

    def append(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`update` with keys and values side by side, [rows, tokens, 2 * heads, head_dim]."""
        heads = states.shape[2] // 2
        keys, values = states[:, :, :heads].transpose(1, 2), states[:, :, heads:].transpose(1, 2)
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        assert self.place is not None, "no write positions were set for this pass"
        self._write(states, self.place)
        return self._readable() if self.read_width else (keys, values)

    def _write(self, states: torch.Tensor, place: tuple[torch.Tensor, torch.Tensor]) -> None:
        """States [rows, tokens, 2 * heads, head_dim] to slots [rows, 1] and columns [rows, tokens], both int64."""
        self.states.transpose(1, 2).index_put_(place, states)

    def _readable(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the slots read, each [slots read, heads, read_width, dim]."""
        rows = slice(self.slots) if self.read_rows is None else self.read_rows
        states = self.states[rows, :, : self.read_width]
        return states[:, : self.heads, :, : self.key_dim], states[:, self.heads :, :, : self.value_dim]

    def first(self, slots: int) -> RaggedLayer:
        """Only the first slots, over the same memory."""
        ragged_layer = copy.copy(self)
        ragged_layer.slots, ragged_layer.states, ragged_layer.place = slots, self.states[:slots], None
        return ragged_layer

    def keep(self, sources: list[int], places: list[int], count: int) -> None:
        """Copy slots `sources` to `places` and drop all but the first `count`."""
        if sources:
            self.states[places] = self.states[sources]
        self.slots = count

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return max(self.read_width, query_length), 0

    def get_seq_length(self) -> int:
        return 0  # rows differ in length; positions are always given explicitly

    def get_max_length(self) -> int:
        return self.capacity


class FusedLayer(RaggedLayer):
    """A layer to which a kernel appends."""

    def __init__(self, slots: int, capacity: int, kernels: Kernels) -> None:
        super().__init__(slots, capacity)
        self._kernels = kernels

    def _write(self, states: torch.Tensor, place: tuple[torch.Tensor, torch.Tensor]) -> None:
        rows, columns = place
        self._kernels.append(self.states, states, rows[:, 0], columns)


class RaggedCache(Cache):  # type: ignore[misc]  # transformers ships no types
    """The cache of one arm: `slots` rows of up to `capacity` tokens, in every layer."""

    def __init__(
        self, layers: int, slots: int, capacity: int, device: torch.device, kernels: Kernels | None = None
    ) -> None:
        """`kernels`: append keys and values that lie side by side (None: torch)."""
        if kernels is None:
            held = [RaggedLayer(slots, capacity) for _ in range(layers)]
        else:
            held = [FusedLayer(slots, capacity, kernels) for _ in range(layers)]
        super().__init__(layers=held)
        self.slots, self.capacity = slots, capacity
        self._rows = torch.arange(slots, device=device)[:, None]  # [slots, 1]

    def begin_prefill(self, rows: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Prepare a prefill of rows from their first column on; their old content is overwritten or masked.

        Args:
            rows: slots being filled, int64 [rows].
            positions: position of each token, -1 for left padding, int64 [rows, tokens].
            dtype: of the mask.

        Returns:
            The attention mask, float [rows, 1, tokens, tokens]: causal within the row; padding attends to itself, so
            that the softmax has a term to sum.
        """
        self._place_layers((rows[:, None], torch.where(positions >= 0, positions, self.capacity)), 0)
        order = torch.arange(positions.shape[1], device=positions.device)
        is_real = (positions >= 0)[:, None, :]  # [rows, 1, tokens]
        is_seen = ((order[:, None] >= order) & is_real) | (order[:, None] == order)
        return torch.zeros(is_seen.shape, dtype=dtype, device=rows.device).masked_fill_(~is_seen, HIDDEN)[:, None]

    def begin_chunk(self, rows: torch.Tensor, positions: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Prepare a pass over some columns of a prefill, which reads the columns of its rows that are written already.

        Args:
            rows: slots being filled, int64 [rows].
            positions: position of each token, -1 for left padding, int64 [rows, tokens].
            width: columns read, the highest position plus 1.
            dtype: that of the mask.

        Returns:
            The attention mask, float [rows, 1, tokens, width].
        """
        columns = torch.where(positions >= 0, positions, self.capacity)
        self._place_layers((rows[:, None], columns), width, rows)
        return look_back(columns, torch.arange(width, device=rows.device), dtype)

    def begin_step(self, span: ColumnSpan, start: int, stop: int) -> torch.Tensor:
        """Prepare a pass of all slots over columns `start` to `stop` of the span.

        Returns:
            The attention mask, float [slots, 1, stop - start, columns read].
        """
        width = min(span.longest + stop, self.capacity)
        self._place_layers((self._rows, span.columns[:, start:stop]), width)
        return span.mask[:, :, start:stop, :width]

    def begin_columns(self, columns: torch.Tensor, order: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Prepare a pass of all slots at columns that lie anywhere.

        Args:
            columns: where it writes, int64 [slots, count]; `capacity`: nowhere that is read.
            order: the columns that it reads, int64 [columns read]: 0, 1, ...
            dtype: that of the mask.

        Returns:
            The attention mask, float [slots, 1, count, columns read].
        """
        self._place_layers((self._rows, columns), order.shape[0])
        return look_back(columns, order, dtype)

    def copy_columns(self, source: int, place: int, count: int) -> None:
        """Copy the first columns of one slot to another."""
        for layer in self.layers:
            layer.states[place, :, :count] = layer.states[source, :, :count]

    def _place_layers(
        self, place: tuple[torch.Tensor, torch.Tensor], read_width: int, read_rows: torch.Tensor | None = None
    ) -> None:
        """Set every layer's `place`, `read_width` and `read_rows`, of the shapes that they have there."""
        for layer in self.layers:
            layer.place, layer.read_width, layer.read_rows = place, read_width, read_rows

    def keep(self, slots: list[int]) -> None:
        """Drop all slots but these, which take the first places in this order."""
        moves = [(source, place) for place, source in enumerate(slots) if source != place]
        sources, places = [source for source, _ in moves], [place for _, place in moves]
        self.slots = len(slots)
        self._rows = self._rows[: self.slots]
        for layer in self.layers:
            layer.keep(sources, places, self.slots)

    def allocate(self, heads: int, head_dim: int, dtype: torch.dtype) -> None:
        """Allocate all layers now instead of at their first states."""
        empty = torch.empty((0, heads, 0, head_dim), dtype=dtype, device=self._rows.device)
        for layer in self.layers:
            layer.lazy_initialization(empty, empty)

    def first(self, slots: int) -> RaggedCache:
        """Only the first slots of an allocated cache, over the same memory."""
        ragged_cache = copy.copy(self)
        ragged_cache.layers = [layer.first(slots) for layer in self.layers]
        ragged_cache.keep([*range(slots)])
        return ragged_cache

    def allocated_bytes(self) -> int:
        """Bytes of keys and values allocated so far."""
        return sum(layer.states.numel() * layer.states.element_size() for layer in self.layers if layer.is_initialized)
