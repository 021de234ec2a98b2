"""A draft's folder: loaded to be trained, and written whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import torch

from shadowspec.engine.models import load_weights, refuse_unmeasurable
from shadowspec.engine.tokenizer import load_config

CARD: Final = "README.md"
# Copied beside weights and configuration, which are written by this module: the other files of a model, its licence.
_KEPT: Final = (
    "tokenizer*",
    "special_tokens_map.json",
    "vocab*",
    "merges.txt",
    "added_tokens.json",
    "*.jinja",
    "*.model",
)
_LICENCES: Final = ("LICENSE*", "LICENCE*", "NOTICE*")


def load_trainable(path: str, device: torch.device) -> tuple[Any, torch.dtype]:
    """The draft in float32, with gradients, and the dtype in which its weights are stored.

    Raises:
        ModelError: it cannot be loaded, or measured.
    """
    config = load_config(path)
    refuse_unmeasurable(config, path)
    stored = getattr(config, "dtype", None)
    model = load_weights(path, torch.float32).to(device)
    return model, stored if isinstance(stored, torch.dtype) else torch.float32


def write(model: Any, dtype: torch.dtype, base: Path, out: Path, card: str) -> None:
    """Write the draft as safetensors with its base's tokenizer and a card; it is there whole, or not at all.

    Args:
        dtype: in which the weights are stored, as the base's are.
        base: the folder that training began from.
        out: as `require_free` found it.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
        made = Path(scratch) / out.name
        model.to(dtype).save_pretrained(made, safe_serialization=True)
        for pattern in (*_KEPT, *_LICENCES):
            for path in base.glob(pattern):
                shutil.copyfile(path, made / path.name)
        write_card(made, card)
        if out.exists():
            out.rmdir()  # empty
        made.replace(out)


def write_card(out: Path, text: str) -> None:
    """Write the folder's model card, in the place of one that is there."""
    new = out / f".{CARD}"
    new.write_text(text, encoding="utf-8")
    new.replace(out / CARD)
