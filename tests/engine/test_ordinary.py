"""What is settled from files alone loads without error or warning; what leaves a doubt is not settled."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.auto import AutoModelForCausalLM

from shadowspec.demo import DRAFT, HEADS, TARGET
from shadowspec.engine import Models, ordinary
from shadowspec.types import SpeculationConfig, VerifyRule
from shadowspec.types.settings import EngineSettings
from tests.small_models import letter_tokenizer

CPU = EngineSettings(device="cpu")


def are_settled(target: str, candidates: Sequence[SpeculationConfig], *, is_on_cpu: bool = True) -> bool:
    return ordinary.are_settled(target, candidates, is_on_cpu=is_on_cpu)


def candidate(draft: Path | str | None, proposer: str = "draft_model", **changes: Any) -> SpeculationConfig:
    return SpeculationConfig(
        "c", "target", None if draft is None else str(draft), proposer, 3, VerifyRule.REJECTION, **changes
    )


def warnings_of(target: Path, *candidates: SpeculationConfig) -> list[str]:
    """What loading them warns of."""
    found: list[str] = []
    Models(CPU).candidates(str(target), candidates, found.append, 1, {})
    return found


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A copy of the bundled pair."""
    return tuple(shutil.copytree(each, tmp_path / each.name) for each in (TARGET, DRAFT))  # type: ignore[return-value]


def test_the_bundled_pair_is_settled_and_loads_without_a_warning() -> None:
    wanted = (candidate(DRAFT), candidate(None, "ngram"), candidate(None, "suffix"))
    assert are_settled(str(TARGET), wanted)
    assert warnings_of(TARGET, *wanted) == []


@pytest.mark.parametrize("kind", [LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config])
@pytest.mark.parametrize("is_tied", [False, True])
def test_each_architecture_of_the_family(tmp_path: Path, kind: type[PreTrainedConfig], is_tied: bool) -> None:
    torch.manual_seed(0)
    config = kind(
        vocab_size=12,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=is_tied,
        sliding_window=None,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    letter_tokenizer().save_pretrained(tmp_path)
    assert are_settled(str(tmp_path), [candidate(None, "ngram")])
    assert warnings_of(tmp_path, candidate(None, "ngram")) == []


def change_config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text(encoding="utf-8")) | changes
        path.write_text(json.dumps({name: value for name, value in config.items() if value != ...}), encoding="utf-8")

    return change


def change_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        path = folder / "model.safetensors"
        weights = load_file(path)
        change(weights)
        save_file(weights, path)

    return changed


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def cut_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:-1])


def other_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(path.read_text(encoding="utf-8") + "\n", encoding="utf-8")


IN_EITHER = {
    "no folder": shutil.rmtree,
    "cut weights": cut_weights,
    "a weight less": change_weights(lambda weights: weights.pop("model.norm.weight")),
    "a weight more": change_weights(lambda weights: weights.update({"more": torch.zeros(1)})),
    "a weight's shape": change_weights(lambda weights: weights.update({"model.norm.weight": torch.zeros(7)})),
    "integers": change_weights(lambda weights: weights.update({"model.norm.weight": torch.zeros(320).int()})),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "cut tokenizer": cut_tokenizer,
    "another kind": change_config(model_type="gemma2"),
    "another architecture": change_config(architectures=["LlamaForSequenceClassification"]),
    "sliding window": change_config(sliding_window=64),
    "layer types": change_config(layer_types=["sliding_attention"] * 8),
    "soft caps": change_config(attn_logit_softcapping=30.0),
    "rotary": change_config(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
    "old rotary": change_config(rope_scaling={"type": "linear", "factor": 2.0}),
    "activation": change_config(hidden_act="gelu"),
    "biases": change_config(attention_bias=True),
    "code": change_config(auto_map={"AutoModel": "code.Model"}),
    "no context length": change_config(max_position_embeddings=...),
    "no JSON": lambda folder: (folder / "config.json").write_text("{", encoding="utf-8"),
    "generation config": lambda folder: (folder / "generation_config.json").write_text("{", encoding="utf-8"),
}


@pytest.mark.parametrize("which", [0, 1], ids=["target", "draft"])
@pytest.mark.parametrize("change", IN_EITHER.values(), ids=IN_EITHER)
def test_a_model_that_leaves_a_doubt_is_not_settled(
    pair: tuple[Path, Path], which: int, change: Callable[[Path], object]
) -> None:
    target, draft = pair
    assert are_settled(str(target), [candidate(draft)])
    change(pair[which])
    assert not are_settled(str(target), [candidate(draft)])


IN_THE_DRAFT = {
    "another tokenizer": other_tokenizer,
    "a shorter context": change_config(max_position_embeddings=1024),
    "another vocabulary": change_config(vocab_size=4095),
}


@pytest.mark.parametrize("change", IN_THE_DRAFT.values(), ids=IN_THE_DRAFT)
def test_a_pair_that_leaves_a_doubt_is_not_settled(pair: tuple[Path, Path], change: Callable[[Path], object]) -> None:
    target, draft = pair
    change(draft)
    assert are_settled(str(draft), []) or change is IN_THE_DRAFT["another vocabulary"]
    assert not are_settled(str(target), [candidate(draft)])


def test_candidates_that_are_loaded_to_be_judged() -> None:
    for wanted in (
        candidate(TARGET),  # as large as the target
        candidate(HEADS / "medusa", "medusa"),
        candidate(DRAFT, "heterogeneous_draft_model"),
        candidate(DRAFT, backend="triton"),
    ):
        assert not are_settled(str(TARGET), [wanted]), wanted


def test_where_the_compiled_forward_cannot_be_built_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert are_settled(str(TARGET), [])
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not are_settled(str(TARGET), [])
    assert are_settled(str(TARGET), [], is_on_cpu=False)
