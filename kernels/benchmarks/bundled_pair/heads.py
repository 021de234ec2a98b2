"""Train the bundled heads, Medusa's and an EAGLE-3 layer, on the bundled target, which stays as it is.

    python -m kernels.benchmarks.bundled_pair.heads --corpora DIR --target DIR --out DIR [--seed S] [--steps N]

Both learn in one pass over the same batches from the target's own distribution (cross-entropy against it over the
tokens that heads can draft), on the corpora that the pair was trained on and never on bundled prompts.  The EAGLE layer
is unrolled as it drafts (training-time test, 2503.01840): depth by depth over its own states, with the text's tokens.
The folders are written as published: Medusa's in vLLM's layout, EAGLE's in that of the speculators package.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from kernels.benchmarks.bundled_pair.corpora import read_documents
from kernels.benchmarks.bundled_pair.responses import load_model, load_tokenizer
from kernels.benchmarks.bundled_pair.train import (
    DOMAIN_SHARES,
    PairOptimizer,
    draw_batch,
    learning_rate_factor,
    token_streams,
)

log = logging.getLogger("kernels.benchmarks.bundled_pair.heads")

NUM_DRAFTED: Final = 2_048  # tokens that heads can draft: half of the vocabulary, for half of the heads' bytes
NUM_HEADS: Final = 4  # of Medusa, and the depths that the EAGLE layer is unrolled to
AUXILIARY_LAYERS: Final = (2, 5, 7)  # whose inputs the EAGLE layer fuses, of the target's 8
INTERMEDIATE_SIZE: Final = 512  # of the EAGLE layer
SHAPE: Final = (8, 192)  # rows x tokens of a step
DEPTH_DECAY: Final = 0.8  # weight of each depth's loss against the one before: deeper tokens are less often reached


class MedusaTrainer(nn.Module):
    """Heads of one residual layer each over a shared head, which starts as the target's."""

    def __init__(self, head: torch.Tensor) -> None:
        super().__init__()
        hidden_size = head.shape[1]
        linears = [nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(NUM_HEADS)]
        for linear in linears:
            nn.init.zeros_(linear.weight)
        self.layers = nn.ModuleList(linears)
        self.unembedding = nn.Parameter(head.clone())  # [drafted, hidden]

    def forward(self, final: torch.Tensor) -> list[torch.Tensor]:
        """Logits of every head, [rows, tokens, drafted] each, from the final norm's states [rows, tokens, hidden]."""
        return [functional.linear(final + functional.silu(layer(final)), self.unembedding) for layer in self.layers]

    def tensors(self) -> dict[str, torch.Tensor]:
        """By the names of vLLM's layout."""
        named = {
            f"blocks.{index}.{name}": weight
            for index, layer in enumerate(self.layers)
            for name, weight in layer.state_dict(prefix="layers.0.").items()
        }
        return named | {"lm_heads.0.weight": self.unembedding}


