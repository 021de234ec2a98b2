"""Medusa, mlp_speculator and EAGLE-3 written once more from their papers and published code, plainly and without a
cache, with checkpoints in the published layouts: what the engine's own forwards are held against."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

VOCABULARY, HIDDEN = 12, 32
AUXILIARY = (0, 1, 2)  # of a target with three layers


def write_folder(folder: Path, config: dict[str, Any], weights: dict[str, torch.Tensor], name: str = "model") -> Path:
    """A checkpoint as people have it on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    contiguous = {key: weight.detach().clone(memory_format=torch.contiguous_format) for key, weight in weights.items()}
    save_file(contiguous, folder / f"{name}.safetensors")
    return folder


class ResBlock(nn.Module):
    """Of Medusa's own code."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(HIDDEN, HIDDEN, bias=bias)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return states + nn.functional.silu(self.linear(states))


class Medusa(nn.ModuleList):
    """`ResBlock`s and a linear head for each token, the module list that Medusa's training saves."""

    def __init__(self, num_heads: int, num_layers: int, *, bias: bool = True) -> None:
        blocks = (
            nn.Sequential(*(ResBlock(bias=bias) for _ in range(num_layers)), nn.Linear(HIDDEN, VOCABULARY, bias=False))
            for _ in range(num_heads)
        )
        super().__init__(blocks)

    def logits(self, hidden: torch.Tensor, index: int) -> torch.Tensor:
        logits: torch.Tensor = self[index](hidden)
        return logits

    def drafted(self, hidden: torch.Tensor, last_token: int, count: int) -> list[int]:
        """The arg-max of each head; `hidden`: the final norm's state, [hidden]."""
        return [int(self.logits(hidden, index).argmax()) for index in range(count)]

    def save(self, folder: Path, num_layers: int) -> Path:
        config = {"medusa_num_heads": len(self), "medusa_num_layers": num_layers, "base_model_name_or_path": "x"}
        return write_folder(folder, config, self.state_dict(), "medusa_lm_head")

    def save_for_vllm(self, folder: Path, num_layers: int, **fields: Any) -> Path:
        """vLLM's layout, which has no biases unless it is told so."""
        weights = {}
        for index, head in enumerate(self):
            for layer in range(num_layers):
                weights[f"medusa_heads.blocks.{index}.layers.{layer}.weight"] = head[layer].linear.weight
            weights[f"medusa_heads.lm_heads.{index}.weight"] = head[num_layers].weight
        config = {
            "model_type": "medusa",
            "architectures": ["MedusaModel"],
            "hidden_size": HIDDEN,
            "vocab_size": VOCABULARY,
            "num_heads": len(self),
            "num_hidden_layers": num_layers,
        }
        return write_folder(folder, config | fields, weights)


class SpeculatorNorm(nn.Module):
    """The L2 norm of IBM's code."""

    def __init__(self, size: int, *, is_affine: bool = True) -> None:
        super().__init__()
        self.is_affine = is_affine
        if is_affine:
            self.weight = nn.Parameter(torch.rand(size) + 0.5)
            self.bias = nn.Parameter(0.1 * torch.randn(size))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        normed = states / torch.sqrt((states * states).mean(-1, keepdim=True) + 1e-6)
        return self.weight * normed + self.bias if self.is_affine else normed


