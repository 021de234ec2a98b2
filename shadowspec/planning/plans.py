"""The evidence that an endpoint's open hypotheses still need, when the shadow's capacity decides them, and the cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from shadowspec.errors import NoDataError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.endpoint_look import EndpointLook, Look
from shadowspec.gate.run.folding import FoldRules
from shadowspec.gate.run.gate_run import load_evidence
from shadowspec.metrics import finite
from shadowspec.planning.block_costs import SessionCosts
from shadowspec.planning.capacity import WHOLE_ENDPOINT, ClusterDemand, Course, course, starting_rates
from shadowspec.planning.forecasts import HypothesisPlan, plan_hypothesis, wanted_clusters
from shadowspec.store import Store


@dataclass(frozen=True, slots=True)
class ShadowTime:
    """Seconds of the shadow's device: spent so far, and still to come in the median (90%) of simulated outcomes.

    None: never, or unknown.
    """

    so_far_s: float
    median_s: float | None
    late_s: float | None


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """One slice ("" for the whole endpoint) at one load, every candidate together.

    Seconds until it is decided (`min_span_s` included) in the median (90%) of the simulated outcomes in every slice, at
    the capacity given; None for never.  `clusters_per_s` is how many measured sessions come now; `starting_rate` the
    sampling rate with which it should start, None for the whole endpoint and where its traffic is not known.
    `shadow_time` is the cost of its sessions, those decided before not counted; None: no block is known.
    """

    slice_key: str
    concurrency: int
    clusters_median: float | None
    clusters_late: float | None
    clusters_per_s: float
    seconds_median: float | None
    seconds_late: float | None
    starting_rate: float | None
    span_missing_s: float
    shadow_time: ShadowTime | None


@dataclass(frozen=True, slots=True)
class EndpointPlan:
    """The plan of one endpoint; `shadow_time` is until every question is decided that can be."""

    endpoint: str
    hypotheses: tuple[HypothesisPlan, ...]
    slices: tuple[SlicePlan, ...]
    capacity_per_s: float | None
    sample_rate: float
    recommended_sample_rate: float | None  # of the endpoint as a whole, None where nothing is known of its traffic
    costs: SessionCosts | None
    shadow_time: ShadowTime | None


def plan_stored(
    store: Store,
    endpoint: str,
    policy: GatePolicy,
    *,
    sample_rate: float,
    capacity_per_s: float | None,
    costs: SessionCosts | None = None,
) -> EndpointPlan:
    """The plan from the evidence as the last gate run left it; nothing is folded, decided or written.

    Raises:
        NoDataError: there was no gate run, or the next one will fold everything again.
    """
    snapshot = store.folded_evidence(endpoint)
    if snapshot.progress is None:
        raise NoDataError(f"endpoint {endpoint}: nothing is folded yet: run `shadowspec gate` first")
    rules = FoldRules.under(policy, snapshot.latest_decisions)
    loaded = load_evidence(snapshot.progress.document, snapshot.evidence, rules)
    if loaded.refold_reason is not None:
        raise NoDataError(
            f"endpoint {endpoint}: the evidence must be folded again ({loaded.refold_reason}): "
            "run `shadowspec gate` first"
        )
    state, evidence = loaded.state, loaded.evidence
    configs = {fingerprint: snapshot.fingerprints[fingerprint] for fingerprint in state.seen}
    loads, until = sorted(state.loads), snapshot.watermark.time
    look = EndpointLook(endpoint, state, evidence, rules, configs, loads, until, snapshot.evaluations)
    looks = list(look.looks().values())
    return plan_endpoint(endpoint, looks, policy, sample_rate=sample_rate, capacity_per_s=capacity_per_s, costs=costs)


def plan_endpoint(
    endpoint: str,
    looks: Sequence[Look],
    policy: GatePolicy,
    *,
    sample_rate: float,
    capacity_per_s: float | None,
    costs: SessionCosts | None = None,
    now: datetime | None = None,
) -> EndpointPlan:
    """The plan from the hypotheses' current state.

    `capacity_per_s` is how many requests the shadow can measure per second (None: no limit); the current rates are
    those of the measured sessions over the event time in which they came, at `sample_rate`.  `costs` is the shadow's
    cost per session (None: not known), `now` the moment of the decisions (None: the clock's).
    """
    plans = [plan_hypothesis(look, look.decide(now or datetime.now(UTC))) for look in looks]
    rates = _rates(plans)
    demands = {
        is_late: [
            ClusterDemand(name, load, cluster, rates.get((name, load), 0.0))
            for (name, load), cluster in wanted_clusters(plans, is_late=is_late).items()
        ]
        for is_late in (False, True)
    }
    share = min(policy.min_rate / sample_rate, 1.0)
    courses = {is_late: course(demand, capacity_per_s, share) for is_late, demand in demands.items()}
    after = {is_late: course.decided_after for is_late, course in courses.items()}
    wanted = {is_late: {(d.slice_key, d.concurrency): d.wanted for d in demand} for is_late, demand in demands.items()}
    spans, measured = _spans(plans), _count_measured(plans)
    starting, recommended = _starting_rates(demands[True], sample_rate, capacity_per_s)
    slices = tuple(
        SlicePlan(
            slice_key=name,
            concurrency=load,
            clusters_median=finite(wanted[False][name, load]),
            clusters_late=finite(wanted[True][name, load]),
            clusters_per_s=rates.get((name, load), 0.0),
            seconds_median=finite(max(after[False][name, load], spans[name, load])),
            seconds_late=finite(max(after[True][name, load], spans[name, load])),
            starting_rate=starting.get(name),
            span_missing_s=spans[name, load],
            shadow_time=None
            if costs is None
            else _slice_time(costs, name, load, measured, wanted[False][name, load], wanted[True][name, load]),
        )
        for name, load in sorted(wanted[False])
    )
    shadow = None if costs is None else _endpoint_time(costs, measured, courses[False], courses[True])
    return EndpointPlan(endpoint, tuple(plans), slices, capacity_per_s, sample_rate, recommended, costs, shadow)


def _count_measured(plans: Sequence[HypothesisPlan]) -> dict[tuple[str, int], int]:
    """Measured sessions by slice and load; every config has the same ones, but those that came later have fewer."""
    measured: dict[tuple[str, int], int] = {}
    for plan in plans:
        key = (plan.hypothesis.slice_key, plan.hypothesis.concurrency)
        measured[key] = max(measured.get(key, 0), plan.num_clusters)
    return measured


def _slice_time(
    costs: SessionCosts, name: str, load: int, measured: Mapping[tuple[str, int], int], median: float, late: float
) -> ShadowTime:
    each_s = costs.at(name, load).seconds
    return ShadowTime(measured[name, load] * each_s, finite(median * each_s), finite(late * each_s))


def _endpoint_time(
    costs: SessionCosts, measured: Mapping[tuple[str, int], int], median: Course, late: Course
) -> ShadowTime:
    so_far_s = sum(
        number * costs.at(name, load).seconds for (name, load), number in measured.items() if name == WHOLE_ENDPOINT
    )
    return ShadowTime(so_far_s, _course_s(costs, median), _course_s(costs, late))


def _course_s(costs: SessionCosts, course: Course) -> float | None:
    """Device seconds until the last question is decided that can be; None where none can."""
    waits = [seconds for seconds in course.decided_after.values() if seconds > 0.0]
    if waits and not any(map(math.isfinite, waits)):
        return None
    return sum(number * costs.at(name, load).seconds for (name, load), number in course.measured.items())


def _rates(plans: Sequence[HypothesisPlan]) -> dict[tuple[str, int], float]:
    """Measured sessions per second by slice and load; every config sees the same ones."""
    rates: dict[tuple[str, int], float] = {}
    for plan in plans:
        key = (plan.hypothesis.slice_key, plan.hypothesis.concurrency)
        rates[key] = max(rates.get(key, 0.0), plan.clusters_per_s or 0.0)
    return rates


def _spans(plans: Sequence[HypothesisPlan]) -> dict[tuple[str, int], float]:
    """Event time still to be seen, by slice and load, where an ENABLE is to be expected; DISABLE waits for none."""
    spans: dict[tuple[str, int], float] = {}
    for plan in plans:
        key = (plan.hypothesis.slice_key, plan.hypothesis.concurrency)
        span_missing_s = plan.span_missing_s if plan.enable_share > plan.disable_share else 0.0
        spans[key] = max(spans.get(key, 0.0), span_missing_s)
    return spans


def _starting_rates(
    demands: Sequence[ClusterDemand], sample_rate: float, capacity_per_s: float | None
) -> tuple[Mapping[str, float], float | None]:
    """The rate per slice that decides the last one soonest, and one rate for all that fits the capacity."""
    wanted: dict[str, float] = {}
    traffic: dict[str, float] = {}
    for demand in demands:
        if demand.slice_key != WHOLE_ENDPOINT:
            finite = demand.wanted if math.isfinite(demand.wanted) else 0.0  # undecidable demands are not waited for
            wanted[demand.slice_key] = wanted.get(demand.slice_key, 0.0) + finite
            traffic[demand.slice_key] = traffic.get(demand.slice_key, 0.0) + demand.offered_per_s / sample_rate
    total = sum(traffic.values())
    if not total:
        return {}, None
    even = 1.0 if capacity_per_s is None else min(1.0, capacity_per_s / total)
    return starting_rates(wanted, traffic, capacity_per_s), even
