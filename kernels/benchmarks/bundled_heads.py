"""Make the heads that the demo ships, over the hidden states of its target: Medusa's and EAGLE-3's.

    python -m kernels.benchmarks.bundled_heads --corpora DIR --out HEADS --target PAIR/target

They learn the distribution of the target, which stays as it is, from the texts that the pair learnt from.  The same
corpora, Python, torch, seed and target make the same files; the configs are those that are shipped.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

from kernels.benchmarks.bundled_pair import (
    DOMAIN_SHARES,
    VOCABULARY,
    Optimizer,
    draw_batch,
    learning_rate_factor,
    load_model,
    load_tokenizer,
    maker_options,
    read_documents,
    token_streams,
)
from kernels.benchmarks.harness import options, write
from shadowspec import demo

NUM_DRAFTED = 2_048  # tokens that heads can draft: half of the vocabulary, for half of the bytes
NUM_HEADS = 4  # of Medusa, and the depths that the EAGLE layer is unrolled to
AUXILIARY_LAYERS = (2, 5, 7)  # whose inputs the EAGLE layer fuses, of the target's eight
HEADS_BATCH = (8, 192)
DEPTH_DECAY = 0.8  # weight of each depth's loss against the one before


class Medusa(nn.Module):
    """Heads of one residual layer each over a shared last layer, which starts as the target's; named as vLLM does."""

    def __init__(self, head: torch.Tensor) -> None:
        super().__init__()
        zeros = torch.zeros(head.shape[1], head.shape[1])
        self.lm_heads = nn.ModuleList([nn.ParameterDict({"weight": head.clone()})])  # [drafted, hidden]
        layers = (nn.ModuleList([nn.ParameterDict({"weight": zeros.clone()})]) for _ in range(NUM_HEADS))
        self.blocks = nn.ModuleList(nn.ModuleDict({"layers": layer}) for layer in layers)

    def forward(self, final: torch.Tensor) -> list[torch.Tensor]:
        """Logits of every head, [rows, tokens, drafted] each, from the final norm's states [rows, tokens, hidden]."""
        weights = [block["layers"][0]["weight"] for block in self.blocks]
        states = [final + functional.silu(functional.linear(final, weight)) for weight in weights]
        return [functional.linear(state, self.lm_heads[0]["weight"]) for state in states]


