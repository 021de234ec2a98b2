"""Whether the files of model folders show, without loading them, that ordinary models can be measured together.

`doctor` checks this first, so that it takes seconds, and no memory of a device on which a worker runs.  This module
settles only clear cases: a model of the Llama family with exactly the weights that its config implies, and a draft of
the same family and tokenizer, where loading would warn of nothing.  All others must be loaded to be judged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from shadowspec.types import SpeculationConfig

FAMILY: Final = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
USUAL_SIZE_RATIOS: Final = (
    4.0,
    10.0,
)  # target over draft: below, a pass of the draft costs much; above, it rarely agrees
# Entries of the weights that a step multiplies (4 MiB) from which on compiled code runs a model on a CPU.  The number
# is fixed, so that a model has the same forward on every machine that has a compiler.
LEAST_COMPILED: Final = 2**20
# Keys that a config of the family may set, with the value without effect; `None` and an absent key have none either.
NEUTRAL: Final[Mapping[str, object]] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "rope_scaling": None,
    "attn_logit_softcapping": None,
    "quantization_config": None,
    "auto_map": None,
}
ROPE_KEYS: Final = {"rope_type", "rope_theta"}
FLOATS: Final = {"F32": 4, "F16": 2, "BF16": 2}  # bytes of an entry, by safetensors' name
TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
HEADER_BYTES: Final = 8  # of a safetensors file: the length of its header, little-endian
DAMAGE: Final = (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError)  # of a file read as JSON

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Folder:
    """An ordinary model, not loaded."""

    config: Mapping[str, Any]
    num_parameters: int
    tokenizer: tuple[bytes | None, ...]  # the content of TOKENIZER_FILES


def are_settled(target_path: str, candidates: Sequence[SpeculationConfig], *, is_on_cpu: bool) -> bool:
    """Whether the files prove that a target and its candidates can be measured without a warning; False where only
    loading can show it.

    On a CPU that includes whether the compiled forward, which runs all but tiny models there, can be built; the first
    call of a user on a processor builds it.
    """
    target = _read(Path(target_path))
    if target is None or (is_on_cpu and target.num_parameters >= LEAST_COMPILED and not _compiles()):
        return False
    return all(_is_settled(target, candidate) for candidate in candidates)


def _compiles() -> bool:
    from shadowspec_kernels.building import LLAMA_CPU, load_library
    from shadowspec_kernels.errors import UnavailableError

    try:
        load_library(LLAMA_CPU)
    except UnavailableError:
        return False
    return True


def _is_settled(target: _Folder, candidate: SpeculationConfig) -> bool:
    """Of a draft too: it is smaller than its target."""
    if candidate.backend != "torch":
        return False
    if candidate.draft is None:
        return True
    draft = _read(Path(candidate.draft)) if candidate.proposer == "draft_model" else None
    if draft is None:
        return False
    least, most = USUAL_SIZE_RATIOS
    return (
        draft.tokenizer == target.tokenizer
        and draft.config["model_type"] == target.config["model_type"]
        and draft.config["vocab_size"] == target.config["vocab_size"]
        and draft.config["max_position_embeddings"] >= target.config["max_position_embeddings"]
        and least <= target.num_parameters / draft.num_parameters <= most
    )


def _read(folder: Path) -> _Folder | None:
    """An ordinary model's folder; None where it is not one, or damaged."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if not _is_ordinary(config):
            return None
        shapes = dict(_shapes(folder))
        if shapes != _expected(config):
            return None
        generation = folder / "generation_config.json"
        if generation.exists():
            json.loads(generation.read_text(encoding="utf-8"))
        files = tuple(path.read_bytes() if (path := folder / name).exists() else None for name in TOKENIZER_FILES)
        if "auto_map" in json.loads(files[1] or b"null"):
            return None
    except DAMAGE:
        return None
    try:
        Tokenizer.from_file(str(folder / TOKENIZER_FILES[0]))
    except Exception:  # the library's only kind
        return None
    return _Folder(config, sum(_size(shape) for shape in shapes.values()), files)


def _is_ordinary(config: Mapping[str, Any]) -> bool:
    """Whether attention, activation and positions are those that every model of the family can be run with."""
    rope = config.get("rope_parameters") or {"rope_type": "default"}
    return (
        config["architectures"] == [FAMILY[config["model_type"]]]
        and all(config.get(name) in (None, value) for name, value in NEUTRAL.items())
        and (config.get("sliding_window") is None or config.get("use_sliding_window") is False)
        and set(config.get("layer_types") or ["full_attention"]) == {"full_attention"}
        and rope["rope_type"] == "default"
        and set(rope) <= ROPE_KEYS
        and config["num_attention_heads"] % config["num_key_value_heads"] == 0
        and config["max_position_embeddings"] >= 1
    )


def _expected(config: Mapping[str, Any]) -> Shapes:
    """Names and shapes of a model's weights, by its config."""
    hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    layer: Shapes = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if config["model_type"] == "qwen2":
        layer |= {f"self_attn.{name}_proj.bias": (size,) for name, size in (("q", queries), ("k", keys), ("v", keys))}
    if config["model_type"] == "qwen3":
        layer |= {f"self_attn.{name}_norm.weight": (head_dim,) for name in ("q", "k")}
    shapes: Shapes = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    if not config.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = (vocabulary, hidden)
    for index in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def _shapes(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the weights that a folder holds, from the headers of its files.

    Raises:
        ValueError: a file is cut short, or holds no floating-point numbers.
    """
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(HEADER_BYTES), "little")
            if length > path.stat().st_size:
                raise ValueError(f"{path}: its header is cut short")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        held = 0
        for name, entry in header.items():
            shape = tuple(entry["shape"])
            held += _size(shape) * FLOATS[entry["dtype"]]
            yield name, shape
        if path.stat().st_size != HEADER_BYTES + length + held:
            raise ValueError(f"{path}: is cut short")


def _size(shape: Sequence[int]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size
