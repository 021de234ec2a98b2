"""Small Llama models of each kind, and logits by transformers."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

CONTEXT = 128
VOCABULARY = 50
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "attn_implementation": "sdpa",
}
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10_000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 32},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0},
}


def model_of(kind: type, config: type, **changed: Any) -> Any:
    """A random model whose every weight, norms and biases too, matters to the logits."""
    torch.manual_seed(0)
    model = kind(config(**(SHAPE | changed))).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(0.25 * torch.randn(parameter.shape))
            else:
                parameter.copy_(0.5 + torch.rand(parameter.shape))
    return model


KINDS = {
    "llama": lambda: model_of(LlamaForCausalLM, LlamaConfig),
    "llama_tied": lambda: model_of(LlamaForCausalLM, LlamaConfig, tie_word_embeddings=True),
    "llama_grouped": lambda: model_of(LlamaForCausalLM, LlamaConfig, num_key_value_heads=2),
    "llama_one_key_head": lambda: model_of(LlamaForCausalLM, LlamaConfig, num_key_value_heads=1),
    "llama3_rope": lambda: model_of(LlamaForCausalLM, LlamaConfig, rope_parameters=ROPES["llama3"]),
    "linear_rope": lambda: model_of(LlamaForCausalLM, LlamaConfig, rope_parameters=ROPES["linear"]),
    "yarn_rope": lambda: model_of(LlamaForCausalLM, LlamaConfig, rope_parameters=ROPES["yarn"]),
    "mistral": lambda: model_of(MistralForCausalLM, MistralConfig, sliding_window=None, num_key_value_heads=2),
    "qwen2_biases": lambda: model_of(Qwen2ForCausalLM, Qwen2Config, num_key_value_heads=2),
    "qwen3_head_norms": lambda: model_of(Qwen3ForCausalLM, Qwen3Config, num_key_value_heads=2),
}


def plain_logits(model: Any, text: list[int]) -> torch.Tensor:
    """transformers' logits of every position without any cache, float [tokens, vocabulary]."""
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.tensor([text]), use_cache=False).logits[0]
    return logits