class EagleTrainer(nn.Module):
    """The EAGLE-3 layer, unrolled over a whole text at once: every position starts a chain of its own."""

    def __init__(self, config: LlamaConfig, embedding: torch.Tensor, head: torch.Tensor, norm: torch.Tensor) -> None:
        super().__init__()
        size, head_dim = int(config.hidden_size), int(config.head_dim)
        self.heads, self.kv_heads, self.head_dim = config.num_attention_heads, config.num_key_value_heads, head_dim
        self._embedding = embedding  # the target's; not trained
        self.rotary = LlamaRotaryEmbedding(config)
        self.fc = nn.Linear(len(AUXILIARY_LAYERS) * size, size, bias=False)
        with torch.no_grad():  # begins as the last of the fused states
            self.fc.weight.zero_()
            self.fc.weight[:, -size:] = torch.eye(size)
        self.input_layernorm = LlamaRMSNorm(size, eps=config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(size, eps=config.rms_norm_eps)
        self.q_proj = nn.Linear(2 * size, self.heads * head_dim, bias=False)
        self.k_proj = nn.Linear(2 * size, self.kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(2 * size, self.kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * head_dim, size, bias=False)
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.o_proj):
            nn.init.normal_(linear.weight, std=0.02)
        self.post_attention_layernorm = LlamaRMSNorm(size, eps=config.rms_norm_eps)
        self.mlp = LlamaMLP(config)
        nn.init.zeros_(self.mlp.down_proj.weight)
        self.norm = LlamaRMSNorm(size, eps=config.rms_norm_eps)
        self.norm.weight.data.copy_(norm)
        self.unembedding = nn.Parameter(head.clone())  # [drafted, hidden]

    def forward(self, tokens: torch.Tensor, auxiliary: torch.Tensor) -> list[torch.Tensor]:
        """Logits of every depth for the chain that starts at each position.

        Args:
            tokens: the text, int64 [rows, length + depths].
            auxiliary: the target's hidden states at its first `length` positions, [rows, length, 3 * hidden].

        Returns:
            [rows, length, drafted] each; those of depth d at position p are of token p + d + 2.
        """
        rows, length, _ = auxiliary.shape
        places = torch.arange(length)[None]
        is_hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        states = self.fc(auxiliary)
        logits: list[torch.Tensor] = []
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        for depth in range(NUM_HEADS):
            embedded = functional.embedding(tokens[:, depth + 1 : depth + 1 + length], self._embedding)
            mixed = torch.cat((self.input_layernorm(embedded), self.hidden_norm(states)), -1)
            query, key, value = self._projected(mixed, places + depth, rows, length)
            keys.append(key)
            values.append(value)
            # What the target's own states gave is seen up to the chain's start, of the chain's own entries all.
            before = (query @ keys[0].transpose(2, 3)).masked_fill(is_hidden, float("-inf"))
            entries = [(query * each).sum(-1, keepdim=True) for each in keys[1:]]
            weights = torch.softmax(torch.cat((before, *entries), -1).float() * self.head_dim**-0.5, -1).to(value.dtype)
            attended = weights[..., :length] @ values[0]
            for index, each in enumerate(values[1:]):
                attended = attended + weights[..., length + index, None] * each
            states = states + self.o_proj(attended.transpose(1, 2).reshape(rows, length, -1))
            states = states + self.mlp(self.post_attention_layernorm(states))
            logits.append(functional.linear(self.norm(states), self.unembedding))
        return logits

    def _projected(
        self, mixed: torch.Tensor, places: torch.Tensor, rows: int, length: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values, [rows, heads, length, head_dim] each, turned to their positions."""
        query, key, value = (
            linear(mixed).view(rows, length, -1, self.head_dim).transpose(1, 2)
            for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *self.rotary(mixed, places))
        group = self.heads // self.kv_heads
        return query, key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)

    def tensors(self) -> dict[str, torch.Tensor]:
        """By the names of the speculators package."""
        layer = {
            "input_layernorm": self.input_layernorm,
            "hidden_norm": self.hidden_norm,
            "post_attention_layernorm": self.post_attention_layernorm,
            "self_attn.q_proj": self.q_proj,
            "self_attn.k_proj": self.k_proj,
            "self_attn.v_proj": self.v_proj,
            "self_attn.o_proj": self.o_proj,
            "mlp.gate_proj": self.mlp.gate_proj,
            "mlp.up_proj": self.mlp.up_proj,
            "mlp.down_proj": self.mlp.down_proj,
        }
        named = {f"layers.0.{name}.weight": module.weight for name, module in layer.items()}
        return named | {
            "fc.weight": self.fc.weight,
            "norm.weight": self.norm.weight,
            "lm_head.weight": self.unembedding,
        }


@dataclass(frozen=True, slots=True)
class Learners:
    """What is trained, and the tokens that it can draft."""

    medusa: MedusaTrainer
    eagle: EagleTrainer
    drafted: torch.Tensor  # int64 [drafted], ascending


def drafted_tokens(streams: dict[str, np.ndarray], vocabulary: int) -> torch.Tensor:
    """The tokens that the training batches hold most of, ascending, int64 [NUM_DRAFTED]."""
    weight = np.zeros(vocabulary)
    for name, stream in streams.items():
        weight += DOMAIN_SHARES[name] * np.bincount(stream, minlength=vocabulary) / len(stream)
    return torch.from_numpy(np.sort(np.argsort(-weight, kind="stable")[:NUM_DRAFTED]).astype(np.int64))


def build(target: Any, drafted: torch.Tensor) -> Learners:
    """Untrained heads that begin as the target's own."""
    embedding, head = target.model.embed_tokens.weight.detach(), target.lm_head.weight.detach()[drafted]
    config = LlamaConfig(**layer_config(target.config))
    eagle = EagleTrainer(config, embedding, head, target.model.norm.weight.detach())
    return Learners(MedusaTrainer(head), eagle, drafted)


def layer_config(config: Any) -> dict[str, Any]:
    """Of the EAGLE layer, as the speculators package writes it."""
    return {
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": INTERMEDIATE_SIZE,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": 1,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_parameters["rope_theta"]},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }


def losses(target: Any, learners: Learners, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy of both against the target's distribution, weighed over depths; tokens int64 [rows, length]."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            output = target(tokens, use_cache=False, output_hidden_states=True)
            states = output.hidden_states
            wanted = torch.softmax(output.logits[..., learners.drafted].float(), -1)
        length = tokens.shape[1] - NUM_HEADS
        medusa = learners.medusa(states[-1][:, :length])
        auxiliary = torch.cat([states[layer][:, :length] for layer in AUXILIARY_LAYERS], -1)
        eagle = learners.eagle(tokens, auxiliary)

    def loss(logits: list[torch.Tensor]) -> torch.Tensor:
        total = torch.zeros(())
        for depth, logit in enumerate(logits):
            # Depth d drafts token p + d + 2, which the target makes at position p + d + 1.
            probs = wanted[:, depth + 1 : depth + 1 + length]
            total = total - DEPTH_DECAY**depth * (probs * torch.log_softmax(logit.float(), -1)).sum(-1).mean()
        return total / sum(DEPTH_DECAY**depth for depth in range(NUM_HEADS))

    return loss(medusa), loss(eagle)


def save(out: Path, target: Any, learners: Learners) -> None:
    """Write both folders, in bf16."""
    config = target.config
    medusa_config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "truncated_vocab_size": NUM_DRAFTED,
        "num_heads": NUM_HEADS,
        "num_hidden_layers": 1,
        "original_lm_head": True,
    }
    _write(out / "medusa", medusa_config, learners.medusa.tensors(), {"token_map": learners.drafted})
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": NUM_HEADS,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    eagle_config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": "shadowspec/demo/pair/target", "architectures": ["LlamaForCausalLM"]},
        },
        "draft_vocab_size": NUM_DRAFTED,
        "eagle_aux_hidden_state_layer_ids": list(AUXILIARY_LAYERS),
        "norm_before_residual": False,
        "transformer_layer_config": layer_config(config),
    }
    is_drafted = torch.zeros(config.vocab_size, dtype=torch.bool)
    is_drafted[learners.drafted] = True
    maps = {"d2t": learners.drafted - torch.arange(NUM_DRAFTED), "t2d": is_drafted}
    _write(out / "eagle3", eagle_config, learners.eagle.tensors(), maps)


