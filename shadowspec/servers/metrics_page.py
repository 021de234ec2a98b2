"""A page of Prometheus metrics as counts: each engine's names, one value.

Ranks that share the work are added up; of ranks that all count the same one is taken.  A count that is not on the page
is None, never 0.  A page that contradicts itself is refused, with the metric's name.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from shadowspec.types import COMPUTE, COUNTS, QUEUE, Buckets, LiveCounts
from shadowspec.types.live_windows import rounding

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.samples import Sample

PROCESS_START: Final = "process_start_time_seconds"
MAX_POSITIONS: Final = 1_024  # of drafted tokens in a step
MAX_COUNT: Final = 2**53  # above it a counter of floats no longer counts by one
MAX_US: Final = 2**63 - 1
LAST_SECOND: Final = 253_402_300_799  # of the year 9999
EOF: Final = "# EOF"  # ends every page in OpenMetrics' format
PARALLEL_RANKS: Final = frozenset({"tp_rank", "pp_rank"})  # of tensors and of pipelines
SEVERAL: Final = "several_processes"
SEVERAL_ON_PAGE: Final = "several processes print their counters on this page; name the page of each replica"
IMPOSSIBLE: Final = "its counters of drafts contradict each other: more was accepted than drafted, or later than first"
CUT_OFF: Final = "cut_off"
# What the parser of prometheus_client raises on damaged pages.
_PARSER_ERRORS: Final = (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError)

Labels = tuple[tuple[str, str], ...]  # sorted


class PageError(ValueError):
    """A page whose counts cannot be used.  The words may name a metric that is read; they quote nothing else of it."""

    def __init__(self, words: str, code: str = "garbage") -> None:
        super().__init__(words)
        self.code = code


@dataclass(frozen=True, slots=True)
class MetricNames:
    """Names of one engine's metrics, without its prefix.

    `counters` are by the fields of `LiveCounts`, `latencies` by their names there.  Where draft tokens and accepted
    tokens are counted by position `drafted_per_pos` and `accepted_per_pos` name the metrics, with the label of the
    position.

    `failed` names the requests that failed: a metric, and the label and its values that count (no label: every sample).
    `fails_apart`: they are not among the requests that it counts, and are added.
    `num_digits`: digits to which counters are rounded when printed; 0: exact.  Those by position are always exact.
    `excludes_cached`: prompt tokens are counted without those from the prefix cache.  Gauges are `running`, of the
    requests in progress, `waiting`, of those in the queue, and `kv_use`, of the share of the KV cache in use.  `late`
    counters are printed from their first count on, in every version that counts drafts.

    `model_labels` name the model; metrics without one are of the whole server.  `copies` are the labels of ranks that
    all count the same, so that one of them is taken; samples of other ranks are shares, and add up.  `has_ranks`:
    whether a server has several of these.  `kinds` are the labels of kinds of requests: their samples add up, and one
    begins with the first request of its kind, so that they tell no counters apart.
    """

    prefix: str
    counters: Mapping[str, str]
    latencies: Mapping[str, str]
    running: str
    waiting: str
    kv_use: str | None = None
    late: frozenset[str] = frozenset()
    position_label: str = ""
    drafted_per_pos: str | None = None
    accepted_per_pos: str | None = None
    num_digits: int = 0
    excludes_cached: bool = False
    failed: tuple[str, str, frozenset[str]] | None = None
    fails_apart: bool = False
    model_labels: tuple[str, ...] = ("model_name",)
    copies: frozenset[str] = PARALLEL_RANKS
    kinds: frozenset[str] = frozenset()
    has_ranks: bool = True

    @property
    def gauges(self) -> tuple[str, ...]:
        """The gauges that are read, without the prefix."""
        return (self.running, self.waiting, *([] if self.kv_use is None else [self.kv_use]))

    @property
    def read(self) -> frozenset[str]:
        """The metrics that are read, without the prefix."""
        other = (*self.gauges, self.drafted_per_pos, self.accepted_per_pos, self.failed[0] if self.failed else None)
        bins = (f"{metric}_{part}" for metric in self.latencies.values() for part in ("bucket", "sum"))
        return frozenset({*self.counters.values(), *bins, *(name for name in other if name is not None)})


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """A page's metrics of one model.  `is_known`: it has metrics of the engine; `has_model`: also of the model.

    Gauges are None where the page does not have them, or with a value that cannot be (`impossible`, their names).
    `samples` are the counters one by one, by metric and labels: a sum can grow while one of them falls.
    """

    is_known: bool
    has_model: bool
    series: str
    started_at: datetime | None
    counts: LiveCounts
    num_running: int | None
    num_waiting: int | None
    kv_use: float | None
    samples: Mapping[str, int]
    impossible: frozenset[str]


@dataclass(slots=True)
class _Sums:
    """Samples of one model, added up as they are read."""

    counters: dict[str, int] = field(default_factory=dict)  # by the metric's name without the prefix
    drafted: dict[int, int] = field(default_factory=dict)  # by position
    accepted: dict[int, int] = field(default_factory=dict)
    buckets: dict[str, dict[float, int]] = field(default_factory=lambda: defaultdict(dict))  # by metric and bound
    ranks: set[Labels] = field(default_factory=set)  # labels that distinguish counters
    sums_us: dict[str, int] = field(default_factory=dict)  # by metric
    num_failed: int | None = None
    gauges: dict[str, float] = field(default_factory=dict)  # by metric
    impossible: set[str] = field(default_factory=set)
    samples: dict[str, int] = field(default_factory=dict)


def families_on(page: str) -> list[Metric]:
    """The metrics on a page in Prometheus' text format, or in OpenMetrics' as far as they are the same.

    Raises:
        PageError: the page has another format.
    """
    from prometheus_client.parser import text_string_to_metric_families  # only here: `check` runs without it

    try:
        return list(text_string_to_metric_families(page.removeprefix("\ufeff")))
    except _PARSER_ERRORS as error:
        raise PageError("the page is not in Prometheus' text format") from error


def parse(text: str, names: MetricNames, model: str) -> MetricsPage:
    """The counts of a model on a page in Prometheus' text format.

    Raises:
        PageError: the page has another format, a counter on it is not a count, is there twice or contradicts others,
            or several processes print their counters on it.
    """
    families = families_on(text)
    samples = [sample for family in families for sample in family.samples]
    of_engine = [sample for sample in samples if sample.name.startswith(names.prefix)]
    named = [_models_of(sample, names) for sample in of_engine]
    sums = _Sums()
    for name, labels, value in _samples_of(model, of_engine, named, names):
        _add(sums, name, dict(labels), value, names)
    if sums.num_failed is None and names.failed is not None and sums.counters:
        name = f"{names.prefix}{names.failed[0]}".removesuffix("_total")
        sums.num_failed = (
            0 if any(family.name == name for family in families) else None
        )  # its labels come with a failure
    counts = _counts(sums, names)
    if not counts.is_possible(*(rounding(n, names.num_digits) for n in (counts.num_drafts, counts.num_draft_tokens))):
        raise PageError(IMPOSSIBLE)
    return MetricsPage(
        is_known=bool(of_engine),
        has_model=any(model in models for models in named) or (not any(named) and bool(sums.counters)),
        series=_series(sums, counts),
        started_at=_started_at(samples),
        counts=counts,
        num_running=_number(sums, names.running),
        num_waiting=_number(sums, names.waiting),
        kv_use=None if names.kv_use is None else _gauge(sums, names.kv_use),
        samples=sums.samples,
        impossible=frozenset(sums.impossible),
    )


def is_whole(text: str, names: MetricNames, *, is_openmetrics: bool) -> bool:
    """Whether nothing shows that the page was cut off: its last line ends, and is the end mark where there must be one.

    Pages of OpenMetrics must have it, also where they go by another type: a counter's metadata lacks its `_total` then.
    """
    if has_end_mark(text):
        return True
    counters = re.findall(rf"(?m)^# TYPE ({re.escape(names.prefix)}\w+) counter\s*$", text)
    must_end = is_openmetrics or any(f"\n{name}_total" in text for name in counters if not name.endswith("_total"))
    return text.endswith("\n") and not must_end


def has_end_mark(text: str) -> bool:
    """Whether the page says that it is complete, as pages of OpenMetrics do."""
    return text.rstrip("\r\n").rpartition("\n")[2] == EOF


def _models_of(sample: Sample, names: MetricNames) -> set[str]:
    """The names that a sample gives its model."""
    return {sample.labels[label] for label in names.model_labels if label in sample.labels}


def _samples_of(
    model: str, samples: Sequence[Sample], named: Sequence[set[str]], names: MetricNames
) -> list[tuple[str, Labels, float]]:
    """The samples of a model that are read, without the labels of the model and of copies.

    Those that name no model are of the whole server: not of this model where the page has others, or the same metric
    with a name.
    """
    has_others = any(models and model not in models for models in named)
    labelled = {sample.name for sample, models in zip(samples, named, strict=True) if models}
    wanted, seen = names.read, set[tuple[str, Labels]]()
    kept: dict[tuple[str, Labels], tuple[list[tuple[str, int, str]], float]] = {}
    for sample, models in zip(samples, named, strict=True):
        name = sample.name.removeprefix(names.prefix)
        if name not in wanted or (model not in models if models else has_others or sample.name in labelled):
            continue
        labels = tuple(sorted(sample.labels.items()))
        if (name, labels) in seen:
            raise PageError(f"{sample.name} is on the page twice with the same labels")
        seen.add((name, labels))
        without = names.copies.union(names.model_labels)
        key = name, tuple(pair for pair in labels if pair[0] not in without)
        copy = [(label, len(value), value) for label, value in labels if label in names.copies]
        if key not in kept or copy < kept[key][0]:
            kept[key] = copy, sample.value
    return [(*key, value) for key, (_, value) in kept.items()]


def _started_at(samples: Iterable[Sample]) -> datetime | None:
    """When the server's process began."""
    times = {sample.value for sample in samples if sample.name == PROCESS_START}
    if len(times) > 1:
        raise PageError(f"{PROCESS_START} has several values: {SEVERAL_ON_PAGE}", SEVERAL)
    if not times:
        return None
    value = times.pop()
    _count(PROCESS_START, value, most=LAST_SECOND, whole=False)  # or it is refused
    return datetime.fromtimestamp(value, UTC)  # with its fraction: two starts may lie within a second


