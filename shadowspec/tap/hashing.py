"""Keyed hashes: how an id is stored without being stored, and how chance is drawn without a generator.

HMAC-SHA256 under the operator's secret.  Each use has a purpose that goes into the hash, so a session and
a user of the same name differ, and whether a session is sampled says nothing about when it is timed.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

MIN_SECRET_BYTES = 16  # 128 bits: below this a list of likely ids could be tried against the stored hashes
_UINT64 = 2**64


class KeyedHash:
    """Hashes under one secret.  Another secret gives other hashes for everything: new clusters, new draws."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"the secret must have at least {MIN_SECRET_BYTES} bytes")
        self._secret = secret

    def __repr__(self) -> str:
        return "KeyedHash()"

    def identifier(self, purpose: str, value: str) -> str:
        """HMAC-SHA256 of an id, 64 hex digits."""
        return self._digest(purpose, (value,)).hex()

    def uniform(self, purpose: str, *parts: str) -> float:
        """A number in [0, 1) that is the same for the same purpose and parts for as long as the secret stands."""
        return (int.from_bytes(self._digest(purpose, parts)[:8], "big") >> 11) * 2.0**-53

    def choice(self, purpose: str, count: int, *parts: str) -> int:
        """An integer in 0..count-1, uniform but for 2^-64."""
        return int.from_bytes(self._digest(purpose, parts)[:8], "big") * count // _UINT64

    def _digest(self, purpose: str, parts: Sequence[str]) -> bytes:
        encoded = [purpose.encode(), *(part.encode("utf-8", "surrogatepass") for part in parts)]
        # Lengths first, so that ("ab", "c") and ("a", "bc") are two inputs.
        message = b"".join(len(part).to_bytes(8, "big") + part for part in encoded)
        return hmac.new(self._secret, message, hashlib.sha256).digest()
