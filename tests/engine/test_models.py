"""What is loaded, what is refused and why, and the pair checks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import Gemma2Config, LlamaConfig, LlavaConfig, MistralConfig, PreTrainedTokenizerFast, T5Config

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
    with pytest.raises(ModelError, match=r"config\.json is not JSON; download it again"):
        load(tmp_path)


@pytest.fixture
def folder(tmp_path: Path, target: Any) -> Path:
    return save_model(tmp_path / "model", target, letter_tokenizer())


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def change_weights(folder: Path, *removed: str, **added: torch.Tensor) -> None:
    weights = load_file(folder / "model.safetensors") | {name.replace("__", "."): held for name, held in added.items()}
    kept = {name: weight.clone() for name, weight in weights.items() if name not in removed}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("removed", "added", "fields", "why"),
    [
        (["model.layers.1.mlp.up_proj.weight"], {}, {}, "they lack model.layers.1.mlp.up_proj.weight;"),
        (["lm_head.weight"], {}, {}, "they lack lm_head.weight;"),
        (
            [],
            {"model__layers__2__mlp__up_proj__weight": torch.ones(2)},
            {},
            "have left over model.layers.2.mlp.up_proj",
        ),
        ([], {"mtp__head": torch.ones(2)}, {}, "they have left over mtp.head;"),
        ([], {}, {"num_hidden_layers": 1}, r"have left over model.layers.1.input_layernorm.weight, .* \(9 in all\)"),
        ([], {}, {"num_hidden_layers": 3}, r"they lack model.layers.2.input_layernorm.weight, .* \(9 in all\)"),
        ([], {}, {"vocab_size": 20}, r"they have lm_head.weight as \[12, 32\] and not \[20, 32\], model.embed"),
        ([], {}, {"attention_bias": True}, "they lack model.layers.0.self_attn.k_proj.bias"),
        (["lm_head.weight"], {"score__weight": torch.ones(1, 32)}, {}, "lack lm_head.weight; have left over score"),
        ([], {}, {"tie_word_embeddings": True}, "ties the output layer to the embedding .* hold another one"),
        ([], {"model__norm__weight": torch.full((32,), torch.nan)}, {}, "its logits are not finite"),
    ],
)
def test_weights_of_another_model_than_the_configs_are_named(
    folder: Path, removed: list[str], added: dict[str, torch.Tensor], fields: dict[str, Any], why: str
) -> None:
    """transformers would fill what is missing with random numbers, and leave out what is too much."""
    change_weights(folder, *removed, **added)
    change_config(folder, **fields)
    with pytest.raises(ModelError, match=why) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_what_is_no_tensor_of_a_model_may_be_there_or_not(folder: Path) -> None:
    """An output layer that is the embedding, and the angles that old checkpoints hold."""
    change_weights(folder, **{"model__layers__0__self_attn__rotary_emb__inv_freq": torch.ones(8)})
    load(folder)
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    change_config(folder, tie_word_embeddings=True)
    change_weights(folder, lm_head__weight=embedding)
    load(folder)
    change_weights(folder, "lm_head.weight")
    assert load(folder).num_parameters == load(folder).model.num_parameters()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"rope_parameters": {"rope_type": "su", "rope_theta": 1e4}}, "does not know the rope type 'su'; .*yarn"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "Missing required keys .*factor"),
        ({"hidden_act": "unheard_of"}, "does not know 'unheard_of', which a file of the folder names"),
        ({"num_attention_heads": "4"}, "num_attention_heads.*int"),
        ({"num_attention_heads": 0}, "cannot be loaded"),
        ({"model_type": "unheard-of"}, "unheard-of"),
        ({"eos_token_id": [2, None]}, r"config.json: eos_token_id cannot be \[2, null\]; correct it to a token id"),
        ({"eos_token_id": [[2], 3]}, "eos_token_id cannot be"),
        ({"eos_token_id": True}, "eos_token_id cannot be true"),
        ({"eos_token_id": "2"}, "eos_token_id cannot be"),
        ({"eos_token_id": -1}, "eos_token_id cannot be -1"),
    ],
)
def test_configs_that_nothing_can_run_are_named(folder: Path, fields: dict[str, Any], why: str) -> None:
    change_config(folder, **fields)
    with pytest.raises(ModelError, match=why) as caught:
        load(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("tokenizer.json", "{", r"tokenizer\.json is not JSON; download it again"),
        (
            "tokenizer.json",
            "version https://git-lfs.github.com/spec/v1\n",
            r"tokenizer\.json is a Git LFS pointer; .*pull",
        ),
        ("tokenizer_config.json", "[", r"tokenizer_config\.json is not JSON; download it again"),
        ("chat_template.jinja", "version https://git-lfs.github.com/spec/v1\n", r"chat_template\.jinja is a Git LFS"),
    ],
)
def test_tokenizers_that_cannot_be_read_are_named(folder: Path, name: str, content: str, why: str) -> None:
    (folder / name).write_text(content)
    with pytest.raises(ModelError, match=why):
        load_tokenizer(str(folder))


def test_a_vision_language_folder_is_named_and_its_tokenizer_read(tmp_path: Path) -> None:
    text = tiny_llama(1).config
    config = LlavaConfig(text_config=text.to_dict(), vision_config={"model_type": "clip_vision_model"})
    letter_tokenizer().save_pretrained(tmp_path)
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"llava is a vision-language model.* Measure it through servers"):
        load(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path))
    assert (tokenizer.context_length, tokenizer.vocabulary_size) == (256, VOCABULARY)


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
    with pytest.raises(ModelError, match=r"tokenizers differ .2 tokens.*heterogeneous_draft_model"):
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
    for name, text in (("generation_config.json", '{"eos_token_id": [1, 3]}'), ("chat_template.jinja", "another")):
        changed = save_model(tmp_path / name, target, letter_tokenizer())
        (changed / name).write_text(text)
        assert fingerprint_candidate(config, load(changed), draft, 1, {}).fingerprint != base
    change_config(tmp_path / "other", rms_norm_eps=0.5)
    assert load(tmp_path / "other").weights_digest == other.weights_digest
    changed_draft = load(tmp_path / "other")
    assert (
        fingerprint_candidate(config, first, changed_draft, 1, {}).fingerprint
        != fingerprint_candidate(config, first, other, 1, {}).fingerprint
    )
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
    assert tokenizer.encode("abc") == loaded.encode("abc") == [2, 3, 4]
    (bare / "tokenizer.json").write_text('{"model": 1}')
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
    assert len(FolderTokenizer.of(raw, 256, VOCABULARY).encode_output("abab")) == 4


def test_a_tokenizer_class_with_another_encoding_is_asked_itself() -> None:
    class Doubling(PreTrainedTokenizerFast):  # type: ignore[misc]
        def _encode_plus(self, text: Any, *arguments: Any, **options: Any) -> Any:
            return super()._encode_plus(text + text, *arguments, **options)

    raw = Doubling(tokenizer_object=letter_tokenizer().backend_tokenizer)
    assert len(FolderTokenizer.of(raw, 256, VOCABULARY).encode_output("ab")) == 4
