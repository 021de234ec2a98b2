"""Settings of a draft's training, and the share of sessions for it; without torch, for the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TOLERANCE: Final = 0.01  # of overlap that a slice may lose: the point from which a loss is named


@dataclass(frozen=True, slots=True)
class Settings:
    """How to train."""

    epochs: int = 4  # at most; over all training responses
    learning_rate: float = 5e-4  # AdamW's, at its highest
    warmup_share: float = 0.05  # of the steps, in which it rises; then it falls to a tenth along a cosine
    tokens_per_step: int = 4_096  # output tokens whose gradients are summed, at least
    looks_per_epoch: int = 2  # at the validation sessions
    patience: int = 3  # looks without a better one, after which training ends
    logits_per_pass: int = 2**25  # float32 entries that a model gives at a time, 128 MB; some five such tensors live
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Shares:
    """Of sessions, for validation and to be held out; the rest is for training."""

    validation: float = 0.1
    held_out: float = 0.2

    def __post_init__(self) -> None:
        if not (self.validation > 0.0 and self.held_out > 0.0 and self.validation + self.held_out < 1.0):
            raise ValueError("the shares for validation and to be held out must be above 0, and leave some to train on")
