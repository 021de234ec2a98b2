"""Training: the draft comes nearer to its target, what is kept is the best that was seen, and a seed decides all."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from shadowspec.distill.draft_folder import load_trainable
from shadowspec.distill.examples import Example
from shadowspec.distill.training import (
    SHARES,
    Course,
    Look,
    Trainer,
    draft_logits,
    interpolate,
    overlaps,
    rate_factor,
    target_logits,
)
from shadowspec.distill.training_settings import TOLERANCE, Settings
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.replay.response_tokens import Response

QUICK = Settings(epochs=3, learning_rate=1e-3, tokens_per_step=128, looks_per_epoch=2)


def trained(
    pair: tuple[Path, Path], target: LoadedModel, examples: tuple[Example, ...], settings: Settings
) -> tuple[Any, Course]:
    draft, _ = load_trainable(str(pair[1]), torch.device("cpu"))
    responses = [each.response for each in examples]
    course = Trainer(target.model, draft, settings).train(responses[24:], examples[:24], lambda *_: None)
    return draft, course


def overlap(target: LoadedModel, draft: Any, responses: list[Response]) -> float:
    with torch.no_grad():
        found = overlaps(target_logits(target.model, responses), draft_logits(draft, responses), responses)
    return float(found.mean())


def test_a_draft_comes_nearer_and_is_left_as_it_was_best(
    pair: tuple[Path, Path], target: LoadedModel, examples: tuple[Example, ...]
) -> None:
    draft, course = trained(pair, target, examples, QUICK)
    assert course.best > 0
    best, first = course.looks[course.best], course.looks[0]
    assert best.overlap > first.overlap + 0.02
    assert best.divergence < first.divergence
    assert best.overlap == max(look.overlap for look in course.looks)
    assert [blend.share for blend in course.blends] == [1.0, 0.8, 0.6, 0.4, 0.2, 0.0]
    assert (course.blends[0].look, course.blends[-1].look) == (best, first)
    left = course.blend.look.overlap
    assert left == max(blend.look.overlap for blend in course.blends if blend.loss(first) <= TOLERANCE)
    assert overlap(target, draft, [each.response for each in examples[:24]]) == pytest.approx(left, abs=1e-5)
    assert not draft.training


def test_a_look_tells_what_each_slice_overlaps(
    pair: tuple[Path, Path], target: LoadedModel, examples: tuple[Example, ...]
) -> None:
    first = trained(pair, target, examples, QUICK)[1].looks[0]
    draft, _ = load_trainable(str(pair[1]), torch.device("cpu"))
    by_part = {
        place: [each.response for each in examples[:24] if each.place == place]
        for place in ("letters prompt_class=code", "letters prompt_class=prose")
    }
    assert first.by_slice == pytest.approx({place: overlap(target, draft, each) for place, each in by_part.items()})


def test_a_rare_slice_counts_more_often_in_the_overlap(
    pair: tuple[Path, Path], target: LoadedModel, examples: tuple[Example, ...]
) -> None:
    (code, many), (prose, few) = (
        (place, [example for example in examples if example.place == place][:number])
        for place, number in (("letters prompt_class=code", 40), ("letters prompt_class=prose", 4))
    )
    draft, _ = load_trainable(str(pair[1]), torch.device("cpu"))
    first = Trainer(target.model, draft, QUICK)._look([*many, *few], 0, 0.0)
    tokens = {
        place: sum(len(example.response.output) for example in each) for place, each in ((code, many), (prose, few))
    }
    assert sum(tokens.values()) / 2 > 3.5 * tokens[prose], "so rare that it counts four times"
    weights = {code: tokens[code], prose: 4 * tokens[prose]}
    wanted = sum(weights[place] * first.by_slice[place] for place in weights) / sum(weights.values())
    assert first.overlap == pytest.approx(wanted)


# A slice's overlap falls by the square of the share times this, and may fall by a point.
@pytest.mark.parametrize(("fall", "share"), [(0.0, 1.0), (0.009, 1.0), (0.02, 0.6), (1.0, 0.0)])
def test_no_slice_is_to_lose_what_another_gains(
    pair: tuple[Path, Path],
    target: LoadedModel,
    examples: tuple[Example, ...],
    monkeypatch: pytest.MonkeyPatch,
    fall: float,
    share: float,
) -> None:
    def trained_by_looks(fall: float) -> tuple[Any, Course]:
        shares = iter((0.0, 1.0, *SHARES))

        def look(_trainer: Trainer, _examples: object, step: int, epoch: float) -> Look:
            value = next(shares)
            return Look(step, epoch, 1.0, 0.5 + value / 10, {"common": 0.5 + value / 5, "rare": 0.5 - fall * value**2})

        monkeypatch.setattr(Trainer, "_look", look)
        return trained(pair, target, examples, Settings(epochs=1, tokens_per_step=128, looks_per_epoch=1))

    draft, course = trained_by_looks(fall)
    assert course.blend.share == share
    start, _ = load_trainable(str(pair[1]), torch.device("cpu"))
    end, _ = trained_by_looks(0.0)
    wanted = interpolate(start.state_dict(), end.state_dict(), share)
    assert all(torch.equal(item, wanted[name]) for name, item in draft.state_dict().items())
    assert share == 1.0 or not all(
        torch.equal(item, end.state_dict()[name]) for name, item in draft.state_dict().items()
    )


def test_what_only_gets_worse_stops_and_is_what_it_was(
    pair: tuple[Path, Path], target: LoadedModel, examples: tuple[Example, ...]
) -> None:
    ruinous = Settings(epochs=50, learning_rate=2.0, warmup_share=0.0, tokens_per_step=128, patience=2)
    draft, course = trained(pair, target, examples, ruinous)
    before, _ = load_trainable(str(pair[1]), torch.device("cpu"))
    assert course.stopped_early
    assert (course.best, len(course.looks)) == (0, 3)
    assert all(torch.equal(item, draft.state_dict()[name]) for name, item in before.state_dict().items())


def test_a_seed_decides_everything(pair: tuple[Path, Path], target: LoadedModel, examples: tuple[Example, ...]) -> None:
    one = Settings(epochs=1, tokens_per_step=128)
    assert trained(pair, target, examples, one)[1] == trained(pair, target, examples, one)[1]


def test_every_epoch_learns_from_every_token_once(
    pair: tuple[Path, Path], target: LoadedModel, examples: tuple[Example, ...]
) -> None:
    _, course = trained(pair, target, examples, Settings(epochs=2, tokens_per_step=128, patience=99))
    assert course.num_tokens == 2 * sum(len(each.response.output) for each in examples[24:])
    assert not course.stopped_early


def test_how_much_is_run_at_a_time_changes_nothing(
    pair: tuple[Path, Path], target: LoadedModel, examples: tuple[Example, ...]
) -> None:
    """One step over everything, in many passes or in few: the same gradient."""
    whole = {"epochs": 1, "tokens_per_step": 10**9, "looks_per_epoch": 1, "warmup_share": 0.0}
    _, few = trained(pair, target, examples, Settings(**whole))
    _, many = trained(pair, target, examples, Settings(**whole, logits_per_pass=12 * 64))
    assert (few.num_steps, many.num_steps) == (1, 1)
    assert many.looks[-1].divergence == pytest.approx(few.looks[-1].divergence, rel=1e-3)
    assert few.looks[-1].divergence != pytest.approx(few.looks[0].divergence, rel=1e-3), "a step was made"


def test_progress_is_told_after_every_step(
    pair: tuple[Path, Path], target: LoadedModel, examples: tuple[Example, ...]
) -> None:
    reported: list[tuple[int, int, Look]] = []
    draft, _ = load_trainable(str(pair[1]), torch.device("cpu"))
    responses = [each.response for each in examples]
    course = Trainer(target.model, draft, Settings(epochs=1, tokens_per_step=128)).train(
        responses[24:], examples[:24], lambda *item: reported.append(item)
    )
    assert [step for step, _, _ in reported] == list(range(1, course.num_steps + 1))
    assert {total for _, total, _ in reported} == {course.num_steps}
    assert reported[-1][2] == course.looks[-1]


def test_epochs_of_unequal_numbers_of_steps_are_counted_as_they_are(
    pair: tuple[Path, Path], target: LoadedModel, examples: tuple[Example, ...]
) -> None:
    """How many steps an epoch has depends on the order of its batches, which is drawn."""
    reported: list[tuple[int, int, Look]] = []
    draft, _ = load_trainable(str(pair[1]), torch.device("cpu"))
    responses = [each.response for each in examples]
    uneven = Settings(epochs=6, tokens_per_step=200, patience=99, logits_per_pass=12 * 150, learning_rate=1e-5)
    course = Trainer(target.model, draft, uneven).train(
        responses[24:], examples[:24], lambda *item: reported.append(item)
    )
    assert {total for _, total, _ in reported} == {course.num_steps}
    assert course.looks[-1].step == course.num_steps
    assert not course.stopped_early
    assert course.num_tokens == 6 * sum(len(each.output) for each in responses[24:])


def test_the_rate_rises_then_falls_to_a_tenth() -> None:
    rates = [rate_factor(step, 100, 0.05) for step in range(100)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert all(later <= sooner for sooner, later in pairwise(rates[5:]))
    assert rates[-1] == pytest.approx(0.1, abs=0.01)
