"""One layer of the Llama family over fused weights: the building block of `DirectLlama` and EAGLE drafts.

A `Matrix` holds a weight in the form in which its products are fastest where it runs.  On a CPU in float32 torch hands
products to a library whose kernels are slow for the handful of rows of a step: on an AMD EPYC five rows cost four times
as much as one.  oneDNN's, over weights in oneDNN's layout, cost hardly more than one row does, and 2.5 times less than
torch's for forty.  Where there is little to multiply, above all one row of a small weight, torch's product is still
faster, so that a small weight is held in both forms.  The weights of a large model are held once, as rows that compiled
code multiplies at the speed of the memory (`shadowspec_kernels.llama_cpu`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F  # noqa: N812  # its name everywhere

from shadowspec.engine.kv_cache import RaggedLayer

if TYPE_CHECKING:
    from shadowspec_kernels.llama_cpu import WeightMemory


@dataclass(frozen=True, slots=True)
class Norm:
    """Root-mean-square norm over the last dimension, with a weight."""

    weight: torch.Tensor  # [size]; times sqrt(size) where `floor` is given
    eps: float
    floor: torch.Tensor | None  # [], sqrt(size * eps), where the norm is taken in four operations of torch

    @classmethod
    def of(cls, module: Any, weight: torch.Tensor) -> Norm:
        """The norm of a transformers module with its weight [size], perhaps in another order.

        Torch's rms_norm is one kernel on a GPU and some ten on a CPU, which cost more than a small layer's
        products.  x / sqrt(mean(x^2) + eps) is x * sqrt(size) / hypot(|x|, sqrt(size * eps)).
        """
        eps, size = float(module.variance_epsilon), weight.shape[0]
        if weight.device.type != "cpu" or weight.dtype != torch.float32:
            return cls(weight, eps, None)
        return cls(weight * size**0.5, eps, torch.tensor((size * eps) ** 0.5))

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """[..., size] -> [..., size]."""
        if self.floor is None:
            return F.rms_norm(states, self.weight.shape, self.weight, self.eps)
        size: torch.Tensor = torch.linalg.vector_norm(states, 2, -1, keepdim=True)
        return (states / size.hypot_(self.floor)).mul_(self.weight)


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer.

    Queries and keys lie with the two halves of each head interleaved, so that a rotation is one product of
    complex numbers; their inner products are the same.
    """

    head_dim: int
    heads: int
    kv_heads: int
    attention_norm: Norm
    qkv: Matrix  # [in, (heads + 2 * kv_heads) * head_dim]: queries, keys, values
    qkv_bias: torch.Tensor | None  # [(heads + 2 * kv_heads) * head_dim]
    query_norm: Norm | None
    key_norm: Norm | None
    output: Matrix  # [heads * head_dim, hidden]
    mlp_norm: Norm
    gate_up: Matrix  # [hidden, 2 * intermediate]
    down: Matrix  # [intermediate, hidden]

    def matrices(self) -> tuple[Matrix, ...]:
        return self.qkv, self.output, self.gate_up, self.down

    def copies(self) -> Iterator[torch.Tensor]:
        """Tensors held beside the weights."""
        for matrix in self.matrices():
            yield from matrix.copies()

    def tensors(self) -> Iterator[torch.Tensor]:
        """The weights."""
        yield from (matrix.weight() for matrix in self.matrices())
        if self.qkv_bias is not None:
            yield self.qkv_bias
        for norm in (self.attention_norm, self.query_norm, self.key_norm, self.mlp_norm):
            if norm is not None:
                yield norm.weight

    def attend(
        self,
        store: RaggedLayer | None,
        normed: torch.Tensor,  # [rows * tokens, in]
        angles: torch.Tensor,  # complex64 [rows, tokens, 1, head_dim / 2]
        mask: torch.Tensor | None,  # float [rows, 1, tokens, read]
        keep: int,
    ) -> torch.Tensor:
        """Outputs of the heads side by side, of the last `keep` columns, [rows * keep, heads * head_dim].

        With neither store nor mask all columns are computed, and each sees those up to itself.
        """
        rows, count = angles.shape[:2]
        heads, kv_heads, head_dim = self.heads, self.kv_heads, self.head_dim
        mixed = self.qkv(normed)
        if self.qkv_bias is not None:
            mixed += self.qkv_bias
        mixed = mixed.view(rows, count, heads + 2 * kv_heads, head_dim)
        turning = mixed[:, :, : heads + kv_heads]
        if self.query_norm is not None and self.key_norm is not None:
            turning[:, :, :heads] = self.query_norm(turning[:, :, :heads])
            turning[:, :, heads:] = self.key_norm(turning[:, :, heads:])
        _turn(turning, angles)
        if store is None:
            keys, values = (part.transpose(1, 2) for part in mixed[:, :, heads:].chunk(2, 2))
        else:
            keys, values = store.append(mixed[:, :, heads:])
        queries = mixed[:, -keep:, :heads].transpose(1, 2)  # [rows, heads, keep, head_dim]
        group = heads // kv_heads
        if mask is not None:
            mask = mask[:, :, -keep:]
        if mask is None or group == 1 or store is None or not store.read_width:
            if group > 1:
                keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
            attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=mask is None)
            return attended.transpose(1, 2).reshape(rows * keep, heads * head_dim)
        # Heads that share keys are more queries of one head, so that the cache need not be copied for them.
        queries = queries.reshape(rows, kv_heads, group * keep, head_dim)
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask.repeat(1, 1, group, 1))
        attended = attended.view(rows, kv_heads, group, keep, head_dim).permute(0, 3, 1, 2, 4)
        return attended.reshape(rows * keep, heads * head_dim)

    def add_to(self, hidden: torch.Tensor, attended: torch.Tensor) -> None:
        """Add the heads' output and then the feed-forward part to `hidden` ([rows * tokens, hidden]), in place."""
        self.output.add_to(hidden, attended)
        gate, up = self.gate_up(self.mlp_norm(hidden)).chunk(2, 1)
        self.down.add_to(hidden, F.silu(gate).mul_(up))


