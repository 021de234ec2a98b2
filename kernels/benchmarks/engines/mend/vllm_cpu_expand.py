"""What mends vLLM 0.32's sampled speculation on a CPU, in memory.

There `expand_kernel` fills a copy of its output, so that temperature, top-k and top-p of drafted positions are whatever
the memory held, and cuts fractions off besides (vLLM's issue 55005).  The replacement does what the GPU's kernel does.
Greedy requests never come here.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULE = "vllm.utils.cpu_triton_utils"


def expand(
    output: Any,
    input_val: Any,
    cu_num_tokens: Any,
    replace_from: Any,
    replace_to: Any,
    MAX_NUM_TOKENS: Any = None,  # noqa: N803
) -> None:
    """Repeat each request's value for each of its tokens, as `output` has room for.

    Args:
        output: [tokens].
        input_val: [requests].
        cu_num_tokens: tokens up to each request's last, [requests].
        replace_from, replace_to: a value, and what stands in its place.
    """
    values = input_val.clone()
    values[input_val == replace_from] = replace_to
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    output.copy_(values.repeat_interleave(counts))


class _Mended(Loader):
    """The module's own loader, and the replacement after it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        vars(module)["_expand_kernel_impl"] = expand


class _Finder(MetaPathFinder):
    """Finds the one module that is mended."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Mended(spec.loader)
        return spec


def install() -> None:
    """Have the module mended when it is imported."""
    sys.meta_path.insert(0, _Finder())
