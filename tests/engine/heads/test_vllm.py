"""Draft heads against vLLM's own engine and modules, on what tests/data/heads/write_vllm.py wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from shadowspec.engine.batch import Request
from shadowspec.engine.candidate import Candidate, Models, fingerprint_candidate
from shadowspec.engine.decode import Decoded, decode_batch
from shadowspec.engine.heads.loading import load_heads
from shadowspec.engine.heads.mlp_speculator import MlpSpeculator
from shadowspec.engine.models import LoadedModel, load_model
from shadowspec.engine.proposers.draft_model import Draft
from shadowspec.types import SamplingParameters, SpeculationConfig, VerifyRule
from shadowspec.types.settings import EngineSettings

FOLDER = Path(__file__).parents[2] / "data" / "heads" / "vllm"
PROMPTS, DEPTHS = range(3), 3
# A step's states feed the next: rounding of other vector instructions (AVX2, AVX-512, none) grows to 0.001 over a text.
TOLERANCE = {"atol": 5e-3, "rtol": 5e-3}


@pytest.fixture(scope="module")
def target() -> LoadedModel:
    return load_model(str(FOLDER / "target"), torch.device("cpu"), torch.float32)


@pytest.fixture
def considered(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The logits of the draft at every depth of every step, [vocabulary] each, of a batch of one."""
    found: list[torch.Tensor] = []
    consider = Draft.consider

    def noted(self: Draft, logits: torch.Tensor) -> bool:
        found.append(logits[0].clone())
        return consider(self, logits)

    monkeypatch.setattr(Draft, "consider", noted)
    return found


@pytest.mark.parametrize(
    "name", ["medusa", "medusa_trained", "medusa_reduced", "eagle3", "eagle3_reduced", "eagle3_qwen3"]
)
def test_the_loop_drafts_and_accepts_as_vllms_engine_does(
    name: str, target: LoadedModel, considered: list[torch.Tensor]
) -> None:
    """From the prompt to the logits of every draft: the target's hidden states, their layers and places included."""
    kind, expected = name.split("_")[0], load_file(FOLDER / f"{name}.safetensors")
    config = SpeculationConfig(name, "", str(FOLDER / name), kind, DEPTHS, VerifyRule.GREEDY_DRAFT)
    heads = load_heads(str(FOLDER / name), kind, target)
    candidate = Candidate(fingerprint_candidate(config, target, heads, 1, {}), heads)
    for number in PROMPTS:
        prompt, output, logits, accepted = (
            expected[f"{each}.{number}"] for each in ("prompt", "output", "logits", "accepted")
        )
        considered.clear()
        decoded = decoded_alone(target, candidate, prompt, len(output))
        assert decoded.output == tuple(output.tolist())
        assert decoded.counts.num_drafts == len(accepted) > 4
        assert uncut(decoded) == int(accepted.sum())
        assert logits.shape[:2] == (len(accepted), DEPTHS)
        torch.testing.assert_close(torch.stack(considered).view(logits.shape), logits, **TOLERANCE)
        assert logits.isfinite().sum(-1).unique().tolist() == ([6] if is_reduced(name) else [16])


def test_a_draft_of_another_vocabulary_accepts_as_vllms_does(
    target: LoadedModel, considered: list[torch.Tensor]
) -> None:
    expected = load_file(FOLDER / "heterogeneous.safetensors")
    path = str(FOLDER / "heterogeneous")
    config = SpeculationConfig("h", "", path, "heterogeneous_draft_model", DEPTHS, VerifyRule.GREEDY_DRAFT)
    draft = Models(EngineSettings("cpu", "float32")).draft(config, target)
    candidate = Candidate(fingerprint_candidate(config, target, draft, 1, {}), draft)
    assert isinstance(draft, LoadedModel)
    shared = {0: 0, 1: 1} | {token: token - 3 for token in range(5, 16)}
    assert draft.num_shared_tokens == len(shared)
    total = 0
    for number in PROMPTS:
        entry = {each: expected[f"{each}.{number}"] for each in ("prompt", "output", "logits", "accepted")}
        considered.clear()
        decoded = decoded_alone(target, candidate, entry["prompt"], len(entry["output"]))
        assert decoded.output == tuple(entry["output"].tolist())
        assert decoded.counts.num_drafts == len(entry["accepted"])
        assert uncut(decoded) == int(entry["accepted"].sum())
        found = torch.stack(considered).view(len(entry["accepted"]), DEPTHS, -1)
        torch.testing.assert_close(found[..., list(shared)], entry["logits"][..., list(shared.values())], **TOLERANCE)
        assert found.isfinite().sum(-1).unique().tolist() == [len(shared)]
        total += int(entry["accepted"].sum())
    assert total > 5


def decoded_alone(target: LoadedModel, candidate: Candidate, prompt: torch.Tensor, max_tokens: int) -> Decoded:
    """One greedy request through the loop."""
    sampling = SamplingParameters(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    (decoded,) = decode_batch(
        target.model,
        [Request(tuple(prompt.tolist()), sampling, 0)],
        proposer=candidate.proposer(),
        num_speculative_tokens=DEPTHS,
        verify_rule=VerifyRule.GREEDY_DRAFT,
        end_token_ids=frozenset(),
    ).decoded
    return decoded


def uncut(decoded: Decoded) -> int:
    """Accepted tokens as vLLM counts them, before the cut at the last token."""
    return decoded.counts.num_accepted_tokens + decoded.counts.num_cut_accepted_tokens


def is_reduced(name: str) -> bool:
    return name in ("medusa_reduced", "eagle3_reduced", "eagle3_qwen3")


@pytest.mark.parametrize("name", ["mlp_speculator", "mlp_speculator_tied"])
@torch.inference_mode()
def test_the_stages_are_those_of_vllms_module(name: str, target: LoadedModel) -> None:
    heads: Any = load_heads(str(FOLDER / name), "mlp_speculator", target).heads
    assert isinstance(heads, MlpSpeculator)
    expected = load_file(FOLDER / f"{name}.safetensors")
    state = heads.start(expected["hidden"], DEPTHS)
    for stage, (tokens, logits) in enumerate(zip(expected["tokens"], expected["logits"], strict=True)):
        found, state = heads.stage(stage, state, tokens)
        torch.testing.assert_close(found, logits, **TOLERANCE)
    assert stage == DEPTHS - 1
