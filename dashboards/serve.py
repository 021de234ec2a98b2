"""Starts Streamlit on `app.py` with the pages imported already, so that the first visitor does not wait for that."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main() -> None:
    """Run until stopped; the arguments are Streamlit's own options."""
    folder = Path(__file__).resolve().parent
    app = importlib.import_module("app")  # beside this file, whose folder leads the search path
    sys.path.remove(str(folder))
    app.load_package()
    importlib.import_module(f"{app.PACKAGE}.frame")
    from streamlit.web import cli

    sys.argv = ["streamlit", "run", str(folder / "app.py"), *sys.argv[1:]]
    cli.main()


if __name__ == "__main__":
    main()
