"""Plans of endpoints from what is stored: the evidence that is still needed, its time and cost, and a shadow's size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import UNSET, UnsetType

from shadowspec.app.progress_bar import progress_bar
from shadowspec.app.rehearsals import rehearsed
from shadowspec.app.stored_evidence import no_decision, require_measured
from shadowspec.config import Config
from shadowspec.planning.block_costs import CostSource
from shadowspec.planning.forecasts import HypothesisPlan, TestForecast
from shadowspec.planning.plans import EndpointPlan, SlicePlan, plan_stored
from shadowspec.planning.sizing import Sizing, devices_needed, size_endpoint, stored_costs, stored_traffic
from shadowspec.store import Store
from shadowspec.types.public_documents import AtLoad, Labels, PublicDocument, PublicValue, public, shows

SizingPair = tuple[Sizing, Sizing]  # by the median of the futures, by 90% of them


@dataclass(frozen=True, slots=True)
class StoredPlans:
    """Plans, the mirrored requests per second of their endpoints, and whether trials among them are rehearsed."""

    plans: Sequence[EndpointPlan]
    mirrored_per_s: Mapping[str, float | None]
    is_rehearsal: bool

    def sizings(self, within_s: float, requests_per_s: float | None) -> list[SizingPair]:
        """The shadow of each endpoint that decides in time; None: for the mirrored requests."""
        return [
            (
                size_endpoint(plan, within_s, mirrored_per_s=mirrored, requests_per_s=requests_per_s, is_late=False),
                size_endpoint(plan, within_s, mirrored_per_s=mirrored, requests_per_s=requests_per_s, is_late=True),
            )
            for plan in self.plans
            for mirrored in (self.mirrored_per_s[plan.endpoint],)
        ]


def plan_endpoints(config: Config, endpoint: str | None, capacity_per_s: float | None) -> StoredPlans:
    """Plan the measured endpoints (or one), with a progress bar on stderr.

    Raises:
        NoDataError: nothing was measured or decided.
    """
    chosen = config.chosen(endpoint)
    with Store.open(config.database_url) as opened, rehearsed(config, opened, chosen) as store:
        require_measured(store)
        measured = store.endpoints()
        names = [name for name in chosen if name in measured]
        costs = stored_costs(store, names)
        plans = []
        with progress_bar() as bar:
            task = bar.add_task("planning", total=len(names), detail="")
            for place, name in enumerate(names):
                bar.update(task, completed=place, detail=name)
                rule, policy = config.endpoints[name].rule, config.endpoints[name].policy
                plans.append(
                    plan_stored(
                        store, name, policy,
                        sample_rate=rule.sample_rate, capacity_per_s=capacity_per_s, costs=costs[name],
                    )
                )  # fmt: skip
        if not any(endpoint_plan.hypotheses for endpoint_plan in plans):
            raise no_decision(store, chosen)
        mirrored = {plan.endpoint: stored_traffic(store, plan.endpoint) for plan in plans}
    return StoredPlans(plans, mirrored, store is not opened)


@shows(TestForecast)
class PlannedTest(PublicValue, frozen=True, kw_only=True):
    """The units that a test of a hypothesis needs, in the median and 90% of simulated outcomes."""

    units_median: Annotated[float | None, "median"]
    units_p90: Annotated[float | None, "late"]


@shows(HypothesisPlan, "num_clusters", "span_missing_s", "decision")
class PlannedHypothesis(PublicValue, frozen=True, kw_only=True):
    """The evidence that a hypothesis needs; null: not within max_clusters, or unknown."""

    slice: Annotated[Labels, "hypothesis.slice_key"]
    load: Annotated[AtLoad, "hypothesis.concurrency"]
    config: Annotated[str, "hypothesis.config.config.name"]
    fingerprint: Annotated[str, "hypothesis.config.fingerprint"]
    clusters_needed: Annotated[int | None, "needed.sessions"]
    seconds_needed: Annotated[float | None, "needed.seconds"]
    clusters_p90: Annotated[float | None, "clusters_late"]
    seconds_p90: Annotated[float | None, "seconds_late"]
    tests: Sequence[PlannedTest]


class PlannedTime(PublicValue, frozen=True, kw_only=True):
    """Seconds of the shadow's device; null: never, or unknown."""

    device_seconds_so_far: Annotated[float | None, "shadow_time.so_far_s"]
    device_seconds_median: Annotated[float | None, "shadow_time.median_s"]
    device_seconds_p90: Annotated[float | None, "shadow_time.late_s"]


@shows(SlicePlan, "span_missing_s")
class PlannedSlice(PlannedTime, frozen=True, kw_only=True):
    """A slice at a load, every candidate together."""

    clusters_p90: Annotated[float | None, "clusters_late"]
    seconds_p90: Annotated[float | None, "seconds_late"]


class SessionTime(PublicValue, frozen=True, kw_only=True):
    """The device time of a session, and what it is known by."""

    device_seconds: Annotated[float, "seconds"]
    num_blocks: int
    source: CostSource


@shows(EndpointPlan)
class PlannedEndpoint(PlannedTime, frozen=True, kw_only=True):
    """The plan of an endpoint; `requests_per_s` is its mirrored traffic."""

    requests_per_s: float | None
    session_cost: Annotated[SessionTime | None, "costs.overall"]
    slices: Sequence[PlannedSlice]
    hypotheses: Sequence[PlannedHypothesis]


class SlicePlace(PublicValue, frozen=True, kw_only=True):
    """A slice at a load."""

    slice: Labels
    load: AtLoad


@shows(Sizing, "endpoint", "requests_per_s")
class ShadowSize(PublicValue, frozen=True, kw_only=True):
    """The sampling rate and the devices that decide in time; null: impossible."""

    too_slow: Sequence[SlicePlace]


class SizedEndpoint(PublicValue, frozen=True, kw_only=True):
    """An endpoint's size by the median and by 90% of simulated outcomes."""

    endpoint: str
    requests_per_s: float
    median: ShadowSize
    p90: ShadowSize


class SizingDocument(PublicValue, frozen=True, kw_only=True):
    """The size of a shadow that decides in time."""

    decide_within_s: float
    devices_median: int | None
    devices_p90: int | None
    endpoints: Sequence[SizedEndpoint]


class PlanDocument(PublicDocument, frozen=True, kw_only=True):
    """The plans of `plan --json`: `late` of a value is `p90` here."""

    plans: Sequence[PlannedEndpoint]
    sizing: SizingDocument | UnsetType = UNSET


def plan_document(planned: StoredPlans, sizings: Sequence[SizingPair], within_s: float | None) -> PlanDocument:
    """The plans as `plan --json` prints them, with sizes where a time is given."""
    return PlanDocument(
        plans=[
            public(PlannedEndpoint, plan, requests_per_s=planned.mirrored_per_s[plan.endpoint])
            for plan in planned.plans
        ],
        sizing=UNSET
        if within_s is None
        else SizingDocument(
            decide_within_s=within_s,
            devices_median=devices_needed(median.busy_devices for median, _ in sizings),
            devices_p90=devices_needed(late.busy_devices for _, late in sizings),
            endpoints=[public(SizedEndpoint, median, median=median, p90=late) for median, late in sizings],
        ),
    )
