"""The first screen of a fleet: what changed in the last day, who needs somebody, and what it costs.

In: the board, and the changes of the last day.
Out: the few lines of each that fit, and how many more there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from shadowspec.reports.content.changes import Change, ChangeKind
from shadowspec.reports.content.urgency import Severity
from shadowspec.reports.figures.token_costs import MS_PER_S, S_PER_HOUR, DeviceTime
from shadowspec.reports.pages.board import Board, BoardEndpoint
from shadowspec.reports.pages.board_values import BoardValues, is_recent
from shadowspec.types import Verdict

DAY: Final = timedelta(days=1)
SHOWN: Final = 4  # lines of each part
# In the order in which a reader wants to know of them.
FIRST_KINDS: Final = (ChangeKind.ALARM, ChangeKind.OVERRIDE, ChangeKind.VERDICT, ChangeKind.ROLLOUT)
ASKING: Final = (Severity.ACT_NOW, Severity.TO_DO)


@dataclass(frozen=True, slots=True)
class FleetCost:
    """What a fleet costs and saves over the last 7 days of its traffic.

    `enabled` is the device time of the endpoints where speculation is ENABLE, None without any; `measuring_s` that of
    the requests measured in both arms, over all configs and loads, and `price` what it cost, None without a price.
    """

    num_enabled: int
    enabled: DeviceTime | None
    measuring_s: float
    price: float | None


@dataclass(frozen=True, slots=True)
class FleetDigest:
    """The first lines of each part; `num_changes` and `num_asking` count all of them."""

    changes: tuple[Change, ...]
    num_changes: int
    asking: tuple[BoardEndpoint, ...]
    num_asking: int
    cost: FleetCost


def digest(
    board: Board, values: BoardValues, changes: Sequence[Change], matches: Callable[[str], bool] = lambda _: True
) -> FleetDigest:
    """The digest of the endpoints that match, by name; `changes` are those of the last day, newest first."""
    endpoints = [endpoint for endpoint in board.endpoints if matches(endpoint.name)]
    mine = [change for change in changes if matches(change.endpoint)]
    places = {kind: place for place, kind in enumerate(FIRST_KINDS)}
    ordered = sorted(mine, key=lambda change: (bool(change.slice_key), places.get(change.kind, len(places))))
    asking = sorted(
        (endpoint for endpoint in endpoints if endpoint.head.severity in ASKING),
        key=lambda endpoint: (ASKING.index(endpoint.head.severity), endpoint.name),
    )
    cost = _cost(endpoints, values)
    return FleetDigest(tuple(ordered[:SHOWN]), len(mine), tuple(asking[:SHOWN]), len(asking), cost)


def _cost(endpoints: Sequence[BoardEndpoint], values: BoardValues) -> FleetCost:
    heads = [endpoint.head for endpoint in endpoints if endpoint.head.verdict is Verdict.ENABLE]
    saving = [head.saving.time for head in heads if head.saving is not None]
    names = {endpoint.name for endpoint in endpoints}
    seconds = _measuring_s(names, values)
    priced = [(values.prices.get(name), took_s) for name, took_s in seconds.items()]
    known = [price * took_s / S_PER_HOUR for price, took_s in priced if price is not None]
    return FleetCost(
        num_enabled=len(heads),
        enabled=sum(saving[1:], saving[0]) if saving else None,
        measuring_s=sum(seconds.values()),
        price=sum(known) if known and len(known) == len(priced) else None,
    )


def _measuring_s(names: set[str], values: BoardValues) -> dict[str, float]:
    """Device seconds of the measured requests: of each load, every config's and the longest of their baselines'."""
    seconds = dict.fromkeys(sorted(names), 0.0)
    baselines: dict[tuple[str, int], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for group in values.days:
        if group.endpoint not in names or not is_recent(group, values.newest_day):
            continue
        sums, milliseconds = group.sums, MS_PER_S * group.concurrency
        place = group.endpoint, group.concurrency
        baselines[place][group.fingerprint] += (sums.baseline_prefill_ms + sums.baseline_decode_ms) / milliseconds
        seconds[group.endpoint] += (sums.speculative_prefill_ms + sums.speculative_decode_ms) / milliseconds
    for (name, _), by_config in baselines.items():
        seconds[name] += max(by_config.values())
    return seconds
