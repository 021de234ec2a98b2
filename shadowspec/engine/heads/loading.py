"""Loading a folder of draft heads for a target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shadowspec.engine.heads import StagedHeads
from shadowspec.engine.heads.eagle3 import Eagle3Draft, eagle3_draft
from shadowspec.engine.heads.folder import heads_kind, read_heads
from shadowspec.engine.heads.medusa import medusa_heads
from shadowspec.engine.heads.mlp_speculator import mlp_speculator
from shadowspec.engine.models import LoadedModel, input_embedding
from shadowspec.errors import ModelError
from shadowspec.model_folder import config_digest, weights_digest


@dataclass(frozen=True, slots=True)
class LoadedHeads:
    """Draft heads on the target's device, with their identity."""

    path: str
    kind: str  # of `folder.KINDS`
    heads: StagedHeads | Eagle3Draft
    weights_digest: str
    config_digest: str

    @property
    def forward_name(self) -> str:
        """Whose forward pass runs the heads."""
        return self.kind

    @property
    def max_speculative_tokens(self) -> int | None:
        """How many tokens can be drafted; None: as many as one likes."""
        return None if isinstance(self.heads, Eagle3Draft) else self.heads.num_heads

    @property
    def weight_bytes(self) -> int:
        """Bytes that the heads always hold, without the tensors that they share with the target."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.heads.tensors())

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one token of one request holds."""
        if not isinstance(self.heads, Eagle3Draft):
            return 0
        layer = self.heads.layer
        return 2 * layer.kv_heads * layer.head_dim * layer.qkv.weight().element_size()


def load_heads(path: str, kind: str, target: LoadedModel) -> LoadedHeads:
    """Load the heads of a folder.

    Args:
        kind: the folder's expected kind, one of `folder.KINDS`.

    Raises:
            ModelError: it holds another kind, or weights that do not fit the target.
    """
    config = target.model.config
    folder = read_heads(path, target.model.device, target.model.dtype)
    held_kind = heads_kind(folder)
    if held_kind != kind:
        raise ModelError(f"{path}: the proposer is {kind}, and the folder holds {held_kind}")
    heads: StagedHeads | Eagle3Draft
    if kind == "eagle3":
        heads = eagle3_draft(folder, config, input_embedding(target.model))
    elif kind == "medusa":
        heads = medusa_heads(folder, int(config.hidden_size), int(config.vocab_size))
    else:
        heads = mlp_speculator(folder, int(config.hidden_size), int(config.vocab_size))
    return LoadedHeads(path, kind, heads, weights_digest(Path(path)), config_digest(Path(path)))
