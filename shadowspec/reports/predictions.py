"""What the cost model predicts for every measured cell, beside what was measured there, and the frontier of a slice.

A prediction is made of two measured things: the tokens per step of the cell itself (or of its replayed responses), and
the cost surface of its pair on its device.  It speaks of the engine that measured, and no verdict rests on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Final

from scipy.stats import t as student

from shadowspec import metrics
from shadowspec.cost_model import CostSurface, Drafts
from shadowspec.errors import InputError
from shadowspec.frontier import Choice, Crossing, Drafting, Gain, Length, Work, crossings, frontier, gain
from shadowspec.reports import tally
from shadowspec.reports.costs import DeviceTime, device_time
from shadowspec.reports.tally import Tally
from shadowspec.store import GroupSums
from shadowspec.types import (
    AcceptanceSums,
    Arm,
    CostKey,
    FingerprintedConfig,
    ProfiledCosts,
    SamplingRegime,
    SpeculationConfig,
    parse_slice_key,
)

NOT_PROFILED: Final = "not profiled: run shadowspec profile-device"
BY_TEXT: Final = "how deep a step drafts depends on how sure the draft is"
PLAIN_STEPS: Final = "some steps drafted nothing"
LOOKUPS: Final = ("ngram", "suffix")
REGIME_LABEL: Final = "sampling_regime"
NO_TIME: Final = DeviceTime()
LEVEL: Final = 0.95  # of the bounds of replayed tokens per step, two-sided, for one look
MIN_UNITS: Final = 2  # sessions, for any bounds

Costs = Mapping[CostKey, ProfiledCosts]


@dataclass(frozen=True, slots=True)
class MeasuredCell:
    """One slice at one load with one config: what prediction needs of it, and what was measured; pooled figures."""

    slice_key: str
    concurrency: int
    fingerprint: str
    num_requests: int
    num_plain_steps: int  # in which nothing was drafted
    mean_acceptance_length: float | None
    work: Work | None
    ratio_of_total_times: float | None
    num_drafts: int = 0  # steps that drafted
    num_drafted_tokens: int = 0  # in these, with those cut off at the end
    target_passes_saved: float | None = None  # of a request, mean
    device: DeviceTime = NO_TIME

    @property
    def tokens_per_step(self) -> float | None:
        """The mean acceptance length, with the steps that drafted nothing counted in."""
        length, steps = self.mean_acceptance_length, self.num_drafts + self.num_plain_steps
        if length is None or not self.num_plain_steps:
            return length
        drafting = metrics.ratio(self.num_drafts, steps)
        return None if drafting is None else 1.0 + (length - 1.0) * drafting

    @property
    def drafts(self) -> Drafts | None:
        """How often and how deep a row drafted; None where nothing was."""
        share = metrics.ratio(self.num_drafts, self.num_drafts + self.num_plain_steps)
        tokens = metrics.ratio(self.num_drafted_tokens, self.num_drafts)
        return None if share is None or tokens is None else Drafts(share, tokens)


@dataclass(frozen=True, slots=True)
class Prediction:
    """One cell's prediction; where there is none, `reason` says why and the figures are None."""

    cell: MeasuredCell
    config: SpeculationConfig
    break_even_length: float | None = None  # tokens per step from which on speculation pays there
    speedup: float | None = None  # end to end, of an average request
    target_passes_saved: float | None = None  # of an average request
    device: DeviceTime = NO_TIME  # of an average request
    reason: str | None = None

    @property
    def error(self) -> float | None:
        """How far the prediction lies above what was measured, as a share of it."""
        measured = self.cell.ratio_of_total_times
        over = None if self.speedup is None or measured is None else metrics.ratio(self.speedup, measured)
        return None if over is None else over - 1.0

    @property
    def cost_error(self) -> float | None:
        """The same of an output token's device time with speculation, and so of its cost at any price."""
        predicted, measured = (own.device.ms_per_token(Arm.SPECULATIVE) for own in (self, self.cell))
        over = None if predicted is None or measured is None else metrics.ratio(predicted, measured)
        return None if over is None else over - 1.0


@dataclass(frozen=True, slots=True)
class SliceFrontier:
    """The predicted best way of drafting for one slice over the loads that were profiled."""

    slice_key: str
    work: Work
    choices: tuple[Choice, ...]
    crossings: tuple[Crossing, ...]  # where the best gain passes 1: below or above speculation does not pay