def _add(sums: _Sums, name: str, labels: dict[str, str], value: float, names: MetricNames) -> None:
    metric = f"{names.prefix}{name}"
    if name in names.gauges:
        if not labels.get("priority"):  # parts by priority stand beside the total, which has none
            _add_gauge(sums, name, value, is_share=name == names.kv_use)
        return
    if name.endswith("_sum"):
        latency = name.removesuffix("_sum")
        sums.sums_us[latency] = sums.sums_us.get(latency, 0) + _count(metric, 1e6 * value, most=MAX_US, whole=False)
        return
    count = _count(metric, value)
    if name.endswith("_bucket"):
        bins = sums.buckets[name.removesuffix("_bucket")]
        bound = _bound(metric, labels)
        bins[bound] = bins.get(bound, 0) + count
        return
    sums.samples[" ".join([name, *(f"{label}={text}" for label, text in labels.items())])] = count
    if names.failed is not None and name == names.failed[0]:
        _, label, values = names.failed
        is_failed = not label or labels.get(label) in values
        sums.num_failed = (sums.num_failed or 0) + (count if is_failed else 0)
    if name in (names.drafted_per_pos, names.accepted_per_pos):
        accepted = sums.accepted if name == names.accepted_per_pos else sums.drafted
        text = labels.pop(names.position_label, "")
        if not (
            text.isascii() and text.isdigit() and len(text) <= len(str(MAX_POSITIONS)) and int(text) < MAX_POSITIONS
        ):
            raise PageError(f"{metric} has a position that is not a number")
        accepted[int(text)] = accepted.get(int(text), 0) + count
        sums.ranks.add(tuple(labels.items()))
    elif name in names.counters.values():
        if name in sums.counters and not names.has_ranks:
            raise PageError(f"{metric} has several values: {SEVERAL_ON_PAGE}", SEVERAL)
        sums.counters[name] = sums.counters.get(name, 0) + count
        if name == names.counters["num_output_tokens"]:
            sums.ranks.add(tuple(pair for pair in labels.items() if pair[0] not in names.kinds))


