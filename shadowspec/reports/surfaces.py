"""Cost surfaces as predictions ask for them: by what is drafted, where, and for which requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from shadowspec.cost_model import CostSurface
from shadowspec.types import CostKey, FingerprintedConfig, ProfiledCosts, SamplingRegime, parse_slice_key

REGIME_LABEL: Final = "sampling_regime"

Costs = Mapping[CostKey, ProfiledCosts]


@dataclass(frozen=True, slots=True)
class ProfiledSurface:
    """What steps cost, and when that was measured."""

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
        regime = parse_slice_key(slice_key).get(REGIME_LABEL)
        key = CostKey.of(config, is_greedy=regime == SamplingRegime.GREEDY)
        if key not in self._made:
            if key not in self._costs:
                return None
            own = self._costs[key]
            self._made[key] = ProfiledSurface(CostSurface(own.points), own.profiled_at)
        return self._made[key]
