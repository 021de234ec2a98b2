"""A weight in the form in which its products are fastest where it runs.

On a CPU in float32 torch hands products to a library whose kernels are slow for the handful of rows of a step: on an
AMD EPYC five rows cost four times as much as one.  oneDNN's, over weights in an order of its own, cost hardly more than
one row does, and 2.5 times less than torch's for forty.  Where there is little to multiply, one row of a small weight
above all, the plain way is still faster, so that a small weight is held in both forms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch

# Entries of a weight from which on one row is as fast over the packed form, which is then the only one.
PACKED_ALONE: Final = 2**20
# Products of rows and entries from which on several rows are faster over the packed form.
PACKED_WORK: Final = 2**18


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight [in, out] to multiply rows with, plain, packed, or both."""

    plain: torch.Tensor | None  # [in, out]
    packed: torch.Tensor | None  # oneDNN's, of shape [out, in]; None: another device or dtype

    @classmethod
    def of(cls, weight: torch.Tensor, *, is_held: bool = False) -> Matrix:
        """The product with a weight as linear layers have it, [out, in].

        Args:
            is_held: whether the weight is kept elsewhere anyway, so that its plain form takes no memory.
        """
        is_float = weight.device.type == "cpu" and weight.dtype == torch.float32
        is_packable = is_float and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        packed = torch.ops.mkldnn._reorder_linear_weight(weight) if is_packable else None  # noqa: SLF001 (has no other name)
        if packed is not None and weight.numel() >= PACKED_ALONE:
            return cls(None, packed)
        # [in, out] is faster than [out, in] for one row on a CPU.
        return cls(weight.t() if is_held else weight.t().contiguous(), packed)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """[rows, in] -> [rows, out]."""
        if self._packed_for(states.shape[0]):
            product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(states, self.packed, None, "none", [], "")  # noqa: SLF001
            return product
        assert self.plain is not None, "a weight has one form at least"
        return torch.mm(states, self.plain)

    def add_to(self, total: torch.Tensor, states: torch.Tensor) -> None:
        """Add the product of states [rows, in] to `total` [rows, out] in place."""
        if self._packed_for(states.shape[0]):
            total.add_(self(states))
            return
        assert self.plain is not None, "a weight has one form at least"
        total.addmm_(states, self.plain)

    def _packed_for(self, rows: int) -> bool:
        if self.plain is None or self.packed is None:
            return self.plain is None
        return rows > 1 and rows * self.plain.numel() >= PACKED_WORK

    def weight(self) -> torch.Tensor:
        """The form that counts as the weight; the other is a copy."""
        form = self.plain if self.plain is not None else self.packed
        assert form is not None, "a weight has one form at least"
        return form

    def copies(self) -> Iterator[torch.Tensor]:
        """What is held beside the weight."""
        if self.plain is not None and self.packed is not None:
            yield self.packed
