"""The bundled pair, loaded once for the tests of the validation."""

from __future__ import annotations

import pytest

from kernels.benchmarks.engines.ours import Ours


@pytest.fixture(scope="session")
def ours() -> Ours:
    return Ours()
