"""Takes the pictures of README and docs/ again: of the demo's report, and of the dashboard on a synthetic store.

    python -m tests.browser.pictures --report shadowspec-demo/report.html
    python -m tests.browser.pictures --config large.toml

The report is one that `shadowspec demo` wrote; the configuration is that of a store with a history, as
`python -m kernels.benchmarks.large_store --config large.toml` writes it.  What is not named is left as it is.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Browser

from shadowspec.config import load_config
from shadowspec.store import Store
from shadowspec.types import Verdict
from tests.browser.looking import browser, reader
from tests.browser.serving import served

FOLDER = Path(__file__).parents[2] / "docs" / "images"
WIDTH = 1280
REPORT_HEIGHT = 1130  # the verdicts of six endpoints, and the heading of what follows
PAGES = {"board": ("light", 1010), "evidence": ("dark", 1000), "changes": ("light", 1090)}  # theme, height


def of_report(opened: Browser, path: Path) -> None:
    """The top of a report, down to its verdicts."""
    with reader(opened, width=WIDTH) as page_reader:
        page_reader.page.set_viewport_size({"width": WIDTH, "height": REPORT_HEIGHT})
        page_reader.page.goto(path.resolve().as_uri())
        page_reader.page.screenshot(path=FOLDER / "report.png")


def of_dashboard(opened: Browser, config: Path) -> None:
    """The top of three pages: a board with an endpoint of each verdict, and the evidence of the first ENABLE."""
    with Store.open(load_config(config).database_url) as store:
        decisions = store.latest_decisions()
        endpoints = store.named_endpoints()
    wholes = [decision for decision in decisions if not decision.slice_key and decision.supersession is None]
    shown = {decision.verdict: decision.endpoint for decision in reversed(wholes)}
    undecided = [name for name in endpoints if not any(decision.endpoint == name for decision in decisions)]
    enabled = next(decision for decision in decisions if decision.verdict is Verdict.ENABLE and not decision.slice_key)
    chosen = {
        "board": [("endpoints", name) for name in (*shown.values(), *undecided[:1])],
        "evidence": [("endpoint", enabled.endpoint), ("load", str(enabled.concurrency))],
    }
    with served(config) as site:
        for name, (theme, height) in PAGES.items():
            with reader(opened, width=WIDTH, theme=theme) as page_reader:
                page_reader.page.set_viewport_size({"width": WIDTH, "height": height})
                place = "" if name == "board" else name  # by its name, several values of a filter would be one
                page_reader.open(f"{site.address(place)}?{urlencode(chosen.get(name, []))}")
                page_reader.page.screenshot(path=FOLDER / f"dashboard-{name}.png")


def main() -> None:
    """Take those that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, help="that `shadowspec demo` wrote")
    parser.add_argument("--config", type=Path, help="of a synthetic store")
    arguments = parser.parse_args()
    if arguments.report is None and arguments.config is None:
        parser.error("nothing to take a picture of: --report or --config")
    with browser() as opened:
        if arguments.report is not None:
            of_report(opened, arguments.report)
        if arguments.config is not None:
            of_dashboard(opened, arguments.config)


if __name__ == "__main__":
    main()
