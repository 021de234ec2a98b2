"""What the browser tests look for is found where it is: on pages made to have it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.browser.looking import WIDTHS, Reader

PAGE = """<html lang="en"><head><title>t</title>
<meta name="viewport" content="width=device-width,initial-scale=1"></head>
<body style="margin: 0"><div data-testid="stApp"><div data-testid="stMain" style="overflow: auto">{}</div></div></body>
</html>"""


@pytest.mark.parametrize("width", WIDTHS)
def test_what_sticks_out_is_found_and_what_scrolls_by_itself_is_not(
    new_reader: Callable[..., Reader], width: int
) -> None:
    reader = new_reader(width=width)
    reader.page.set_content(PAGE.format('<div style="width: 2000px; height: 9px">wide</div>'))
    assert reader.overflow()
    reader.page.set_content(PAGE.format('<div style="overflow-x: auto"><div style="width: 2000px">wide</div></div>'))
    assert reader.overflow() == []


def test_failures_and_pale_words_are_found(new_reader: Callable[..., Reader]) -> None:
    reader = new_reader()
    reader.page.set_content(PAGE.format('<div data-testid="stException">boom</div><p style="color: #bbb">pale</p>'))
    assert reader.exceptions() == ["boom"]
    assert any("color-contrast" in each for each in reader.violations())
