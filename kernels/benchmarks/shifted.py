"""A draft with the classic mistake of an index."""

from __future__ import annotations

from typing import Any

import torch


class Shifted(torch.nn.Module):
    """A model whose logits are those of the position before, but for the first of a pass."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.config, self.device, self.dtype, self._model = model.config, model.device, model.dtype, model

    def forward(self, **given: Any) -> Any:
        kept = given.pop("logits_to_keep")
        result = self._model(**given, logits_to_keep=0)
        result.logits = torch.cat((result.logits[:, :1], result.logits[:, :-1]), 1)[:, -kept:]
        return result