class Eagle(nn.Module):
    """The EAGLE-3 layer, unrolled as it drafts (2503.01840); named as the speculators package does."""

    def __init__(self, config: LlamaConfig, target: Any, head: torch.Tensor) -> None:
        super().__init__()
        size, eps, self.head_dim = config.hidden_size, config.rms_norm_eps, config.head_dim
        self._embedding, self._rotary = target.model.embed_tokens.weight.detach(), LlamaRotaryEmbedding(config)
        self.lm_head = nn.ParameterDict({"weight": head.clone()})  # [drafted, hidden]
        self.fc = nn.Linear(len(AUXILIARY_LAYERS) * size, size, bias=False)
        with torch.no_grad():  # begins as the last of the fused states
            self.fc.weight.zero_()
            self.fc.weight[:, -size:] = torch.eye(size)
        layer, attention, width = nn.Module(), nn.Module(), config.num_attention_heads * self.head_dim
        layer.input_layernorm, layer.hidden_norm = LlamaRMSNorm(size, eps=eps), LlamaRMSNorm(size, eps=eps)
        layer.self_attn = attention
        for name, rows in {"q_proj": width, "k_proj": self.head_dim, "v_proj": self.head_dim}.items():
            attention.add_module(name, nn.Linear(2 * size, rows, bias=False))
        attention.o_proj = nn.Linear(width, size, bias=False)
        for linear in attention.children():
            nn.init.normal_(linear.weight, std=0.02)
        layer.post_attention_layernorm, layer.mlp = LlamaRMSNorm(size, eps=eps), LlamaMLP(config)
        nn.init.zeros_(layer.mlp.down_proj.weight)
        self.layers, self.norm = nn.ModuleList([layer]), LlamaRMSNorm(size, eps=eps)
        self.norm.weight.data.copy_(target.model.norm.weight.detach())

    def forward(self, tokens: torch.Tensor, auxiliary: torch.Tensor) -> list[torch.Tensor]:
        """Logits of every depth for the chain that starts at each position.

        Args:
            tokens: the text, int64 [rows, length + depths].
            auxiliary: the target's hidden states at its first `length` positions, [rows, length, 3 * hidden].

        Returns:
            [rows, length, drafted] each; those of depth d at position p are of token p + d + 2.
        """
        layer, (rows, length, _) = self.layers[0], auxiliary.shape
        attention = layer.self_attn
        is_hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        states, logits, keys, values = self.fc(auxiliary), [], [], []
        for depth in range(NUM_HEADS):
            embedded = functional.embedding(tokens[:, depth + 1 : depth + 1 + length], self._embedding)
            mixed = torch.cat((layer.input_layernorm(embedded), layer.hidden_norm(states)), -1)
            query, key, value = (
                linear(mixed).view(rows, length, -1, self.head_dim).transpose(1, 2)
                for linear in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            query, key = apply_rotary_pos_emb(query, key, *self._rotary(mixed, torch.arange(length)[None] + depth))
            keys.append(key.repeat_interleave(query.shape[1], 1))  # one head of keys and values for all of queries
            values.append(value.repeat_interleave(query.shape[1], 1))
            # What the target's own states gave is seen up to the chain's start, of the chain's own entries all.
            before = (query @ keys[0].transpose(2, 3)).masked_fill(is_hidden, float("-inf"))
            entries = [(query * later).sum(-1, keepdim=True) for later in keys[1:]]
            weights = torch.softmax(torch.cat((before, *entries), -1).float() * self.head_dim**-0.5, -1).to(value.dtype)
            attended = weights[..., :length] @ values[0]
            for index, later in enumerate(values[1:]):
                attended = attended + weights[..., length + index, None] * later
            states = states + attention.o_proj(attended.transpose(1, 2).reshape(rows, length, -1))
            states = states + layer.mlp(layer.post_attention_layernorm(states))
            logits.append(functional.linear(self.norm(states), self.lm_head["weight"]))
        return logits


def build_heads(target: Any, drafted: torch.Tensor) -> tuple[Medusa, Eagle]:
    """Untrained heads that begin as the target's own, over the tokens drafted, int64 [NUM_DRAFTED]."""
    head = target.lm_head.weight.detach()[drafted]
    config = json.loads((demo.HEADS / "eagle3" / "config.json").read_text(encoding="utf-8"))
    return Medusa(head), Eagle(LlamaConfig(**config["transformer_layer_config"]), target, head)


def heads_losses(
    target: Any, medusa: Medusa, eagle: Eagle, drafted: torch.Tensor, tokens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy of both against the target's distribution, weighed over depths; tokens int64 [rows, length]."""
    length = tokens.shape[1] - NUM_HEADS
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            output = target(tokens, use_cache=False, output_hidden_states=True)
            states, wanted = output.hidden_states, torch.softmax(output.logits[..., drafted].float(), -1)
        logits = medusa(states[-1][:, :length])
        fused = eagle(tokens, torch.cat([states[layer][:, :length] for layer in AUXILIARY_LAYERS], -1))

    def loss(by_depth: Sequence[torch.Tensor]) -> torch.Tensor:
        total = torch.zeros(())
        for depth, logit in enumerate(by_depth):
            # Depth d drafts token p + d + 2, which the target makes at position p + d + 1.
            probs = wanted[:, depth + 1 : depth + 1 + length]
            total = total - DEPTH_DECAY**depth * (probs * torch.log_softmax(logit.float(), -1)).sum(-1).mean()
        return total / sum(DEPTH_DECAY**depth for depth in range(NUM_HEADS))

    return loss(logits), loss(fused)


def save_heads(out: Path, medusa: Medusa, eagle: Eagle, drafted: torch.Tensor) -> None:
    """Write both folders in bf16: Medusa's in vLLM's layout, EAGLE's in that of the speculators package."""
    maps = {"d2t": drafted - torch.arange(NUM_DRAFTED), "t2d": torch.zeros(VOCABULARY, dtype=torch.bool)}
    maps["t2d"][drafted] = True
    for name, module, beside in (("medusa", medusa, {"token_map": drafted}), ("eagle3", eagle, maps)):
        (out / name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(demo.HEADS / name / "config.json", out / name / "config.json")
        tensors = {key: weight.to(torch.bfloat16).contiguous() for key, weight in module.state_dict().items()}
        save_file(tensors | beside, out / name / "model.safetensors", metadata={"format": "pt"})


def train_heads(corpora: Path, out: Path, seed: int, target: Path, steps: int) -> None:
    """Write both heads, trained on the target, which stays as it is, over the texts that the pair learnt from."""
    torch.manual_seed(seed)
    model, tokenizer = load_model(target).requires_grad_(False), load_tokenizer(target)
    streams = token_streams(read_documents(corpora), tokenizer, held_out=False, seed=seed)
    # The tokens that the training batches hold most of, ascending.
    counts = {name: np.bincount(stream, minlength=VOCABULARY) for name, stream in streams.items()}
    shares = sum(DOMAIN_SHARES[name] * count / len(streams[name]) for name, count in counts.items())
    drafted = torch.from_numpy(np.sort(np.argsort(-shares, kind="stable")[:NUM_DRAFTED]).astype(np.int64))
    medusa, eagle = build_heads(model, drafted)
    optimizer, history = Optimizer(medusa, eagle), list[dict[str, float]]()
    for step in range(steps):
        tokens = draw_batch(streams, HEADS_BATCH, np.random.default_rng((seed, step)))
        medusa_loss, eagle_loss = heads_losses(model, medusa, eagle, drafted, tokens)
        optimizer.step(medusa_loss + eagle_loss, learning_rate_factor(step, steps))
        if step % 25 == 0 or step == steps - 1:
            history.append({"step": step, "medusa_loss": medusa_loss.item(), "eagle3_loss": eagle_loss.item()})
            print(history[-1], flush=True)
    save_heads(out, medusa, eagle, drafted)
    sizes = {name: sum(w.numel() for w in one.parameters()) for name, one in (("medusa", medusa), ("eagle3", eagle))}
    report = {"seed": seed, "steps": steps, "tokens_per_step": 8 * 192, "drafted_tokens": NUM_DRAFTED}
    write(out / "training.json", report | {"parameters": sizes, "history": history})


def main() -> None:
    """Command line."""
    parser = maker_options(options(__doc__), steps=800)
    parser.add_argument("--target", type=Path, required=True, help="PAIR/target")
    train_heads(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
