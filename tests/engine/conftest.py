"""The tiny pair that the engine's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import LlamaForCausalLM

from tests.small_models import disturbed, save_pair, tiny_llama


@pytest.fixture(scope="session")
def target() -> LlamaForCausalLM:
    return tiny_llama(1)


@pytest.fixture(scope="session")
def draft() -> LlamaForCausalLM:
    return disturbed(tiny_llama(1))


@pytest.fixture(scope="session")
def pair_folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("pair"))
