"""A model folder seen from its files: whether it can hold a model, what it states, and the digests of its content.

Nothing here imports torch or transformers, or reads more of the weights than their headers, but for their digest.  The
errors are the same for every command: the folder, the file, what is wrong with it, and the remedy.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from shadowspec.errors import ModelError

WANTED: Final = "a local folder with config.json, a tokenizer and *.safetensors"
AGAIN: Final = "download it again"
CONFIG, GENERATION, ADAPTER = "config.json", "generation_config.json", "adapter_config.json"
TOKENIZERS: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
OTHER_WEIGHTS: Final = {"*.gguf": "GGUF", "*.bin": "pickled", "*.pt": "pickled", "*.pth": "pickled"}
WEIGHTS: Final = "model.safetensors"
INDEX: Final = f"{WEIGHTS}.index.json"  # names the files of weights that are in several
HEADER_LENGTH_BYTES: Final = 8  # with which a safetensors file begins: how long its JSON header is
POINTER: Final = b"version https://git-lfs"  # begins a file of Git LFS whose content was not fetched
HASHED_BYTES: Final = 1 << 24  # read at once
HASHING_THREADS: Final = 4  # files of weights at once

# What transformers reads of a folder, by the digest that it is part of (patterns of `Path.glob`).  Files that no
# pattern matches (README, licences, weights in other formats, code, results of a training) change no figure.
WEIGHT_FILES: Final = ("*.safetensors", "*.safetensors.index.json")
CONFIG_FILES: Final = ("config*.json", GENERATION)
TOKENIZER_FILES: Final = (
    "tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.model", "*.tiktoken",
    "tekken.json", "chat_template*", "additional_chat_templates/*",
)  # fmt: skip

# Sampling parameters that a generation_config.json may state, with the bounds within which servers take them.
_BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0.0, math.inf),
    "top_p": (math.ulp(0.0), 1.0),
    "top_k": (-1.0, 2.0**31),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (math.ulp(0.0), math.inf),
    "max_new_tokens": (1.0, 2.0**31),
}
_WHOLE: Final = ("top_k", "max_new_tokens")


def require_model_folder(name: str, path: Path, *, needs_weights: bool = True) -> None:
    """Refuse a folder that cannot be a model's, with what is missing and what to do.

    Args:
        name: names the folder in the message, as with the option that gave it.
        needs_weights: False: a folder of settings and tokenizer will do.

    Raises:
        ModelError: it is missing or unreadable, or lacks a config, a tokenizer or weights in safetensors.
    """
    if path.is_file():
        raise ModelError(f"{name}: is a file; give the folder that holds it, {WANTED}")
    if not path.is_dir():
        raise ModelError(f"{name}: no such folder; {download_remedy(path)} and give {WANTED}")
    require_settings(name, path)
    if not any((path / file).is_file() for file in TOKENIZERS):
        raise ModelError(f"{name}: has no tokenizer ({TOKENIZERS[0]}); copy the tokenizer's files into it")
    if needs_weights:
        require_weights(name, path)


def require_settings(name: str, path: Path) -> None:
    """Refuse a folder whose config or generation config is missing or damaged, or states what nothing can run.

    Raises:
        ModelError: as said; or it holds an adapter, which needs its base model.
    """
    if (path / ADAPTER).exists():
        raise ModelError(
            f"{name}: {ADAPTER} says that it holds an adapter; merge it into its base model, and give that folder"
        )
    if (config := read_object(name, path / CONFIG)) is None:
        raise ModelError(f"{name}: has no {CONFIG}; give {WANTED}")
    _require_end_tokens(name, CONFIG, config)
    _require_end_tokens(name, GENERATION, read_object(name, path / GENERATION) or {})
    stated_sampling(name, path)


def require_tokenizer(name: str, path: Path, *, is_thorough: bool = False) -> None:
    """Refuse a tokenizer of which a file was not fetched; where nothing else says what is wrong, look into all of them.

    Raises:
        ModelError: as said.
    """
    for file in _matching(path, TOKENIZER_FILES):
        with file.open("rb") as opened:
            if opened.read(len(POINTER)) == POINTER:
                raise ModelError(f"{name}: {file.name} is a Git LFS pointer; download it (git lfs pull)")
        if is_thorough and file.suffix == ".json":
            read_object(name, file)


def stated_sampling(name: str, path: Path) -> dict[str, float]:
    """The sampling parameters that a folder's generation_config.json states, by name; none where there is no file.

    Raises:
        ModelError: the file is damaged, or a value is none that a server would take.
    """
    document, stated = read_object(name, path / GENERATION) or {}, {}
    for parameter, (least, most) in _BOUNDS.items():
        value = document.get(parameter)
        if value is None:
            continue
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not least <= value <= most or (parameter in _WHOLE and value != int(value)):
            raise ModelError(f"{name}: {GENERATION}: {parameter} cannot be {_shown(value)}; correct it, or {AGAIN}")
        stated[parameter] = int(value) if parameter in _WHOLE else float(value)
    return stated


def require_weights(name: str, path: Path) -> None:
    """Refuse a folder without weights in safetensors, or whose files are damaged as far as sizes and headers show.

    Raises:
        ModelError: as said.
    """
    files = sorted(path.glob("*.safetensors"))
    if not files:
        other_kind = next((kind for pattern, kind in OTHER_WEIGHTS.items() if any(path.glob(pattern))), None)
        more = (
            "" if other_kind is None else f" but {other_kind} weights; save the model as safetensors (save_pretrained)"
        )
        raise ModelError(f"{name}: has no weights in *.safetensors{more or '; download them'}")
    _require_shards(name, path)
    for file in files:
        if (problem := _problem(file)) is not None:
            raise ModelError(f"{name}: {file.name} is {problem}")


def download_remedy(path: Path) -> str:
    """How to get a model that is not there; a path of two parts may be meant as an id on a hub."""
    is_id = len(path.parts) == 2 and not path.is_absolute() and path.parts[0] not in (".", "..")
    return f"if it is a model id, run `hf download {path} --local-dir {path}`" if is_id else "download the model"


def weights_digest(folder: Path) -> str:
    """sha256 of a folder's weights, hex: of every byte, so that no revision passes for another."""
    files = _matching(folder, WEIGHT_FILES)
    with ThreadPoolExecutor(HASHING_THREADS) as pool:
        return _combined(folder, files, pool.map(_file_digest, files))


