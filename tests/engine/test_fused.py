"""With Triton's kernels the loop gives the tokens that it gives on torch; on a CPU they run in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from shadowspec.engine import Engine, Models
from shadowspec.engine.batch import Request
from shadowspec.engine.candidate import fingerprint_candidate
from shadowspec.engine.decode import decode_batch
from shadowspec.engine.device import choose_device, choose_kernels
from shadowspec.engine.llama import DirectLlama
from shadowspec.engine.models import LoadedModel, load_model
from shadowspec.engine.proposers import Proposer
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.engine.proposers.ngram import NgramProposer
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.engine.replay.scoring import Budget, token_scores
from shadowspec.engine.shared_vocabulary import SharedVocabulary, translate_model
from shadowspec.engine.static_passes import StaticPasses
from shadowspec.errors import ModelError
from shadowspec.types import RecordKey, SamplingParameters, SpeculationConfig, VerifyRule
from shadowspec.types.settings import EngineSettings
from shadowspec_kernels import backends
from shadowspec_kernels.dispatch import Kernels
from tests.builders.engine_blocks import block, prompt
from tests.builders.pass_recorder import new_recorder
from tests.small_models import VOCABULARY, tiny_llama

DEVICE = choose_device("auto")
DEPTH = 2
SAMPLING = {
    "greedy": SamplingParameters(temperature=0.0, max_tokens=8),
    "sampled": SamplingParameters(temperature=0.8, max_tokens=8),
    "penalties": SamplingParameters(
        temperature=0.8, max_tokens=8, min_tokens=4, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2
    ),
    "few": SamplingParameters(temperature=0.9, max_tokens=8, top_k=4),
    "likely": SamplingParameters(temperature=0.9, max_tokens=8, min_p=0.05),
    "truncated": SamplingParameters(temperature=0.9, max_tokens=8, top_p=0.8, top_k=9, min_p=0.01),
}


@pytest.fixture(scope="module")
def pair(pair_folders: tuple[Path, Path]) -> tuple[LoadedModel, LoadedModel]:
    target, draft = (load_model(str(folder), DEVICE, torch.float32) for folder in pair_folders)
    return target, draft


def fusing(model: LoadedModel, kernels: Kernels, *, is_static: bool = False) -> LoadedModel:
    model = replace(model, kernels=kernels)
    if not is_static:
        return model
    return replace(model, passes=StaticPasses(model.model, new_recorder, kernels))


def requests(*kinds: str) -> list[Request]:
    """Ragged, more than there are slots."""
    return [
        Request(
            tuple(2 + (row * row + step) % 10 for step in range(1 + row % 4)), SAMPLING[kinds[row % len(kinds)]], row
        )
        for row in range(5)
    ]


def decoded(
    target: LoadedModel,
    draft: LoadedModel | None,
    requests: list[Request],
    rule: VerifyRule,
    *,
    is_lookup: bool = False,
) -> list[tuple[object, ...]]:
    proposer: Proposer | None = None
    if is_lookup:
        proposer = NgramProposer(DEPTH, 1, 3)
    elif draft is not None:
        is_sampling = rule is VerifyRule.REJECTION
        proposer = DraftModelProposer(
            draft.model, DEPTH, is_sampling=is_sampling, passes=draft.passes, kernels=draft.kernels
        )
    result = decode_batch(
        target.model,
        requests,
        proposer=proposer,
        num_speculative_tokens=DEPTH,
        verify_rule=rule,
        end_token_ids=frozenset({1}),
        num_slots=4,
        passes=target.passes,
        kernels=target.kernels,
    )
    return [(each.output, each.finish_reason, each.counts) for each in result.decoded]


@pytest.mark.representative("rejection-kinds1")
@pytest.mark.parametrize(
    ("rule", "kinds"),
    [
        (VerifyRule.GREEDY, ("greedy",)),
        *(
            (rule, kinds)
            for rule in (VerifyRule.REJECTION, VerifyRule.GREEDY_DRAFT, VerifyRule.EXACT_MATCH)
            for kinds in (("greedy",), ("sampled", "greedy"), ("penalties", "greedy"), ("truncated", "sampled"))
        ),
    ],
)
def test_the_same_tokens_under_every_rule(
    rule: VerifyRule, kinds: tuple[str, ...], pair: tuple[LoadedModel, LoadedModel]
) -> None:
    kernels = Kernels("triton", DEVICE)
    target, draft = (fusing(model, kernels) for model in pair)
    block_requests = requests(*kinds)
    assert decoded(target, draft, block_requests, rule) == decoded(*pair, block_requests, rule)
    ran = kernels.ran()
    assert ran["verify"]["triton"] > len(block_requests)
    assert ran["append"].keys() == {"triton"}
    if "truncated" in kinds:
        assert ran["verify"]["torch"] > 3
    else:
        assert ran["verify"].keys() == {"triton"}


@pytest.mark.all
@pytest.mark.representative("draft-True")
@pytest.mark.parametrize("is_static", [False, True])
@pytest.mark.parametrize("kind", ["baseline", "draft", "ngram"])
def test_both_arms_and_lookups(kind: str, is_static: bool, pair: tuple[LoadedModel, LoadedModel]) -> None:
    kernels = Kernels("triton", DEVICE)
    target, draft = (fusing(model, kernels, is_static=is_static) for model in pair)
    block_requests = requests("sampled", "penalties", "greedy")
    rule = VerifyRule.GREEDY_DRAFT if kind == "ngram" else VerifyRule.REJECTION
    drafts = (draft, pair[1]) if kind == "draft" else (None, None)
    found = decoded(target, drafts[0], block_requests, rule, is_lookup=kind == "ngram")
    assert found == decoded(pair[0], drafts[1], block_requests, rule, is_lookup=kind == "ngram")
    assert kernels.ran()["append"]["triton"] > 0


def test_a_batch_that_is_truncated_throughout_runs_on_torch(pair: tuple[LoadedModel, LoadedModel]) -> None:
    kernels = Kernels("triton", DEVICE)
    target, draft = (fusing(model, kernels) for model in pair)
    block_requests = requests("truncated", "few", "likely")  # the latter with top-k and min-p alone
    assert decoded(target, draft, block_requests, VerifyRule.REJECTION) == decoded(
        *pair, block_requests, VerifyRule.REJECTION
    )
    assert kernels.ran()["verify"].keys() == {"torch"}


def test_what_is_chosen_is_what_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert choose_kernels("auto", cpu) is None
    assert choose_kernels("torch", gpu) is None
    asked: list[str] = []

    def why_unavailable(backend: str, device: torch.device) -> str | None:
        asked.append(f"{backend} on {device}")
        return "triton is not installed; install shadowspec[kernels]" if len(asked) < 3 else None

    monkeypatch.setattr(backends, "why_unavailable", why_unavailable)
    monkeypatch.setattr("shadowspec_kernels.dispatch.why_unavailable", why_unavailable)
    assert choose_kernels("auto", gpu) is None
    with pytest.raises(ModelError, match=r'kernels = "triton" is configured.*install shadowspec\[kernels\]'):
        choose_kernels("triton", gpu)
    chosen = choose_kernels("auto", gpu)
    assert chosen is not None
    assert chosen.backend == "triton"
    assert set(asked) == {"triton on cuda"}


def test_the_backend_is_in_the_fingerprint(pair_folders: tuple[Path, Path]) -> None:
    config = SpeculationConfig("draft", "t", str(pair_folders[1]), "draft_model", 2, VerifyRule.REJECTION)
    target, (candidate,) = Models(EngineSettings(str(DEVICE), "float32", kernels="triton")).candidates(
        str(pair_folders[0]), [config], print, 1, {}
    )
    _, (plain,) = Models(EngineSettings(str(DEVICE), "float32", kernels="torch")).candidates(
        str(pair_folders[0]), [config], print, 1, {}
    )
    assert candidate.config.config.backend == "triton"
    assert plain.config.config.backend == "torch"
    assert candidate.config.fingerprint != plain.config.fingerprint
    assert candidate.config.details == plain.config.details
    assert isinstance(candidate.draft, LoadedModel)
    assert candidate.draft.kernels is target.kernels is not None
    assert fingerprint_candidate(config, target, candidate.draft, 1, {}) == candidate.config
    engine = Engine(target, [candidate], EngineSettings(warmup_blocks=0))
    assert engine.kernels_ran() == {}
    result = engine.measure(block([prompt(1, max_tokens=3), prompt(2, 0.7, max_tokens=3)]))
    assert {run.failure for run in result.runs} == {None}
    assert {name: rows.keys() for name, rows in engine.kernels_ran().items()} == {
        "append": {"triton"},
        "verify": {"triton"},
    }


@pytest.mark.all
def test_without_triton_the_engine_loads() -> None:
    """The extra need not be installed; code that is compiled for a CPU needs no Triton either."""
    code = (
        "import sys; sys.modules['triton'] = None; from shadowspec.engine import Models; "
        "from shadowspec.types.settings import EngineSettings; "
        "Models(EngineSettings('cpu')); print(*sys.modules)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "shadowspec_kernels.dispatch" not in ran.stdout.split()


@pytest.mark.parametrize("budget", [Budget(), Budget(tokens=40, logits=64)])
def test_replay_is_scored_from_hidden_states(budget: Budget, pair: tuple[LoadedModel, LoadedModel]) -> None:
    """To 1e-5; what needs the whole distribution goes on being scored from logits."""
    kernels = Kernels("triton", DEVICE)
    names = ("sampled", "greedy", "penalties", "truncated")
    draws = torch.Generator().manual_seed(4)
    responses = [
        Response(
            RecordKey("file", 0, row),
            Request(tuple(2 + (row + step) % 10 for step in range(1 + row % 5)), SAMPLING[names[row % 4]], row),
            tuple(torch.randint(2, 12, (1 + (3 * row) % 8,), generator=draws).tolist()),
        )
        for row in range(12)
    ]
    for model in pair:
        expected = token_scores(model.model, responses, frozenset({1}), with_probs=True, budget=budget)
        found = token_scores(model.model, responses, frozenset({1}), with_probs=True, budget=budget, kernels=kernels)
        for one, other in zip(found, expected, strict=True):
            assert (one.is_best == other.is_best).all()
            assert np.allclose(one.gaps, other.gaps, rtol=1e-5, atol=1e-4)
            assert (one.probs is None) == (other.probs is None)
            if one.probs is not None and other.probs is not None:
                assert np.allclose(one.probs, other.probs, rtol=0.0, atol=1e-5)
    (scored,) = kernels.ran()["score"].items()
    plain = sum(len(response.output) for row, response in enumerate(responses) if row % 4 < 2)
    assert scored[0] == "triton"
    assert scored[1] == 2 * plain
    assert not token_scores(pair[0].model, responses[:1], frozenset(), with_probs=False, kernels=kernels)[0].probs


def test_a_draft_of_another_vocabulary_is_scored_from_its_logits(pair: tuple[LoadedModel, LoadedModel]) -> None:
    every = torch.arange(VOCABULARY, device=DEVICE)
    kernels, model = (
        Kernels("triton", DEVICE),
        translate_model(pair[1].model, SharedVocabulary(VOCABULARY, every, every, every)),
    )
    response = Response(RecordKey("file", 0, 1), Request((2, 3), SAMPLING["sampled"], 1), (4, 5, 6))
    (found,) = token_scores(model, [response], frozenset(), with_probs=True, kernels=kernels)
    (expected,) = token_scores(pair[1].model, [response], frozenset(), with_probs=True)
    assert found.probs is not None
    assert expected.probs is not None
    assert np.allclose(found.probs, expected.probs, atol=1e-6)
    assert kernels.ran() == {}


@pytest.mark.parametrize("is_tied", [False, True])
def test_the_head_is_handed_out_as_the_kernel_reads_it(is_tied: bool) -> None:
    model = tiny_llama(3)
    if is_tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    expected = model.lm_head.weight.detach().clone()
    direct = DirectLlama(model)
    head = direct.head_weight()
    assert head.is_contiguous()
    assert torch.equal(head, expected)
    states = torch.randn(3, expected.shape[1])
    assert torch.allclose(direct.logits(states), states @ expected.t(), atol=1e-4)
