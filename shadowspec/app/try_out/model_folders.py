"""Whether a folder can hold a model, seen from its files: before torch is imported or weights are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from shadowspec.errors import ModelError

WANTED: Final = "a local folder with config.json, a tokenizer and *.safetensors"
TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
OTHER_WEIGHTS: Final = {"*.gguf": "GGUF", "*.bin": "pickled", "*.pt": "pickled", "*.pth": "pickled"}
POINTER: Final = b"version https://git-lfs"  # begins a file of Git LFS whose content was not fetched


def require_model_folder(option: str, path: Path) -> None:
    """Refuse a folder that cannot be a model's, with what is missing and what to do.

    Args:
        option: the option that names the folder, for the message.
        path: the folder.

    Raises:
        ModelError: it is missing or unreadable, or lacks a config, a tokenizer or weights in safetensors.
    """
    name = f"{option} {path}"
    if path.is_file():
        raise ModelError(f"{name}: is a file; give the folder that holds it, {WANTED}")
    if not path.is_dir():
        raise ModelError(f"{name}: no such folder; download the model and give {WANTED}")
    try:
        files = {each.name for each in path.iterdir()}
        config = (path / "config.json").read_text(encoding="utf-8") if "config.json" in files else None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{name}: cannot be read ({getattr(error, 'strerror', 'config.json is not text')})") from error
    if config is None:
        raise ModelError(f"{name}: has no config.json; give {WANTED}")
    _require_json_object(name, config)
    if files.isdisjoint(TOKENIZERS):
        raise ModelError(f"{name}: has no tokenizer ({TOKENIZERS[0]}); copy the tokenizer's files into it")
    weights = sorted(path.glob("*.safetensors"))
    if not weights:
        found = next((kind for pattern, kind in OTHER_WEIGHTS.items() if any(path.glob(pattern))), None)
        more = "" if found is None else f" but {found} weights; save the model as safetensors (save_pretrained)"
        raise ModelError(f"{name}: has no weights in *.safetensors{more or '; download them'}")
    for file in weights:
        with file.open("rb") as opened:
            start = opened.read(len(POINTER))
        if not start or start == POINTER:
            what = "a Git LFS pointer" if start else "empty"
            raise ModelError(f"{name}: {file.name} is {what}; download the weights (git lfs pull)")


def _require_json_object(name: str, config: str) -> None:
    try:
        document = json.loads(config)
    except ValueError as error:
        raise ModelError(f"{name}: config.json is not JSON; download it again") from error
    if not isinstance(document, dict):
        raise ModelError(f"{name}: config.json holds no object; download it again")
