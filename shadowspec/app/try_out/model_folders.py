"""Whether a folder can hold a model, seen from its files: before torch is imported or weights are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from shadowspec.errors import ModelError

WANTED: Final = "a local folder with config.json, a tokenizer and *.safetensors"
TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
OTHER_WEIGHTS: Final = {"*.gguf": "GGUF", "*.bin": "pickled", "*.pt": "pickled", "*.pth": "pickled"}
INDEX: Final = "model.safetensors.index.json"  # names the files of weights that are in several
HEADER_LENGTH_BYTES: Final = 8  # with which a safetensors file begins: how long its JSON header is
POINTER: Final = b"version https://git-lfs"  # begins a file of Git LFS whose content was not fetched


def require_model_folder(option: str, path: Path) -> None:
    """Refuse a folder that cannot be a model's, with what is missing and what to do.

    Args:
        option: the option that names the folder, for the message.

    Raises:
        ModelError: it is missing or unreadable, or lacks a config, a tokenizer or weights in safetensors.
    """
    name = f"{option} {path}"
    if path.is_file():
        raise ModelError(f"{name}: is a file; give the folder that holds it, {WANTED}")
    if not path.is_dir():
        raise ModelError(f"{name}: no such folder; {download_remedy(path)} and give {WANTED}")
    try:
        files = {file.name for file in path.iterdir()}
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
        other_kind = next((kind for pattern, kind in OTHER_WEIGHTS.items() if any(path.glob(pattern))), None)
        more = (
            "" if other_kind is None else f" but {other_kind} weights; save the model as safetensors (save_pretrained)"
        )
        raise ModelError(f"{name}: has no weights in *.safetensors{more or '; download them'}")
    _require_shards(name, path)
    for file in weights:
        if (problem := _problem(file)) is not None:
            raise ModelError(f"{name}: {file.name} is {problem}")


def download_remedy(path: Path) -> str:
    """How to get a model that is not there; a path of two parts may be meant as an id on a hub."""
    is_id = len(path.parts) == 2 and not path.is_absolute() and path.parts[0] not in (".", "..")
    return f"if it is a model id, run `hf download {path} --local-dir {path}`" if is_id else "download the model"


def _require_shards(name: str, path: Path) -> None:
    """Refuse weights in several files of which one is missing."""
    index = path / INDEX
    if not index.is_file():
        return
    try:
        shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{name}: {INDEX} cannot be read; download it again") from error
    if missing := sorted(shard for shard in shards if not (path / str(shard)).is_file()):
        raise ModelError(f"{name}: lacks {missing[0]} ({len(missing)} of {len(shards)} weight files); download it")


def _problem(file: Path) -> str | None:
    """What is wrong with a file of weights, by its size and header; None if nothing is."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        start = opened.read(len(POINTER))
        if not start:
            return "empty; download the weights again"
        if start == POINTER:
            return "a Git LFS pointer; download the weights (git lfs pull)"
        length = int.from_bytes(start[:HEADER_LENGTH_BYTES], "little")
        if length > size:
            return "no safetensors file, or cut short; download the weights again"
        opened.seek(HEADER_LENGTH_BYTES)
        try:
            tensors = [tensor for name, tensor in json.loads(opened.read(length)).items() if name != "__metadata__"]
            end = HEADER_LENGTH_BYTES + length + max((tensor["data_offsets"][1] for tensor in tensors), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return "no safetensors file; download the weights again"
    return f"cut short ({size:,} of {end:,} bytes); download the weights again" if size < end else None


def _require_json_object(name: str, config: str) -> None:
    try:
        document = json.loads(config)
    except ValueError as error:
        raise ModelError(f"{name}: config.json is not JSON; download it again") from error
    if not isinstance(document, dict):
        raise ModelError(f"{name}: config.json holds no object; download it again")
