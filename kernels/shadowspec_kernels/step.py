"""The inputs and outputs of one verification.

The random numbers are inputs, so that every backend that verifies a step emits the same tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

import torch

from shadowspec_kernels.errors import OperandError

Rule = Literal["rejection", "greedy_draft", "exact_match", "greedy"]
RULES: tuple[Rule, ...] = ("rejection", "greedy_draft", "exact_match", "greedy")
LOGIT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


Value = TypeVar("Value", "Step", "Penalties", "MinimumLength", "Truncation")


@dataclass(frozen=True, slots=True)
class Penalties:
    """Repetition looks at prompt and output, presence and frequency only at the output."""

    repetition: torch.Tensor  # float32 [rows]
    presence: torch.Tensor  # float32 [rows]
    frequency: torch.Tensor  # float32 [rows]
    in_prompt: torch.Tensor  # bool [rows, vocabulary]
    output_counts: torch.Tensor  # float32 [rows, vocabulary]: tokens emitted before this step


@dataclass(frozen=True, slots=True)
class MinimumLength:
    """Rows that may not end before this number of emitted tokens."""

    min_tokens: torch.Tensor  # int64 [rows]
    emitted: torch.Tensor  # int64 [rows]: before this step
    ends: torch.Tensor  # bool [rows, vocabulary]: tokens that end the row


@dataclass(frozen=True, slots=True)
class Truncation:
    """Min-p, top-k and top-p, in this order after the temperature."""

    min_p: torch.Tensor  # float32 [rows], 0: not cut
    top_k: torch.Tensor  # int64 [rows], 1 to vocabulary; the vocabulary: not cut
    top_p: torch.Tensor  # float32 [rows], 1: not cut
    slots: tuple[int, ...]  # the rows that are cut, known to the host without asking the device


@dataclass(frozen=True, slots=True)
class Step:
    """One step of `rows` requests with up to K drafted tokens each.

    Logits are finite or -inf, and at least one of each row and position is finite, also after `minimum_length`.
    Rows at temperature 0 take the arg-max, the first of equals, under every rule; under `greedy` all rows do.
    """

    rule: Rule
    logits: torch.Tensor  # float32, bfloat16 or float16 [rows, K + 1, vocabulary]
    drafted: torch.Tensor  # int64 [rows, K]
    num_drafted: torch.Tensor  # int64 [rows]: entries of `drafted` that were really proposed
    draft_probs: torch.Tensor | None  # float32 [rows, K, vocabulary], processed; None: one-hot drafts
    accept_uniform: torch.Tensor  # float32 [rows, K], in [0, 1)
    target_uniform: torch.Tensor  # float32 [rows, K + 1], in [0, 1)
    temperature: torch.Tensor  # float32 [rows]
    penalties: Penalties | None = None
    minimum_length: MinimumLength | None = None
    truncation: Truncation | None = None

    @property
    def num_rows(self) -> int:
        return self.logits.shape[0]

    @property
    def depth(self) -> int:
        """K."""
        return self.drafted.shape[1]

    @property
    def vocabulary(self) -> int:
        return self.logits.shape[2]

    @property
    def is_residual_of_draft(self) -> bool:
        """Whether a rejection samples the target's excess over the draft, so that `draft_probs` are read."""
        return self.draft_probs is not None and self.rule in ("rejection", "greedy_draft")

    def check(self) -> None:
        """See that shapes, dtypes and devices fit.

        Raises:
            OperandError: they do not; the message names the tensor.
        """
        if self.rule not in RULES:
            raise OperandError(f"rule {self.rule!r} is not one of {', '.join(RULES)}")
        if self.logits.dim() != 3 or min(self.logits.shape) == 0:
            raise OperandError(f"logits must be [rows, K + 1, vocabulary] and hold something, not {_form(self.logits)}")
        if self.logits.dtype not in LOGIT_DTYPES:
            raise OperandError(f"logits must be float32, bfloat16 or float16, not {_form(self.logits)}")
        rows, columns, vocabulary = self.logits.shape
        depth = columns - 1
        self._expect("drafted", self.drafted, torch.int64, rows, depth)
        self._expect("num_drafted", self.num_drafted, torch.int64, rows)
        self._expect("accept_uniform", self.accept_uniform, torch.float32, rows, depth)
        self._expect("target_uniform", self.target_uniform, torch.float32, rows, columns)
        self._expect("temperature", self.temperature, torch.float32, rows)
        if self.draft_probs is not None:
            self._expect("draft_probs", self.draft_probs, torch.float32, rows, depth, vocabulary)
        if self.penalties is not None:
            for name in ("repetition", "presence", "frequency"):
                self._expect(name, getattr(self.penalties, name), torch.float32, rows)
            self._expect("in_prompt", self.penalties.in_prompt, torch.bool, rows, vocabulary)
            self._expect("output_counts", self.penalties.output_counts, torch.float32, rows, vocabulary)
        if self.minimum_length is not None:
            self._expect("min_tokens", self.minimum_length.min_tokens, torch.int64, rows)
            self._expect("emitted", self.minimum_length.emitted, torch.int64, rows)
            self._expect("ends", self.minimum_length.ends, torch.bool, rows, vocabulary)
        if self.truncation is not None:
            self._expect("min_p", self.truncation.min_p, torch.float32, rows)
            self._expect("top_k", self.truncation.top_k, torch.int64, rows)
            self._expect("top_p", self.truncation.top_p, torch.float32, rows)
            if len(set(self.truncation.slots)) != len(self.truncation.slots) or not all(
                0 <= slot < rows for slot in self.truncation.slots
            ):
                raise OperandError(f"truncation.slots must be different rows of 0 to {rows - 1}")

    def _expect(self, name: str, tensor: torch.Tensor, dtype: torch.dtype, *shape: int) -> None:
        if tuple(tensor.shape) != shape or tensor.dtype != dtype or tensor.device != self.logits.device:
            wanted = f"{_short(dtype)} {list(shape)} on {self.logits.device}"
            raise OperandError(f"{name} must be {wanted}, not {_form(tensor)} on {tensor.device}")

    def take(self, slots: torch.Tensor) -> Step:
        """The step of only these rows, int64 [taken]; with a truncation, all of them are among its slots."""
        truncation = self.truncation and replace(_rows_of(self.truncation, slots), slots=tuple(range(len(slots))))
        return replace(
            _rows_of(self, slots),
            penalties=self.penalties and _rows_of(self.penalties, slots),
            minimum_length=self.minimum_length and _rows_of(self.minimum_length, slots),
            truncation=truncation,
        )


@dataclass(frozen=True, slots=True)
class Verified:
    """Outcome of one step."""

    num_accepted: torch.Tensor  # int64 [rows]
    next_tokens: torch.Tensor  # int64 [rows]: the recovered or bonus token


def _rows_of(value: Value, slots: torch.Tensor) -> Value:
    """The value with these rows, int64 [taken], of each of its tensors."""
    held = {field.name: getattr(value, field.name) for field in fields(value)}
    taken: dict[str, Any] = {name: tensor[slots] for name, tensor in held.items() if isinstance(tensor, torch.Tensor)}
    return replace(value, **taken)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _form(tensor: torch.Tensor) -> str:
    return f"{_short(tensor.dtype)} {list(tensor.shape)}"
