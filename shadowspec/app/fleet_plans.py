"""What all endpoints of a configuration cost what measures them, how long verdicts take, and which of them wait."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated

from shadowspec.app.measuring_groups import MeasuringGroup, measuring_groups
from shadowspec.app.progress_bar import progress_bar
from shadowspec.app.stored_evidence import require_measured
from shadowspec.config import Config, EndpointConfig
from shadowspec.errors import NoDataError
from shadowspec.planning.capacity import WHOLE_ENDPOINT
from shadowspec.planning.fleet_costs import WEEK, BlockBudget, EndpointCost, GroupCost, endpoint_costs, slowdown
from shadowspec.planning.plans import EndpointPlan, plan_stored
from shadowspec.store import Store
from shadowspec.types.public_documents import PublicDocument, PublicValue, public

DECIDE_WITHIN_S = WEEK.total_seconds()


class FleetEndpoint(PublicValue, frozen=True, kw_only=True):
    """The work of an endpoint, in blocks and device time, and its verdict; null: not known.

    `seconds_p90` is when the whole endpoint is decided at every load, in 90% of simulated outcomes, if no block waits;
    null where it is not foreseeable or there is no plan (`is_planned`).  `verdict_delay_s` is how much later that is
    because engines cannot keep up.
    """

    endpoint: str
    measured_by: str
    blocks_per_hour: float | None
    is_rate_assumed: bool
    device_seconds_per_block: Annotated[float | None, "seconds_per_block"]
    is_time_assumed: bool
    device_hours_per_week: float | None
    is_planned: bool
    seconds_p90: float | None
    waits: bool
    verdict_delay_s: float | None


class FleetGroup(PublicValue, frozen=True, kw_only=True):
    """Endpoints that share engines: devices of this process, or one pair of servers (`is_served`).

    `busy_share` is of each engine's time, `block_wait_s` the mean wait of a block; null: it grows without end.
    """

    measured_by: str
    is_served: bool
    num_engines: int
    endpoints: Sequence[str]
    busy_share: float
    block_wait_s: float | None
    engines_needed: int | None


class FleetDocument(PublicDocument, frozen=True, kw_only=True):
    """The fleet as `plan --fleet` shows it; `not_decided` are the planned endpoints that no device decides in time."""

    decide_within_s: float
    endpoints: Sequence[FleetEndpoint]
    groups: Sequence[FleetGroup]
    not_decided: Sequence[str]


def plan_fleet(config: Config, within_s: float = DECIDE_WITHIN_S) -> FleetDocument:
    """The plan of all configured endpoints together, with a progress bar on stderr.

    Raises:
        NoDataError: nothing was measured.
    """
    with Store.open(config.database_url) as store:
        require_measured(store)
        blocks = store.block_seconds(list(config.endpoints), within=WEEK)
        costs = endpoint_costs(blocks, {name: _budget(endpoint) for name, endpoint in config.endpoints.items()})
        plans = _plans(store, config)
    places = measuring_groups(config)
    groups = [GroupCost(place.num_engines, tuple(costs[name] for name in place.endpoints)) for place in places]
    is_shed = config.worker.overload == "shed"
    rows = {
        name: _row(place, group, costs[name], plans.get(name), slowdown(group, groups, is_shed=is_shed))
        for place, group in zip(places, groups, strict=True)
        for name in place.endpoints
    }
    return FleetDocument(
        decide_within_s=within_s,
        endpoints=[rows[name] for name in config.endpoints],
        groups=[
            public(
                FleetGroup, group, place, measured_by=place.name, is_served=bool(place.roots), endpoints=place.endpoints
            )
            for place, group in zip(places, groups, strict=True)
        ],
        not_decided=[
            row.endpoint
            for row in rows.values()
            if row.is_planned and (row.seconds_p90 is None or row.seconds_p90 > within_s)
        ],
    )


def _plans(store: Store, config: Config) -> Mapping[str, EndpointPlan]:
    """Of the endpoints whose evidence is folded."""
    plans = {}
    with progress_bar() as bar:
        task = bar.add_task("planning", total=len(config.endpoints), detail="")
        for place, (name, endpoint) in enumerate(config.endpoints.items()):
            bar.update(task, completed=place, detail=name)
            with suppress(NoDataError):
                plans[name] = plan_stored(
                    store, name, endpoint.policy, sample_rate=endpoint.rule.sample_rate, capacity_per_s=None
                )
    return plans


def _budget(endpoint: EndpointConfig) -> BlockBudget:
    rule = endpoint.rule
    return BlockBudget(rule.window, rule.blocks_per_window, len(rule.loads))


def _row(
    place: MeasuringGroup, group: GroupCost, cost: EndpointCost, plan: EndpointPlan | None, factor: float
) -> FleetEndpoint:
    wholes = [] if plan is None else [part.seconds_late for part in plan.slices if part.slice_key == WHOLE_ENDPOINT]
    known = [seconds for seconds in wholes if seconds is not None]
    seconds_p90 = max(known) if known and len(known) == len(wholes) else None
    return public(
        FleetEndpoint,
        cost,
        measured_by=place.name,
        is_planned=bool(wholes),
        seconds_p90=seconds_p90,
        waits=group.is_too_busy or factor > 1.0,
        verdict_delay_s=None if seconds_p90 is None else seconds_p90 * (factor - 1.0),
    )
