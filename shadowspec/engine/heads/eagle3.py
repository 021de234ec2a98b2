"""EAGLE-3 drafts (2503.01840) in the format of the speculators package: one layer over the target's hidden states.

Entry p of the draft is at the target's position p; its inputs are that position's hidden states and the next token:

    fused = fc(hidden states of some layers, mostly three, side by side)
    x = fused + attention(norm(embedding(token p + 1)), hidden_norm(fused));  x = x + mlp(norm(x))
    logits of token p + 2 = head(norm(x))

The first drafted token uses the target's hidden states; further ones use the draft's x in place of `fused`.  Flags of
the config add norms: `norm_before_residual` (the first sum takes the normed `fused`), `norm_before_fc` and `fc_norm`
(over all fused states, or layer by layer), `norm_output` (norm(x) continues in place of x).  The layer is Llama's or
Qwen3's.  The vocabulary may be reduced (`d2t`: the target's id less the draft's).  Embeddings that the checkpoint
leaves out are the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812  # its name everywhere
from torch import nn
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from shadowspec.engine.forward import HiddenStates
from shadowspec.engine.heads import DraftVocabulary
from shadowspec.engine.heads.folder import HeadFolder
from shadowspec.engine.kv_cache import RaggedCache
from shadowspec.engine.llama import STATIC_ROPE_TYPES
from shadowspec.engine.llama_layer import Layer, Norm, adopt_layer, rotation_table, select_rotations
from shadowspec.errors import ModelError

LAYER_FIELD: Final = "transformer_layer_config"
AUXILIARY_FIELD: Final = "eagle_aux_hidden_state_layer_ids"
LAYER_PREFIX: Final = "layers.0."
# Norms and rotary angles of the two are the same.
LAYER_KINDS: Final[Mapping[str, tuple[Any, Any]]] = {
    "llama": (LlamaConfig, LlamaDecoderLayer),
    "qwen3": (Qwen3Config, Qwen3DecoderLayer),
}


@dataclass(frozen=True, slots=True)
class Eagle3Draft:
    """The weights of one draft."""

    hidden: HiddenStates  # those that it reads of the target
    embedding: torch.Tensor  # [vocabulary, hidden]
    owns_embedding: bool
    input_norm: Norm | None  # over all that is fused
    layer_norms: tuple[Norm, ...]  # one for each layer that is fused, or none
    fuse_weight: torch.Tensor  # [hidden, layers * the target's hidden]
    fuse_bias: torch.Tensor | None
    layer: Layer  # its attention's norm is that of the embeddings
    hidden_norm: Norm
    has_normed_residual: bool
    has_normed_output: bool
    norm: Norm
    head: torch.Tensor  # [drafted, hidden]
    vocabulary: DraftVocabulary
    rotations: torch.Tensor  # complex64 [positions, head_dim / 2]

    def angles(self, positions: torch.Tensor) -> torch.Tensor:
        """The rotations at positions (int64 [rows, count]); those past the context can never be emitted."""
        return select_rotations(self.rotations, positions.clamp(max=len(self.rotations) - 1))

    def fuse(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The target's hidden states [..., layers * hidden] as the layer takes them, [..., hidden]."""
        if self.input_norm is not None:
            hidden_states = self.input_norm(hidden_states)
        if self.layer_norms:
            parts = hidden_states.chunk(len(self.layer_norms), -1)
            hidden_states = torch.cat([norm(part) for norm, part in zip(self.layer_norms, parts, strict=True)], -1)
        return F.linear(hidden_states, self.fuse_weight, self.fuse_bias)

    def forward(
        self,
        tokens: torch.Tensor,  # int64 [rows, count]: the token after each position
        states: torch.Tensor,  # [rows, count, hidden]: fused, or the draft's
        angles: torch.Tensor,  # complex64 [rows, count, 1, head_dim / 2]
        mask: torch.Tensor,  # float [rows, 1, count, read]
        cache: RaggedCache,
    ) -> torch.Tensor:
        """Append entries to the cache; returns their states, which drafting continues, [rows, count, hidden]."""
        shape = states.shape
        embedded = F.embedding(tokens, self.embedding).reshape(-1, shape[-1])
        states = states.reshape(-1, shape[-1])
        normed = self.hidden_norm(states)
        mixed = torch.cat((self.layer.attention_norm(embedded), normed), -1)
        attended = self.layer.attend(cache.layers[0], mixed, angles, mask, shape[1])
        result = (normed if self.has_normed_residual else states).clone()
        self.layer.add_to(result, attended)
        return (self.norm(result) if self.has_normed_output else result).view(shape)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Over the target's vocabulary, [rows, vocabulary], from `forward`'s states, [rows, hidden]."""
        normed = states if self.has_normed_output else self.norm(states)
        return self.vocabulary.spread(F.linear(normed, self.head))

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """All tensors of the draft that are not the target's."""
        norms = (self.input_norm, *self.layer_norms, self.hidden_norm, self.norm)
        optional = (self.fuse_bias, self.vocabulary.ids, self.embedding if self.owns_embedding else None)
        return (
            self.fuse_weight,
            self.head,
            self.rotations,
            *self.layer.tensors(),
            *self.layer.copies(),
            *(norm.weight for norm in norms if norm is not None),
            *(tensor for tensor in optional if tensor is not None),
        )


