"""Model folders seen from their files: what their digests cover, and damage that is named before anything is loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.errors import ModelError
from shadowspec.model_folder import (
    config_digest,
    require_model_folder,
    stated_sampling,
    tokenizer_digest,
    weights_digest,
)

# Files of published folders, by the digest that covers them; None: no figure depends on them.
FILES = {
    "config.json": config_digest,
    "generation_config.json": config_digest,
    "model-00001-of-00002.safetensors": weights_digest,
    "model-00002-of-00002.safetensors": weights_digest,
    "model.safetensors.index.json": weights_digest,
    "tokenizer.json": tokenizer_digest,
    "tokenizer_config.json": tokenizer_digest,
    "tokenizer.model": tokenizer_digest,
    "special_tokens_map.json": tokenizer_digest,
    "added_tokens.json": tokenizer_digest,
    "vocab.json": tokenizer_digest,
    "vocab.txt": tokenizer_digest,
    "merges.txt": tokenizer_digest,
    "spiece.model": tokenizer_digest,
    "sentencepiece.bpe.model": tokenizer_digest,
    "qwen.tiktoken": tokenizer_digest,
    "tekken.json": tokenizer_digest,
    "chat_template.jinja": tokenizer_digest,
    "chat_template.json": tokenizer_digest,
    "additional_chat_templates/tool_use.jinja": tokenizer_digest,
    "README.md": None,
    "LICENSE": None,
    ".gitattributes": None,
    "pytorch_model.bin": None,
    "model.gguf": None,
    "modeling_custom.py": None,
    "training_args.bin": None,
    "trainer_state.json": None,
    "original/params.json": None,
    "shadowspec.db": None,
}
DIGESTS = (weights_digest, config_digest, tokenizer_digest)
WEIGHTS = json.dumps({"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
WHOLE = len(WEIGHTS).to_bytes(8, "little") + WEIGHTS + b"abcd"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    for number, name in enumerate(FILES):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(f"{number} content of {name}".encode() * 200)
    return folder


@given(name=st.sampled_from(list(FILES)), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_one_byte_of_any_file_that_figures_depend_on_changes_the_digest(
    published: Path, name: str, place: float, bit: int
) -> None:
    before = [digest(published) for digest in DIGESTS]
    content = (published / name).read_bytes()
    changed = bytearray(content)
    changed[int(place * len(content))] ^= 1 << bit
    (published / name).write_bytes(changed)
    after = [digest(published) for digest in DIGESTS]
    (published / name).write_bytes(content)
    differs = [digest for digest, old, new in zip(DIGESTS, before, after, strict=True) if old != new]
    assert differs == ([] if FILES[name] is None else [FILES[name]])


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_gone_or_has_another_name_changes_it_too(published: Path, tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(published, tmp_path / "copy")
    assert [digest(folder) for digest in DIGESTS] == [digest(published) for digest in DIGESTS]
    (folder / name).unlink()
    differs = {digest for digest in DIGESTS if digest(folder) != digest(published)}
    assert differs == {FILES[name]} - {None}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(WHOLE)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("model.safetensors", b"", "model.safetensors is empty; download"),
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid", "a Git LFS pointer; .*git lfs pull"),
        ("model.safetensors", WHOLE[:-1], r"cut short \(\d+ of \d+ bytes\); download"),
        ("model.safetensors", WHOLE[:20], "cut short; download"),
        ("model.safetensors", WHOLE + b"x", r"longer than its tensors \(\d+ of \d+ bytes\); download"),
        ("model.safetensors", b"\2" + bytes(7) + b"{}", "without tensors; download"),
        ("model.safetensors", b"\2" + bytes(7) + b"[]", "no safetensors file; download"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "b"}}', r"lacks b \(1 of 1 weight files\); download"),
        ("model.safetensors.index.json", b'{"weight_map": 3}', "names no files; download"),
        ("model.safetensors.index.json", b"{", "index.json is not JSON; download"),
        ("config.json", b"\xff", "config.json is not text; download"),
        ("config.json", b"{", "config.json is not JSON; download"),
        ("config.json", b"[]", "config.json holds no object; download"),
        ("config.json", b'{"eos_token_id": [2, null]}', r"config.json: eos_token_id cannot be \[2, null\]; correct"),
        ("generation_config.json", b"{", "generation_config.json is not JSON; download"),
        ("generation_config.json", b'{"eos_token_id": [[2]]}', r"generation_config.json: eos_token_id cannot be \[\[2"),
        ("generation_config.json", b'{"temperature": "0.6"}', 'temperature cannot be "0.6"; correct'),
        ("generation_config.json", b'{"temperature": NaN}', "temperature cannot be NaN; correct"),
        ("generation_config.json", b'{"top_p": 0}', "top_p cannot be 0; correct"),
        ("generation_config.json", b'{"top_k": 2.5}', "top_k cannot be 2.5; correct"),
        ("generation_config.json", b'{"repetition_penalty": true}', "repetition_penalty cannot be true; correct"),
        ("adapter_config.json", b"{}", "holds an adapter; merge it into its base model"),
    ],
)
def test_damage_is_named_with_its_file_and_remedy(folder: Path, name: str, content: bytes, why: str) -> None:
    require_model_folder("it", folder)
    (folder / name).write_bytes(content)
    with pytest.raises(ModelError, match=why) as caught:
        require_model_folder("it", folder)
    assert str(caught.value).startswith("it: ")
    assert "\n" not in str(caught.value)


def test_an_index_beside_a_file_that_it_does_not_name(folder: Path) -> None:
    """Some engines read the file, and others those of the index."""
    (folder / "a.safetensors").write_bytes(WHOLE)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"w": "a.safetensors"}}')
    with pytest.raises(ModelError, match="holds model\\.safetensors, and model"):
        require_model_folder("it", folder)
    (folder / "model.safetensors").unlink()
    require_model_folder("it", folder)


def test_the_sampling_that_a_folder_states(folder: Path) -> None:
    assert stated_sampling("it", folder) == {}
    (folder / "generation_config.json").write_text(
        '{"eos_token_id": 2, "do_sample": true, "temperature": 1, "top_p": null, "top_k": 20.0, "max_new_tokens": 64}'
    )
    assert stated_sampling("it", folder) == {"temperature": 1.0, "top_k": 20, "max_new_tokens": 64}