def config_digest(folder: Path) -> str:
    """sha256 of what a folder states beside its weights and its tokenizer, hex: positions, norms, end tokens."""
    files = _matching(folder, CONFIG_FILES)
    return _combined(folder, files, map(_file_digest, files))


def tokenizer_digest(folder: Path) -> str:
    """sha256 of a folder's tokenizer, hex: of its files, and of every chat template in them or beside them."""
    files = _matching(folder, TOKENIZER_FILES)
    return _combined(folder, files, map(_file_digest, files))


def _matching(folder: Path, patterns: Iterable[str]) -> list[Path]:
    return sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})


def _combined(folder: Path, files: Iterable[Path], digests: Iterable[str]) -> str:
    named = [[file.relative_to(folder).as_posix(), digest] for file, digest in zip(files, digests, strict=True)]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(HASHED_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def read_object(name: str, path: Path) -> dict[str, Any] | None:
    """The JSON object of a file; None where there is no file.

    Raises:
        ModelError: it cannot be read, or holds something else.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelError(f"{name}: {path.name} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        what = "not text" if isinstance(error, UnicodeDecodeError) else "not JSON"
        raise ModelError(f"{name}: {path.name} is {what}; {AGAIN}") from error
    if not isinstance(document, dict):
        raise ModelError(f"{name}: {path.name} holds no object; {AGAIN}")
    return document


def _require_end_tokens(name: str, file: str, document: Mapping[str, Any]) -> None:
    """Refuse end tokens that engines would read in different ways, as a null or a list within a list."""
    value = document.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(token_id) is not int or token_id < 0 for token_id in ids):
        raise ModelError(
            f"{name}: {file}: eos_token_id cannot be {_shown(value)}; correct it to a token id, or to a list of them"
        )


def _shown(value: object) -> str:
    return json.dumps(value)[:80]


def _require_shards(name: str, path: Path) -> None:
    """Refuse weights in several files of which one is missing, or beside a file that some engines would read."""
    if (index := read_object(name, path / INDEX)) is None:
        return
    try:
        shards = {str(shard) for shard in index["weight_map"].values()}
    except (KeyError, AttributeError) as error:
        raise ModelError(f"{name}: {INDEX} names no files; {AGAIN}") from error
    if missing := sorted(shard for shard in shards if not (path / shard).is_file()):
        raise ModelError(f"{name}: lacks {missing[0]} ({len(missing)} of {len(shards)} weight files); download it")
    if WEIGHTS not in shards and (path / WEIGHTS).is_file():
        raise ModelError(f"{name}: holds {WEIGHTS}, and {INDEX} names other files; remove the one that is left over")


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
            if size < end:
                return f"cut short ({size:,} of {end:,} bytes); download the weights again"
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            return "no safetensors file; download the weights again"
    if not tensors:
        return "without tensors; download the weights again"
    return None if size == end else f"longer than its tensors ({size:,} of {end:,} bytes); download the weights again"