def eagle3_draft(folder: HeadFolder, target_config: Any, target_embedding: torch.Tensor) -> Eagle3Draft:
    """The draft of a folder for a target of this config.

    Args:
        target_embedding: used where the folder has none, [vocabulary, hidden].

    Raises:
        ModelError: a field or a weight does not fit, or is of an unsupported kind.
    """
    config = _layer_config(folder, target_config)
    size, vocabulary = int(config.hidden_size), int(target_config.vocab_size)
    auxiliary = _auxiliary_layers(folder, int(target_config.num_hidden_layers))
    target_size = int(target_config.hidden_size)
    fused_size = len(auxiliary) * target_size
    folder.expect("target_hidden_size", target_size, f"the target's hidden size is {target_size}")
    if "norm_before_residual" not in folder.config:
        # vLLM takes true for granted and the speculators package false.
        raise folder.wrong("norm_before_residual", "is missing")
    drafted = DraftVocabulary(vocabulary, None)
    num_drafted = folder.number("draft_vocab_size")
    if folder.rows("d2t"):
        drafted = folder.vocabulary("d2t", num_drafted, vocabulary, are_offsets=True)
    elif num_drafted != vocabulary:
        raise folder.wrong(
            "draft_vocab_size", f"{num_drafted} of the target's {vocabulary} tokens, but the folder has no d2t"
        )
    folder.drop("t2d", "verifier_norm.weight", "verifier_lm_head.weight")
    owns_embedding = folder.rows("embed_tokens.weight") > 0
    if not owns_embedding and size != target_size:
        raise ModelError(f"{folder.path}: weight embed_tokens.weight is missing, and the target's has another width")
    embedding = folder.take("embed_tokens.weight", vocabulary, size) if owns_embedding else target_embedding
    layer_norms = [f"fc_norm.{index}.weight" for index in range(len(auxiliary))] if folder.flag("fc_norm") else []
    draft = Eagle3Draft(
        hidden=HiddenStates(auxiliary, of_prompt=True),
        embedding=embedding,
        owns_embedding=owns_embedding,
        input_norm=_norm(folder, "input_norm.weight", fused_size, config) if folder.flag("norm_before_fc") else None,
        layer_norms=tuple(_norm(folder, name, target_size, config) for name in layer_norms),
        fuse_weight=folder.take("fc.weight", size, fused_size),
        fuse_bias=folder.take("fc.bias", size) if folder.rows("fc.bias") else None,
        hidden_norm=_norm(folder, f"{LAYER_PREFIX}hidden_norm.weight", size, config),
        layer=_layer(folder, config),
        has_normed_residual=folder.flag("norm_before_residual"),
        has_normed_output=folder.flag("norm_output"),
        norm=_norm(folder, "norm.weight", size, config),
        head=folder.take("lm_head.weight", num_drafted, size),
        vocabulary=drafted,
        rotations=rotation_table(
            LlamaRotaryEmbedding(config), int(target_config.max_position_embeddings), torch.device("cpu")
        ).to(target_embedding.device),
    )
    folder.finish()
    return draft