def select_rotations(rotations: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The rotations at positions (int64 [rows, count]), complex64 [rows, count, 1, head_dim / 2]."""
    return rotations.index_select(0, positions.reshape(-1)).view(*positions.shape, 1, -1)


def _turn(states: torch.Tensor, angles: torch.Tensor) -> None:
    """Rotate each pair of neighbours in place; [rows, tokens, heads, head_dim] by [rows, tokens, 1, head_dim / 2]."""
    pairs = states.view(*states.shape[:-1], -1, 2)
    if states.dtype == torch.float32:
        torch.view_as_complex(pairs).mul_(angles)
    else:
        pairs.copy_(torch.view_as_real(torch.view_as_complex(pairs.float()) * angles))


def projections(attention: Any) -> tuple[Any, Any, Any]:
    """The linear layers of queries, keys and values of a transformers attention module."""
    return attention.q_proj, attention.k_proj, attention.v_proj


def adopt_layer(layer: Any, head_dim: int, memory: WeightMemory | None = None) -> Layer:
    """The weights of a transformers decoder layer, which is of no use afterwards.

    `memory` holds them for compiled code; None: they are multiplied by torch.
    """
    attention, mlp = layer.self_attn, layer.mlp
    linears = projections(attention)
    has_norms = hasattr(attention, "q_norm")
    for linear in linears[:2]:
        linear.weight.data = _interleave(linear.weight.data, head_dim)
    biases = [linear.bias.data for linear in linears if linear.bias is not None]
    if biases:
        biases = [_interleave(biases[0], head_dim), _interleave(biases[1], head_dim), biases[2]]
    query, key, _ = (linear.weight.shape[0] for linear in linears)
    return Layer(
        head_dim=head_dim,
        heads=query // head_dim,
        kv_heads=key // head_dim,
        attention_norm=Norm.of(layer.input_layernorm, layer.input_layernorm.weight.data),
        qkv=_fuse(memory, *linears),
        qkv_bias=torch.cat(biases) if biases else None,
        query_norm=_head_norm(attention.q_norm, head_dim) if has_norms else None,
        key_norm=_head_norm(attention.k_norm, head_dim) if has_norms else None,
        output=_fuse(memory, attention.o_proj),
        mlp_norm=Norm.of(layer.post_attention_layernorm, layer.post_attention_layernorm.weight.data),
        gate_up=_fuse(memory, mlp.gate_proj, mlp.up_proj),
        down=_fuse(memory, mlp.down_proj),
    )


def _head_norm(module: Any, head_dim: int) -> Norm:
    return Norm.of(module, _interleave(module.weight.data, head_dim))


def _interleave(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows [heads * head_dim, ...] with the halves of each head interleaved: 0, half, 1, half + 1, ..."""
    halves = weight.view(-1, 2, head_dim // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def _fuse(memory: WeightMemory | None, *linears: Any) -> Matrix:
    """The weights of linear layers side by side, [in, all outs]; the layers let go of theirs."""
    weight = torch.cat([linear.weight.data for linear in linears])
    fused = Matrix.of(weight) if memory is None else Matrix.compiled(memory.hold(weight))
    for linear in linears:
        linear.weight = None
    return fused


def rotation_table(rotary: Any, positions: int, device: torch.device) -> torch.Tensor:
    """cos + i sin of every position and pair, as the model's module gives them; [positions, head_dim / 2]."""
    every = torch.arange(positions, device=device)[None]
    cos, sin = rotary(torch.empty(0, dtype=torch.float32, device=device), every)  # [1, positions, head_dim]
    half = cos.shape[-1] // 2
    return torch.complex(cos[0, :, :half], sin[0, :, :half])


# Entries of a weight from which on one row is as fast over the packed form, which is then the only one.
PACKED_ALONE: Final = 2**20
# Products of rows and entries from which on several rows are faster over the packed form.
PACKED_WORK: Final = 2**18


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight [in, out] to multiply rows with: plain, packed or both, or as rows for compiled code."""

    plain: torch.Tensor | None  # [in, out]
    packed: torch.Tensor | None  # oneDNN's, of shape [out, in]; None: another device or dtype
    rows: torch.Tensor | None = None  # [out, in], contiguous

    @classmethod
    def of(cls, weight: torch.Tensor, *, is_held: bool = False) -> Matrix:
        """The product with a weight [out, in], as linear layers have it.

        Args:
            is_held: whether the weight is kept elsewhere anyway, so that its plain form takes no memory.
        """
        is_float = weight.device.type == "cpu" and weight.dtype == torch.float32
        is_packable = is_float and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        packed = torch.ops.mkldnn._reorder_linear_weight(weight) if is_packable else None  # noqa: SLF001 (has no other name)
        if packed is not None and weight.numel() >= PACKED_ALONE:
            return cls(None, packed)
        # [in, out] is faster than [out, in] for one row on a CPU.
        return cls(weight.t() if is_held else weight.t().contiguous(), packed)

    @classmethod
    def compiled(cls, weight: torch.Tensor) -> Matrix:
        """The product with a weight [out, in] by compiled code, which reads it where it lies."""
        return cls(None, None, weight)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """[rows, in] -> [rows, out]."""
        if self.rows is not None:
            from shadowspec_kernels import llama_cpu

            return llama_cpu.product(states, self.rows)
        if self._packed_for(states.shape[0]):
            product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(states, self.packed, None, "none", [], "")  # noqa: SLF001
            return product
        assert self.plain is not None, "a weight has one form at least"
        return torch.mm(states, self.plain)

    def add_to(self, total: torch.Tensor, states: torch.Tensor) -> None:
        """Add the product of states [rows, in] to `total` [rows, out] in place."""
        if self.rows is not None:
            from shadowspec_kernels import llama_cpu

            llama_cpu.product(states, self.rows, total)
        elif self._packed_for(states.shape[0]):
            total.add_(self(states))
        else:
            assert self.plain is not None, "a weight has one form at least"
            total.addmm_(states, self.plain)

    def _packed_for(self, rows: int) -> bool:
        if self.plain is None or self.packed is None:
            return self.plain is None
        return rows > 1 and rows * self.plain.numel() >= PACKED_WORK

    def weight(self) -> torch.Tensor:
        """The form that counts as the weight; the other is a copy."""
        form = next((form for form in (self.plain, self.packed, self.rows) if form is not None), None)
        assert form is not None, "a weight has one form at least"
        return form

    def copies(self) -> Iterator[torch.Tensor]:
        """Tensors held beside the weight."""
        if self.plain is not None and self.packed is not None:
            yield self.packed
