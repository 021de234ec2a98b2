"""`shadowspec dashboard`: serves until stopped, says where, needs no torch, and says what is in its way."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.cli_process import run_command
from tests.services import PATIENCE_S

MODULES = """
import importlib, sys
from dashboards.app import PACKAGE, load_package
load_package()
importlib.import_module(f"{PACKAGE}.frame")
import shadowspec.cli.dashboard
print([name for name in ("torch", "transformers", "triton") if name in sys.modules])
"""
CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "shadowspec.toml"
    path.write_text(f'[database]\nurl = "sqlite:///{tmp_path / "shadow.db"}"\n', encoding="utf-8")
    monkeypatch.delenv("SHADOWSPEC_DATABASE_URL", raising=False)
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.all)]
)
def test_it_serves_until_stopped(number: int, code: int, config: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "shadowspec", "dashboard", "--config", str(config), "--port", str(port)]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    with subprocess.Popen(
        command, cwd=config.parent, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == f"dashboard: http://127.0.0.1:{port}\n"
        address = line.split()[1]
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with urllib.request.urlopen(f"{address}/_stcore/health", timeout=5) as answer:
                    assert answer.read() == b"ok"
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == code
    with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.1", port), timeout=2):
        pass


def test_a_port_that_is_taken_is_no_surprise(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run_command(monkeypatch, capsys, "dashboard", "--config", str(config), "--port", port)
    assert done.code == 2
    assert re.search(rf"127\.0\.0\.1:{port} cannot be bound .*--port", done.err.replace("\n", " "))


def test_without_streamlit_it_says_what_to_install(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "streamlit", None)
    done = run_command(monkeypatch, capsys, "dashboard", "--config", str(config))
    assert done.code == 2
    assert "the dashboard needs the extra `dashboard`: pip install 'shadowspec[dashboard]'" in done.err


def test_no_page_imports_torch() -> None:
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MODULES], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.strip() == "[]"
