"""How long a reader waits for each page of the dashboard, in a real browser, and which SQL each page asks for.

    python -m kernels.benchmarks.dashboard [--config FILE] [--rounds N] [--out FILE]

FILE is the configuration of a large store, as `python -m kernels.benchmarks.large_store --config FILE` writes it;
without one such a store is made first, with ten million runs, in a Postgres of its own (some minutes and 6 GB).  A
visit begins with an empty browser and ends when the page's own content is drawn and nothing is on its way; `first` is
the first visit after the server's start (and after it has read the board by itself), `again` a later one.  An
interaction is timed from the click or key: `s` until the whole page is drawn, what lies below the window included,
`seen_s` until what lies within the window is.  Nothing else may run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels.benchmarks import harness
from kernels.benchmarks.harness import ROOT, options

if TYPE_CHECKING:
    from shadowspec.reports.pages.before_after import Enabling
    from shadowspec.store import Store

FIRST_LIMIT_S, INTERACTION_LIMIT_S = 2.0, 1.0  # what a reader is promised
TITLES = (
    "Explorer",
    "Evidence",
    "Load and what-if",
    "Changes",
    "Before and after",
    "Audit",
    "Board",
)  # in the navigation
READING_MS = 3_000  # that a reader looks at the board before going on
MAX_CHANGES = 2_000  # of verdicts, newest first
SQL_SHOWN = 400  # characters of a statement
REST_S = 1.0  # without a statement: the server has read what it reads at its start


@dataclass(frozen=True)
class Page:
    """A page by its address, and words that are there once its content is."""

    name: str
    path: str
    words: str


LIVE_PATH = "before-after?endpoint={live_endpoint}&decision={live_decision}"
LIVE_WORDS = "Production counted its first draft"  # said with production's figures alone

# Each is a visit; `{endpoint}` and `{slice}` are of the store's first enabled slice, `{live_decision}` is the enabling
# around which most was read of production.
PAGES = (
    Page("board", "", "Meaning of the columns"),
    Page("board, disabled only", "?verdict=DISABLE", "Meaning of the columns"),
    Page("evidence", "evidence?endpoint={endpoint}&load={load}", "Confidence sequences"),
    Page("explorer", "explorer", "Requests"),
    Page("load and what-if", "loads", "Not a decision."),
    Page("changes", "changes", "Drift and changes"),
    Page("before and after", "before-after", "Before and after"),
    Page("before and after, with production", LIVE_PATH, LIVE_WORDS),
    Page("before and after, with production, 7 days", LIVE_PATH + "&around=7+days", LIVE_WORDS),
    Page("audit", "audit", "Audit and kill switch"),
)


def serve(port: int, log: Path) -> None:
    """Be the dashboard's process, and note every statement with its time."""
    import sqlalchemy
    from sqlalchemy import event

    lines = log.open("a", buffering=1)

    @event.listens_for(sqlalchemy.Engine, "before_cursor_execute")
    def before(_connection: Any, _cursor: Any, _statement: str, _parameters: Any, context: Any, _many: bool) -> None:
        context.shadowspec_started = time.perf_counter()

    @event.listens_for(sqlalchemy.Engine, "after_cursor_execute")
    def after(_connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, _many: bool) -> None:
        seconds = time.perf_counter() - context.shadowspec_started
        row = {"at": time.time(), "ms": seconds * 1000.0, "rows": cursor.rowcount, "sql": " ".join(statement.split())}
        lines.write(json.dumps(row) + "\n")

    from shadowspec.cli.dashboard import dashboards_folder

    folder = dashboards_folder()
    sys.path.insert(0, str(folder))
    sys.argv = [
        *(str(folder / "serve.py"), "--server.port", str(port), "--server.address", "127.0.0.1"),
        *("--server.headless", "true", "--browser.gatherUsageStats", "false"),
    ]
    runpy.run_path(sys.argv[0], run_name="__main__")


@contextmanager
def server(config: Path, log: Path) -> Iterator[str]:
    """The dashboard on a store, until the block is left."""
    from tests.browser.serving import wait_until_up
    from tests.services import free_port

    port = free_port()
    environment = os.environ | {"SHADOWSPEC_CONFIG": str(config), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "kernels.benchmarks.dashboard", "--serve", str(port), "--log", str(log)]
    with (log.parent / "server.log").open("wb") as output:
        child = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)  # noqa: S603 - our own
        try:
            wait_until_up(child, port, log.parent / "server.log")
            yield f"http://127.0.0.1:{port}"
        finally:
            child.terminate()
            child.wait(20)


