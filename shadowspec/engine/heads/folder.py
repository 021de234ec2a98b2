"""A folder of draft heads as it is published, config.json and safetensors, read strictly.

Nothing is guessed: a field that is missing, of another type or of a kind that is not run here, and a weight that is
missing, of another shape or unknown, are refused with the name of the file and of the field or weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from shadowspec.engine.heads import DraftVocabulary
from shadowspec.errors import ModelError
from shadowspec.model_folder import read_object, require_weights

CONFIG_NAME: Final = "config.json"
SPECULATORS_FIELD: Final = "speculators_model_type"
KINDS: Final = ("medusa", "mlp_speculator", "eagle3")


class HeadFolder:
    """Config and weights of one folder; weights are taken out one by one, and none may be left."""

    def __init__(
        self, path: str, config: Mapping[str, Any], weights: dict[str, torch.Tensor], device: torch.device, dtype: Any
    ) -> None:
        self.path, self.config = path, config
        self._weights, self._device, self._dtype = weights, device, dtype

    def wrong(self, field: str, why: str) -> ModelError:
        """The error of a field of the config."""
        return ModelError(f"{self.path}/{CONFIG_NAME}: {field}: {why}")

    def number(self, *names: str) -> int:
        """A whole number above 0, under one of its names.

        Raises:
            ModelError: the number is missing or invalid.
        """
        name = next((name for name in names if name in self.config), names[0])
        value = self.config.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.wrong(name, "is missing" if value is None else f"{value!r} is not a whole number above 0")
        return value

    def expect(self, name: str, expected: Any, why: str) -> None:
        """Refuse another value of a field than the one that is run here; a field that is absent has it."""
        value = self.config.get(name, expected)
        if value is not None and value != expected:
            raise self.wrong(name, f"{value!r}: {why}")

    def flag(self, *names: str) -> bool:
        """True or false under one of its names; false where it is missing."""
        name = next((name for name in names if name in self.config), names[0])
        value = self.config.get(name, False)
        if not isinstance(value, bool):
            raise self.wrong(name, f"{value!r} is neither true nor false")
        return value

    def rename(self, names: Mapping[str, str]) -> None:
        """Give weights other names, old to new."""
        self._weights = {names.get(name, name): weight for name, weight in self._weights.items()}

    @property
    def names(self) -> frozenset[str]:
        """Of the weights that have not been taken."""
        return frozenset(self._weights)

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """A weight on its device, in the dtype of the run.

        Raises:
            ModelError: it is missing or of another shape.
        """
        weight = self._weights.pop(name, None)
        if weight is None:
            raise ModelError(f"{self.path}: weight {name} is missing")
        if tuple(weight.shape) != shape:
            raise ModelError(f"{self.path}: weight {name} has the shape {list(weight.shape)} and not {list(shape)}")
        return weight.to(self._device, self._dtype if weight.is_floating_point() else None)

    def rows(self, name: str) -> int:
        """Rows of a weight that has not been taken; 0 without one."""
        return len(self._weights[name]) if name in self._weights else 0

    def drop(self, *names: str) -> None:
        """Leave out weights that only repeat others."""
        for name in names:
            self._weights.pop(name, None)

    def vocabulary(self, name: str, size: int, vocabulary: int, *, are_offsets: bool) -> DraftVocabulary:
        """The tokens that can be drafted, from the weight `name` [size].

        Args:
            are_offsets: the weight holds the target's id less the draft's, instead of the id.

        Raises:
            ModelError: not distinct ids of the target's vocabulary.
        """
        ids = self.take(name, size).to(torch.int64)
        if are_offsets:
            ids = ids + torch.arange(size, device=ids.device)
        is_inside = bool(((ids >= 0) & (ids < vocabulary)).all())
        if not is_inside or len(set(ids.tolist())) != size:
            raise ModelError(
                f"{self.path}: weight {name} does not name {size} distinct tokens of the target's {vocabulary}"
            )
        return DraftVocabulary(vocabulary, ids)

    def finish(self) -> None:
        """Refuse weights that nothing took.

        Raises:
            ModelError: there are some.
        """
        if self._weights:
            raise ModelError(f"{self.path}: weight {min(self._weights)} is not known ({len(self._weights)} such)")


def read_heads(path: str, device: torch.device, dtype: torch.dtype) -> HeadFolder:
    """Config and weights of a folder.

    Raises:
        ModelError: they cannot be read.
    """
    name = f"folder of heads {path}"
    if (config := read_object(name, Path(path) / CONFIG_NAME)) is None:
        raise ModelError(f"{name}: has no {CONFIG_NAME}; give a folder with it and with *.safetensors")
    require_weights(name, Path(path))
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(Path(path).glob("*.safetensors")):
        try:
            weights |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{file}: cannot be read as safetensors ({error}); download it again") from error
    return HeadFolder(path, config, weights, device, dtype)


def heads_kind(folder: HeadFolder) -> str:
    """Which of KINDS the config says it is.

    Raises:
        ModelError: none of them.
    """
    known = f"known are the model types medusa and mlp_speculator, and {SPECULATORS_FIELD} eagle3"
    config = folder.config
    if SPECULATORS_FIELD in config:
        if config[SPECULATORS_FIELD] != "eagle3":
            raise folder.wrong(SPECULATORS_FIELD, f"{config[SPECULATORS_FIELD]!r} cannot be run: {known}")
        return "eagle3"
    # Medusa's checkpoints have no model type, vLLM's do.
    model_type = config.get("model_type", "medusa" if "medusa_num_heads" in config else None)
    if model_type not in ("medusa", "mlp_speculator"):
        raise folder.wrong("model_type", f"{model_type!r} is not a supported kind of draft heads; supported: {known}")
    return str(model_type)
