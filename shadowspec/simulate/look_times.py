"""When simulated rows become evidence: the moments at which looking again shows anything new."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from shadowspec.gate.evidence.units import Cluster
from shadowspec.simulate.traffic import NEVER, START, Ints, Requests, event_time
from shadowspec.types import Watermark

ClusterId = tuple[str, str, datetime]

MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """When rows become evidence: `looks` are the moments at which anything is new, in microseconds."""

    finished_us: Ints  # by request in event order: when it and all before it are finished
    cluster_us: Mapping[ClusterId, int]
    started_us: Mapping[str, int]  # by block: when it and its records were stored
    block_us: Mapping[str, int]  # by block: when the watermark reached its newest measured request
    at_us: Ints  # by request
    looks: Ints

    def known_at(self, look: int) -> tuple[int, Watermark]:
        """How many requests are finished at a look, and the watermark then."""
        look_us = int(self.looks[look])
        number = int(np.searchsorted(self.finished_us, look_us, "right"))
        return number, Watermark(event_time(int(self.at_us[number - 1])) if number else START, look_us == NEVER)


def moments_of(requests: Requests, clusters: Sequence[Cluster]) -> Moments:
    """When each block and each cluster of the finished input became evidence; `clusters` are in folding order.

    A record is finished when it is stored: at once, or when its block was started.  The event time up to which
    all are finished is the watermark, by which clusters close.
    """
    values = np.where(requests.is_timed, requests.started_us[requests.block], requests.at_us)
    finished = np.maximum.accumulate(values)
    at_us = requests.at_us
    closes = np.array([_microseconds(cluster) for cluster in clusters], dtype=np.int64)
    places = np.searchsorted(at_us, closes, "right") - [int(cluster.is_full) for cluster in clusters]
    entered = np.maximum.accumulate(np.append(finished, NEVER)[places])
    cluster_us = dict(zip(map(cluster_id, clusters), entered.tolist(), strict=True))
    names = [block.block_id for block in requests.blocks]
    newest = np.zeros(len(names), dtype=np.int64)
    timed = np.flatnonzero(requests.is_timed)
    np.maximum.at(newest, requests.block[timed], timed)
    started_us = dict(zip(names, requests.started_us.tolist(), strict=True))
    block_us = dict(zip(names, finished[newest].tolist(), strict=True))
    looks = np.unique(np.array([*cluster_us.values(), *block_us.values()], dtype=np.int64))
    return Moments(finished, cluster_us, started_us, block_us, at_us, looks)


def cluster_id(cluster: Cluster) -> ClusterId:
    """The identity of a cluster within its endpoint."""
    return cluster.slice_key, cluster.key, cluster.first_event


def _microseconds(cluster: Cluster) -> int:
    return (cluster.closes_at - START) // MICROSECOND