class Speculator(nn.Module):
    """IBM's MLPSpeculator."""

    def __init__(self, count: int, inner: int, *, is_tied: bool = False, scales_input: bool = False) -> None:
        super().__init__()
        self.count, self.inner, self.is_tied, self.scales_input = count, inner, is_tied, scales_input
        self.emb = nn.ModuleList(nn.Embedding(VOCABULARY, inner) for _ in range(count))
        self.proj = nn.ModuleList(nn.Linear(inner if i else HIDDEN, inner, bias=False) for i in range(count))
        self.head = nn.ModuleList(nn.Linear(inner, VOCABULARY, bias=False) for _ in range(count))
        self.ln = nn.ModuleList(SpeculatorNorm(inner) for _ in range(count))
        self.ln0 = SpeculatorNorm(HIDDEN, is_affine=False)
        if is_tied:
            for index in range(1, count):
                self.emb[index], self.head[index], self.ln[index] = self.emb[0], self.head[0], self.ln[0]
                if index > 1:
                    self.proj[index] = self.proj[1]
        self.state_weight = 0.5 ** (0.5 / count)
        self.emb_weight = math.sqrt((1 - self.state_weight**2) * (inner / 2))

    def logits(self, hidden: torch.Tensor, tokens: list[torch.Tensor]) -> list[torch.Tensor]:
        """Of every stage, [rows, vocabulary], given the token before each; hidden: [rows, hidden]."""
        state = self.ln0(hidden) / 2**0.5 if self.scales_input else hidden
        found = []
        for index, token in enumerate(tokens):
            state = self.proj[index](state) + (self.emb_weight / self.state_weight) * self.emb[index](token)
            state = nn.functional.gelu(self.ln[index](state))
            found.append(self.head[index](state))
        return found

    def drafted(self, hidden: torch.Tensor, last_token: int, count: int) -> list[int]:
        tokens = [last_token]
        for _ in range(count):
            tokens.append(int(self.logits(hidden[None], [torch.tensor([each]) for each in tokens])[-1].argmax()))
        return tokens[1:]

    def save(self, folder: Path, *, with_copies: bool = False) -> Path:
        kept = {id(tensor): name for name, tensor in reversed(list(self.named_parameters(remove_duplicate=False)))}
        weights = {
            f"speculator.{name}": tensor.clone()
            for name, tensor in self.named_parameters(remove_duplicate=False)
            if with_copies or kept[id(tensor)] == name
        }
        config = {
            "model_type": "mlp_speculator",
            "architectures": ["MLPSpeculatorPreTrainedModel"],
            "emb_dim": HIDDEN,
            "inner_dim": self.inner if self.inner != HIDDEN else 0,
            "vocab_size": VOCABULARY,
            "n_predict": self.count,
            "n_candidates": 5,
            "top_k_tokens_per_head": [4, 3, 2][: self.count],
            "tie_weights": self.is_tied,
            "scale_input": self.scales_input,
        }
        return write_folder(folder, config, weights)


