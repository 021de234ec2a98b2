"""What one arm of a block gave, whether it ran at once or in parts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shadowspec.engine.decode import Decoded


@dataclass(frozen=True, slots=True)
class MeasuredArm:
    """What an arm gave, request by request (None: it did not fit into memory alone).

    `num_halved` counts the batches, the arm's own and parts of it, that did not fit and were run in halves.
    """

    decoded: tuple[Decoded | None, ...]
    cache_bytes: int  # of all parts together
    duration_ms: float = 0.0  # from its start to its last token
    num_halved: int = 0
    peak_bytes: int = 0  # what the arm needs by itself
    static_bytes: int = 0  # of this, what lies there from batch to batch for its recorded passes


def delayed(decoded: Decoded | None, waited_ms: float) -> Decoded | None:
    """The same, its first token that much later (milliseconds)."""
    if decoded is None:
        return None
    return replace(decoded, timing=replace(decoded.timing, prefill_ms=decoded.timing.prefill_ms + waited_ms))
