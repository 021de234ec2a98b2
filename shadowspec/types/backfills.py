"""Parts of files of logs that were replayed whole, so that they are not replayed again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from shadowspec.types.progress import FunnelKey


class BlockPlace(NamedTuple):
    """A block of a file: the digest of its content, and the block's number in it, from 0."""

    source: str
    number: int


@dataclass(frozen=True, slots=True)
class BackfilledBlock:
    """What became of the records of one block.

    `num_records` is `num_replayed` and the funnel's sum together; the same content cut by the same `work` (what was
    asked for, see `work_id` of the backfill) has the same blocks.
    """

    place: BlockPlace
    is_last: bool  # of its file
    num_records: int
    num_replayed: int
    num_near_ties: int
    funnel: Mapping[FunnelKey, int]  # of the records that were not replayed
    last_event: datetime | None  # aware, UTC; None: nothing was replayed
