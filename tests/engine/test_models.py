"""What is loaded, what is refused and why, and the pair checks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import Gemma2Config, LlamaConfig, MistralConfig, PreTrainedTokenizerFast, T5Config

from shadowspec import demo
from shadowspec.engine import llama_layer
from shadowspec.engine.candidate import Models, fingerprint_candidate
from shadowspec.engine.llama import DirectLlama
from shadowspec.engine.models import check_pair, load_model, refuse_unmeasurable, runnable
from shadowspec.engine.tokenizer import FolderTokenizer, check_contexts, load_tokenizer
from shadowspec.errors import ModelError, RecordError
from shadowspec.types import SpeculationConfig, VerifyRule
from shadowspec.types.settings import EngineSettings
from tests.small_models import VOCABULARY, letter_tokenizer, save_model, tiny_llama

CPU = torch.device("cpu")


def load(folder: Path) -> Any:
    return load_model(str(folder), CPU, torch.float32)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (T5Config(), "encoder-decoder"),
        (MistralConfig(sliding_window=128), "sliding"),
        (Gemma2Config(), "sliding_attention"),
        (LlamaConfig(layer_types=["linear_attention"] * 32, num_hidden_layers=32), "linear_attention"),
    ],
)
def test_unordinary_attention_is_refused_with_its_reason(config: Any, why: str) -> None:
    with pytest.raises(ModelError, match=why):
        refuse_unmeasurable(config, "models/x")


def test_a_missing_or_broken_folder_names_itself(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        load(tmp_path / "nothing")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(tmp_path)


def test_the_probe_notices_positions_that_are_ignored() -> None:
    """A model that goes its own way about positions gives other logits with a ragged cache."""
    model = tiny_llama(1)
    original = model.forward

    def stubborn(*args: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        moved = None if position_ids is None else torch.zeros_like(position_ids)
        return original(*args, position_ids=moved, **kwargs)

    model.forward = stubborn
    with pytest.raises(ModelError, match="ragged cache"):
        runnable(model, "stubborn")


def test_the_probe_notices_a_direct_forward_that_is_not_the_models_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(runnable(tiny_llama(1), "fine"), DirectLlama)
    monkeypatch.setattr(llama_layer, "_turn", lambda states, angles: None)
    with pytest.raises(ModelError, match="ragged cache"):
        runnable(tiny_llama(1), "unturned")


@pytest.mark.parametrize(
    ("ratio", "says"), [(3.9, "only 3.9 times smaller"), (4.0, None), (10.0, None), (10.1, "is 10.1 times smaller")]
)
def test_a_size_out_of_the_usual_is_noted(
    pair_folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, ratio: float, says: str | None
) -> None:
    target, draft = load(pair_folders[0]), load(pair_folders[1])
    monkeypatch.setattr(target.model, "num_parameters", lambda: 1_000 * ratio)
    monkeypatch.setattr(draft.model, "num_parameters", lambda: 1_000)
    notes = [each for each in check_pair(target, draft) if "times smaller" in each]
    assert [says is not None and says in each for each in notes] == ([] if says is None else [True])


def test_another_family_with_the_same_tokens_is_noted(pair_folders: tuple[Path, Path]) -> None:
    target, draft = load(pair_folders[0]), load(pair_folders[1])
    assert not [each for each in check_pair(target, draft) if "family" in each]
    draft.model.config.model_type = "qwen2"
    assert any("of the family qwen2, and its target of llama" in each for each in check_pair(target, draft))


def test_pair_checks(tmp_path: Path, pair_folders: tuple[Path, Path]) -> None:
    target, draft = load(pair_folders[0]), load(pair_folders[1])
    assert any(
        "only 1.0 times smaller than its target (4 to 10 is usual)" in each for each in check_pair(target, draft)
    )
    other = load(save_model(tmp_path / "letters", tiny_llama(2), letter_tokenizer(first="b")))
    with pytest.raises(ModelError, match="tokenizers differ"):
        check_pair(target, other)
    larger = load(save_model(tmp_path / "large", tiny_llama(2, vocabulary=14), letter_tokenizer(14)))
    with pytest.raises(ModelError, match="vocabulary sizes differ"):
        check_pair(target, larger)
    model = tiny_llama(3)
    model.config.max_position_embeddings = 64
    short = load(save_model(tmp_path / "short", model, letter_tokenizer()))
    assert any("its context of 64 tokens is shorter" in warning for warning in check_pair(target, short))
    with pytest.raises(ModelError, match="shorter"):
        check_contexts("target", target.tokenizer, "short", short.tokenizer)
    check_contexts("target", target.tokenizer, "draft", draft.tokenizer)


def test_a_fingerprint_covers_weights_and_settings_but_not_paths(
    tmp_path: Path, pair_folders: tuple[Path, Path], target: Any
) -> None:
    first, draft = load(pair_folders[0]), load(pair_folders[1])
    copy = load(save_model(tmp_path / "copy", target, letter_tokenizer()))
    other = load(save_model(tmp_path / "other", tiny_llama(9), letter_tokenizer()))
    config = SpeculationConfig("a", "t", "d", "draft_model", 4, VerifyRule.REJECTION)
    base = fingerprint_candidate(config, first, draft, 1, {}).fingerprint
    assert fingerprint_candidate(config, copy, draft, 1, {}).fingerprint == base
    assert fingerprint_candidate(config, other, draft, 1, {}).fingerprint != base
    deeper = SpeculationConfig("a", "t", "d", "draft_model", 5, VerifyRule.REJECTION)
    assert fingerprint_candidate(deeper, first, draft, 1, {}).fingerprint != base


def test_models_are_loaded_once(pair_folders: tuple[Path, Path]) -> None:
    models = Models(EngineSettings("cpu"))
    assert models.load(str(pair_folders[0])) is models.load(str(pair_folders[0]))
    with pytest.raises(ModelError, match="backend"):
        models.candidates(
            str(pair_folders[0]),
            [SpeculationConfig("a", "t", None, "ngram", 2, VerifyRule.GREEDY_DRAFT, backend="triton")],
            print,
            1,
            {},
        )


def test_a_template_that_refuses_keeps_the_prompt_to_itself(pair_folders: tuple[Path, Path]) -> None:
    loaded = load(pair_folders[0])
    tokenizer = loaded.tokenizer
    assert tokenizer.decode(tokenizer.render_chat([{"role": "user", "content": "abc"}], None)) == "abc"
    loaded.tokenizer.raw.chat_template = "{{ raise_exception(messages[0]['content']) }}"
    with pytest.raises(RecordError) as caught:
        tokenizer.render_chat([{"role": "user", "content": "secret words"}], None)
    assert "secret" not in str(caught.value)
    loaded.tokenizer.raw.chat_template = None
    with pytest.raises(RecordError, match="no chat template"):
        tokenizer.render_chat([{"role": "user", "content": "a"}], None)


def test_a_tokenizer_is_loaded_without_weights(tmp_path: Path, pair_folders: tuple[Path, Path]) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(pair_folders[0], bare, ignore=shutil.ignore_patterns("*.safetensors"))
    tokenizer, loaded = load_tokenizer(str(bare)), load(pair_folders[0]).tokenizer
    assert (tokenizer.context_length, tokenizer.vocabulary_size) == (256, 12)
    assert (tokenizer.context_length, tokenizer.vocabulary_size) == (loaded.context_length, loaded.vocabulary_size)
    assert tokenizer.digest() == loaded.digest()
    (bare / "chat_template.jinja").write_text("another one")
    assert load_tokenizer(str(bare)).digest() != loaded.digest()
    assert tokenizer.encode("abc") == loaded.encode("abc") == [2, 3, 4]
    (bare / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_tokenizer(str(bare))
    with pytest.raises(ModelError, match="does not exist"):
        load_tokenizer(str(tmp_path / "nothing"))


@pytest.fixture(scope="module")
def bundled_tokenizer() -> FolderTokenizer:
    return load_tokenizer(str(demo.TARGET))


@given(st.text() | st.sampled_from(("<|bos|>", "<|eos|> x", "a<|bos|>b", "")))
def test_token_ids_are_those_of_transformers(bundled_tokenizer: FolderTokenizer, text: str) -> None:
    assert bundled_tokenizer.encode(text) == bundled_tokenizer.raw(text)["input_ids"]
    assert bundled_tokenizer.encode_output(text) == bundled_tokenizer.raw(text, add_special_tokens=False)["input_ids"]


def test_a_tokenizer_that_is_saved_with_a_limit_cuts_nothing() -> None:
    raw = letter_tokenizer()
    raw.backend_tokenizer.enable_truncation(2)
    raw.backend_tokenizer.enable_padding(length=9)
    assert len(FolderTokenizer(raw, 256, VOCABULARY).encode_output("abab")) == 4


def test_a_tokenizer_class_with_another_encoding_is_asked_itself() -> None:
    class Doubling(PreTrainedTokenizerFast):  # type: ignore[misc]
        def _encode_plus(self, text: Any, *arguments: Any, **options: Any) -> Any:
            return super()._encode_plus(text + text, *arguments, **options)

    raw = Doubling(tokenizer_object=letter_tokenizer().backend_tokenizer)
    assert len(FolderTokenizer(raw, 256, VOCABULARY).encode_output("ab")) == 4
