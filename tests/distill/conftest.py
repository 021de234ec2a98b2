"""A tiny target, drafts that could be nearer to it, and what the target answered."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shadowspec.distill.examples import Example
from shadowspec.engine.batch import Request
from shadowspec.engine.decode import decode_batch
from shadowspec.engine.models import LoadedModel, load_model
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.types import RecordKey, SamplingParameters, VerifyRule
from tests.small_models import save_pair

SAMPLED = SamplingParameters(temperature=0.9, max_tokens=16)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("distilled"))


@pytest.fixture(scope="session")
def target(pair: tuple[Path, Path]) -> LoadedModel:
    return load_model(str(pair[0]), torch.device("cpu"), torch.float32)


@pytest.fixture(scope="session")
def examples(target: LoadedModel) -> tuple[Example, ...]:
    """Responses of the target to prompts of several lengths, two to a session, in two slices."""
    requests = [
        Request(tuple(2 + (7 * number + place) % 10 for place in range(3 + number % 4)), SAMPLED, number)
        for number in range(120)
    ]
    answers = decode_batch(
        target.model, requests, proposer=None, num_speculative_tokens=0, verify_rule=VerifyRule.REJECTION,
        end_token_ids=target.end_token_ids,
    ).decoded  # fmt: skip
    return tuple(
        Example(
            "letters", f"prompt_class={'code' if number % 4 < 2 else 'prose'}", f"s-{number // 2}",
            Response(RecordKey("test", 0, number), request, answer.output),
        )
        for number, (request, answer) in enumerate(zip(requests, answers, strict=True))
    )  # fmt: skip
