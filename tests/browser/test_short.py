"""The part of the browser tests that `make test` runs: the board opens, on nothing and on a store with history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernels.benchmarks.large_store import DATA_NOTE
from tests.browser import stores
from tests.browser.looking import Reader
from tests.browser.serving import Served

pytestmark = pytest.mark.integration


@pytest.mark.representative("1280-light-small", "390-dark-empty")
@pytest.mark.parametrize("state", ["empty", "small"])
@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_the_board_opens(
    dashboards: Callable[[str], Served], new_reader: Callable[..., Reader], state: str, width: int, theme: str
) -> None:
    reader = new_reader(width=width, theme=theme)
    site = dashboards(state)
    reader.open(site.address())
    assert reader.exceptions() == [], site.said
    assert reader.errors == []
    assert reader.overflow() == []
    assert reader.foreign == []
    if state == "empty":
        assert "no records read yet" in reader.words
    else:
        assert DATA_NOTE in reader.words
        assert "ENABLE" in reader.words
        assert "HOLD" in reader.words
    assert stores.PASSWORD not in reader.received()
    assert reader.violations() == []
