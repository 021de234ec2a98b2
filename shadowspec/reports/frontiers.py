"""The best way of drafting for a slice at each load, of all ways that were measured there or replayed.

Predicted from the same two things as the cells' own predictions; no verdict rests on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from scipy.stats import t as student

from shadowspec import metrics
from shadowspec.errors import InputError
from shadowspec.planning.cost_model import Drafts
from shadowspec.planning.frontier import (
    Choice,
    Crossing,
    Drafting,
    Gain,
    Length,
    Work,
    crossings,
    frontier,
    gain,
)
from shadowspec.reports.cells import Costs, MeasuredCell, Surfaces
from shadowspec.reports.predictions import LOOKUPS, drafts_of, why_not
from shadowspec.text import times
from shadowspec.types import AcceptanceSums, CostKey, FingerprintedConfig

LEVEL: Final = 0.95  # of the bounds of replayed tokens per step, two-sided, for one look
MIN_UNITS: Final = 2  # sessions, for any bounds


@dataclass(frozen=True, slots=True)
class SliceFrontier:
    """The predicted best way of drafting for one slice over the loads that were profiled."""

    slice_key: str
    engine: str  # whose steps the costs are of
    device: str
    work: Work
    choices: tuple[Choice, ...]
    crossings: tuple[Crossing, ...]  # where the best gain passes 1: below or above speculation does not pay


def replayed_ways(
    sums: Iterable[AcceptanceSums], configs: Mapping[str, FingerprintedConfig]
) -> list[tuple[str, FingerprintedConfig, Length]]:
    """Slice, config and tokens per step of all that was replayed in a slice, at K that were never measured too."""
    return [
        (own.slice_key, config, length)
        for own in sums
        if own.slice_key
        and (config := configs.get(own.fingerprint)) is not None
        and (length := length_of(own, config.config.num_speculative_tokens)) is not None
    ]


def length_of(sums: AcceptanceSums, num_speculative_tokens: int) -> Length | None:
    """Tokens per step of what was replayed, with the bounds of a ratio of sums over sessions.

    They are of one look at a fixed number of sessions.
    """
    estimate = metrics.mean_acceptance_length(sums)
    if estimate is None:
        return None
    number, accepted = sums.num_units, estimate - 1.0
    if number < MIN_UNITS:
        return Length(estimate)
    squares = sums.accepted_squares - 2.0 * accepted * sums.accepted_drafts + accepted**2 * sums.drafts_squares
    spread = math.sqrt(max(0.0, squares) * number / (number - 1.0)) / sums.num_drafts
    half = float(student.ppf(0.5 + LEVEL / 2.0, number - 1)) * spread
    return Length(estimate, max(1.0, estimate - half), min(num_speculative_tokens + 1.0, estimate + half))


def frontiers(
    cells: Sequence[MeasuredCell],
    configs: Mapping[str, FingerprintedConfig],
    costs: Costs,
    replayed: Iterable[tuple[str, FingerprintedConfig, Length]] = (),
) -> list[SliceFrontier]:
    """For each measured slice, on the engine and device profiled last, over the loads profiled of all its ways.

    That may be a server that none of them was measured through: acceptance carries over.  A way that was measured on
    that engine too speaks for itself there.

    Tokens per step belong to weights and rule, not to the load: those of the load with the most requests count, and
    what replay says of a config in their place, where its every step drafts to the same depth.  A way of which nothing
    can be predicted is left out, and so is a slice that has no other; `predictions` says why.
    """
    surfaces = Surfaces(costs)
    ways: dict[str, dict[str, _Way]] = {}
    works: dict[str, Work] = {}
    for cell in sorted(cells, key=lambda own: own.num_requests):
        config, length = configs.get(cell.fingerprint), cell.tokens_per_step
        if config is None or cell.work is None or length is None or why_not(cell, config.config) is not None:
            continue
        ways.setdefault(cell.slice_key, {})[cell.fingerprint] = _Way(config, Length(length), drafts_of(cell, config))
        works[cell.slice_key] = cell.work
    for slice_key, config, length_of_replay in replayed:
        if slice_key in ways and config.config.proposer not in LOOKUPS:
            ways[slice_key][config.fingerprint] = _Way(config, length_of_replay, None)
    found = [
        _slice_frontier(slice_key, works[slice_key], list(own.values()), surfaces)
        for slice_key, own in sorted(ways.items())
    ]
    return [own for own in found if own is not None]


@dataclass(frozen=True, slots=True)
class _Way:
    config: FingerprintedConfig
    length: Length
    drafts: Drafts | None


def _slice_frontier(slice_key: str, work: Work, ways: Sequence[_Way], surfaces: Surfaces) -> SliceFrontier | None:
    own = [(way, found) for way in ways if (found := surfaces.of(way.config, slice_key)) is not None]
    there = {(found.key, way.config.config.num_speculative_tokens) for way, found in own}
    carried = [
        (way, found)
        for way in ways
        for found in surfaces.elsewhere(way.config, slice_key)
        if (found.key, way.config.config.num_speculative_tokens) not in there
    ]
    profiled = [*own, *carried]
    if not profiled:
        return None
    latest = max((found for _, found in profiled), key=lambda found: found.profiled_at).key
    here = [(way, found) for way, found in profiled if _place(found.key) == _place(latest)]
    alike = [way for way, _ in here]
    drafted = [
        Drafting(_name(way, alike), way.config.config.num_speculative_tokens, way.length, found.surface, way.drafts)
        for way, found in here
    ]
    within = sorted(
        (each for each in drafted if _is_within(each, work)), key=lambda each: (each.name, each.num_speculative_tokens)
    )
    loads = set.intersection(*(set(each.surface.loads) for each in within)) if within else set()
    if not loads:
        return None
    choices = frontier(within, sorted(loads), work)
    best = [(choice.concurrency, max(each.speedup for each in choice.gains)) for choice in choices]
    return SliceFrontier(slice_key, latest.engine, latest.device, work, tuple(choices), tuple(crossings(best)))


def _place(key: CostKey) -> tuple[str, str, str]:
    """What costs speak of, whatever is drafted."""
    return key.engine, key.device, key.dtype


def _name(way: _Way, ways: Sequence[_Way]) -> str:
    """The config's name, with what tells it from others of the same name and depth among these."""
    own = way.config.config
    there = (each.config.config for each in ways)
    alike = [
        each for each in there if (each.name, each.num_speculative_tokens) == (own.name, own.num_speculative_tokens)
    ]
    if len(alike) == 1:
        return own.name
    rules = {each.verify_rule for each in alike}
    return f"{own.name} {own.verify_rule.value if len(rules) == len(alike) else way.config.fingerprint[:6]}"


