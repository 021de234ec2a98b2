"""Fuzzes one target: `python tests/fuzz/fuzz.py NAME -max_total_time=600 CORPUS`; see harness.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fuzz.harness import main

if __name__ == "__main__":
    main(sys.argv.pop(1), sys.argv[1:])
