"""The compiled Llama: `llama_reference` on a CPU in float32, at the speed of its memory (`llama_cpu.cpp`).

Each number of a row is computed in an order that depends only on the weights' sizes and the row's context.  So the
logits of a row are the same, bit for bit, for any rows beside it, any number of its tokens in the pass, and any number
of threads.  Weights in bfloat16 or int8 give the bits of the same values in float32.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
from collections.abc import Iterable, Iterator
from typing import Final

import torch

from shadowspec_kernels.building import LLAMA_CPU, load_library
from shadowspec_kernels.errors import UnavailableError
from shadowspec_kernels.llama_weights import (
    FORMATS,
    CachedPass,
    LayerWeights,
    LlamaWeights,
    PassOutputs,
    check_pass,
    check_product,
    num_inputs,
    pack,
    packed_width,
)

ALIGNMENT: Final = 64  # bytes: a line of the cache

_Pointer = ctypes.c_void_p
_Size = ctypes.c_int64


class _Layer(ctypes.Structure):
    _fields_ = [(name, _Pointer) for name in LayerWeights.__slots__]


class _Model(ctypes.Structure):
    _fields_ = [
        *((name, _Size) for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate")),
        ("vocabulary", _Size),
        ("format", _Size),
        ("floor", ctypes.c_float),
        ("head_floor", ctypes.c_float),
        *((name, _Pointer) for name in ("layer_weights", "final_norm", "head")),
    ]


class _Pass(ctypes.Structure):
    _fields_ = [
        *((name, _Size) for name in ("rows", "count", "keep", "width")),
        *((name, _Size) for name in ("slot_stride", "head_stride", "column_stride", "threads")),
        *((name, _Pointer) for name in ("columns", "angles", "caches", "hidden", "inputs", "final_states", "logits")),
    ]


@functools.cache
def _library_or_reason() -> ctypes.CDLL | str:
    try:
        library = load_library(LLAMA_CPU)
    except UnavailableError as error:
        return str(error)
    library.shadowspec_product.argtypes = [
        *(_Pointer, _Size, _Size, _Size, _Pointer, _Size, _Pointer, _Size),
        *(ctypes.c_int, ctypes.c_int),
    ]
    library.shadowspec_product.restype = None
    library.shadowspec_pass.argtypes = [ctypes.POINTER(_Model), ctypes.POINTER(_Pass)]
    library.shadowspec_pass.restype = None
    return library


_num_threads: int | None = None  # of compiled code; None: as many as torch has


def _team_size() -> int:
    return _num_threads or torch.get_num_threads()


@contextlib.contextmanager
def torch_on_one_thread() -> Iterator[None]:
    """Torch works on one thread meanwhile, compiled code on as many as torch had.

    A small operation of torch gains nothing by two threads.  Where a neighbour has a core, each waits for milliseconds
    until that core's thread has ended.
    """
    global _num_threads
    outer, before = _num_threads, torch.get_num_threads()
    _num_threads = _team_size()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _num_threads = outer


def library() -> ctypes.CDLL:
    """The compiled code, built at the first call of this user on this processor.

    Raises:
        UnavailableError: it cannot be built or loaded here; the message says why.
    """
    library_or_reason = _library_or_reason()
    if isinstance(library_or_reason, str):
        raise UnavailableError(library_or_reason)
    return library_or_reason


class WeightMemory:
    """Memory for the weights of a model, in huge pages where the system has them: fewer misses of its page table."""

    def __init__(self, shapes: Iterable[torch.Size], dtype: torch.dtype) -> None:
        """For weights [outputs, inputs] of these shapes, in one of the `FORMATS`.

        Raises:
            OperandError: a shape has no int8 form.
        """
        self.dtype = dtype
        size = sum(ALIGNMENT + outputs * packed_width(inputs, dtype) * dtype.itemsize for outputs, inputs in shapes)
        # Private: shared memory has huge pages only where the system is configured for them.
        memory = mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        self._free = torch.frombuffer(memory, dtype=torch.uint8)

    def hold(self, weight: torch.Tensor) -> torch.Tensor:
        """A copy of a weight [outputs, inputs] in this memory and its format."""
        packed = pack(weight, self.dtype)
        place, self._free = self._free[: packed.nbytes], self._free[-(-packed.nbytes // ALIGNMENT) * ALIGNMENT :]
        return place.view(self.dtype).view(packed.shape).copy_(packed)

    @staticmethod
    def give_back() -> None:
        """Return the memory of the weights that were copied to the system: glibc would keep it for later use."""
        with contextlib.suppress(AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


def product(states: torch.Tensor, weight: torch.Tensor, total: torch.Tensor | None = None) -> torch.Tensor:
    """`llama_reference.product`.

    Raises:
        OperandError: the operands do not fit together, or cannot be addressed.
        UnavailableError: as `library`.
    """
    check_product(states, weight, total)
    states = states.contiguous()
    out = states.new_empty((states.shape[0], weight.shape[0])) if total is None else total
    if out.numel():
        library().shadowspec_product(
            *(weight.data_ptr(), FORMATS.index(weight.dtype), states.shape[1], weight.shape[0], states.data_ptr()),
            *(states.shape[0], out.data_ptr(), out.stride(0), int(total is not None), _team_size()),
        )
    return out


class CompiledLlama:
    """Weights with the compiled code's descriptions of them."""

    def __init__(self, weights: LlamaWeights) -> None:
        """
        Raises:
            UnavailableError: as `library`.
        """
        self.weights = weights
        self._run = library().shadowspec_pass
        first = weights.layers[0]
        self._layers = (_Layer * len(weights.layers))(
            *(_Layer(*(_pointer(getattr(layer, name)) for name in LayerWeights.__slots__)) for layer in weights.layers)
        )
        hidden = num_inputs(first.qkv)
        self._model = _Model(
            *(len(weights.layers), hidden, weights.heads, weights.kv_heads, weights.head_dim, num_inputs(first.down)),
            *(weights.head.shape[0], FORMATS.index(weights.head.dtype)),
            *(hidden * weights.eps, weights.head_dim * weights.eps),
            *(ctypes.cast(self._layers, _Pointer), _pointer(weights.final_norm), _pointer(weights.head)),
        )

    def run(self, operands: CachedPass) -> PassOutputs:
        """`llama_reference.llama_pass`.

        Raises:
            OperandError: the operands do not fit the weights, or cannot be addressed.
        """
        check_pass(self.weights, operands)
        rows, count, size = operands.hidden.shape
        hidden, columns, angles = (
            tensor.contiguous() for tensor in (operands.hidden, operands.columns, operands.angles)
        )
        logits = hidden.new_empty((rows, operands.keep, self.weights.head.shape[0]))
        inputs = {layer: torch.empty_like(hidden) for layer in operands.layers}
        final_states = hidden.new_empty((rows, operands.keep, size)) if operands.with_final else None
        pointers = _Pointer * len(operands.caches)
        caches = pointers(*(cache.data_ptr() for cache in operands.caches))
        wanted = pointers(*(_pointer(inputs.get(layer)) for layer in range(len(caches)))) if inputs else None
        described = _Pass(
            *(rows, count, operands.keep, operands.width),
            *(*operands.caches[0].stride()[:3], _team_size()),
            *(columns.data_ptr(), angles.data_ptr(), ctypes.cast(caches, _Pointer), hidden.data_ptr()),
            *(ctypes.cast(wanted, _Pointer) if wanted is not None else None, _pointer(final_states), logits.data_ptr()),
        )
        self._run(self._model, described)
        return PassOutputs(logits, tuple(inputs[layer] for layer in operands.layers), final_states)


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
