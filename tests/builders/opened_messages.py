"""Messages opened as the tap opens them."""

from __future__ import annotations

from typing import Any

from shadowspec.tap.formats import MessageFormat
from tests.tap.formats import samples
from tests.tap.formats.samples import opened


def formats_of(value: Any, headers: samples.Headers) -> list[MessageFormat]:
    """The formats that open the message to anything but a refusal."""
    found = [each for each in MessageFormat if each is not MessageFormat.AUTO]
    return [each for each in found if opened(value, headers, each).error is None]
