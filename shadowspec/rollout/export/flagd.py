"""flagd: a flag configuration with two flags per endpoint, off unless a rule says otherwise.

`ENDPOINT.speculation` is a boolean, `ENDPOINT.num_speculative_tokens` a number (0: off).  A rule is the labels of a
slice, a range of `concurrency` and the time at which its evidence becomes stale, so that an export that nobody renews
turns itself off.  Rules for an operator's overrides come before any other, whether the slice was decided or not, and
turn it off.  A context without any of the slices' labels asks about the whole endpoint.  A context without
`concurrency` gets the smallest depth of all measured loads, which is off if any of them is.  It is compared between two
bounds only: with one, JavaScript's evaluator (flagd-core 4.0.1) fails on a text, and the caller's default counts.  A
rollout's share is drawn by `targetingKey`, alike for both flags; a context without one is off while the share is
partial.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from shadowspec.rollout.export.load_schedule import Schedule
from shadowspec.servers.engines.export_parts import Export
from shadowspec.types import OWN_SLICES, UNSTATED, Override, parse_slice_key

SCHEMA = "https://flagd.dev/schema/v0/flags.json"
ON, OFF = "on", "off"
UNKNOWN = 0  # the concurrency of a context that names none
ANY = 10**9  # requests at once, more than any server's
WEIGHTS = 100  # a share in whole parts of this, rounded down

Logic = dict[str, object]


@dataclass(frozen=True, slots=True)
class Rule:
    """Where a depth applies (0: off), and to how much of the traffic there."""

    condition: Logic
    num_speculative_tokens: int
    share: float


NOTHING = Rule({}, 0, 1.0)


def render(endpoints: Sequence[tuple[Schedule, Sequence[Schedule]]]) -> Export:
    """Flags of every endpoint: the schedule of the whole, and those of its slices."""
    flags: dict[str, object] = {}
    for whole, slices in endpoints:
        flags |= _flags(whole, slices)
    document = {"$schema": SCHEMA, "metadata": {"flagSetId": "shadowspec"}, "flags": flags}
    return Export(json.dumps(document, indent=2) + "\n")


def _flags(whole: Schedule, slices: Sequence[Schedule]) -> dict[str, object]:
    ordered = [order.slice_key for order in whole.orders]
    labels = sorted(
        {name for key in (*(schedule.slice_key for schedule in slices), *ordered) for name in parse_slice_key(key)}
    )
    loads = sorted(
        {served.decision.concurrency for schedule in (whole, *slices) for served in schedule.served_decisions}
    )
    rules = [_ordered_off(order, loads) for order in whole.orders if order.slice_key]
    rules += [
        rule
        for schedule in slices
        for rule in _rules(schedule, [*_is_slice(schedule.slice_key), *_is_unconstrained(schedule.slice_key, labels)])
    ]
    rules += _rules(whole, _has_none(labels))
    ids = sorted({number for schedule in (whole, *slices) for number in schedule.decision_ids})
    engines = sorted({engine for schedule in (whole, *slices) for engine in schedule.engines})
    metadata = {"endpoint": whole.endpoint, "decisions": ",".join(map(str, ids)), "engines": "; ".join(engines)}
    return {
        f"{whole.endpoint}.speculation": {
            "state": "ENABLED",
            "variants": {ON: True, OFF: False},
            "defaultVariant": OFF,
            "targeting": _targeting([(rule, ON if rule.num_speculative_tokens else OFF) for rule in rules]),
            "metadata": metadata,
        },
        f"{whole.endpoint}.num_speculative_tokens": {
            "state": "ENABLED",
            "variants": {_variant(rule): rule.num_speculative_tokens for rule in (NOTHING, *rules)},
            "defaultVariant": OFF,
            "targeting": _targeting([(rule, _variant(rule)) for rule in rules]),
            "metadata": metadata,
        },
    }


def _rules(schedule: Schedule, conditions: Sequence[Logic]) -> list[Rule]:
    """Where the schedule is on, with the depth there."""
    if schedule.expires_at is None:
        return []
    shared = [{"<": [{"var": "$flagd.timestamp"}, math.floor(schedule.expires_at.timestamp())]}, *conditions]
    if schedule.share < 1.0:
        shared.append({"!!": [{"var": "targetingKey"}]})
    ranges = [(batches.first, batches.last, batches.num_speculative_tokens) for batches in schedule.measured_ranges]
    ranges.append((UNKNOWN, UNKNOWN, min(tokens for _, _, tokens in ranges)))
    return [
        Rule({"and": [*shared, {"<=": [first, {"var": ["concurrency", UNKNOWN]}, last]}]}, tokens, schedule.share)
        for first, last, tokens in ranges
        if tokens
    ]


def _ordered_off(order: Override, loads: Sequence[int]) -> Rule:
    """An operator's order, before all else: contexts with its labels, with any other labels.

    An order for one load reaches up and down to the next loads that were decided, and to contexts that name none.
    """
    conditions = _is_slice(order.slice_key)
    if order.concurrency is not None:
        here: Logic = {"var": ["concurrency", UNKNOWN]}
        below = max((load for load in loads if load < order.concurrency), default=0)
        above = min((load for load in loads if load > order.concurrency), default=ANY)
        conditions.append({"or": [{"<=": [-ANY, here, UNKNOWN]}, {"<": [below, here, above]}]})
    return Rule({"and": conditions}, 0, 1.0)


def _is_slice(slice_key: str) -> list[Logic]:
    return [{"===": [{"var": name}, value]} for name, value in parse_slice_key(slice_key).items()]


def _is_unconstrained(slice_key: str, labels: Sequence[str]) -> list[Logic]:
    """Requests with a label of their own are separate slices beside slices without it, whose rules do not apply."""
    named = parse_slice_key(slice_key)
    values: list[Logic] = [{"var": name} for name in OWN_SLICES if name in labels and name not in named]
    return [{"or": [{"!": [value]}, {"===": [value, UNSTATED]}]} for value in values]


def _has_none(labels: Sequence[str]) -> list[Logic]:
    return [{"!": [{"var": name}]} for name in labels]


def _targeting(rules: Sequence[tuple[Rule, str]]) -> Logic:
    """The variant of the first rule that holds; none: the default."""
    chosen: object = None
    for rule, variant in reversed(rules):
        chosen = {"if": [rule.condition, _split_traffic(variant, rule.share), chosen]}
    return chosen if isinstance(chosen, dict) else {}


def _split_traffic(variant: str, share: float) -> object:
    if share >= 1.0:
        return variant
    weight = math.floor(share * WEIGHTS)
    return {"fractional": [{"var": "targetingKey"}, [variant, weight], [OFF, WEIGHTS - weight]]}


def _variant(rule: Rule) -> str:
    return f"k{rule.num_speculative_tokens}" if rule.num_speculative_tokens else OFF
