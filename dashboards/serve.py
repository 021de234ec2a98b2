"""Starts Streamlit on `app.py` with the pages imported already, so that the first visitor does not wait for that."""

from __future__ import annotations

import gc
import importlib
import inspect
import sys
from contextlib import suppress
from pathlib import Path
from threading import Thread


def main() -> None:
    """Run until stopped; the arguments are options of Streamlit."""
    folder = Path(__file__).resolve().parent
    app = importlib.import_module("app")  # beside this file, whose folder leads the search path
    sys.path.pop(0)
    app.load_package()
    importlib.import_module(f"{app.PACKAGE}.frame")
    _warm()
    _ask_nobody_outside()
    from streamlit.web import cli

    # Streamlit collects garbage after every draw, and nothing is sent meanwhile.  What was imported is none: looking at
    # its 250,000 objects would take a quarter of a second of every answer.
    gc.collect()
    gc.freeze()
    Thread(target=_read_ahead, args=(app.PACKAGE,), daemon=True).start()
    sys.argv = ["streamlit", "run", str(folder / "app.py"), *sys.argv[1:]]
    cli.main()


def _ask_nobody_outside() -> None:
    """Keep Streamlit from asking a host on the internet which address this machine has there.

    It would where it listens on every address, and whenever a page of another origin knocks.
    """
    net_util = importlib.import_module("streamlit.net_util")
    for name in ("get_internal_ip", "get_external_ip"):
        setattr(net_util, name, lambda: None)


def _warm() -> None:
    """Do once what Streamlit does at the first use of a part and keep: some tenths of a second for a page."""
    importlib.import_module("streamlit.emojis")  # one regular expression of every emoji
    inspect.stack()  # which module lies in which file: Streamlit asks at its first element


def _read_ahead(package: str) -> None:
    """Read the board while nobody waits for it.  What cannot be read is said to who comes, by the page."""
    source, errors = (importlib.import_module(name) for name in (f"{package}.parts.source", "shadowspec.errors"))
    with suppress(errors.ShadowSpecError):
        source.board(source.pulse())
    gc.freeze()  # most of it stays for as long as anything does; what is replaced goes by its last reference


if __name__ == "__main__":
    main()