@dataclass
class Statements:
    """What the server asked the database since one last looked."""

    log: Path
    read: int = 0

    def new(self) -> list[dict[str, Any]]:
        """The statements since the last time, slowest first."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        rows, self.read = [json.loads(line) for line in lines[self.read :]], len(lines)
        asked = [
            {"ms": round(row["ms"], 1), "rows": row["rows"], "sql": row["sql"][:SQL_SHOWN]}
            for row in rows
            if not row["sql"].startswith(("SET ", "SHOW ", "PRAGMA", "BEGIN", "select pg_catalog.version"))
        ]
        return sorted(asked, key=lambda row: -row["ms"])

    def at_rest(self) -> list[dict[str, Any]]:
        """What the server asked by itself at its start; waits until it is done."""
        size, since = -1, time.monotonic()
        while time.monotonic() - since < REST_S:
            now = self.log.stat().st_size if self.log.exists() else 0
            if now != size:
                size, since = now, time.monotonic()
            time.sleep(0.05)
        return self.new()


def visit(browser: Any, address: str, words: str) -> tuple[float, dict[str, Any]]:
    """Seconds until the page at `address` is drawn, in an empty browser, and the browser's own marks."""
    from tests.browser.looking import reader

    with reader(browser) as page_reader:
        page_reader.page.goto(address)
        page_reader.page.get_by_text(words).first.wait_for(timeout=45_000)
        content_ms = page_reader.page.evaluate("() => performance.now()")
        drawn_ms = page_reader.settle()
        paint_ms = page_reader.page.evaluate(
            "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
        )
        if page_reader.exceptions():
            raise SystemExit(f"{address}: {page_reader.exceptions()}")
        marks = {"first_contentful_paint_s": round((paint_ms or 0.0) / 1000, 3)}
        return drawn_ms / 1000.0, marks | {"content_s": round(content_ms / 1000, 3)}


def interactions(browser: Any, base: str, statements: Statements, live_path: str) -> list[dict[str, Any]]:
    """What a reader does on the board, and around an enabling with production's figures, each timed on its own."""
    from tests.browser.looking import reader

    rows = []
    with reader(browser) as page_reader:
        page_reader.open(base)
        statements.new()

        def act(name: str, action: Callable[[], None]) -> None:
            answered = page_reader.act(action)
            figures = {"seen_s": round(answered.seen_ms / 1000.0, 3), "s": round(answered.all_ms / 1000.0, 3)}
            rows.append({"name": name, **figures, "sql": statements.new()})

        page = page_reader.page
        act("board: one verdict", lambda: page.get_by_role("button", name="DISABLE").first.click())
        act("board: that verdict off", lambda: page.get_by_role("button", name="DISABLE").first.click())

        page.get_by_label("Search").first.fill("code")
        act("board: search", lambda: page.keyboard.press("Enter"))
        page.wait_for_timeout(READING_MS)

        def follow(name: str) -> None:
            page.get_by_role("link", name=name, exact=True).first.click()

        for name in TITLES:
            act(f"to {name}", partial(follow, name))
        act(
            "from the board to its first endpoint's evidence",
            lambda: page.locator("table.ss-board .ss-go").first.click(),
        )
        page_reader.open(f"{base}/{live_path}")
        statements.new()
        act("before and after: 7 days of production", lambda: page.get_by_text("7 days", exact=True).first.click())
        if LIVE_WORDS not in page_reader.words:
            raise SystemExit(f"{live_path}: no figures of production are shown")
    return rows


def machine(config: Path) -> dict[str, Any]:
    """What the figures were measured on, and how much the store holds."""

    from shadowspec.config import load_config
    from shadowspec.store import session

    url = session.parse_url(load_config(config).database_url)
    with harness.connected(url) as connection:
        held = {
            name: int(connection.exec_driver_sql(f"SELECT {what} FROM {table}").scalar() or 0)  # noqa: S608 - ours
            for name, what, table in (
                ("runs in rollups", "sum(num_runs)", "rollups"),
                ("rollups", "count(*)", "rollups"),
                ("decisions", "count(*)", "decisions"),
                ("raw runs", "count(*)", "runs"),
                ("live windows", "count(*)", "live_windows"),
                ("live hours", "count(*)", "live_hours"),
            )
        }
        server_version = str(connection.exec_driver_sql("SELECT version()").scalar())
    return harness.machine() | {
        "load average": [round(load, 1) for load in os.getloadavg()],
        "database": server_version,
        "store": held,
    }


