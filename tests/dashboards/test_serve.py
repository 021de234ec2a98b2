"""What is done before the first visitor comes."""

from __future__ import annotations

import gc
import importlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dashboards import serve
from dashboards.app import PACKAGE, load_package
from shadowspec.reports.pages import board_values as board_source


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Leave to the tests that follow what a dashboard never looks at again."""
    load_package()
    gc.unfreeze()
    yield
    gc.unfreeze()
    importlib.import_module(f"{PACKAGE}.parts.source").forget()


def test_the_board_is_read_before_somebody_asks_for_it(
    filled_url: str, configured: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(filled_url)
    source = importlib.import_module(f"{PACKAGE}.parts.source")
    asked = []
    monkeypatch.setattr(source, "board_values", lambda *given: asked.append(given) or board_source.board_values(*given))
    serve._read_ahead(PACKAGE)
    assert len(asked) == 1
    assert gc.get_freeze_count() > 0
    assert source.board(source.pulse()).rows
    assert len(asked) == 1


def test_a_store_that_cannot_be_read_is_left_to_the_page(tmp_path: Path, configured: Callable[..., Path]) -> None:
    configured(f"sqlite:///{tmp_path / 'nothing.db'}")
    serve._read_ahead(PACKAGE)
    assert gc.get_freeze_count() > 0


def test_nobody_outside_is_asked_where_this_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    net_util, server_util = (
        importlib.import_module(f"streamlit.{name}") for name in ("net_util", "web.server.server_util")
    )
    asked: list[object] = []
    monkeypatch.setattr(socket.socket, "connect", lambda _, address: asked.append(address))
    monkeypatch.setattr(net_util, "_make_blocking_http_get", lambda url, timeout=5: asked.append(url))
    assert not server_util.is_url_from_allowed_origins("https://elsewhere.example")
    assert asked  # Streamlit by itself
    asked.clear()
    for name in ("get_internal_ip", "get_external_ip"):
        monkeypatch.setattr(net_util, name, getattr(net_util, name))  # put back at the end
    serve._ask_nobody_outside()
    assert not server_util.is_url_from_allowed_origins("https://elsewhere.example")
    assert not asked
