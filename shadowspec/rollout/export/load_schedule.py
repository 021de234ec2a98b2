"""Decisions at measured loads as one depth for every batch size, with one draft.

A batch size is governed by the next larger measured load.  Between two measured loads something is on only if it
is on at both; above the largest nothing is, because nothing was measured there.  A load that an operator
ordered off counts as measured and off.  A server runs one draft, so that a schedule names one and counts the others
as off.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from shadowspec.gate.verdict.current_verdict import select_covering
from shadowspec.gate.verdict.slice_rules import ANY_SHARE, bears_on_endpoint
from shadowspec.rollout.served_decision import Off, ServedDecision, is_disabled
from shadowspec.servers.engines import ServingEngine
from shadowspec.servers.engines.export_parts import BatchRange, Export
from shadowspec.types import Override, SpeculationConfig
from shadowspec.types.speculation import draft_key


@dataclass(frozen=True, slots=True)
class Schedule:
    """The depths of an endpoint or a slice.  `ranges` cover every batch size from 1 on, in order.

    `config` is the draft (its depth is not to be used: the ranges hold it); None where nothing is on.
    `expires_at` is when the first of the decisions behind it becomes stale, `share` the smallest share of the
    traffic that their rollouts let through.  `orders` are the operator's overrides of any part of it.
    `for_other_engines` are the decisions that would be on if their verdicts were for the engine that serves.
    """

    endpoint: str
    slice_key: str
    config: SpeculationConfig | None
    ranges: tuple[BatchRange, ...]
    served_decisions: tuple[ServedDecision, ...]  # all that was looked at
    expires_at: datetime | None = None
    share: float = 1.0
    orders: tuple[Override, ...] = ()
    for_other_engines: tuple[ServedDecision, ...] = ()

    @property
    def is_on(self) -> bool:
        return self.config is not None

    @property
    def max_num_speculative_tokens(self) -> int:
        return max(batches.num_speculative_tokens for batches in self.ranges)

    @property
    def decision_ids(self) -> tuple[int, ...]:
        return tuple(sorted({number for batches in self.ranges for number in batches.decision_ids}))

    def num_speculative_tokens(self, batch_size: int) -> int:
        """The depth at a batch size of 1 or more."""
        return next(
            batches.num_speculative_tokens
            for batches in self.ranges
            if batches.last is None or batch_size <= batches.last
        )

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines on which the latency of the decisions that are on was measured."""
        ids = set(self.decision_ids)
        return tuple(
            sorted({served.decision.engine for served in self.served_decisions if served.decision.decision_id in ids})
        )

    @property
    def basis(self) -> str:
        """The decisions that are on and the engines on which their latency was measured, as text."""
        ids = ", ".join(map(str, self.decision_ids)) or "none"
        return f"{self.endpoint}: decisions {ids}" + (
            f"; measured on {'; '.join(self.engines)}" if self.engines else ""
        )

    @property
    def largest_load_on(self) -> int:
        """The largest load at which any decision is on, whether a range has it or not; 0 without one."""
        return max((served.decision.concurrency for served in self.served_decisions if served.is_on), default=0)

    @property
    def measured_ranges(self) -> tuple[BatchRange, ...]:
        """The ranges up to the largest measured load."""
        largest = max((served.decision.concurrency for served in self.served_decisions), default=0)
        return tuple(batches for batches in self.ranges if batches.first <= largest)

    def leading_ranges(self) -> tuple[BatchRange, ...]:
        """The ranges that are on without a gap from batch size 1."""
        leading = []
        for batches in self.ranges:
            if batches.num_speculative_tokens == 0:
                break
            leading.append(batches)
        return tuple(leading)


