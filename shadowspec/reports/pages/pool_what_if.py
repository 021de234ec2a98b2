"""What another acceptance would make of a whole pool: every slice at one load with one config, on one engine.

Accepted tokens per drafted step are multiplied, up to all that were drafted; what steps cost stays as it was profiled.
Only decoding gets faster: the prefill takes what it took, so that the gain of the pool has a limit (Amdahl), shown as
what it would be if every drafted token were accepted.  Slices count by the output tokens of their traffic.  Both sides
are predictions of the cost model, as `shadowspec.reports.figures.predictions` makes them: no verdict rests on them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from shadowspec import metrics
from shadowspec.reports.figures.cells import Costs, MeasuredCell
from shadowspec.reports.figures.predictions import Prediction, predictions
from shadowspec.text import plural, times
from shadowspec.types import Arm, FingerprintedConfig

POOL_HEAD: Final = ("Config", "Engine", "Load", "K", "As measured", "As tried", "All accepted", "Of")


@dataclass(frozen=True, slots=True)
class PoolWhatIf:
    """Predicted end-to-end speedups of one pool, ratios of total device times; None where nothing is predicted.

    `num_left_out` counts slices of which nothing can be predicted: they are in no figure.
    """

    config_name: str
    engine: str
    concurrency: int
    num_speculative_tokens: int
    num_slices: int
    num_left_out: int
    measured: float | None  # with the acceptance that was measured
    tried: float | None
    limit: float | None  # with every drafted token accepted

    @property
    def texts(self) -> tuple[str, ...]:
        """One row under `POOL_HEAD`."""
        left_out = f", {self.num_left_out} not predicted" if self.num_left_out else ""
        return (
            self.config_name,
            self.engine,
            str(self.concurrency),
            str(self.num_speculative_tokens),
            *(times(value) for value in (self.measured, self.tried, self.limit)),
            plural(self.num_slices, "slice") + left_out,
        )


def pool_what_if(
    cells: Sequence[MeasuredCell], configs: Mapping[str, FingerprintedConfig], costs: Costs, factor: float
) -> list[PoolWhatIf]:
    """Every pool of these cells, by config, engine and load; another fingerprint is another config.

    Args:
        factor: by which accepted tokens per drafted step are multiplied, 0 or more.
    """

    def predicted(by: float) -> list[Prediction]:
        return predictions([_with_acceptance(cell, configs, by) for cell in cells], configs, costs)

    measured, tried, limit = predicted(1.0), predicted(factor), predicted(math.inf)
    pools: dict[tuple[str, str, str, int, str], list[int]] = defaultdict(list)
    for place, prediction in enumerate(measured):
        cell = prediction.cell
        pools[prediction.config.name, prediction.engine, prediction.device, cell.concurrency, cell.fingerprint].append(
            place
        )
    return [
        PoolWhatIf(
            config_name=measured[places[0]].config.name,
            engine=measured[places[0]].engine,
            concurrency=measured[places[0]].cell.concurrency,
            num_speculative_tokens=measured[places[0]].config.num_speculative_tokens,
            num_slices=len(places),
            num_left_out=sum(measured[place].speedup is None for place in places),
            measured=_speedup([measured[place] for place in places]),
            tried=_speedup([tried[place] for place in places]),
            limit=_speedup([limit[place] for place in places]),
        )
        for _, places in sorted(pools.items())
    ]


def _with_acceptance(cell: MeasuredCell, configs: Mapping[str, FingerprintedConfig], factor: float) -> MeasuredCell:
    """The cell with its accepted tokens per drafted step multiplied, up to those drafted."""
    length, config = cell.mean_acceptance_length, configs.get(cell.fingerprint)
    drafted = metrics.ratio(cell.num_drafted_tokens, cell.num_drafts)
    if length is None or config is None or drafted is None or factor == 1.0:
        return cell
    most = min(drafted, config.config.num_speculative_tokens)
    accepted = length - 1.0
    scaled = most if math.isinf(factor) else min(most, accepted * factor)
    return replace(cell, mean_acceptance_length=1.0 + scaled)


def _speedup(pool: Sequence[Prediction]) -> float | None:
    """Total baseline over total speculative device time of the traffic; None where nothing is predicted."""
    baseline = speculative = 0.0
    for prediction in pool:
        before, after = (prediction.predicted_device.ms_per_token(arm) for arm in (Arm.BASELINE, Arm.SPECULATIVE))
        if before is not None and after is not None:
            baseline += prediction.cell.device.weighted_tokens * before
            speculative += prediction.cell.device.weighted_tokens * after
    return metrics.ratio(baseline, speculative)
