"""Compile the kernels for a GPU that is not there, down to its machine code; each one's name is printed.

The interpreter runs Python: it does not see what the compiler refuses.  The launchers run as they are; only what
loads and starts the machine code is left out, so nothing that they return has a value.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver

from shadowspec_kernels import appending, scoring, verification
from tests.kernels.steps import a_step, with_minimum_length, with_penalties


class AbsentGpu:
    """What Triton asks a driver for before it compiles."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main() -> None:
    capability = int(sys.argv[1])
    driver.set_active(AbsentGpu(capability))
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        compiled = run(self, *args, grid=grid, warmup=True, **kwargs)
        print(compiled.metadata.name, len(compiled.asm["cubin"]), compiled.metadata.shared)
        return compiled

    JITFunction.run = compile_only
    everything = a_step("rejection", 1, depth=4, vocabulary=20_000, has_draft_probs=True, dtype=torch.bfloat16)
    verification.verify(with_minimum_length(with_penalties(everything, 1), 1))
    verification.verify(a_step("greedy_draft", 1, depth=1, vocabulary=20_000))
    verification.verify(a_step("exact_match", 1, depth=0, vocabulary=20_000))
    for dtype in (torch.bfloat16, torch.float32):
        hidden, head = torch.zeros((70, 128), dtype=dtype), torch.zeros((300, 128), dtype=dtype)
        scoring.score(hidden, head, torch.zeros(70, dtype=torch.int64), torch.ones(70))
    index = torch.zeros((2, 1), dtype=torch.int64)
    appending.append(torch.zeros((2, 4, 8, 64)), torch.zeros((2, 1, 4, 64)), index[:, 0], index)


if __name__ == "__main__":
    main()