def endpoint_schedule(
    endpoint: str,
    served_decisions: Sequence[ServedDecision],
    *,
    depth: int | None = None,
    overrides: Iterable[Override] = (),
) -> Schedule:
    """The schedule of a server of the whole endpoint: by its hypotheses, where no slice forbids it.

    With a `depth` only decisions at just that depth count, for engines that can run but one.

    A server cannot distinguish slices, so that a slice that is disabled or overridden, with ANY_SHARE of the traffic,
    turns its load and fingerprint off for all.  An override in force (`overrides`) on any slice does so too, and for
    every fingerprint, whether that slice was ever decided or seen or not.
    """
    at_endpoint = [served for served in served_decisions if served.decision.endpoint == endpoint]
    slices = [served for served in at_endpoint if served.decision.slice_key and is_disabled(served)]
    forbidden = {_place(served) for served in slices if bears_on_endpoint(served.decision.traffic_share, ANY_SHARE)}
    whole = [served for served in at_endpoint if not served.decision.slice_key]
    wanted = {_place(served) for served in whole if depth in (None, served.num_speculative_tokens)}
    orders = tuple(order for order in overrides if order.endpoint == endpoint)
    return _schedule(endpoint, "", whole, wanted - forbidden, orders)


def slice_schedules(
    endpoint: str, served_decisions: Sequence[ServedDecision], *, overrides: Collection[Override] = ()
) -> list[Schedule]:
    """One schedule for each slice of the endpoint, only by its decisions and orders; sorted by slice."""
    by_slice: dict[str, list[ServedDecision]] = defaultdict(list)
    for served in served_decisions:
        if served.decision.endpoint == endpoint and served.decision.slice_key:
            by_slice[served.decision.slice_key].append(served)
    return [
        _schedule(
            endpoint,
            slice_key,
            served_decisions,
            {_place(served) for served in served_decisions},
            tuple(select_covering(overrides, endpoint, slice_key)),
        )
        for slice_key, served_decisions in sorted(by_slice.items())
    ]


def engine_schedule(
    endpoint: str,
    served_decisions: Sequence[ServedDecision],
    engine: ServingEngine,
    *,
    overrides: Collection[Override] = (),
) -> Schedule:
    """The schedule of a server of this engine; where it has one depth, the one that reaches the largest batch."""
    schedule = endpoint_schedule(endpoint, served_decisions, overrides=overrides)
    if schedule.config is None or not engine.has_one_depth(schedule.config):
        return schedule
    depths = sorted({served.num_speculative_tokens for served in schedule.served_decisions if served.is_on})
    schedules = [endpoint_schedule(endpoint, served_decisions, depth=depth, overrides=overrides) for depth in depths]
    return max(schedules, key=_reach, default=schedule)


def _reach(schedule: Schedule) -> tuple[int, float]:
    """The largest batch size that is reached from 1 without a gap; of equals, the best lower bound of the speedup."""
    reach = max((batches.last or 0 for batches in schedule.leading_ranges()), default=0)
    depth = schedule.max_num_speculative_tokens
    on = [served for served in schedule.served_decisions if served.is_on and served.decision.concurrency <= reach]
    of_depth = [served for served in on if served.num_speculative_tokens == depth]
    return reach, max((served.speedup_lower for served in of_depth), default=0.0)


def ranges_text(schedule: Schedule) -> str:
    """Where the schedule is on, as in `on up to batch size 8, off above`."""
    spans: list[tuple[int, int]] = []
    for batches in schedule.ranges:
        if batches.num_speculative_tokens and batches.last is not None:
            first = spans.pop()[0] if spans and spans[-1][1] + 1 == batches.first else batches.first
            spans.append((first, batches.last))
    if not spans:
        return "off at every batch size"
    parts = [f"up to {last}" if first == 1 else f"from {first} to {last}" for first, last in spans]
    return f"on at batch sizes {' and '.join(parts)}, off above"


