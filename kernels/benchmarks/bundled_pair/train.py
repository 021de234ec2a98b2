"""Make the bundled pair: one byte-level BPE tokenizer, a target, and a draft distilled on the target.

    python -m kernels.benchmarks.bundled_pair.train --corpora DIR --out DIR [--seed S] [--steps N]

Both models learn in one pass over the same batches: the target from the text, the draft from the target's
own distribution (forward KL over the whole vocabulary).  After the target is done the draft goes on alone
against the finished target.  Every eighth step runs at the full context.  A checkpoint is written as
training goes and picked up by the next call with the same `--out`.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from kernels.benchmarks.bundled_pair.corpora import Document, read_documents

log = logging.getLogger("kernels.benchmarks.bundled_pair.train")

BOS, END, PAD = "<|bos|>", "<|end|>", "<|pad|>"
SPECIAL_TOKENS = [PAD, BOS, END, "<|system|>", "<|user|>", "<|assistant|>"]
VOCABULARY_SIZE = 4_096
CONTEXT_LENGTH = 2_048
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% if tools %}<|system|>\nTools: {{ tools | tojson }}<|end|>\n{% endif %}"
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
# Shares of the training steps.  Chosen by the size of each corpus, so that none is read many times over.
DOMAIN_SHARES = {"code": 0.26, "sql": 0.16, "json": 0.13, "maths": 0.13, "prose": 0.18, "translation": 0.14}
SHORT_SHAPE = (18, 256)  # rows x tokens of most steps: 4,608 tokens
LONG_SHAPE = (2, CONTEXT_LENGTH)  # every LONG_EVERY-th step, so that the whole context is trained
LONG_EVERY = 8
WARMUP_STEPS = 80
DECAY_SHARE = 0.45  # the learning rate falls linearly over this last share of the steps
MATRIX_LEARNING_RATE = 3e-3  # Muon, updates scaled to AdamW's size
VECTOR_LEARNING_RATE = 3e-3  # AdamW: embeddings and norms
CHECKPOINT_EVERY = 250


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The size of a Llama model; heads are 64 wide."""

    layers: int
    hidden_size: int
    intermediate_size: int

    def build(self) -> LlamaForCausalLM:
        heads = self.hidden_size // 64
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY_SIZE,
                hidden_size=self.hidden_size,
                intermediate_size=self.intermediate_size,
                num_hidden_layers=self.layers,
                num_attention_heads=heads,
                num_key_value_heads=heads,
                max_position_embeddings=CONTEXT_LENGTH,
                tie_word_embeddings=True,
                pad_token_id=SPECIAL_TOKENS.index(PAD),
                bos_token_id=SPECIAL_TOKENS.index(BOS),
                eos_token_id=SPECIAL_TOKENS.index(END),
                attn_implementation="sdpa",
            )
        )


TARGET_SHAPE = ModelShape(layers=8, hidden_size=320, intermediate_size=864)
DRAFT_SHAPE = ModelShape(layers=1, hidden_size=192, intermediate_size=512)


def rendered(document: Document) -> str:
    """The document as the models see it, beginning-of-text and end tokens included."""
    if not document.turns:
        return f"{BOS}{document.text}{END}"
    turns = "".join(f"<|user|>\n{turn.user}{END}\n<|assistant|>\n{turn.assistant}{END}\n" for turn in document.turns)
    return f"{BOS}{turns}"


def train_tokenizer(documents: list[Document], rng: np.random.Generator) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer over an equal number of characters from each domain's training text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )

    def sample() -> Iterator[str]:
        for domain in DOMAIN_SHARES:
            texts = [rendered(document) for document in documents if document.domain == domain]
            characters = 0
            for index in rng.permutation(len(texts)):
                yield texts[index]
                characters += len(texts[index])
                if characters > 3_000_000:
                    break

    tokenizer.train_from_iterator(sample(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, SPECIAL_TOKENS.index(BOS))]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=END,
        pad_token=PAD,
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def token_streams(
    documents: list[Document], tokenizer: PreTrainedTokenizerFast, *, held_out: bool, seed: int
) -> dict[str, np.ndarray]:
    """Each domain's documents, shuffled and joined into one run of token ids."""
    rng = np.random.default_rng(seed)
    streams: dict[str, np.ndarray] = {}
    for domain in DOMAIN_SHARES:
        texts = [rendered(d) for d in documents if d.domain == domain and d.held_out is held_out]
        order = rng.permutation(len(texts))
        encoded = tokenizer.backend_tokenizer.encode_batch([texts[i] for i in order], add_special_tokens=False)
        streams[domain] = np.concatenate([np.asarray(e.ids, dtype=np.uint16) for e in encoded])
    return streams


