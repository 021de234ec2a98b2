"""An initial draft made of the target: its first layers between its embeddings and head."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from shadowspec.distill.draft_folder import write
from shadowspec.engine.models import load_weights, refuse_unmeasurable
from shadowspec.engine.tokenizer import load_config
from shadowspec.errors import ModelError, UsageError

_CARD = """\
# The first {count} of {depth} layers of a target

With its embeddings and its head, as they are in the target: what `shadowspec distill --from-layers` begins from.
"""


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
    write(model, dtype, Path(target), out, _CARD.format(count=count, depth=depth))


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
