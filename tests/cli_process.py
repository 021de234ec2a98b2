"""Running a command as `shadowspec` runs it, in this process."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from shadowspec.cli import main


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        return dict(json.loads(self.out))


def run_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> Result:
    """Run `shadowspec ARGUMENTS...`."""
    monkeypatch.setattr(sys, "argv", ["shadowspec", *arguments])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    return Result(int(ended.value.code or 0), captured.out, captured.err)
