"""A draft's folder: loaded to be trained, and written whole or not at all.

An initial draft can be made of the target: its first layers between its embeddings and head.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from transformers.utils import logging as transformers_logging

from shadowspec.engine.models import load_weights, refuse_unmeasurable
from shadowspec.engine.tokenizer import load_config
from shadowspec.errors import ModelError, UsageError

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
_FIRST_LAYERS_CARD = """\
# The first {count} of {depth} layers of a target

With its embeddings and its head, as they are in the target: what `shadowspec distill --from-layers` begins from.
"""


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


def num_layers(target: str) -> int:
    """Layers of a model folder's decoder.

    Raises:
        ModelError: the folder cannot be read, or its config states no number of layers.
    """
    depth = getattr(load_config(target), "num_hidden_layers", None)
    if not isinstance(depth, int):
        raise ModelError(f"{target}: its config states no number of layers (num_hidden_layers)")
    return depth


def require_fewer_layers(target: str, count: int) -> None:
    """
    Raises:
        UsageError: the target does not have more layers than that.
        ModelError: as `num_layers`.
    """
    depth = num_layers(target)
    if not 1 <= count < depth:
        raise UsageError(
            f"--from-layers {count}: a draft has fewer layers than its target, and {target} has {depth}: "
            + (f"give 1 to {depth - 1}" if depth > 1 else "no draft can be cut from it")
        )


def write_first_layers(target: str, count: int, out: Path) -> None:
    """Write a model folder of the target's first layers, with its embeddings, last norm, head and tokenizer.

    The weights have the dtype in which the target's are stored.

    Args:
        target: a folder for which `require_fewer_layers` accepts `count`.
        out: a folder that does not exist.

    Raises:
        ModelError: the target cannot be loaded, or measured.
    """
    config = load_config(target)
    refuse_unmeasurable(config, target)
    depth = num_layers(target)
    _cut(config, depth, count)
    stored = getattr(config, "dtype", None)
    dtype = stored if isinstance(stored, torch.dtype) else torch.float32
    with _quiet():
        model = load_weights(target, dtype, config)
    write(model, dtype, Path(target), out, _FIRST_LAYERS_CARD.format(count=count, depth=depth))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' report of the layers that stay unread, which is as long as the model is deep."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)


def _cut(config: Any, depth: int, count: int) -> None:
    """Shorten the per-layer entries of a config in place."""
    config.num_hidden_layers = count
    for name, value in vars(config).items():
        if "layer" in name and isinstance(value, list) and len(value) == depth:  # such as layer_types
            setattr(config, name, value[:count])
