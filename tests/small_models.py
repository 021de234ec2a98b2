"""Small random models and tokenizers, for exact tests and for runs that take no time."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 12


def tiny_llama(
    seed: int, *, vocabulary: int = VOCABULARY, hidden: int = 32, layers: int = 2, scale: float = 8.0
) -> LlamaForCausalLM:
    """A random Llama whose distributions are far from uniform, so that tests can tell them apart."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(scale)
        for name, parameter in model.named_parameters():
            if "proj" in name:
                parameter.mul_(4.0)
    return model


def letter_tokenizer(vocabulary: int = VOCABULARY, first: str = "a") -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of single letters: id 0 begins, id 1 ends, the rest are letters."""
    pieces = {"<b>": 0, "<e>": 1} | {chr(ord(first) + i): i + 2 for i in range(vocabulary - 2)}
    tokenizer = Tokenizer(models.BPE(vocab=pieces, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<b>", eos_token="<e>", pad_token="<b>")
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return fast


def save_model(folder: Path, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> Path:
    """Write a model folder as people have them on disk."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def disturbed(model: LlamaForCausalLM, seed: int = 5, share: float = 0.25) -> LlamaForCausalLM:
    """The model with noise on its weights: a draft that agrees with it often, but not always."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(share * float(parameter.std()) * torch.randn(parameter.shape, generator=generator))
    return model


def save_pair(folder: Path) -> tuple[Path, Path]:
    """Folders of a tiny target and its draft."""
    tokenizer = letter_tokenizer()
    return (
        save_model(folder / "target", tiny_llama(1), tokenizer),
        save_model(folder / "draft", disturbed(tiny_llama(1)), tokenizer),
    )