def main() -> None:
    """Measure every page and interaction, print them, and write the results."""
    parser = options(__doc__, "dashboard.json")
    parser.add_argument("--config", type=Path, help="of a large store")
    parser.add_argument("--rounds", type=int, default=5, help="later visits of each page")
    parser.add_argument("--only", help="pages whose name begins so")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)  # the port, in the server's own process
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        serve(arguments.serve, arguments.log)
        return
    with large_store(arguments.config) as config:
        measure(config, arguments.rounds, arguments.only or "", arguments.out)


@contextmanager
def large_store(given: Path | None) -> Iterator[Path]:
    """The configuration of the store given, else of one that is made for this run alone."""
    if given is not None:
        yield given.resolve()
        return
    from datetime import UTC, datetime

    from kernels.benchmarks.large_store.config import config_text
    from kernels.benchmarks.large_store.filling import Size, fill
    from kernels.benchmarks.large_store.world import make_world
    from tests.services import postgres_server

    size = Size()
    with postgres_server() as server, tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        print(fill(server.url, size, datetime.now(UTC)), f"{time.monotonic() - started:.0f} s")
        path = Path(folder) / "large.toml"
        path.write_text(config_text(make_world(size.num_slices, size.seed), server.url), encoding="utf-8")
        yield path


def measure(config: Path, rounds: int, only: str, out: Path) -> None:
    """Start a server for each page's first visit, then visit again on a warm one."""
    from tests.browser.looking import browser

    places = example(config)
    rows = []
    with tempfile.TemporaryDirectory() as folder, browser() as opened:
        log = Path(folder) / "statements"
        for page in PAGES:
            if not page.name.startswith(only):
                continue
            log.unlink(missing_ok=True)
            with server(config, log) as base:
                statements = Statements(log)
                statements.at_rest()
                address, words = f"{base}/{page.path.format(**places)}", page.words.format(**places)
                first, marks = visit(opened, address, words)
                sql = statements.new()
                again = [visit(opened, address, words)[0] for _ in range(rounds)]
                row = {
                    "page": page.name,
                    "first_s": round(first, 3),
                    **marks,
                    "again_s_median": round(statistics.median(again), 3),
                    "again_s_max": round(max(again), 3),
                    "sql_ms": round(sum(statement["ms"] for statement in sql), 1),
                    "sql_again": statements.new()[:20],
                    "sql": sql,
                }
                rows.append(row)
                print({name: value for name, value in row.items() if not name.startswith("sql") or name == "sql_ms"})
                for action in sql[:8]:
                    print(f"    {action['ms']:8.1f} ms {action['rows']:7d} rows  {action['sql'][:150]}")
        log.unlink(missing_ok=True)
        with server(config, log) as base:
            statements = Statements(log)
            ahead = statements.at_rest()
            acted = interactions(opened, base, statements, LIVE_PATH.format(**places))
        for action in acted:
            print(
                action["name"],
                action["seen_s"],
                action["s"],
                [round(statement["ms"]) for statement in action["sql"][:5]],
            )
    results = {"machine": machine(config), "at the start": ahead, "pages": rows, "interactions": acted}
    harness.write(out, results)


def example(config: Path) -> dict[str, str]:
    """An endpoint with a verdict, for the pages that are of one, and an enabling with live evidence around it."""
    from shadowspec.config import load_config
    from shadowspec.store import Store
    from shadowspec.types import Verdict

    with Store.open(load_config(config).database_url) as store:
        decisions = store.latest_decisions()
        live = _most_read(store)
    enabled = [decision for decision in decisions if decision.verdict is Verdict.ENABLE] or decisions
    first = {"endpoint": enabled[0].endpoint, "load": str(enabled[0].concurrency), "slice": enabled[-1].slice_key}
    return first | {"live_endpoint": live.endpoint, "live_decision": str(live.decision_id)}


def _most_read(store: Store) -> Enabling:
    """The enabling with most windows on the side that has fewer, within a week of it."""
    from shadowspec.reports.pages.before_after import enablings
    from shadowspec.reports.pages.live_production import around

    rows = []
    for enabling in enablings(store.verdict_changes(limit=MAX_CHANGES), store.fingerprints()):
        read = around(store, enabling.endpoint, enabling.decided_at, timedelta(days=7))
        if read is not None and read.switched_on is not None:
            rows.append((min(read.before.num_windows, read.after.num_windows), enabling))
    if not rows:
        raise SystemExit("the store holds no live evidence around an enabling")
    return max(rows, key=lambda row: row[0])[1]


if __name__ == "__main__":
    main()
