"""When simulated rows become evidence: the moments at which looking again shows anything new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np

from shadowspec.gate.units import Cluster, Folding
from shadowspec.gating import EndpointEvidence
from shadowspec.simulate.traffic import NEVER, START, Ints, Requests, event_time

ClusterId = tuple[str, str, datetime]


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """When rows become evidence: `looks` are the moments at which anything is new, in microseconds."""

    finished_us: Ints  # by request in event order: when it and all before it are finished
    cluster_us: Mapping[ClusterId, int]
    started_us: Mapping[str, int]  # by block: when it and its records were stored
    block_us: Mapping[str, int]  # by block: when the watermark reached the newest of its own requests
    looks: Ints


def moments_of(requests: Requests, folding: Folding) -> Moments:
    """When each block and each cluster of the finished input became evidence.

    A record is finished when it is stored: at once, or when its block was started.  The event time up to which
    all are finished is the watermark, by which clusters close.
    """
    own = np.where(requests.is_timed, requests.started_us[requests.block], requests.at_us)
    finished = np.maximum.accumulate(own)
    at_us = requests.at_us
    cluster_us: dict[ClusterId, int] = {}
    latest = 0
    for cluster in folding.clusters:
        closes = _microseconds(cluster)
        place = int(np.searchsorted(at_us, closes, "right")) - int(cluster.is_full)
        latest = max(latest, int(finished[place]) if place < len(at_us) else NEVER)
        cluster_us[cluster_id(cluster)] = latest
    names = [block.block_id for block in requests.blocks]
    newest = np.zeros(len(names), dtype=np.int64)
    timed = np.flatnonzero(requests.is_timed)
    np.maximum.at(newest, requests.block[timed], timed)
    started_us = dict(zip(names, requests.started_us.tolist(), strict=True))
    block_us = dict(zip(names, finished[newest].tolist(), strict=True))
    looks = np.unique(np.array([*cluster_us.values(), *block_us.values()], dtype=np.int64))
    return Moments(finished, cluster_us, started_us, block_us, looks)


def rows_at(evidence: EndpointEvidence, requests: Requests, moments: Moments, look_us: int) -> EndpointEvidence:
    """The rows that were stored at a look, with the watermark of that moment."""
    own = np.where(requests.is_timed, requests.started_us[requests.block], requests.at_us)
    stored = own <= look_us
    offsets = set(np.flatnonzero(stored).tolist())
    num_finished = int(np.searchsorted(moments.finished_us, look_us, "right"))
    return replace(
        evidence,
        records=[record for record in evidence.records if record.key.offset in offsets],
        blocks=[block for block in evidence.blocks if moments.started_us[block.block_id] <= look_us],
        runs=[run for run in evidence.runs if run.key.offset in offsets],
        watermark=event_time(int(requests.at_us[num_finished - 1])) if num_finished else START,
    )


def cluster_id(cluster: Cluster) -> ClusterId:
    """What tells a cluster from every other of its endpoint."""
    return cluster.slice_key, cluster.key, cluster.first_event


def _microseconds(cluster: Cluster) -> int:
    return round((cluster.closes_at - START).total_seconds() * 1e6)