def _write(
    folder: Path, config: dict[str, Any], weights: dict[str, torch.Tensor], maps: dict[str, torch.Tensor]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = {name: weight.detach().to(torch.bfloat16).contiguous() for name, weight in weights.items()}
    save_file(tensors | maps, folder / "model.safetensors", metadata={"format": "pt"})


def train(corpora: Path, target_folder: Path, out: Path, seed: int, steps: int) -> None:
    """Train both and write their folders and `training.json` under `out`."""
    torch.manual_seed(seed)
    target = load_model(target_folder).requires_grad_(False)
    streams = token_streams(read_documents(corpora), load_tokenizer(target_folder), held_out=False, seed=seed)
    learners = build(target, drafted_tokens(streams, int(target.config.vocab_size)))
    optimizer = PairOptimizer([learners.medusa, learners.eagle])
    history: list[dict[str, float]] = []
    started = time.monotonic()
    for step in range(steps):
        tokens = draw_batch(streams, SHAPE, np.random.default_rng((seed, step)))
        medusa_loss, eagle_loss = losses(target, learners, tokens)
        torch.autograd.backward(medusa_loss + eagle_loss)
        optimizer.step(learning_rate_factor(step, steps))
        if step % 25 == 0 or step == steps - 1:
            history.append({"step": step, "medusa_loss": medusa_loss.item(), "eagle3_loss": eagle_loss.item()})
            log.info("%s %.0fs", json.dumps(history[-1]), time.monotonic() - started)
        if step % 100 == 99 or step == steps - 1:
            save(out, target, learners)
    report = {
        "seed": seed,
        "steps": steps,
        "tokens_per_step": SHAPE[0] * SHAPE[1],
        "drafted_tokens": NUM_DRAFTED,
        "parameters": {
            name: sum(tensor.numel() for tensor in module.tensors().values())
            for name, module in (("medusa", learners.medusa), ("eagle3", learners.eagle))
        },
        "history": history,
    }
    (out / "training.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Train from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True, help="folder with one sub-folder per corpus")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=800)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    train(arguments.corpora, arguments.target, arguments.out, arguments.seed, arguments.steps)


if __name__ == "__main__":
    main()
