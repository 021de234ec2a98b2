"""A page of Prometheus metrics as counts: each engine's names, one value.

Counters of several ranks (and models' other labels) are summed.  A count that is not on the page is None, never 0.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from shadowspec.types import COMPUTE, COUNTS, QUEUE, Buckets, LiveCounts

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.samples import Sample

MODEL_LABEL: Final = "model_name"  # metrics without it are of the whole server
PROCESS_START: Final = "process_start_time_seconds"
MAX_POSITIONS: Final = 1_024  # of drafted tokens in a step


@dataclass(frozen=True, slots=True)
class MetricNames:
    """Names of one engine's metrics, without its prefix.

    `counters` are by the fields of `LiveCounts`, `latencies` by their names there.  Where draft tokens and accepted
    tokens are counted by position `drafted_per_pos` and `accepted_per_pos` name the metrics, with the label of the
    position.

    `failed` names the requests that failed: a metric, and the label and its values that count (no label: every sample).
    `num_digits`: digits to which counters are rounded when printed; 0: exact.  Those by position are always exact.
    `excludes_cached`: prompt tokens are counted without those from the prefix cache.  `running` names the gauge of the
    requests in progress.
    """

    prefix: str
    counters: Mapping[str, str]
    latencies: Mapping[str, str]
    running: str
    position_label: str = ""
    drafted_per_pos: str | None = None
    accepted_per_pos: str | None = None
    num_digits: int = 0
    excludes_cached: bool = False
    failed: tuple[str, str, frozenset[str]] | None = None


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """A page's metrics of one model.  `is_known`: it has metrics of the engine; `has_model`: also of the model.

    `num_running` are the requests in progress; None where the page does not say.
    """

    is_known: bool
    has_model: bool
    series: str
    started_at: datetime | None
    counts: LiveCounts
    num_running: int | None


@dataclass(slots=True)
class _Sums:
    """Samples of one model, added up as they are read."""

    counters: dict[str, int] = field(default_factory=dict)  # by the metric's name without the prefix
    drafted: dict[int, int] = field(default_factory=dict)  # by position
    accepted: dict[int, int] = field(default_factory=dict)
    buckets: dict[str, dict[float, int]] = field(default_factory=lambda: defaultdict(dict))  # by metric and bound
    ranks: set[tuple[tuple[str, str], ...]] = field(default_factory=set)  # labels that distinguish counters
    sums_us: dict[str, int] = field(default_factory=dict)  # by metric
    num_failed: int | None = None
    num_running: int | None = None


def families_on(page: str) -> Iterable[Metric]:
    """The metrics on a page in Prometheus' text format.

    Raises:
        ValueError: the page has another format.
    """
    from prometheus_client.parser import text_string_to_metric_families  # only here: `check` runs without it

    return text_string_to_metric_families(page)


def parse(text: str, names: MetricNames, model: str) -> MetricsPage:
    """The counts of a model on a page in Prometheus' text format.

    Raises:
        ValueError: the page has another format, or a counter on it is not a count.
    """
    sums, is_known, has_model, started_at = _Sums(), False, False, None
    for sample in (sample for family in families_on(text) for sample in family.samples):
        if sample.name == PROCESS_START:
            started_at = datetime.fromtimestamp(_count(sample.value, whole=False), UTC)
        if not sample.name.startswith(names.prefix):
            continue
        is_known = True
        if sample.labels.get(MODEL_LABEL, model) == model:
            has_model |= MODEL_LABEL in sample.labels  # metrics of the whole server have none
            _add(sums, sample, names)
    counts = _counts(sums, names)
    return MetricsPage(
        is_known, has_model or bool(sums.counters), _series(sums, counts), started_at, counts, sums.num_running
    )


def _add(sums: _Sums, sample: Sample, names: MetricNames) -> None:
    name, labels = sample.name.removeprefix(names.prefix), dict(sample.labels)
    labels.pop(MODEL_LABEL, None)
    if names.failed is not None and name == names.failed[0]:
        _, label, values = names.failed
        is_failed = not label or labels.get(label) in values
        sums.num_failed = (sums.num_failed or 0) + (_count(sample.value) if is_failed else 0)
    if name in (names.drafted_per_pos, names.accepted_per_pos):
        accepted = sums.accepted if name == names.accepted_per_pos else sums.drafted
        position = int(labels.pop(names.position_label, ""))
        if not 0 <= position < MAX_POSITIONS:
            raise ValueError("a position is not a number")
        accepted[position] = accepted.get(position, 0) + _count(sample.value)
        sums.ranks.add(tuple(sorted(labels.items())))
    elif name == names.running:
        if not labels.get("priority"):  # parts by priority stand beside the total, which has none
            sums.num_running = (sums.num_running or 0) + _count(sample.value)
    elif name in names.counters.values():
        sums.counters[name] = sums.counters.get(name, 0) + _count(sample.value)
        if name == names.counters["num_output_tokens"]:
            sums.ranks.add(tuple(sorted(labels.items())))
    elif name.removesuffix("_bucket") in names.latencies.values() and name.endswith("_bucket"):
        bound, bins = float(labels["le"]) if "le" in labels else math.nan, sums.buckets[name.removesuffix("_bucket")]
        if math.isnan(bound):
            raise ValueError("a bucket has no bound")
        bins[bound] = bins.get(bound, 0) + _count(sample.value)
    elif name.removesuffix("_sum") in names.latencies.values() and name.endswith("_sum"):
        metric = name.removesuffix("_sum")
        sums.sums_us[metric] = sums.sums_us.get(metric, 0) + _count(1e6 * sample.value, whole=False)


def _counts(sums: _Sums, names: MetricNames) -> LiveCounts:
    counters: dict[str, int | None] = {name: sums.counters.get(metric) for name, metric in names.counters.items()}
    drafted, accepted = sums.drafted, sums.accepted
    positions = range(max((*drafted, *accepted), default=-1) + 1)
    if names.drafted_per_pos is not None and drafted:  # every draft has a first token
        counters["num_drafts"], counters["num_draft_tokens"] = drafted.get(0, 0), sum(drafted.values())
        counters["num_accepted_tokens"] = sum(accepted.values())
    if names.num_digits and accepted:  # by position they are not rounded
        counters["num_accepted_tokens"] = sum(accepted.values())
    if names.excludes_cached and (uncached := counters["num_prompt_tokens"]) is not None:
        counters["num_prompt_tokens"] = uncached + (counters["num_cached_tokens"] or 0)
    return LiveCounts(
        **counters,
        num_failed_requests=sums.num_failed,
        num_accepted_tokens_per_pos=tuple(accepted.get(place, 0) for place in positions),
        latencies=_latencies(sums, names),
    )


def _latencies(sums: _Sums, names: MetricNames) -> dict[str, Buckets]:
    latencies, buckets = {}, sums.buckets
    for name, metric in names.latencies.items():
        bounds = sorted(buckets.get(metric, {}))
        if not bounds or bounds[-1] != math.inf:
            continue
        cumulative = [buckets[metric][bound] for bound in bounds]
        bins = [later - before for before, later in zip([0, *cumulative], cumulative, strict=False)]
        if min(bins) < 0:
            raise ValueError("a bucket holds less than the one below it")
        latencies[name] = Buckets(tuple(bounds[:-1]), tuple(bins), sums.sums_us.get(metric))
    return latencies


def counts_between(after: LiveCounts, before: LiveCounts) -> LiveCounts | None:
    """The counts in between; None if any counter fell, or positions came or went.

    A count that is unknown in either is unknown.
    """
    if len(after.num_accepted_tokens_per_pos) != len(before.num_accepted_tokens_per_pos):
        return None
    counters: dict[str, int | None] = {}
    for name in COUNTS:
        new, old = getattr(after, name), getattr(before, name)
        counters[name] = None if new is None or old is None else new - old
    pairs = zip(after.num_accepted_tokens_per_pos, before.num_accepted_tokens_per_pos, strict=True)
    latencies: dict[str, Buckets] = {
        name: bins.minus(before.latencies[name])
        for name, bins in after.latencies.items()
        if name in before.latencies and before.latencies[name].bounds == bins.bounds
    }
    counts = LiveCounts(
        **counters, num_accepted_tokens_per_pos=tuple(new - old for new, old in pairs), latencies=latencies
    )
    return counts if counts.is_valid else None


def _series(sums: _Sums, counts: LiveCounts) -> str:
    """The counters' identity as text that stays the same as long as the counters do."""
    ranks = "; ".join(",".join(f"{name}={value}" for name, value in rank) for rank in sorted(sums.ranks))
    # Without the parts of the end to end, which tell no counters apart.
    known = [latency.bounds for name, latency in sorted(counts.latencies.items()) if name not in (QUEUE, COMPUTE)]
    bins = hashlib.sha256(repr(known).encode()).hexdigest()[:8]
    drafts = "no drafts" if counts.num_drafts is None else "drafts"
    return f"{drafts}, {len(counts.num_accepted_tokens_per_pos)} positions, bins {bins}, ranks [{ranks}]"


def _count(value: float, *, whole: bool = True) -> int:
    if not math.isfinite(value) or value < 0 or (whole and value != int(value)):
        raise ValueError("a counter is not a count")
    return int(value)
