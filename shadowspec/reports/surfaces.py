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
        own, kind = CostKey.of(config, is_greedy=is_greedy(slice_key)), is_greedy(slice_key)
        keys = (key for key in self._costs if key.serves(config.config) and key.is_greedy == kind and key != own)
        return [self._surface(key) for key in sorted(keys, key=lambda key: (key.engine, key.device, key.dtype))]

    def _surface(self, key: CostKey) -> ProfiledSurface:
        if key not in self._made:
            own = self._costs[key]
            self._made[key] = ProfiledSurface(key, CostSurface(own.points), own.profiled_at)
        return self._made[key]


def is_greedy(slice_key: str) -> bool:
    """Whether all of a slice's requests are; one that does not name its regime may hold sampled ones."""
    return parse_slice_key(slice_key).get(REGIME_LABEL) == SamplingRegime.GREEDY
