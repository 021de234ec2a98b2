"""Fuzzes messages of the format `otlp`; see harness.py for how to run it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz.harness import main

if __name__ == "__main__":
    main("otlp", sys.argv[1:])
