"""The audit keeps its level where loop and replay agree, and finds a draft whose logits are shifted by one position."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shadowspec.engine.replay.law import StepChances, step_law
from shadowspec.errors import InputError
from shadowspec.gate.run import audit_difference as audit
from shadowspec.gate.run.audit_difference import FAMILY_LEVEL, AuditState, bet_ratios
from shadowspec.types import AUDIT_TOLERANCE, AuditedRun, RecordKey

NOW = datetime(2026, 3, 1, tzinfo=UTC)
TOKENS, DEPTH, VOCABULARY = 24, 4, 12
SEQUENCES, UNITS, OUTPUTS = 400, 300, 5_000

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class World:
    """Sequences of outputs: what the loop accepted, and what replay expects with its draft and with a shifted one."""

    accepted: Reals  # [SEQUENCES, UNITS], as all
    expected: Reals
    shifted: Reals


def chances(count: int, rng: np.random.Generator) -> tuple[Reals, Reals]:
    """Of each token of outputs where it is drafted, by the draft and by one with shifted logits; [count, TOKENS] each.

    Tokens are sampled from targets that their drafts resemble; positions are independent of each other.
    """
    target = rng.dirichlet(np.full(VOCABULARY, 0.3), (count, TOKENS))
    draft = 0.6 * target + 0.4 * rng.dirichlet(np.full(VOCABULARY, 0.3), (count, TOKENS))
    tokens = (target.cumsum(-1) > rng.random((count, TOKENS, 1))).argmax(-1)
    chosen = np.take_along_axis(target, tokens[..., None], -1)[..., 0]
    drafted = np.take_along_axis(draft, tokens[..., None], -1)[..., 0]
    before = np.take_along_axis(np.roll(draft, 1, axis=1), tokens[..., None], -1)[..., 0]
    return np.minimum(1.0, drafted / chosen), np.minimum(1.0, before / chosen)


def expected(accept: Reals) -> Reals:
    """What replay expects the loop to accept of each output; [outputs]."""
    return step_law(StepChances.of_prefix(list(accept), DEPTH), [DEPTH]).accepted_tokens[0]


def looped(accept: Reals, rng: np.random.Generator) -> Reals:
    """What one course of the loop accepts of each output, token by token; [outputs]."""
    accepted, ahead = np.zeros(len(accept)), np.zeros(len(accept), dtype=np.int64)
    for position in range(1, TOKENS):  # prefill emits the first
        hits = (ahead < DEPTH) & (rng.random(len(accept)) < accept[:, position])
        accepted += hits
        ahead = np.where(hits, ahead + 1, 0)  # else the token is recovered, or the bonus
    return accepted


def first_alarm(accepted: Reals, wanted: Reals, level: float, tolerance: float = AUDIT_TOLERANCE) -> NDArray[np.int64]:
    """How many units each sequence takes to alarm, [sequences]; 0 where it does not."""
    tokens = TOKENS - 1
    found = []
    for ratios in bet_ratios(accepted / tokens, wanted / tokens, tolerance):
        grown = np.log1p(audit.FRACTIONS[:, None, None] * ratios).cumsum(-1)
        paths = np.logaddexp.reduce(np.log(audit.WEIGHTS)[:, None, None] + grown, axis=0)
        crossed = paths >= -np.log(level)
        found.append(np.where(crossed.any(-1), crossed.argmax(-1) + 1, 0))
    either = np.where(found[0] == 0, found[1], found[0])
    return np.where((found[0] > 0) & (found[1] > 0), np.minimum(*found), either)


@pytest.fixture(scope="module")
def world() -> World:
    """Each output is met often, each time with the loop's dice cast anew."""
    rng = np.random.default_rng(20)
    accept, shifted = chances(OUTPUTS, rng)
    met = rng.integers(0, OUTPUTS, SEQUENCES * UNITS)
    every = (looped(accept[met], rng), expected(accept)[met], expected(shifted)[met])
    return World(*(values.reshape(SEQUENCES, UNITS) for values in every))


def test_the_loop_accepts_what_the_law_expects(world: World) -> None:
    difference = (world.accepted - world.expected).ravel()
    assert abs(difference.mean()) < 4.0 * difference.std() / len(difference) ** 0.5
    assert 0.4 < world.accepted.mean() / (TOKENS - 1) < 0.7


@pytest.mark.parametrize("tolerance", [AUDIT_TOLERANCE, 0.02])
@pytest.mark.parametrize("off", [-1.0, 0.0, 1.0])
def test_false_alarms_keep_the_level(world: World, off: float, tolerance: float) -> None:
    """Of 400 sequences of 300 units, looked at after every unit; also where the mean is off by the whole tolerance."""
    accepted = world.accepted + off * tolerance * (TOKENS - 1)
    level = 0.05
    alarms = (first_alarm(accepted, world.expected, level / 2.0, tolerance) > 0).mean()
    assert alarms <= level + 2.0 * (level * (1.0 - level) / SEQUENCES) ** 0.5