def _add_gauge(sums: _Sums, name: str, value: float, *, is_share: bool) -> None:
    """Numbers of ranks add up; of shares the highest counts, because each rank has a cache of its own."""
    if not 0 <= value <= (1 if is_share else MAX_COUNT):  # NaN is in no range
        sums.impossible.add(name)
        return
    before = sums.gauges.get(name, 0.0)
    sums.gauges[name] = max(before, value) if is_share else before + int(value)


def _gauge(sums: _Sums, name: str) -> float | None:
    return None if name in sums.impossible else sums.gauges.get(name)


def _number(sums: _Sums, name: str) -> int | None:
    value = _gauge(sums, name)
    return None if value is None else int(value)


def _bound(metric: str, labels: Mapping[str, str]) -> float:
    """The upper bound of a bucket."""
    try:
        bound = float(labels.get("le", "nan"))
    except ValueError:
        bound = math.nan
    if math.isnan(bound):
        raise PageError(f"{metric} has no bound")
    return bound


def _counts(sums: _Sums, names: MetricNames) -> LiveCounts:
    counters: dict[str, int | None] = {name: sums.counters.get(metric) for name, metric in names.counters.items()}
    for name in names.late:
        if counters[name] is None and counters["num_drafts"] is not None:
            counters[name] = 0
    drafted, accepted = sums.drafted, sums.accepted
    positions = range(max((*drafted, *accepted), default=-1) + 1)
    if names.drafted_per_pos is not None and drafted:  # every draft has a first token
        if any(number > drafted.get(place, 0) for place, number in accepted.items()):
            raise PageError(IMPOSSIBLE)
        counters["num_drafts"], counters["num_draft_tokens"] = drafted.get(0, 0), sum(drafted.values())
        counters["num_accepted_tokens"] = sum(accepted.values())
    if names.num_digits and accepted:  # by position they are not rounded
        counters["num_accepted_tokens"] = sum(accepted.values())
    if names.excludes_cached and (uncached := counters["num_prompt_tokens"]) is not None:
        counters["num_prompt_tokens"] = uncached + (counters["num_cached_tokens"] or 0)
    if names.fails_apart and (others := counters["num_requests"]) is not None:
        counters["num_requests"] = others + (sums.num_failed or 0)
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
            raise PageError(f"{names.prefix}{metric}_bucket holds less than the bucket below it")
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


def _count(metric: str, value: float, *, most: int = MAX_COUNT, whole: bool = True) -> int:
    if not 0 <= value <= most or (whole and value != int(value)):  # NaN is in no range
        raise PageError(f"{metric} is not a count: it is negative, no number, or too large")
    return int(value)