def _layer_config(folder: HeadFolder, target_config: Any) -> Any:
    """The layer's transformers config; refused where another layer than those would be needed."""
    fields = folder.config.get(LAYER_FIELD)
    if not isinstance(fields, Mapping):
        raise folder.wrong(LAYER_FIELD, "is missing" if fields is None else "is not an object")
    kind = str(fields.get("model_type"))
    if kind not in LAYER_KINDS:
        raise folder.wrong(f"{LAYER_FIELD}.model_type", f"{kind!r} cannot be run; {' and '.join(LAYER_KINDS)} can")
    try:
        config = LAYER_KINDS[kind][0](**fields)
    except (TypeError, ValueError, KeyError) as error:
        raise folder.wrong(LAYER_FIELD, f"transformers does not take it ({type(error).__name__})") from error
    is_sliding = "sliding_attention" in (fields.get("layer_types") or ()) or (
        fields.get("sliding_window") is not None and fields.get("use_sliding_window", kind == "llama")
    )
    rope_type = (config.rope_parameters or {}).get("rope_type")
    for name, value, is_run in (
        ("vocab_size", config.vocab_size, config.vocab_size == target_config.vocab_size),
        ("num_hidden_layers", config.num_hidden_layers, config.num_hidden_layers == 1),
        ("hidden_act", config.hidden_act, config.hidden_act == "silu"),
        ("attention_bias", config.attention_bias, not config.attention_bias),
        ("mlp_bias", fields.get("mlp_bias"), not fields.get("mlp_bias")),
        ("sliding_window", fields.get("sliding_window"), not is_sliding),
        ("rope_parameters.rope_type", rope_type, rope_type in STATIC_ROPE_TYPES),
    ):
        if not is_run:
            needed = f" (the target has {target_config.vocab_size})" if name == "vocab_size" else ""
            raise folder.wrong(f"{LAYER_FIELD}.{name}", f"{value!r} cannot be run{needed}")
    return config


def _auxiliary_layers(folder: HeadFolder, num_layers: int) -> tuple[int, ...]:
    """Where the hidden states are taken: as the config says, else where vLLM takes them."""
    ids = folder.config.get(AUXILIARY_FIELD) or [2, num_layers // 2, num_layers - 3]
    if not isinstance(ids, list) or not all(isinstance(layer, int) and 0 <= layer < num_layers for layer in ids):
        raise folder.wrong(AUXILIARY_FIELD, f"{ids!r} are not layers of the target, which has {num_layers}")
    if ids != sorted(set(ids)):
        raise folder.wrong(AUXILIARY_FIELD, f"{ids!r} do not rise")
    return tuple(ids)


def _norm(folder: HeadFolder, name: str, size: int, config: Any) -> Norm:
    return Norm.of(LlamaRMSNorm(size, eps=config.rms_norm_eps), folder.take(name, size))


def _layer(folder: HeadFolder, config: Any) -> Layer:
    """Transformers' layer with projections of twice the width, filled from the folder and taken over."""
    size, head_dim = int(config.hidden_size), int(config.head_dim)
    with torch.device("meta"):
        layer = LAYER_KINDS[config.model_type][1](config, 0)
        attention = layer.self_attn
        attention.q_proj = nn.Linear(2 * size, config.num_attention_heads * head_dim, bias=False)
        attention.k_proj = nn.Linear(2 * size, config.num_key_value_heads * head_dim, bias=False)
        attention.v_proj = nn.Linear(2 * size, config.num_key_value_heads * head_dim, bias=False)
    weights = {
        name: folder.take(f"{LAYER_PREFIX}{name}", *parameter.shape) for name, parameter in layer.named_parameters()
    }
    layer.load_state_dict(weights, assign=True)
    return adopt_layer(layer, head_dim)
