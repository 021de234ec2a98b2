"""Which backend runs: chosen by name and recorded.

A backend that cannot run is an error, never a silent change to another.  Rows with min-p, top-k or top-p need a sorted
vocabulary and are outside the kernels by design: they run on torch, and the record shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import torch

from shadowspec_kernels import reference
from shadowspec_kernels.backends import Backend, why_unavailable
from shadowspec_kernels.errors import UnavailableError
from shadowspec_kernels.operands import Scored, check_append, check_score
from shadowspec_kernels.step import Step, Verified

Kernel = Literal["verify", "score", "append"]


def _on_device(rows: Sequence[int], device: torch.device) -> torch.Tensor:
    """Numbers of rows, int64, without making the host wait for the device."""
    tensor = torch.tensor(rows)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class Kernels:
    """The kernels on one device under one backend, with a record of the backends that ran."""

    def __init__(self, backend: Backend, device: torch.device) -> None:
        """Choose a backend.

        Raises:
            UnavailableError: it cannot run on this device.
        """
        if (reason := why_unavailable(backend, device)) is not None:
            raise UnavailableError(f"backend {backend!r} cannot run on {device}: {reason}")
        self.backend: Backend = backend
        self._rows: Counter[tuple[Kernel, Backend]] = Counter()

    def verify(self, step: Step) -> Verified:
        """`reference.verify`; rows of `step.truncation` by the reference under every backend.

        Raises:
            OperandError: the step's tensors do not fit together, or the kernels cannot address them.
        """
        step.check()
        truncated = step.truncation.slots if step.truncation is not None else ()
        if self.backend == "torch" or len(truncated) == step.num_rows:
            return self._by_twin(step)
        from shadowspec_kernels import verification

        others = None
        if truncated:
            others = _on_device(sorted(set(range(step.num_rows)) - set(truncated)), step.logits.device)
        verified = verification.verify(step, others)
        self._rows["verify", "triton"] += step.num_rows - len(truncated)
        if truncated:
            slots = _on_device(truncated, step.logits.device)
            by_twin = self._by_twin(step.take(slots))
            verified.num_accepted[slots] = by_twin.num_accepted
            verified.next_tokens[slots] = by_twin.next_tokens
        return verified

    def _by_twin(self, step: Step) -> Verified:
        self._rows["verify", "torch"] += step.num_rows
        return reference.verify(step)

    def score(
        self,
        hidden: torch.Tensor,  # [rows, size]
        head: torch.Tensor,  # [vocabulary, size]
        tokens: torch.Tensor,  # int64 [rows]
        temperature: torch.Tensor,  # float32 [rows], above 0
    ) -> Scored:
        """`reference.score`.

        Raises:
            OperandError: the tensors do not fit together, or the kernel cannot address them.
        """
        check_score(hidden, head, tokens, temperature)
        if self.backend == "torch":
            scored = reference.score(hidden, head, tokens, temperature)
        else:
            from shadowspec_kernels import scoring

            scored = scoring.score(hidden, head, tokens, temperature)
        self._rows["score", self.backend] += len(tokens)
        return scored

    def append(
        self,
        cache: torch.Tensor,  # [slots, heads, columns, head_dim]
        states: torch.Tensor,  # [rows, tokens, heads, head_dim]
        slots: torch.Tensor,  # int64 [rows]
        columns: torch.Tensor,  # int64 [rows, tokens]; negative: padding
    ) -> None:
        """`reference.append`, in place.

        Raises:
            OperandError: the tensors do not fit together, or the kernel cannot address them.
        """
        check_append(cache, states, slots, columns)
        if self.backend == "torch":
            reference.append(cache, states, slots, columns)
        else:
            from shadowspec_kernels import appending

            appending.append(cache, states, slots, columns)
        self._rows["append", self.backend] += len(slots)

    def ran(self) -> dict[Kernel, dict[Backend, int]]:
        """Rows that each kernel was given so far, by the backend that took them."""
        rows: dict[Kernel, dict[Backend, int]] = {}
        for (kernel, backend), count in sorted(self._rows.items()):
            rows.setdefault(kernel, {})[backend] = count
        return rows
