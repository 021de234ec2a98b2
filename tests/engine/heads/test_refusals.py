"""A folder that cannot be run as it is meant is refused by file and field, and its fingerprint covers all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from shadowspec.engine.candidate import Models, fingerprint_candidate
from shadowspec.engine.heads.loading import load_heads
from shadowspec.engine.models import LoadedModel
from shadowspec.errors import ModelError
from shadowspec.types import SpeculationConfig, VerifyRule
from shadowspec.types.settings import EngineSettings
from tests.engine.heads.reference import Eagle3, Medusa, Speculator


def saved(kind: str, folder: Path) -> Path:
    torch.manual_seed(5)
    if kind == "medusa":
        return Medusa(3, 1).save_for_vllm(folder, 1)
    return Speculator(3, 20).save(folder) if kind == "mlp_speculator" else Eagle3([1, 3, 5]).save(folder)


def change(folder: Path, **fields: Any) -> None:
    """Other values of fields; None takes the field out; `a.b` is within the object a."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for name, value in fields.items():
        *outer, last = name.split("__")
        within = config
        for each in outer:
            within = within[each]
        within[last] = value
        if value is None:
            del within[last]
    path.write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("eagle3", {"speculators_model_type": "dflash"}, "config.json: speculators_model_type: 'dflash' cannot be run"),
        ("medusa", {"model_type": "llama"}, "config.json: model_type: 'llama' is not a supported kind of draft heads"),
        ("medusa", {"model_type": None}, "config.json: model_type: None is not a supported kind of draft heads"),
        ("medusa", {"num_heads": None}, "config.json: num_heads: is missing"),
        ("medusa", {"num_heads": True}, "config.json: num_heads: True is not a whole number"),
        ("medusa", {"num_heads": 4}, "weight blocks.3.layers.0.weight is missing"),
        ("medusa", {"num_heads": 2}, "weight blocks.2.layers.0.weight is not known"),
        ("medusa", {"hidden_size": 64}, "config.json: hidden_size: 64: the target's hidden size is 32"),
        ("medusa", {"vocab_size": 13}, "config.json: vocab_size: 13: the target's vocabulary has 12"),
        ("medusa", {"logit_scale": 0.5}, "config.json: logit_scale: 0.5"),
        ("medusa", {"original_lm_head": "yes"}, "config.json: original_lm_head: 'yes' is neither true nor false"),
        ("medusa", {"truncated_vocab_size": 3}, "weight token_map is missing"),
        ("mlp_speculator", {"emb_dim": 64}, "config.json: emb_dim: the target's hidden size is 32"),
        ("mlp_speculator", {"vocab_size": 13}, "config.json: vocab_size: the target's vocabulary has 12"),
        ("mlp_speculator", {"inner_dim": 24}, r"weight emb.0.weight has the shape \[12, 20\] and not \[12, 24\]"),
        ("mlp_speculator", {"n_predict": 0}, "config.json: n_predict: 0 is not a whole number"),
        ("eagle3", {"norm_before_residual": None}, "config.json: norm_before_residual: is missing"),
        ("eagle3", {"target_hidden_size": 64}, "config.json: target_hidden_size: 64: the target's hidden size is 32"),
        ("eagle3", {"transformer_layer_config": None}, "config.json: transformer_layer_config: is missing"),
        ("eagle3", {"transformer_layer_config__model_type": "gpt2"}, "'gpt2' cannot be run; llama and qwen3"),
        ("eagle3", {"transformer_layer_config__vocab_size": 13}, r"vocab_size: 13 cannot be run \(the target has 12\)"),
        ("eagle3", {"transformer_layer_config__num_hidden_layers": 2}, "num_hidden_layers: 2 cannot be run"),
        ("eagle3", {"transformer_layer_config__attention_bias": True}, "attention_bias: True cannot be run"),
        ("eagle3", {"transformer_layer_config__hidden_act": "gelu"}, "hidden_act: 'gelu' cannot be run"),
        ("eagle3", {"transformer_layer_config__sliding_window": 64}, "sliding_window: 64 cannot be run"),
        ("eagle3", {"norm_output": "no"}, "config.json: norm_output: 'no' is neither true nor false"),
        ("eagle3", {"fc_norm": True}, "weight fc_norm.0.weight is missing"),
        ("eagle3", {"norm_before_fc": True}, "weight input_norm.weight is missing"),
        ("eagle3", {"eagle_aux_hidden_state_layer_ids": [0, 1]}, r"fc.weight has the shape \[32, 96\]"),
        ("eagle3", {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}, "are not layers of the target, which has 3"),
        ("eagle3", {"eagle_aux_hidden_state_layer_ids": [0, 2, 1]}, r"layer_ids: \[0, 2, 1\] do not rise"),
        ("eagle3", {"draft_vocab_size": 4}, r"weight d2t has the shape \[3\] and not \[4\]"),
    ],
)  # fmt: skip
def test_fields_that_cannot_be_run(
    kind: str, fields: dict[str, Any], message: str, target: LoadedModel, tmp_path: Path
) -> None:
    folder = saved(kind, tmp_path)
    load_heads(str(folder), kind, target)
    change(folder, **fields)
    with pytest.raises(ModelError, match=message) as caught:
        load_heads(str(folder), kind, target)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "weights", "message"),
    [
        ("eagle3", {"d2t": torch.tensor([0, 0, 20])}, "d2t does not name 3 distinct tokens"),
        ("eagle3", {"d2t": torch.tensor([1, 0, 4])}, "d2t does not name 3 distinct tokens"),
        ("eagle3", {"d2t": None}, "draft_vocab_size: 3 of the target's 12 tokens, but the folder has no d2t"),
        ("eagle3", {"fc.weight": torch.zeros(32, 64)}, r"fc.weight has the shape \[32, 64\] and not \[32, 96\]"),
        ("eagle3", {"layers.1.mlp.up_proj.weight": torch.zeros(2)}, "layers.1.mlp.up_proj.weight is not known"),
        ("mlp_speculator", {"speculator.head.2.weight": None}, "head.2.weight is missing"),
    ],
)
def test_weights_that_do_not_fit(
    kind: str, weights: dict[str, torch.Tensor | None], message: str, target: LoadedModel, tmp_path: Path
) -> None:
    folder = saved(kind, tmp_path)
    held: dict[str, Any] = load_file(folder / "model.safetensors") | weights
    save_file({name: weight for name, weight in held.items() if weight is not None}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        load_heads(str(folder), kind, target)


def test_folders_that_cannot_be_read(target: LoadedModel, tmp_path: Path) -> None:
    def message() -> str:
        with pytest.raises(ModelError) as caught:
            load_heads(str(tmp_path), "medusa", target)
        return str(caught.value)

    assert "has no config.json" in message()
    (tmp_path / "config.json").write_text("{")
    assert "is not JSON" in message()
    (tmp_path / "config.json").write_text("[]")
    assert "config.json holds no object" in message()
    (tmp_path / "config.json").write_text('{"model_type": "medusa"}')
    (tmp_path / "medusa_lm_head.pt").write_bytes(b"")
    assert "has no weights in *.safetensors but pickled weights; save the model as safetensors" in message()
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    assert "model.safetensors is no safetensors file, or cut short; download the weights again" in message()


def test_the_proposer_must_be_what_the_folder_holds(target: LoadedModel, tmp_path: Path) -> None:
    folder = saved("mlp_speculator", tmp_path)
    with pytest.raises(ModelError, match="the proposer is medusa, and the folder holds mlp_speculator"):
        load_heads(str(folder), "medusa", target)


def test_no_more_tokens_than_heads(target: LoadedModel, folders: dict[str, Path]) -> None:
    def draft(kind: str, depth: int) -> Any:
        config = SpeculationConfig("deep", target.path, str(folders[kind]), kind, depth, VerifyRule.GREEDY_DRAFT)
        return Models(EngineSettings("cpu", "float32")).draft(config, target)

    for kind in ("medusa", "mlp_speculator"):
        assert draft(kind, 4).max_speculative_tokens == 4
        with pytest.raises(ModelError, match=r"candidate 'deep': num_speculative_tokens is 5, and .* holds 4 heads"):
            draft(kind, 5)
    assert draft("eagle3", 12).max_speculative_tokens is None


def test_the_fingerprint_covers_weights_and_fields_but_not_the_path(target: LoadedModel, tmp_path: Path) -> None:
    def fingerprint(folder: Path) -> str:
        config = SpeculationConfig("h", target.path, str(folder), "eagle3", 2, VerifyRule.GREEDY_DRAFT)
        return fingerprint_candidate(
            config, target, Models(EngineSettings("cpu", "float32")).draft(config, target), 1, {}
        ).fingerprint

    base = fingerprint(saved("eagle3", tmp_path / "a"))
    assert fingerprint(saved("eagle3", tmp_path / "b")) == base
    change(tmp_path / "b", norm_before_residual=True)
    assert fingerprint(tmp_path / "b") != base
    weights = load_file(tmp_path / "a" / "model.safetensors")
    weights["norm.weight"] += 0.1
    save_file(weights, tmp_path / "a" / "model.safetensors")
    assert fingerprint(tmp_path / "a") != base
