"""The expected tokens of Leviathan et al."""

from __future__ import annotations


def expected_tokens(acceptance: float, num_speculative_tokens: int) -> float:
    """Tokens per step where each drafted token is accepted with this chance, whatever came before.

    (1 - a^(K + 1)) / (1 - a), equation 1 of Leviathan et al.
    """
    return float(sum(acceptance**position for position in range(num_speculative_tokens + 1)))
