"""Write tiny EAGLE-3 checkpoints with the speculators package, and what its own forward makes of given inputs.

    python tests/data/heads/write_speculators.py OUT

Needs the package (0.9.0 wrote what lies beside this file), which the tests do not.  Every folder is as
`save_pretrained` left it, without the code that it adds.  `NAME.safetensors` beside it holds the inputs and the logits
of each depth over the text's own tokens, as the package trains: `logits[d, p]` is the chain that starts at entry p
after d further tokens.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, Qwen3Config

VOCABULARY, HIDDEN, LENGTH, DEPTHS = 12, 32, 9, 3
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
}
VARIANTS: dict[str, tuple[type, dict[str, Any]]] = {
    "llama_whole": (LlamaConfig, {"draft_vocab_size": VOCABULARY, "norm_before_residual": False}),
    "llama_reduced": (LlamaConfig, {"draft_vocab_size": 5, "norm_before_residual": True, "norm_before_fc": True}),
    "qwen3_norms": (
        Qwen3Config,
        {"draft_vocab_size": 5, "norm_before_residual": True, "fc_norm": True, "norm_output": True},
    ),
}


def model(kind: type, fields: dict[str, Any]) -> Eagle3DraftModel:
    """A random draft for a target of three layers."""
    layer = kind(**SHAPE)
    layer._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        eagle_aux_hidden_state_layer_ids=[0, 1, 2],
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=DEPTHS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path="verifier", architectures=["LlamaForCausalLM"]),
        ),
        **fields,
    )
    draft = Eagle3DraftModel(config=config).eval()
    with torch.no_grad():
        for name, parameter in draft.named_parameters():
            if "verifier" not in name:
                is_norm = parameter.ndim == 1
                parameter.copy_(torch.rand_like(parameter) + 0.5 if is_norm else 0.3 * torch.randn_like(parameter))
    if fields["draft_vocab_size"] < VOCABULARY:
        ids = torch.tensor([1, 4, 5, 8, 11])
        draft.load_vocab_mappings(
            torch.zeros(VOCABULARY, dtype=torch.bool).index_fill(0, ids, True), ids - torch.arange(len(ids))
        )
    return draft


def main(out: Path) -> None:
    for name, (kind, fields) in VARIANTS.items():
        torch.manual_seed(0)
        draft = model(kind, fields)
        draft.save_pretrained(out / name)
        tokens, hidden = torch.randint(0, VOCABULARY, (LENGTH,)), torch.randn(LENGTH, 3 * HIDDEN)
        logits: list[torch.Tensor] = []
        draft.lm_head.register_forward_hook(lambda module, inputs, output, found=logits: found.append(output[0]))
        with torch.no_grad():
            draft(hidden[None], tokens[None], torch.zeros(1, LENGTH, dtype=torch.long), ttt_steps=DEPTHS)
        expected = {"tokens": tokens, "hidden": hidden, "logits": torch.stack(logits)}
        save_file(expected, out / f"{name}.safetensors")
        (out / name / "config.py").unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
