"""What is done before the first visitor comes."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dashboards import serve
from dashboards.app import PACKAGE, load_package
from shadowspec.reports import board_source


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Leave to the tests that follow what a dashboard never looks at again."""
    load_package()
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
