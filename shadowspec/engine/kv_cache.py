"""A key/value cache for ragged rows, in the form of a transformers `Cache`.

Each slot (row) has its own length.  Layers write keys and values at per-row positions and are read up to the
longest row, so a rejected token costs only a length change: what lies beyond a row's length is masked and
overwritten later.  Works with unmodified transformers models that take explicit position ids and a 4-D mask.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


class RaggedLayer(CacheLayerMixin):  # type: ignore[misc]  # transformers ships no types
    """Keys and values of one attention layer; storage is [slots, capacity + 1, heads * head_dim].

    The last column of each row is a rubbish column: padding is written there and never read.
    """

    is_compileable = False
    is_croppable = False

    def __init__(self, slots: int, capacity: int) -> None:
        super().__init__()
        self.slots, self.capacity = slots, capacity
        self.write_index: torch.Tensor | None = None  # [rows * tokens] flat positions, int64
        self.read_width = 0  # columns read; 0 during prefill, when the new states are all there is to read

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        shape = (self.slots * (self.capacity + 1), key_states.shape[1] * key_states.shape[3])
        self.heads, self.head_dim = key_states.shape[1], key_states.shape[3]
        self.value_dim = value_states.shape[3]
        self.keys = torch.zeros(shape, dtype=self.dtype, device=self.device)
        self.values = torch.zeros(
            (shape[0], value_states.shape[1] * self.value_dim), dtype=self.dtype, device=self.device
        )
        self.is_initialized = True

    def update(
        self,
        key_states: torch.Tensor,  # [rows, heads, tokens, head_dim]
        value_states: torch.Tensor,  # [rows, heads, tokens, head_dim]
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new states at this pass's positions and return what its queries may read."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.write_index is not None, "the cache was not told where this pass writes"
        count = self.write_index.shape[0]
        self.keys.index_copy_(0, self.write_index, key_states.transpose(1, 2).reshape(count, -1))
        self.values.index_copy_(0, self.write_index, value_states.transpose(1, 2).reshape(count, -1))
        if self.read_width == 0:
            return key_states, value_states
        keys = self.keys.view(self.slots, self.capacity + 1, self.heads, self.head_dim)
        values = self.values.view(self.slots, self.capacity + 1, self.heads, self.value_dim)
        return keys[:, : self.read_width].transpose(1, 2), values[:, : self.read_width].transpose(1, 2)

    def keep(self, slots: torch.Tensor) -> None:
        """Drop all rows but these, int64 [kept]."""
        width = self.capacity + 1
        self.keys = self.keys.view(self.slots, width, -1)[slots].flatten(0, 1)
        self.values = self.values.view(self.slots, width, -1)[slots].flatten(0, 1)
        self.slots = int(slots.shape[0])

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return max(self.read_width, query_length), 0

    def get_seq_length(self) -> int:
        return 0  # rows differ in length; positions are always given explicitly

    def get_max_length(self) -> int:
        return self.capacity


class RaggedCache(Cache):  # type: ignore[misc]  # transformers ships no types
    """The cache of one arm: `slots` rows of up to `capacity` tokens, in every layer."""

    def __init__(self, layers: int, slots: int, capacity: int, device: torch.device) -> None:
        super().__init__(layers=[RaggedLayer(slots, capacity) for _ in range(layers)])
        self.slots, self.capacity = slots, capacity
        self._row_start = torch.arange(slots, device=device) * (capacity + 1)  # [slots]
        self._columns = torch.arange(capacity, device=device)  # [capacity]

    def begin_prefill(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Prepare a prefill of empty rows.

        Args:
            rows: slots being filled, int64 [rows].
            positions: position of each token, -1 for left padding, int64 [rows, tokens].

        Returns:
            The attention mask, bool [rows, 1, tokens, tokens]: causal within the row; padding attends to
            itself, lest the softmax have nothing to sum.
        """
        starts = self._row_start[rows][:, None]
        flat = torch.where(positions >= 0, starts + positions, starts + self.capacity)
        self._tell_layers(flat.reshape(-1), 0)
        tokens = positions.shape[1]
        order = torch.arange(tokens, device=positions.device)
        causal = order[:, None] >= order[None, :]  # [tokens, tokens]
        real = (positions >= 0)[:, None, :]  # [rows, 1, tokens]
        itself = (order[:, None] == order[None, :])[None]
        return ((causal[None] & real) | itself)[:, None]

    def begin_step(self, positions: torch.Tensor, longest: int) -> torch.Tensor:
        """Prepare a pass of all slots over tokens at `positions`, int64 [slots, tokens].

        Returns:
            The attention mask, bool [slots, 1, tokens, longest]: each token sees its row up to itself.
        """
        self._tell_layers((self._row_start[:, None] + positions).reshape(-1), longest)
        return (self._columns[:longest] <= positions[:, :, None])[:, None]

    def _tell_layers(self, write_index: torch.Tensor, read_width: int) -> None:
        for layer in self.layers:
            layer.write_index, layer.read_width = write_index, read_width

    def keep(self, slots: torch.Tensor) -> None:
        """Drop all slots but these (int64 [kept]), which move together in this order."""
        self.slots = int(slots.shape[0])
        self._row_start = self._row_start[: self.slots]
        for layer in self.layers:
            layer.keep(slots)

    def allocated_bytes(self) -> int:
        """Bytes of keys and values allocated so far."""
        return sum(
            tensor.numel() * tensor.element_size()
            for layer in self.layers
            if layer.is_initialized
            for tensor in (layer.keys, layer.values)
        )
