"""Before and after: the replayer's own figures, and an interval that a bootstrap over sessions agrees with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from shadowspec.distill.comparison import compare
from shadowspec.distill.examples import Example
from shadowspec.engine.models import LoadedModel, load_model
from shadowspec.engine.replay.replayer import Drafting, Replayed, Replayer
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.types import SamplingParameters, SpeculationConfig, VerifyRule

CONFIG = SpeculationConfig("draft", "t", "d", "draft_model", 3, VerifyRule.REJECTION)


@pytest.fixture(scope="module")
def draft(pair: tuple[Path, Path]) -> LoadedModel:
    return load_model(str(pair[1]), torch.device("cpu"), torch.float32)


def firsts_and_steps(target: LoadedModel, draft: LoadedModel, example: Example) -> tuple[float, float, float]:
    (found,) = Replayer([Drafting(CONFIG, draft)], [3], end_token_ids=target.end_token_ids, target=target).replay(
        [example.response]
    )
    assert isinstance(found, Replayed)
    ((counts,),) = found.counts
    return counts.num_accepted_tokens_per_pos[0], counts.num_drafts, counts.num_accepted_tokens


def test_the_target_as_its_own_draft_gains_all_there_is(
    target: LoadedModel, draft: LoadedModel, examples: tuple[Example, ...]
) -> None:
    found = compare(examples, target, draft, target, CONFIG)
    assert not found.refused
    assert [(gain.slice_key, gain.num_requests) for gain in found.gains] == [
        ("", 120), ("prompt_class=code", 60), ("prompt_class=prose", 60)
    ]  # fmt: skip
    whole = found.gains[0]
    sums = np.array([firsts_and_steps(target, draft, each) for each in examples])
    assert whole.before == pytest.approx(sums[:, 0].sum() / sums[:, 1].sum())
    assert whole.length_before == pytest.approx(1.0 + sums[:, 2].sum() / sums[:, 1].sum())
    assert whole.after is not None
    # One step of a response may end at its first token, which accepts what is emitted all the same.
    assert whole.after == pytest.approx(1.0)
    assert whole.num_sessions == 60


def test_the_interval_is_that_of_sessions(
    target: LoadedModel, draft: LoadedModel, examples: tuple[Example, ...]
) -> None:
    whole = compare(examples, target, draft, target, CONFIG).gains[0]
    units = {}
    for each in examples:
        found = np.array([firsts_and_steps(target, model, each)[:2] for model in (draft, target)])
        units[each.unit_key] = units.get(each.unit_key, 0.0) + found
    sums = np.stack(list(units.values()))  # [sessions, 2 drafts, (firsts, steps)]
    rng = np.random.default_rng(0)
    drawn = sums[rng.integers(0, len(sums), (4_000, len(sums)))].sum(1)
    rates = drawn[:, :, 0] / drawn[:, :, 1]
    spread = float((rates[:, 1] - rates[:, 0]).std())
    assert whole.lower is not None
    assert whole.upper is not None
    assert (whole.upper - whole.lower) / 2.0 == pytest.approx(2.0 * spread, rel=0.15)  # t of 59: 2.00


def test_a_draft_against_itself_gains_nothing_surely(
    target: LoadedModel, draft: LoadedModel, examples: tuple[Example, ...]
) -> None:
    for gain in compare(examples, target, draft, draft, CONFIG).gains:
        assert (gain.difference, gain.lower, gain.upper) == pytest.approx((0.0, 0.0, 0.0), abs=1e-9)


def test_responses_of_another_model_are_refused_and_counted(
    target: LoadedModel, draft: LoadedModel, examples: tuple[Example, ...]
) -> None:
    greedy = SamplingParameters(temperature=0.0, max_tokens=16)
    first = examples[0].response
    other = Response(first.key, type(first.request)(first.request.prompt, greedy, 0), tuple(2 for _ in range(16)))
    mixed = (Example("letters", "prompt_class=code", "s-other", other), *examples[:20])
    found = compare(mixed, target, draft, draft, CONFIG)
    assert found.refused == {"not_argmax": 1}
    assert found.gains[0].num_requests == 20
