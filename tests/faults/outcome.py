"""The end of a program that breaks things on purpose: its figures told and kept, and whether the promise held."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn


def conclude(figures: Mapping[str, Any], out: Path | None) -> NoReturn:
    """Print the figures, write them to `out`, and leave: with exit code 1 where they tell of anything wrong."""
    document = json.dumps(figures, indent=1)
    print(document)
    if out is not None:
        out.write_text(document + "\n", encoding="utf-8")
    sys.exit(1 if figures["wrong"] else 0)