class RmsNorm(nn.Module):
    """As Llama's."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.rand(size) + 0.5), eps

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.weight * states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + self.eps)


class Eagle3(nn.Module):
    """An EAGLE-3 layer over concatenated embeddings and hidden states."""

    def __init__(self, drafted: list[int] | None = None, *, norm_before_residual: bool = False, heads: int = 4) -> None:
        super().__init__()
        self.config = LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=48, num_hidden_layers=1,
            num_attention_heads=heads, num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-5,
        )  # fmt: skip
        self.ids = drafted if drafted is not None else list(range(VOCABULARY))
        self.is_reduced, self.norm_before_residual = drafted is not None, norm_before_residual
        eps, dim = self.config.rms_norm_eps, HIDDEN // heads
        self.embed_tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.fc = nn.Linear(3 * HIDDEN, HIDDEN, bias=False)
        layer = nn.Module()
        layer.input_layernorm, layer.hidden_norm, layer.post_attention_layernorm = (
            RmsNorm(HIDDEN, eps) for _ in range(3)
        )
        layer.self_attn, layer.mlp = nn.Module(), nn.Module()
        layer.self_attn.q_proj = nn.Linear(2 * HIDDEN, heads * dim, bias=False)
        layer.self_attn.k_proj = nn.Linear(2 * HIDDEN, 2 * dim, bias=False)
        layer.self_attn.v_proj = nn.Linear(2 * HIDDEN, 2 * dim, bias=False)
        layer.self_attn.o_proj = nn.Linear(heads * dim, HIDDEN, bias=False)
        layer.mlp.gate_proj = nn.Linear(HIDDEN, 48, bias=False)
        layer.mlp.up_proj = nn.Linear(HIDDEN, 48, bias=False)
        layer.mlp.down_proj = nn.Linear(48, HIDDEN, bias=False)
        self.layers = nn.ModuleList([layer])
        self.norm = RmsNorm(HIDDEN, eps)
        self.lm_head = nn.Linear(HIDDEN, len(self.ids), bias=False)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.ndim == 2:
                    parameter.mul_(8.0 if "lm_head" in name else 3.0)

    def states(self, tokens: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """States after the layer of every entry, [entries, hidden]; tokens [entries], states [entries, hidden]."""
        layer, count = self.layers[0], len(tokens)
        dim, heads = HIDDEN // self.config.num_attention_heads, self.config.num_attention_heads
        normed = layer.hidden_norm(states)
        residual = normed if self.norm_before_residual else states
        mixed = torch.cat((layer.input_layernorm(self.embed_tokens(tokens)), normed), -1)
        query, key, value = (
            getattr(layer.self_attn, f"{name}_proj")(mixed).view(1, count, -1, dim).transpose(1, 2) for name in "qkv"
        )
        cos, sin = LlamaRotaryEmbedding(self.config)(mixed, torch.arange(count)[None])
        query, key = apply_rotary_pos_emb(query, key, cos, sin)
        key, value = (each.repeat_interleave(heads // 2, 1) for each in (key, value))
        scores = query @ key.transpose(2, 3) / math.sqrt(dim)
        scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), float("-inf"))
        attended = (scores.softmax(-1) @ value).transpose(1, 2).reshape(count, -1)
        states = residual + layer.self_attn.o_proj(attended)
        normed = layer.post_attention_layernorm(states)
        gated = nn.functional.silu(layer.mlp.gate_proj(normed)) * layer.mlp.up_proj(normed)
        result: torch.Tensor = states + layer.mlp.down_proj(gated)
        return result

    def chain(self, tokens: torch.Tensor, hidden: torch.Tensor, count: int) -> tuple[list[int], list[torch.Tensor]]:
        """The arg-max tokens that are drafted, and the logits of each over what can be drafted.

        Args:
            tokens: the token after each position, [entries].
            hidden: the target's states of three layers, [entries, 3 * hidden].
        """
        states, found, logits = self.fc(hidden), [], []
        for _ in range(count):
            last = self.states(tokens, states)[-1:]
            logits.append(self.lm_head(self.norm(last))[0])
            found.append(self.ids[int(logits[-1].argmax())])
            tokens, states = torch.cat((tokens, torch.tensor(found[-1:]))), torch.cat((states, last))
        return found, logits

    def save(self, folder: Path, *, with_embedding: bool = True, **fields: Any) -> Path:
        """As the speculators package writes it."""
        weights = {name: tensor for name, tensor in self.state_dict().items() if with_embedding or "embed" not in name}
        if self.is_reduced:
            ids = torch.tensor(self.ids)
            weights["d2t"] = ids - torch.arange(len(ids))
            weights["t2d"] = torch.zeros(VOCABULARY, dtype=torch.bool).index_fill(0, ids, True)
        config = {
            "architectures": ["Eagle3DraftModel"],
            "speculators_model_type": "eagle3",
            "speculators_version": "0.5.0",
            "speculators_config": {
                "algorithm": "eagle3",
                "default_proposal_method": "greedy",
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
                "verifier": {"name_or_path": "x", "architectures": ["LlamaForCausalLM"]},
            },
            "draft_vocab_size": len(self.ids),
            "eagle_aux_hidden_state_layer_ids": list(AUXILIARY),
            "norm_before_residual": self.norm_before_residual,
            "transformer_layer_config": self.config.to_diff_dict() | {"model_type": "llama"},
        }
        return write_folder(folder, config | fields, weights)
