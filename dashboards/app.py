"""What `streamlit run` executes at every rerun: loads the package once, by its installed name, and draws the page."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

PACKAGE = "shadowspec._dashboards"


def load_package() -> None:
    """Import the folder that this file lies in as `PACKAGE`, wherever it lies."""
    if PACKAGE in sys.modules:
        return
    folder = Path(__file__).resolve().parent
    spec = importlib.util.spec_from_file_location(
        PACKAGE, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None, "a file that exists has a spec"
    assert spec.loader is not None, "a file of Python has a loader"
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    load_package()
    importlib.import_module(f"{PACKAGE}.frame").draw()
