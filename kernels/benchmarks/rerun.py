"""A recorder for machines without a GPU."""

from __future__ import annotations

from shadowspec.engine.static_passes import Work


class Rerun:
    """Does the work again by calling it: the same buffers and results anywhere, and no faster."""

    name = "rerun"

    def record(self, work: Work) -> Work:
        work()
        return work

    def held_bytes(self) -> int:
        return 0