def with_share(document: Export, schedule: Schedule) -> Export:
    """The export of a whole server, which cannot draw requests, with a remark where the rollout is partial."""
    if not schedule.is_on or schedule.share >= 1.0:
        return document
    remark = (
        f"the rollout is partial: a server that runs this speculates on all that it gets; "
        f"send it no more than {schedule.share:.1%} of the traffic"
    )
    return replace(document, remarks=(*document.remarks, remark))


def _place(served: ServedDecision) -> tuple[int, str]:
    return served.decision.concurrency, served.decision.fingerprint


def _schedule(
    endpoint: str,
    slice_key: str,
    served_decisions: Sequence[ServedDecision],
    allowed: set[tuple[int, str]],
    orders: tuple[Override, ...],
) -> Schedule:
    ordered_off = {order.concurrency for order in orders}  # None: every load
    decided = {served.decision.concurrency for served in served_decisions}
    loads = sorted(decided | {load for load in ordered_off if load is not None})
    by_draft: dict[SpeculationConfig, dict[int, ServedDecision]] = defaultdict(dict)
    eligible = [
        served
        for served in served_decisions
        if _place(served) in allowed and ordered_off.isdisjoint((None, served.decision.concurrency))
    ]
    for served in eligible:
        if served.is_on:
            chosen = by_draft[draft_key(served.decision.config)]
            load = served.decision.concurrency
            if load not in chosen or _merit(served) > _merit(chosen[load]):
                chosen[load] = served
    if not by_draft:
        others = tuple(served for served in eligible if served.off is Off.NOT_FOR_SERVING)
        nothing = (BatchRange(1, None, 0),)
        return Schedule(
            endpoint, slice_key, None, nothing, tuple(served_decisions), orders=orders, for_other_engines=others
        )
    # The draft that is on at most loads; of several, the one with the best lower bounds.
    best = by_draft[max(by_draft, key=lambda draft: (*_preference_of(by_draft[draft]), str(draft)))]
    return Schedule(
        endpoint,
        slice_key,
        best[min(best)].decision.config,
        tuple(_ranges(loads, best)),
        tuple(served_decisions),
        expires_at=min(served.expires_at for served in best.values()),
        share=min(served.share for served in best.values()),
        orders=orders,
    )


def _ranges(loads: Sequence[int], on: dict[int, ServedDecision]) -> Iterable[BatchRange]:
    """The ranges of batch sizes, neighbours of one depth joined."""
    ranges: list[BatchRange] = []
    for index, load in enumerate(loads):
        before = loads[index - 1] if index else 0
        here = on.get(load)
        tokens, ids = (here.num_speculative_tokens, _ids(here)) if here else (0, ())
        if before + 1 < load:  # batch sizes that were not measured themselves
            is_between_on = here is not None and (index == 0 or before in on)
            ranges.append(
                BatchRange(before + 1, load - 1, tokens if is_between_on else 0, ids if is_between_on else ())
            )
        ranges.append(BatchRange(load, load, tokens, ids))
    ranges.append(BatchRange(loads[-1] + 1, None, 0))
    joined: list[BatchRange] = []
    for batches in ranges:
        last = joined[-1] if joined else None
        if last is not None and last.num_speculative_tokens == batches.num_speculative_tokens:
            ids = tuple(sorted({*last.decision_ids, *batches.decision_ids}))
            joined[-1] = BatchRange(last.first, batches.last, last.num_speculative_tokens, ids)
        else:
            joined.append(batches)
    return joined


def _ids(served: ServedDecision) -> tuple[int, ...]:
    return () if served.decision.decision_id is None else (served.decision.decision_id,)


def _preference_of(on: Mapping[int, ServedDecision]) -> tuple[int, float]:
    return len(on), math.fsum(served.speedup_lower for served in on.values())


def _merit(served: ServedDecision) -> tuple[float, int, str, str]:
    """The better lower bound; of equals the shallower, then by name, so that the choice is the same every time."""
    decision = served.decision
    return served.speedup_lower, -served.num_speculative_tokens, decision.config.name, decision.fingerprint
