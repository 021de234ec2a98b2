"""Counts of live evidence as documents: how scrapes, windows and hours hold them in the database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shadowspec.types import COUNTS, Buckets, LiveCounts


def counts_document(counts: LiveCounts) -> dict[str, Any]:
    """Every count by its name; bins as their bounds and counts."""
    latencies = {name: [list(own.bounds), list(own.counts)] for name, own in counts.latencies.items()}
    per_pos = list(counts.num_accepted_tokens_per_pos)
    return {name: getattr(counts, name) for name in COUNTS} | {
        "num_accepted_tokens_per_pos": per_pos,
        "latencies": latencies,
    }


def counts_of(document: Mapping[Any, Any]) -> LiveCounts:
    """The counts again; a row without latencies was read without them."""
    return LiveCounts(
        **{name: document[name] for name in COUNTS},
        num_accepted_tokens_per_pos=tuple(document["num_accepted_tokens_per_pos"]),
        latencies={name: Buckets(tuple(own[0]), tuple(own[1])) for name, own in document.get("latencies", {}).items()},
    )
