"""Payloads that the real litellm package made, once per session."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SECONDS = 300  # importing litellm takes four, on an idle machine


@pytest.fixture(scope="session")
def litellm_payloads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Payload by the name of the call that was logged."""
    out = tmp_path_factory.mktemp("litellm") / "payloads.json"
    script = Path(__file__).with_name("litellm_payloads.py")
    made = subprocess.run(
        [sys.executable, str(script), str(out)], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert made.returncode == 0, made.stderr[-2_000:]
    payloads: dict[str, dict[str, Any]] = json.loads(out.read_text())
    return payloads
