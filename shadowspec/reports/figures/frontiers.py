"""The best way of drafting for a slice at each load, of all ways that were measured there or replayed.

Predicted from the same two things as the cells' own predictions; no verdict rests on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from shadowspec import metrics
from shadowspec.errors import InputError
from shadowspec.planning.cost_model import Drafts
from shadowspec.planning.frontier import Choice, Crossing, Gain, Length, PricedDrafting, Work, crossings, frontier, gain
from shadowspec.reports.figures.cells import Costs, MeasuredCell, Surfaces
from shadowspec.reports.figures.predictions import drafts_of, why_not
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


def list_replayed_lengths(
    sums: Iterable[AcceptanceSums], configs: Mapping[str, FingerprintedConfig]
) -> list[tuple[str, FingerprintedConfig, Length]]:
    """Slice, config and tokens per step of all that was replayed in a slice, at K that were never measured too."""
    return [
        (acceptance_sums.slice_key, config, length)
        for acceptance_sums in sums
        if acceptance_sums.slice_key
        and (config := configs.get(acceptance_sums.fingerprint)) is not None
        and (length := length_of(acceptance_sums, config.config.num_speculative_tokens)) is not None
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
    half = metrics.student_quantile(number - 1, 0.5 + LEVEL / 2.0) * spread
    return Length(estimate, max(1.0, estimate - half), min(num_speculative_tokens + 1.0, estimate + half))


def frontiers(
    cells: Sequence[MeasuredCell],
    configs: Mapping[str, FingerprintedConfig],
    costs: Costs,
    replayed: Iterable[tuple[str, FingerprintedConfig, Length]] = (),
) -> list[SliceFrontier]:
    """For each measured slice, on the engine and device profiled last, over the loads profiled of all its ways.

    That may be a server that none of them was measured through: acceptance carries over where both draft by the same
    rules (`prediction_summary` says where they do not).  A way that was measured on
    that engine too speaks for itself there.

    Tokens per step belong to weights and rule, not to the load: those of the load with the most requests count, and
    what replay says of a config in their place, where its every step drafts to the same depth.  A way of which nothing
    can be predicted is left out, and so is a slice that has no other; `predictions` says why.
    """
    surfaces = Surfaces(costs)
    candidates: dict[str, dict[str, _Candidate]] = {}
    works: dict[str, Work] = {}
    for cell in sorted(cells, key=lambda measured_cell: measured_cell.num_requests):
        config, length = configs.get(cell.fingerprint), cell.tokens_per_step
        if config is None or cell.work is None or length is None or why_not(cell, config.config) is not None:
            continue
        candidates.setdefault(cell.slice_key, {})[cell.fingerprint] = _Candidate(
            config, Length(length), drafts_of(cell, config)
        )
        works[cell.slice_key] = cell.work
    for slice_key, config, length_of_replay in replayed:
        if slice_key in candidates and config.config.drafts_in_every_step:
            candidates[slice_key][config.fingerprint] = _Candidate(config, length_of_replay, None)
    slices = [
        _slice_frontier(slice_key, works[slice_key], list(candidate.values()), surfaces)
        for slice_key, candidate in sorted(candidates.items())
    ]
    return [frontier for frontier in slices if frontier is not None]


@dataclass(frozen=True, slots=True)
class _Candidate:
    config: FingerprintedConfig
    length: Length
    drafts: Drafts | None


def _slice_frontier(
    slice_key: str, work: Work, candidates: Sequence[_Candidate], surfaces: Surfaces
) -> SliceFrontier | None:
    profiled_ways = [
        (candidate, profile)
        for candidate in candidates
        if (profile := surfaces.of(candidate.config, slice_key)) is not None
    ]
    there = {(profile.key, candidate.config.config.num_speculative_tokens) for candidate, profile in profiled_ways}
    carried = [
        (candidate, profile)
        for candidate in candidates
        for profile in surfaces.elsewhere(candidate.config, slice_key)
        if (profile.key, candidate.config.config.num_speculative_tokens) not in there
    ]
    profiled = [*profiled_ways, *carried]
    if not profiled:
        return None
    latest = max((profile for _, profile in profiled), key=attrgetter("profiled_at")).key
    here = [(candidate, profile) for candidate, profile in profiled if _place(profile.key) == _place(latest)]
    alike = [candidate for candidate, _ in here]
    drafted = [
        PricedDrafting(
            _name(candidate, alike),
            candidate.config.config.num_speculative_tokens,
            candidate.length,
            profile.surface,
            candidate.drafts,
        )
        for candidate, profile in here
    ]
    within = sorted(
        (drafting for drafting in drafted if _is_within(drafting, work)),
        key=attrgetter("name", "num_speculative_tokens"),
    )
    loads = set.intersection(*(set(drafting.surface.loads) for drafting in within)) if within else set()
    if not loads:
        return None
    choices = frontier(within, sorted(loads), work)
    best = [(choice.concurrency, max(choice_gain.speedup for choice_gain in choice.gains)) for choice in choices]
    return SliceFrontier(slice_key, latest.engine, latest.device, work, tuple(choices), tuple(crossings(best)))


def _place(key: CostKey) -> tuple[str, str, str]:
    """The subject of costs, independent of the proposer."""
    return key.engine, key.device, key.dtype


def _name(candidate: _Candidate, candidates: Sequence[_Candidate]) -> str:
    """The config's name, with the part that distinguishes it from others of the same name and depth among these."""
    config = candidate.config.config
    alike = [
        other
        for other in (candidate.config.config for candidate in candidates)
        if (other.name, other.num_speculative_tokens) == (config.name, config.num_speculative_tokens)
    ]
    if len(alike) == 1:
        return config.name
    rules = {config.verify_rule for config in alike}
    return f"{config.name} {config.verify_rule.value if len(rules) == len(alike) else candidate.config.fingerprint[:6]}"


def _is_within(drafting: PricedDrafting, work: Work) -> bool:
    """Whether its depth and the requests lie within what was profiled of it."""
    try:
        gain(drafting, drafting.surface.loads[0], work)
    except InputError:
        return False
    return True


def frontier_lines(frontier: SliceFrontier) -> list[str]:
    """One line per load, then where the best way breaks even."""
    lines = [_choice_line(choice) for choice in frontier.choices]
    for crossing in frontier.crossings:
        turn = "stops paying" if crossing.is_downward else "begins to pay"
        lines.append(
            f"{turn} at a load of about {crossing.load:.3g} (between {crossing.below:g} and {crossing.above:g})"
        )
    return lines


def _choice_line(choice: Choice) -> str:
    others = ", ".join(_describe_gain(contender) for contender in choice.contenders)
    if choice.best is None:
        return f"load {choice.concurrency:g}: no speculation" + (f"; may pay: {others}" if others else "")
    best = choice.best
    bounds = "" if best.lower is None or best.upper is None else f" [{times(best.lower)}, {times(best.upper)}]"
    said = f"{_describe_gain(best)}, {times(best.speedup)}{bounds}"
    return f"load {choice.concurrency:g}: {said}" + (f"; may be as good: {others}" if others else "")


def _describe_gain(gained: Gain) -> str:
    return f"{gained.drafting.name} at K {gained.drafting.num_speculative_tokens}"