def test_each_unit_is_bet_on_under_its_tolerance() -> None:
    """A mean that is off by 0.01 alarms under the engine's tolerance, and never under a server's wider one."""
    counted = [AuditedRun(RecordKey("file", 0, row), "f" * 64, 101, 50 + row % 3, 50.0) for row in range(6_000)]
    served = [replace(run, tolerance=0.02) for run in counted]
    assert AuditState(1).fold(counted, NOW).has_alarmed
    assert not AuditState(1).fold(served, NOW).has_alarmed
    mixed = AuditState(1).fold(served[:3_000], NOW).fold(counted[:3_000], NOW)
    assert mixed.log_more == pytest.approx(
        np.add(AuditState(1).fold(served[:3_000], NOW).log_more, AuditState(1).fold(counted[:3_000], NOW).log_more)
    )


def test_shifted_logits_are_found_within_300_units(world: World) -> None:
    """At the level of the first cell, and at that of the sixty-fourth."""
    for place in (1, 64):
        units = first_alarm(world.accepted, world.shifted, AuditState(place).level)
        assert units.min() > 0
        assert units.max() < 60


def runs(accepted: Reals, wanted: Reals) -> list[AuditedRun]:
    return [
        AuditedRun(RecordKey("file", 0, row), "f" * 64, TOKENS, int(item), float(each))
        for row, (item, each) in enumerate(zip(accepted, wanted, strict=True))
    ]


def test_units_fold_in_pieces_as_at_once(world: World) -> None:
    accepted, wanted = world.accepted[0, :80], world.shifted[0, :80]
    every = runs(accepted, wanted)
    whole = AuditState(1).fold(every, NOW)
    state = AuditState(1)
    for start in range(0, 80, 7):
        state = AuditState.of(state.document()).fold(every[start : start + 7], NOW)
    assert state.num_units == whole.num_units == 80
    assert state.peak_more == pytest.approx(whole.peak_more)
    assert state.log_fewer == pytest.approx(whole.log_fewer)
    assert state.difference == pytest.approx((accepted - wanted).sum() / 80 / (TOKENS - 1))
    units = first_alarm(accepted[None], wanted[None], whole.level)[0]
    assert not AuditState(1).fold(every[: units - 1], NOW).has_alarmed
    assert AuditState(1).fold(every[:units], NOW).has_alarmed


def test_an_alarm_is_not_taken_back(world: World) -> None:
    alarmed = AuditState(1).fold(runs(world.accepted[0, :60], world.shifted[0, :60]), NOW)
    later = alarmed.fold(runs(world.accepted[1], world.expected[1]), NOW.replace(year=2027))
    assert later.num_units == 60 + UNITS
    assert later.alarmed_at == NOW


def test_what_is_no_unit_is_counted_and_bets_nothing() -> None:
    refused = AuditedRun(RecordKey("file", 0, 1), "f", 9, 4, None)
    alone = AuditedRun(RecordKey("file", 0, 2), "f", 1, 0, 0.0)
    state = AuditState(1).fold([refused, alone], NOW)
    assert state == replace(AuditState(1), num_refused=1)
    assert state.difference is None


def test_levels_of_all_cells_add_up_to_the_familys() -> None:
    levels = [2.0 * AuditState(place).level for place in range(1, 10_000)]
    assert levels == sorted(levels, reverse=True)
    assert sum(levels) == pytest.approx(FAMILY_LEVEL, rel=1e-3)
    assert sum(levels) < FAMILY_LEVEL


def test_bets_cannot_go_bankrupt_and_nothing_is_clipped() -> None:
    """A clipped bet would have another mean: each is a straight line in what was accepted, down to its worst value."""
    accepted, wanted = np.meshgrid(np.linspace(0.0, 1.0, 101), np.linspace(0.0, 1.0, 51))
    more, fewer = bet_ratios(accepted, wanted)
    assert min(more.min(), fewer.min()) >= -1.0
    for ratios in (more, fewer):
        assert np.abs(np.diff(ratios, n=2, axis=1)).max() < 1e-9
    assert max(more.max(), fewer.max()) < 1.0 / audit.LEAST_WORST


@pytest.mark.parametrize(
    "change",
    [{"place": None}, {"log_more": [0.0, "much"]}, {"alarmed_at": "soon"}, {"version": 2}, {"version": None}],
)
def test_a_document_that_is_none_is_refused(change: dict[str, Any]) -> None:
    document = {**AuditState(1).document(), **change}
    if change == {"place": None}:
        del document["place"]
    with pytest.raises(InputError, match=r"^a stored audit (cannot be read|is of)"):
        AuditState.of(document)