def cells_of_groups(groups: Iterable[GroupSums]) -> list[MeasuredCell]:
    """The cells of grouped sums over all of the time."""
    found = []
    for own in groups:
        pooled = Tally.of_sums(own.sums)
        num_counted = own.sums.num_runs - own.sums.num_failed
        found.append(
            MeasuredCell(
                slice_key=own.slice_key,
                concurrency=own.concurrency,
                fingerprint=own.fingerprint,
                num_requests=num_counted,
                num_plain_steps=own.sums.num_plain_steps,
                mean_acceptance_length=tally.mean_acceptance_length(pooled),
                work=work_of(own.sums.num_prompt_tokens, own.sums.num_output_tokens, num_counted),
                ratio_of_total_times=tally.ratio_of_total_times(pooled),
                num_drafts=own.sums.num_drafts,
                num_drafted_tokens=own.sums.num_draft_tokens + own.sums.num_cut_draft_tokens,
                target_passes_saved=passes_saved(
                    own.sums.num_output_tokens, own.sums.num_drafts + own.sums.num_plain_steps, num_counted
                ),
                device=device_time([own]),
            )
        )
    return found


def passes_saved(num_output_tokens: int, num_steps: int, num_requests: int) -> float | None:
    """Target passes saved by a request on average: each has one more than its steps, the prefill."""
    return metrics.ratio(num_output_tokens - num_steps - num_requests, num_requests)


def work_of(num_prompt_tokens: int, num_output_tokens: int, num_requests: int) -> Work | None:
    """The mean request of so many; None of none."""
    prompt, output = (metrics.ratio(tokens, num_requests) for tokens in (num_prompt_tokens, num_output_tokens))
    return None if prompt is None or output is None else Work(prompt, output)


def predictions(
    cells: Sequence[MeasuredCell], configs: Mapping[str, FingerprintedConfig], costs: Costs
) -> list[Prediction]:
    """One for each cell whose config is known, in their order."""
    surfaces = _Surfaces(costs)
    return [_prediction(cell, configs[cell.fingerprint], surfaces) for cell in cells if cell.fingerprint in configs]


def median_error(found: Iterable[Prediction]) -> float | None:
    """The median of the absolute errors; None where no cell has both a prediction and a measurement."""
    errors = [abs(error) for own in found if (error := own.error) is not None]
    return median(errors) if errors else None


def replayed_ways(
    sums: Iterable[AcceptanceSums], configs: Mapping[str, FingerprintedConfig]
) -> list[tuple[str, FingerprintedConfig, Length]]:
    """Slice, config and tokens per step of all that was replayed in a slice, at K that were never measured too."""
    return [
        (own.slice_key, configs[own.fingerprint], length)
        for own in sums
        if own.slice_key and own.fingerprint in configs and (length := _length_of(own)) is not None
    ]


def _length_of(sums: AcceptanceSums) -> Length | None:
    """With the bounds of a ratio of sums over sessions: of one look at a fixed number of them."""
    estimate = metrics.mean_acceptance_length(sums)
    if estimate is None:
        return None
    number, accepted = sums.num_units, estimate - 1.0
    if number < MIN_UNITS:
        return Length(estimate)
    squares = sums.accepted_squares - 2.0 * accepted * sums.accepted_drafts + accepted**2 * sums.drafts_squares
    spread = math.sqrt(max(0.0, squares) * number / (number - 1.0)) / sums.num_drafts
    half = float(student.ppf(0.5 + LEVEL / 2.0, number - 1)) * spread
    return Length(estimate, max(1.0, estimate - half), estimate + half)


def frontiers(
    cells: Sequence[MeasuredCell],
    configs: Mapping[str, FingerprintedConfig],
    costs: Costs,
    replayed: Iterable[tuple[str, FingerprintedConfig, Length]] = (),
) -> list[SliceFrontier]:
    """For each measured slice, on the engine and device profiled last, over the loads profiled of all its ways.

    Tokens per step belong to weights and rule, not to the load: those of the load with the most requests count, and
    what replay says of a config in their place, where its every step drafts to the same depth.  A way of which nothing
    can be predicted is left out, and so is a slice that has no other; `predictions` says why.
    """
    surfaces = _Surfaces(costs)
    ways: dict[str, dict[str, _Way]] = {}
    works: dict[str, Work] = {}
    for cell in sorted(cells, key=lambda own: own.num_requests):
        config, length = configs.get(cell.fingerprint), cell.tokens_per_step
        if config is None or cell.work is None or length is None or _why_not(cell, config.config) is not None:
            continue
        ways.setdefault(cell.slice_key, {})[cell.fingerprint] = _Way(config, Length(length), _drafts(cell, config))
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

    @property
    def place(self) -> tuple[str, str, str]:
        """What its costs speak of."""
        return self.config.engine, self.config.device, self.config.dtype


