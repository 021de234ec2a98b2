"""Keyed hashes: how an id is stored without being stored, and how chance is drawn without a generator.

HMAC-SHA256 under the operator's secret.  Each use has a purpose that goes into the hash, so a session and
a user of the same name differ, and whether a session is sampled says nothing about when it is timed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from struct import Struct

UNIT_NUMBER = "#"  # between the key of a unit, "session:HASH", and its number
MIN_SECRET_BYTES = 16  # 128 bits: below this a list of likely ids could be tried against the stored hashes
_UINT64 = 2**64
_LENGTH = Struct(">Q").pack
_BLOCK_BYTES = 64  # of SHA-256
_INNER_PAD, _OUTER_PAD = 0x36, 0x5C  # of HMAC (RFC 2104)


class KeyedHash:
    """Hashes under one secret.  Another secret gives other hashes for everything: new clusters, new draws."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"the secret must have at least {MIN_SECRET_BYTES} bytes")
        # The part of the HMAC that does not depend on the value is computed once: a hash of the inner key and of the
        # parts before the last, and one of the outer key; each value continues from copies of them.
        key = (hashlib.sha256(secret).digest() if len(secret) > _BLOCK_BYTES else secret).ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha256(bytes(byte ^ _INNER_PAD for byte in key))
        self._outer = hashlib.sha256(bytes(byte ^ _OUTER_PAD for byte in key))
        self._started_hashes: dict[tuple[str, ...], hashlib._Hash] = {}  # by purpose and names of endpoints

    def __repr__(self) -> str:
        return "KeyedHash()"

    def identifier(self, purpose: str, value: str) -> str:
        """HMAC-SHA256 of an id, 64 hex digits."""
        return self.hash_parts((purpose,), value).hexdigest()

    def uniform(self, purpose: str, endpoint: str, unit: str) -> float:
        """A number in [0, 1) that is the same for the same endpoint and unit while the secret is unchanged."""
        return (int.from_bytes(self.hash_parts((purpose, endpoint), unit).digest()[:8], "big") >> 11) * 2.0**-53

    def choice(self, purpose: str, count: int, endpoint: str, unit: str) -> int:
        """An integer in 0..count-1, uniform but for 2^-64."""
        if count == 1:
            return 0
        return int.from_bytes(self.hash_parts((purpose, endpoint), unit).digest()[:8], "big") * count // _UINT64

    def hash_parts(self, begin: tuple[str, ...], last: str) -> hashlib._Hash:
        """HMAC-SHA256 of some parts, the last of which varies most."""
        inner = (self._started_hashes.get(begin) or self._begin(begin)).copy()
        inner.update(_frame(last))
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer

    def _begin(self, parts: tuple[str, ...]) -> hashlib._Hash:
        inner = self._started_hashes[parts] = self._inner.copy()
        for part in parts:
            inner.update(_frame(part))
        return inner


class RotatedHash(KeyedHash):
    """Hashes under a new secret; ids that are stored under the previous one keep their hashes and draws."""

    def __init__(self, secret: bytes, previous: bytes, known: Collection[str]) -> None:
        """
        Args:
            known: stored hashes of sessions and users.
        """
        super().__init__(secret)
        self._previous, self._known = KeyedHash(previous), frozenset(known)

    def identifier(self, purpose: str, value: str) -> str:
        before = self._previous.identifier(purpose, value)
        return before if before in self._known else super().identifier(purpose, value)

    def hash_parts(self, begin: tuple[str, ...], last: str) -> hashlib._Hash:
        # Of a draw `last` is a unit, "session:HASH#NUMBER": it is drawn under the secret of its hash.
        is_known = last.partition(":")[2].partition(UNIT_NUMBER)[0] in self._known
        return self._previous.hash_parts(begin, last) if is_known else super().hash_parts(begin, last)


def _frame(part: str) -> bytes:
    """A part with its length before it, so that ("ab", "c") and ("a", "bc") are two inputs."""
    encoded = part.encode("utf-8", "surrogatepass")
    return _LENGTH(len(encoded)) + encoded