def _is_within(drafting: Drafting, work: Work) -> bool:
    """Whether its depth and the requests lie within what was profiled of it."""
    try:
        gain(drafting, drafting.surface.loads[0], work)
    except InputError:
        return False
    return True


def frontier_lines(own: SliceFrontier) -> list[str]:
    """One line per load, then where the best way breaks even."""
    lines = [_choice_line(choice) for choice in own.choices]
    for each in own.crossings:
        turn = "stops paying" if each.is_downward else "begins to pay"
        lines.append(f"{turn} at a load of about {each.load:.3g} (between {each.below:g} and {each.above:g})")
    return lines


def _choice_line(choice: Choice) -> str:
    others = ", ".join(_way(each) for each in choice.contenders)
    if choice.best is None:
        return f"load {choice.concurrency:g}: no speculation" + (f"; may pay: {others}" if others else "")
    best = choice.best
    bounds = "" if best.lower is None or best.upper is None else f" [{times(best.lower)}, {times(best.upper)}]"
    said = f"{_way(best)}, {times(best.speedup)}{bounds}"
    return f"load {choice.concurrency:g}: {said}" + (f"; may be as good: {others}" if others else "")


def _way(found: Gain) -> str:
    return f"{found.drafting.name} at K {found.drafting.num_speculative_tokens}"