def _slice_frontier(slice_key: str, work: Work, ways: Sequence[_Way], surfaces: _Surfaces) -> SliceFrontier | None:
    profiled = [(way, own) for way in ways if (own := surfaces.of(way.config, slice_key)) is not None]
    if not profiled:
        return None
    latest, _ = max(profiled, key=lambda pair: pair[1].profiled_at)
    drafted = [
        Drafting(_name(way, ways), way.config.config.num_speculative_tokens, way.length, own.surface, way.drafts)
        for way, own in profiled
        if way.place == latest.place
    ]
    within = sorted(
        (each for each in drafted if _is_within(each, work)), key=lambda each: (each.name, each.num_speculative_tokens)
    )
    loads = set.intersection(*(set(each.surface.loads) for each in within)) if within else set()
    if not loads:
        return None
    choices = frontier(within, sorted(loads), work)
    best = [(choice.concurrency, max(each.speedup for each in choice.gains)) for choice in choices]
    return SliceFrontier(slice_key, work, tuple(choices), tuple(crossings(best)))


def _name(way: _Way, ways: Sequence[_Way]) -> str:
    """The config's name, with what tells it from others of the same name and depth on the same device."""
    own = way.config.config
    there = (each.config.config for each in ways if each.place == way.place)
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


@dataclass(frozen=True, slots=True)
class _Profiled:
    surface: CostSurface
    profiled_at: datetime


class _Surfaces:
    """Cost surfaces by what they are of, each made once."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._made: dict[CostKey, _Profiled] = {}

    def of(self, config: FingerprintedConfig, slice_key: str) -> _Profiled | None:
        """Of the config's requests in this slice; one that does not name its regime may hold sampled ones."""
        if config.config.is_adaptive:
            return None  # what was profiled drafts to a fixed depth
        regime = parse_slice_key(slice_key).get(REGIME_LABEL)
        key = CostKey.of(config, is_greedy=regime == SamplingRegime.GREEDY)
        if key not in self._made:
            if key not in self._costs:
                return None
            own = self._costs[key]
            self._made[key] = _Profiled(CostSurface(own.points), own.profiled_at)
        return self._made[key]


def _why_not(cell: MeasuredCell, config: SpeculationConfig) -> str | None:
    """Why nothing can be predicted of this, whatever is profiled."""
    if config.is_adaptive:
        return BY_TEXT
    if config.proposer not in LOOKUPS and cell.num_plain_steps:  # where the draft's context ends before the request
        return PLAIN_STEPS
    return None


def _drafts(cell: MeasuredCell, config: FingerprintedConfig) -> Drafts | None:
    """How often and how deep its rows draft, of a proposer that finds its drafts in the text."""
    return cell.drafts if config.config.proposer in LOOKUPS else None


def _prediction(cell: MeasuredCell, config: FingerprintedConfig, surfaces: _Surfaces) -> Prediction:
    own = config.config
    if (reason := _why_not(cell, own)) is not None:
        return Prediction(cell, own, reason=reason)
    profiled = surfaces.of(config, cell.slice_key)
    if profiled is None:
        return Prediction(cell, own, reason=NOT_PROFILED)
    length = cell.tokens_per_step
    if length is None or cell.work is None:
        return Prediction(cell, own, reason="nothing was drafted")
    drafting = Drafting(own.name, own.num_speculative_tokens, Length(length), profiled.surface, _drafts(cell, config))
    try:
        found = gain(drafting, cell.concurrency, cell.work)
    except InputError as error:
        return Prediction(cell, own, reason=str(error))
    return Prediction(
        cell,
        own,
        break_even_length=found.break_even_length,
        speedup=found.speedup,
        target_passes_saved=found.target_passes_saved,
        device=predicted_device(found, cell.work),
    )


def predicted_device(found: Gain, work: Work) -> DeviceTime:
    """The device time of one average request: at load b it holds 1/b of the device from prefill to last token."""
    return DeviceTime(
        baseline_ms=found.baseline_ms / found.concurrency,
        speculative_ms=found.speculative_ms / found.concurrency,
        baseline_tokens=work.num_output_tokens,
        speculative_tokens=work.num_output_tokens,
    )
