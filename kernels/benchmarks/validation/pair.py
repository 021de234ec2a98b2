"""The models that both sides run: the bundled pair, or another one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shadowspec import demo


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and a draft, as folders of weights."""

    target: Path
    draft: Path


BUNDLED = Pair(demo.TARGET, demo.DRAFT)