def draw_batch(streams: dict[str, np.ndarray], shape: tuple[int, int], rng: np.random.Generator) -> torch.Tensor:
    """Rows of consecutive tokens, each from one domain drawn by its share; int64 [rows, tokens]."""
    rows, length = shape
    names = rng.choice(list(streams), size=rows, p=[DOMAIN_SHARES[name] for name in streams])
    starts = [int(rng.integers(0, len(streams[name]) - length)) for name in names]
    windows = [streams[name][start : start + length] for name, start in zip(names, starts, strict=True)]
    return torch.from_numpy(np.stack(windows).astype(np.int64))


def distillation_losses(target: nn.Module, draft: nn.Module, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Next-token cross-entropy of the target, and of the draft against the target's distribution."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        target_logits = target(tokens, use_cache=False).logits
        draft_logits = draft(tokens, use_cache=False).logits
    target_logits = target_logits[:, :-1].float().reshape(-1, VOCABULARY_SIZE)  # [rows * (tokens - 1), V]
    draft_logits = draft_logits[:, :-1].float().reshape(-1, VOCABULARY_SIZE)
    target_loss = functional.cross_entropy(target_logits, tokens[:, 1:].reshape(-1))
    target_probs = torch.softmax(target_logits.detach(), -1)
    draft_loss = -(target_probs * torch.log_softmax(draft_logits, -1)).sum(-1).mean()
    return target_loss, draft_loss


def frozen_distillation_loss(target: nn.Module, draft: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """The draft's cross-entropy against a target that no longer changes."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            target_logits = target(tokens, use_cache=False).logits
        draft_logits = draft(tokens, use_cache=False).logits
    target_probs = torch.softmax(target_logits[:, :-1].float(), -1)
    return -(target_probs * torch.log_softmax(draft_logits[:, :-1].float(), -1)).sum(-1).mean()


class PairOptimizer:
    """Muon for the matrices, AdamW for embeddings and norms; one learning-rate factor for both."""

    def __init__(self, modules: list[nn.Module]) -> None:
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for module in modules:
            for name, parameter in module.named_parameters():
                (matrices if parameter.ndim == 2 and "embed" not in name else others).append(parameter)
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(
                matrices, lr=MATRIX_LEARNING_RATE, weight_decay=0.1, ns_steps=3, adjust_lr_fn="match_rms_adamw"
            ),
            torch.optim.AdamW(others, lr=VECTOR_LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self._base = [MATRIX_LEARNING_RATE, VECTOR_LEARNING_RATE]
        self._parameters = matrices + others

    def step(self, factor: float) -> None:
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for optimizer, base in zip(self._optimizers, self._base, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = base * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer in self._optimizers]

    def load(self, states: list[dict[str, Any]]) -> None:
        for optimizer, state in zip(self._optimizers, states, strict=True):
            optimizer.load_state_dict(state)


def learning_rate_factor(step: int, steps: int) -> float:
    """Warm-up, a plateau, and a linear fall to 4 % over the last DECAY_SHARE of the steps."""
    warm = min(1.0, (step + 1) / WARMUP_STEPS)
    left = (steps - step) / (steps * DECAY_SHARE)
    return warm * max(0.04, min(1.0, left))


@torch.inference_mode()
def held_out_losses(model: LlamaForCausalLM, streams: dict[str, np.ndarray]) -> dict[str, float]:
    """Cross-entropy in nats per token on the first held-out tokens of each domain, in rows of 512."""
    losses: dict[str, float] = {}
    for domain, stream in streams.items():
        rows = min(40, len(stream) // 512)
        tokens = torch.from_numpy(stream[: rows * 512].astype(np.int64)).reshape(rows, 512)
        total = 0.0
        for chunk in torch.split(tokens, 8):
            logits = model(chunk, use_cache=False).logits[:, :-1].reshape(-1, VOCABULARY_SIZE)
            total += float(functional.cross_entropy(logits, chunk[:, 1:].reshape(-1), reduction="sum"))
        losses[domain] = total / (rows * 511)
    return losses


def train(corpora: Path, out: Path, seed: int, steps: int, draft_steps: int) -> None:
    """Train the pair and write `tokenizer`, `target` and `draft` folders and `training.json` under `out`."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    out.mkdir(parents=True, exist_ok=True)
    documents = read_documents(corpora)
    tokenizer = train_tokenizer([d for d in documents if not d.held_out], rng)
    tokenizer.save_pretrained(out / "tokenizer")
    streams = token_streams(documents, tokenizer, held_out=False, seed=seed)
    held_out = token_streams(documents, tokenizer, held_out=True, seed=seed)
    log.info("training tokens: %s", {name: len(stream) for name, stream in streams.items()})

    target, draft = TARGET_SHAPE.build(), DRAFT_SHAPE.build()
    optimizer, draft_optimizer = PairOptimizer([target, draft]), PairOptimizer([draft])
    checkpoint, first_step, history = out / "checkpoint.pt", 0, []
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=False)
        target.load_state_dict(saved["target"])
        draft.load_state_dict(saved["draft"])
        optimizer.load(saved["optimizer"])
        first_step, history = saved["step"], saved["history"]
    joint = torch.compile(distillation_losses, dynamic=False)
    alone = torch.compile(frozen_distillation_loss, dynamic=False)

    started = time.monotonic()
    for step in range(first_step, steps + draft_steps):
        batch_rng = np.random.default_rng((seed, step))
        shape = LONG_SHAPE if step % LONG_EVERY == LONG_EVERY - 1 else SHORT_SHAPE
        tokens = draw_batch(streams, shape, batch_rng)
        if step < steps:
            target_loss, draft_loss = joint(target, draft, tokens)
            torch.autograd.backward(target_loss + draft_loss)
            optimizer.step(learning_rate_factor(step, steps))
        else:
            draft_loss = alone(target, draft, tokens)
            torch.autograd.backward(draft_loss)
            # A third of the peak rate: the draft only follows what the target's own decay changed.
            draft_optimizer.step(0.35 * (1.0 - (step - steps) / draft_steps) + 0.01)
        if step % 25 == 0:
            row = {"step": step, "target_loss": float(target_loss), "draft_loss": float(draft_loss)}
            history.append(row)
            log.info("%s %.0fs", json.dumps(row), time.monotonic() - started)
        if step % CHECKPOINT_EVERY == CHECKPOINT_EVERY - 1:
            state = {"target": target.state_dict(), "draft": draft.state_dict(), "optimizer": optimizer.state()}
            torch.save({**state, "step": step + 1, "history": history}, checkpoint)

    losses = {name: held_out_losses(model.eval(), held_out) for name, model in (("target", target), ("draft", draft))}
    report = {
        "seed": seed,
        "steps": steps,
        "draft_steps": draft_steps,
        "tokens_per_step": SHORT_SHAPE[0] * SHORT_SHAPE[1],
        "target": asdict(TARGET_SHAPE) | {"parameters": target.num_parameters()},
        "draft": asdict(DRAFT_SHAPE) | {"parameters": draft.num_parameters()},
        "training_tokens": {name: len(stream) for name, stream in streams.items()},
        "held_out_loss": losses,
        "history": history,
    }
    (out / "training.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    for name, model in (("target", target), ("draft", draft)):
        model.to(torch.bfloat16).save_pretrained(out / name)
        tokenizer.save_pretrained(out / name)


def main() -> None:
    """Train from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True, help="folder with one sub-folder per corpus")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1_900, help="joint steps of target and draft")
    parser.add_argument("--draft-steps", type=int, default=400, help="further steps of the draft alone")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    train(arguments.corpora, arguments.out, arguments.seed, arguments.steps, arguments.draft_steps)


if __name__ == "__main__":
    main()
