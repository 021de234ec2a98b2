"""A count of transfers between device and host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

READERS = ("tolist", "numpy", "cpu")
# Operations whose result the host has to wait for: a number taken out, or a size that depends on values.
WAITING = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
}


class _Dispatched(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in WAITING:
            self._seen[str(func)] += 1
        if func is torch.ops.aten.index.Tensor and any(i is not None and i.dtype is torch.bool for i in args[1]):
            self._seen["index by bool"] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def watched() -> Iterator[Counter[str]]:
    """Counts what makes the host wait for a device."""
    seen: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch, _Dispatched(seen):
        for name in READERS:
            real = getattr(torch.Tensor, name)

            def counted(self: torch.Tensor, *args: Any, _name: str = name, _real: Any = real, **kwargs: Any) -> Any:
                seen[_name] += 1
                return _real(self, *args, **kwargs)

            patch.setattr(torch.Tensor, name, counted)
        yield seen
