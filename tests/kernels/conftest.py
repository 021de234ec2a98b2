"""The device on which the kernels' tests run: a GPU, or Triton's interpreter on the CPU."""

from __future__ import annotations

import pytest
import torch

from shadowspec_kernels.backends import why_unavailable


@pytest.fixture(scope="session")
def device() -> torch.device:
    found = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert why_unavailable("triton", found) is None  # what cannot run fails; it is not skipped
    return found
