"""A draft without training: the target without some of its layers, of whose drafts much is accepted.

    python kernels/benchmarks/engines/real_model/shortened.py TARGET OUT     (both are folders)

It is nearly as dear as the target, so that it makes nothing faster: it serves to hold counts against counts.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

import torch
from transformers import AutoModelForCausalLM

LEFT_OUT: Final = (22, 24, 26)  # of SmolLM2-135M's 30


def shorten(target: Path, out: Path, left_out: Collection[int] = LEFT_OUT) -> None:
    """Write the folder of a model without these layers."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    kept = [layer for place, layer in enumerate(model.model.layers) if place not in left_out]
    for place, layer in enumerate(kept):
        layer.self_attn.layer_idx = place
    model.model.layers = torch.nn.ModuleList(kept)
    model.config.num_hidden_layers = len(kept)
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = model.config.layer_types[: len(kept)]
    model.save_pretrained(out)
    for file in target.iterdir():
        if not (out / file.name).exists():  # tokenizer, template and licence
            shutil.copy(file, out)


def main() -> None:
    """As the docstring says."""
    shorten(Path(sys.argv[1]), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
