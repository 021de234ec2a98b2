"""Payloads that the real litellm package made, once per session."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.builders.databases import made_once
from tests.services import PATIENCE_S


@pytest.fixture(scope="session")
def litellm_payloads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Payload by the name of the call that was logged."""

    def make(folder: Path) -> None:
        script = Path(__file__).with_name("litellm_payloads.py")
        command = [sys.executable, str(script), str(folder / "payloads.json")]
        made = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert made.returncode == 0, made.stderr[-2_000:]

    folder = made_once(tmp_path_factory, "litellm", make)
    payloads: dict[str, dict[str, Any]] = json.loads((folder / "payloads.json").read_text())
    return payloads
