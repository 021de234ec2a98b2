"""What docker-compose.yml and the Dockerfile say is what the code reads and the package holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from typer.testing import CliRunner

from shadowspec.cli.main import app

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHECKOUT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    return found


def test_every_command_exists(services: dict[str, Any]) -> None:
    commands = [service["command"] for service in services.values() if service["image"].startswith("shadowspec")]
    assert ["worker"] in commands
    for command in commands:
        words = [word for word in command if not word.endswith((".jsonl", ".html"))]
        assert CliRunner().invoke(app, [*words, "--help"]).exit_code == 0, command


def test_every_variable_is_read(services: dict[str, Any]) -> None:
    named = {
        name
        for service in services.values()
        for name in service.get("environment", ())
        if name.startswith("SHADOWSPEC_")
    }
    read = {
        name
        for module in (CHECKOUT / "shadowspec").rglob("*.py")
        for name in re.findall(r'"(SHADOWSPEC_[A-Z_]+)"', module.read_text(encoding="utf-8"))
    }
    assert named
    assert named <= read


def test_the_image_copies_what_the_build_needs() -> None:
    text = (CHECKOUT / "Dockerfile").read_text(encoding="utf-8")
    copied = [path for line in re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE) for path in line.split()]
    assert all((CHECKOUT / path).exists() for path in copied)
    assert {"pyproject.toml", "LICENSE", "NOTICE", "README.md", "shadowspec", "migrations"} <= set(copied)
