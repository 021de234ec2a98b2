"""A target of three layers, as a folder, through both forwards, and heads for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from shadowspec.engine.models import LoadedModel, load_model
from tests.engine.heads.reference import Eagle3, Medusa, Speculator
from tests.small_models import letter_tokenizer, save_model, tiny_llama


@pytest.fixture(scope="session")
def plain() -> LlamaForCausalLM:
    """Transformers' own."""
    return tiny_llama(1, layers=3)


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_model(tmp_path_factory.mktemp("target"), tiny_llama(1, layers=3), letter_tokenizer())
    loaded = load_model(str(folder), torch.device("cpu"), torch.float32)
    assert loaded.forward_name == "direct_llama"
    return loaded


@pytest.fixture(scope="session")
def references() -> dict[str, Medusa | Speculator | Eagle3]:
    """One of each kind, for drafts of up to four tokens."""
    torch.manual_seed(3)
    return {
        "medusa": Medusa(4, 2).requires_grad_(False),
        "mlp_speculator": Speculator(4, 24, is_tied=True, scales_input=True).requires_grad_(False),
        "eagle3": Eagle3(drafted=[0, 2, 3, 5, 6, 7, 8, 10]).requires_grad_(False),
    }


@pytest.fixture(scope="session")
def folders(
    references: dict[str, Medusa | Speculator | Eagle3], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("heads")
    medusa, speculator, eagle = (references[kind] for kind in ("medusa", "mlp_speculator", "eagle3"))
    assert isinstance(medusa, Medusa)
    assert isinstance(speculator, Speculator)
    assert isinstance(eagle, Eagle3)
    return {
        "medusa": medusa.save(root / "medusa", 2),
        "mlp_speculator": speculator.save(root / "mlp"),
        "eagle3": eagle.save(root / "eagle"),
    }
