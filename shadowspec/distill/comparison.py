"""The draft before and after, on sessions that neither it nor the choice of when to stop has seen: by exact replay.

Both drafts are replayed on the same responses, so that their difference is known far more surely than either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from shadowspec import metrics
from shadowspec.distill.examples import Example
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.replay.replayer import Drafting, Replayed, Replayer
from shadowspec.errors import RecordError
from shadowspec.types import SpeculationConfig

LEVEL: Final = 0.95

Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Gain:
    """The change of a slice's acceptance; None where there was no step."""

    endpoint: str
    slice_key: str  # "": the whole endpoint
    num_requests: int
    num_sessions: int
    before: float | None  # first-position acceptance rate, the same for every depth
    after: float | None
    difference: float | None
    lower: float | None  # of the difference, two-sided at LEVEL over sessions; None below two sessions
    upper: float | None
    length_before: float | None  # mean acceptance length at the config's depth
    length_after: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All slices of all endpoints, whole endpoints first, and how many responses replay refused, by reason."""

    gains: tuple[Gain, ...]
    refused: dict[str, int]


def compare(
    examples: Sequence[Example], target: LoadedModel, before: LoadedModel, after: LoadedModel, config: SpeculationConfig
) -> Comparison:
    """Replay every example with both drafts, at the config's depth and under its rule."""
    replayer = Replayer(
        [Drafting(config, before), Drafting(config, after)],
        [config.num_speculative_tokens],
        end_token_ids=target.end_token_ids,
        target=target,
    )
    cells: dict[tuple[str, str], _Cell] = {}
    refused: dict[str, int] = {}
    results = replayer.replay([example.response for example in examples])
    for example, result in zip(examples, results, strict=True):
        if isinstance(result, RecordError):
            refused[result.reason] = refused.get(result.reason, 0) + 1
            continue
        for slice_key in ("", example.slice_key):
            cells.setdefault((example.endpoint, slice_key), _Cell()).add(example.unit_key, result)
    ordered = sorted(cells, key=lambda key: (key[0], key[1]))
    return Comparison(tuple(cells[key].gain(*key) for key in ordered), refused)


class _Cell:
    """A slice's sums by session, before and after: steps, those that accepted the first token, accepted tokens."""

    def __init__(self) -> None:
        self._units: dict[str, Reals] = {}  # [2 drafts, 3]
        self._num_requests = 0

    def add(self, unit_key: str, replayed: Replayed) -> None:
        self._num_requests += 1
        unit = self._units.setdefault(unit_key, np.zeros((2, 3)))
        for which, (counts,) in enumerate(replayed.counts):  # of one depth
            unit[which] += counts.num_drafts, counts.num_accepted_tokens_per_pos[0], counts.num_accepted_tokens

    def gain(self, endpoint: str, slice_key: str) -> Gain:
        """The difference of two ratios of sums over sessions, with the interval of its residuals."""
        units = np.stack(list(self._units.values()))  # [sessions, 2, 3]
        steps, firsts, accepted = np.moveaxis(units.sum(0), -1, 0).tolist()  # [2] each
        before, after = (metrics.ratio(*pair) for pair in zip(firsts, steps, strict=True))
        lengths = [metrics.ratio(item + made, made) for item, made in zip(accepted, steps, strict=True)]
        difference = lower = upper = None
        if before is not None and after is not None:
            difference = after - before
            half = half_width(units, LEVEL)
            if half is not None:
                lower, upper = difference - half, difference + half
        return Gain(
            endpoint, slice_key, self._num_requests, len(units), before, after, difference, lower, upper, *lengths
        )


def half_width(units: Reals, level: float) -> float | None:
    """Of the two-sided interval of the second draft's first-position acceptance less the first's.

    Args:
        units: of each session and both drafts, steps and those that accepted the first token; [sessions, 2, 2 or more].

    Returns:
        None below two sessions.
    """
    number = len(units)
    if number < 2:
        return None
    steps, firsts = units.sum(0)[:, 0], units.sum(0)[:, 1]
    moves = ((units[:, :, 1] - firsts / steps * units[:, :, 0]) / steps) @ np.array([-1.0, 1.0])  # [sessions]
    spread = float(np.sqrt(number / (number - 1.0) * (moves**2).sum()))
    return float(stdtrit(number - 1, 0.5 + level / 2.0)) * spread
