"""What a prediction is made of: measured cells, and cost surfaces by what is drafted, where, and for which requests.

A cell is one slice at one load with one config.  The whole endpoint is the mixture of its slices, and no cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from shadowspec import metrics
from shadowspec.planning.cost_model import CostSurface, Drafts
from shadowspec.planning.frontier import Work
from shadowspec.reports.figures import tally
from shadowspec.reports.figures.tally import Tally
from shadowspec.reports.figures.token_costs import DeviceTime, device_time
from shadowspec.store import GroupSums, RollupSums
from shadowspec.types import (
    CostKey,
    FingerprintedConfig,
    ProfiledCosts,
    SamplingRegime,
    SpeculationCounts,
    parse_slice_key,
)

NO_TIME: Final = DeviceTime()
REGIME_LABEL: Final = "sampling_regime"

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


def measured_cell(
    place: tuple[str, int, str],
    counts: SpeculationCounts | RollupSums,
    num_requests: int,
    *,
    mean_acceptance_length: float | None,
    ratio_of_total_times: float | None,
    device: DeviceTime,
) -> MeasuredCell:
    """The cell of a slice, load and fingerprint; `counts` are plain sums over its answered requests."""
    slice_key, concurrency, fingerprint = place
    num_steps = counts.num_drafts + counts.num_plain_steps
    prompt, output = (
        metrics.ratio(tokens, num_requests) for tokens in (counts.num_prompt_tokens, counts.num_output_tokens)
    )
    return MeasuredCell(
        slice_key=slice_key,
        concurrency=concurrency,
        fingerprint=fingerprint,
        num_requests=num_requests,
        num_plain_steps=counts.num_plain_steps,
        mean_acceptance_length=mean_acceptance_length,
        work=None if prompt is None or output is None else Work(prompt, output),
        ratio_of_total_times=ratio_of_total_times,
        num_drafts=counts.num_drafts,
        num_drafted_tokens=counts.num_draft_tokens + counts.num_cut_draft_tokens,
        # Each request has one target pass more than its steps, the prefill.
        target_passes_saved=metrics.ratio(counts.num_output_tokens - num_steps - num_requests, num_requests),
        device=device,
    )


def cells_of_groups(groups: Iterable[GroupSums]) -> list[MeasuredCell]:
    """The cells of grouped sums over all of the time."""
    cells = []
    for group in groups:
        pooled = Tally.of_sums(group.sums)
        cells.append(
            measured_cell(
                (group.slice_key, group.concurrency, group.fingerprint),
                group.sums,
                group.sums.num_runs - group.sums.num_failed,
                mean_acceptance_length=metrics.mean_acceptance_length(pooled),
                ratio_of_total_times=tally.ratio_of_total_times(pooled),
                device=device_time([group]),
            )
        )
    return cells


@dataclass(frozen=True, slots=True)
class ProfiledSurface:
    """What steps cost, of what, and when that was measured."""

    key: CostKey
    surface: CostSurface
    profiled_at: datetime


class Surfaces:
    """Cost surfaces by what they are of, each made once."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._made: dict[CostKey, ProfiledSurface] = {}

    def of(self, config: FingerprintedConfig, slice_key: str) -> ProfiledSurface | None:
        """Of the config's requests in this slice; one that does not name its regime may hold sampled ones."""
        if config.config.is_adaptive:
            return None  # what was profiled drafts to a fixed depth
        key = CostKey.of(config, is_greedy=is_greedy(slice_key))
        return self._surface(key) if key in self._costs else None

    def elsewhere(self, config: FingerprintedConfig, slice_key: str) -> list[ProfiledSurface]:
        """Of servers that run the config's pair on another engine or device than it was measured on."""
        if config.config.is_adaptive:
            return []
        cost_key, kind = CostKey.of(config, is_greedy=is_greedy(slice_key)), is_greedy(slice_key)
        keys = (key for key in self._costs if key.serves(config.config) and key.is_greedy == kind and key != cost_key)
        return [self._surface(key) for key in sorted(keys, key=lambda key: (key.engine, key.device, key.dtype))]

    def _surface(self, key: CostKey) -> ProfiledSurface:
        if key not in self._made:
            cost = self._costs[key]
            self._made[key] = ProfiledSurface(key, CostSurface(cost.points), cost.profiled_at)
        return self._made[key]


def is_greedy(slice_key: str) -> bool:
    """Whether all of a slice's requests are; one that does not name its regime may hold sampled ones."""
    return parse_slice_key(slice_key).get(REGIME_LABEL) == SamplingRegime.GREEDY
