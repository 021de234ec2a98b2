"""A reader's browser: real headless Chromium, opened as wide and as dark as the reader has it, and what it finds."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.services import PATIENCE_S, ServiceMissingError

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
QUIET = ("--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync")
SETTLE_TIMEOUT_MS = 1_000 * PATIENCE_S
WIDTHS = (1280, 390)
THEMES = ("light", "dark")
ZONE = "Europe/Berlin"  # of the reader: never UTC, so that a time that was not turned shows

# When the page last changed and was last touched, by its own clock, and what is drawn of it changed when: neither the
# page's own marks (`data-`) are, nor what stands within a canvas for those who listen to it (a table's cells, which
# the grid writes there a third of a second after it has drawn them).
_WATCH = """() => {
    window.lastChange = 0, window.lastInput = 0, window.changes = [];
    const watch = new MutationObserver((records) => {
        const now = window.lastChange = performance.now(), changed = new Set();
        for (const record of records) {
            if (record.type === 'attributes' && record.attributeName.startsWith('data-')) continue;
            const target = record.target.nodeType === Node.ELEMENT_NODE ? record.target : record.target.parentElement;
            if (target?.closest('canvas')) continue;
            for (const node of record.addedNodes.length ? record.addedNodes : [record.target]) changed.add(node);
        }
        if (changed.size) window.changes.push([now, changed]);
    });
    watch.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
    for (const kind of ['pointerdown', 'keydown']) {
        window.addEventListener(kind, () => { window.lastInput = performance.now(); }, true);
    }
}"""

# When something last changed that now lies within the window.
_SEEN = """() => {
    const isSeen = (node) => {
        const element = node.nodeType === Node.ELEMENT_NODE ? node : node.parentElement;
        if (!element || !element.isConnected) return false;
        const box = element.getBoundingClientRect();
        return box.width > 0 && box.height > 0 && box.top < window.innerHeight && box.bottom > 0
            && box.left < window.innerWidth && box.right > 0;
    };
    for (const [at, changed] of window.changes.slice().reverse()) if ([...changed].some(isSeen)) return at;
    return window.lastInput;
}"""

# Nothing has changed for as long as it is given, ms, the script has run, and nothing is on its way.  It is asked in
# every frame: reading the page's text lays it out, and is left until the page rests.
_SETTLED = """(quiet) => {
    if (performance.now() - window.lastChange <= quiet) return false;
    const app = document.querySelector('[data-testid="stApp"]');
    if (!app || app.dataset.testScriptState !== 'notRunning') return false;
    if (app.dataset.testConnectionState !== 'CONNECTED') return false;
    const block = document.querySelector('[data-testid="stMainBlockContainer"]');
    if (!block || block.innerText.trim() === '' || block.querySelector('[data-testid="stSkeleton"]')) return false;
    return !block.querySelector('[data-stale="true"]');
}"""
QUIET_MS = 400

# What sticks out to the right of the window, other than inside something that scrolls by itself.
_OVERFLOW = """() => {
    const width = document.documentElement.clientWidth, found = [];
    const scrolls = (element) => {
        for (let own = element.parentElement; own; own = own.parentElement) {
            if (own.dataset && own.dataset.testid === 'stMain') return false;
            const style = getComputedStyle(own);
            if (['auto', 'scroll', 'hidden', 'clip'].includes(style.overflowX)
                && own.getBoundingClientRect().right <= width + 1) return true;
        }
        return false;
    };
    for (const element of document.querySelectorAll('body *')) {
        const box = element.getBoundingClientRect(), style = getComputedStyle(element);
        if (box.width === 0 || box.height === 0 || style.visibility === 'hidden' || style.opacity === '0') continue;
        if (box.right > width + 1 && !scrolls(element)) {
            found.push(`${element.tagName} ${element.dataset.testid || element.className} ends at ${box.right}`);
        }
    }
    const main = document.querySelector('[data-testid="stMain"]');
    if (main && main.scrollWidth > main.clientWidth + 1) found.push(`page is ${main.scrollWidth} wide`);
    return found.slice(0, 5);
}"""


@dataclass(frozen=True)
class Answered:
    """How long a page took to answer, ms: until what lies within the window was drawn, and until the whole page was."""

    seen_ms: float
    all_ms: float


@dataclass
class Reader:
    """One open page, with everything that came to it over the wire."""

    page: Page
    frames: list[bytes] = field(default_factory=list, repr=False)  # what the server sent over its socket
    foreign: list[str] = field(default_factory=list)  # requests that went elsewhere
    errors: list[str] = field(default_factory=list)  # of the page's own scripts

    def open(self, address: str) -> None:
        """Go there and wait until all of it is drawn."""
        self.page.goto(address)
        self.settle()

    def settle(self) -> float:
        """Wait until the page has answered and nothing changes any more; when it last changed, ms of its own clock."""
        self.page.wait_for_function(_SETTLED, arg=QUIET_MS, timeout=SETTLE_TIMEOUT_MS)
        last: float = self.page.evaluate("() => window.lastChange")
        return last

    def act(self, action: Callable[[], object]) -> Answered:
        """Do what the server must answer, and wait until it has, as `settle`; timed from the click or key, if any.

        Raises:
            TimeoutError: nothing came back.
        """
        num_before = len(self.frames)
        self.page.evaluate("() => { window.changes = []; window.lastInput = performance.now(); }")
        action()
        deadline = time.monotonic() + SETTLE_TIMEOUT_MS / 1000.0
        while len(self.frames) == num_before:
            if time.monotonic() > deadline:
                raise TimeoutError("the server did not answer")
            self.page.wait_for_timeout(10)
        self.settle()
        started, seen, drawn = self.page.evaluate(
            f"() => [window.lastInput, ({_SEEN})(), window.changes.at(-1)?.[0] ?? window.lastInput]"
        )
        return Answered(seen - started, drawn - started)

    def expect(self, word: str) -> None:
        """Wait until the page says this; raises playwright's TimeoutError if it never does."""
        self.page.get_by_text(word).locator("visible=true").first.wait_for(timeout=SETTLE_TIMEOUT_MS)
        self.settle()

    @property
    def words(self) -> str:
        """The text of the page as it is shown."""
        return self.page.locator('[data-testid="stApp"]').inner_text()

    @property
    def tree(self) -> str:
        """The page as a screen reader has it: roles, names and levels, one line each."""
        return self.page.locator('[data-testid="stMainBlockContainer"]').aria_snapshot()

    def exceptions(self) -> list[str]:
        """Boxes in which Streamlit shows that the page failed."""
        boxes = self.page.locator('[data-testid="stException"], [data-testid="stAlertContentError"]')
        return [box.inner_text() for box in boxes.all()]

    def overflow(self) -> list[str]:
        """What sticks out of the window to the right."""
        found: list[str] = self.page.evaluate(_OVERFLOW)
        return found

    def received(self) -> str:
        """Everything that the browser was given: the document, and what came over the socket."""
        return self.page.content() + "".join(frame.decode("utf-8", "replace") for frame in self.frames)

    def violations(self) -> list[str]:
        """What axe-core finds against WCAG 2 at level A and AA that is serious or critical, one line each."""
        from axe_playwright_python.sync_playwright import Axe

        options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], "resultTypes": ["violations"]}
        found: dict[str, Any] = Axe().run(self.page, options=options).response
        return [
            f"{item['id']} ({item['impact']}) at {node['target']}: {node['html'][:160]}"
            for item in found["violations"]
            if item["impact"] in ("serious", "critical")
            for node in item["nodes"]
        ]


def chromium_path() -> str:
    """The browser's program.

    Raises:
        ServiceMissingError: there is none.
    """
    for name in CHROMIUM_NAMES:
        if found := shutil.which(name):
            return found
    raise ServiceMissingError("no browser found: apt-get install chromium")


@contextmanager
def browser() -> Iterator[Browser]:
    """A headless browser, closed at the end."""
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium_path(), args=list(QUIET))
        try:
            yield opened
        finally:
            opened.close()


@contextmanager
def reader(opened: Browser, *, width: int = 1280, theme: str = "light") -> Iterator[Reader]:
    """A new window; nothing that another one kept is in it."""
    height = 900 if width > 600 else 844
    context = opened.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if theme == "dark" else "light",
        timezone_id=ZONE,
        locale="en-GB",
        is_mobile=width < 600,
        has_touch=width < 600,
        accept_downloads=True,
        reduced_motion="reduce",
    )
    context.add_init_script(f"({_WATCH})()")
    page_reader = Reader(context.new_page())
    page_reader.page.on(
        "websocket", lambda socket: socket.on("framereceived", lambda frame: page_reader.frames.append(_bytes(frame)))
    )
    page_reader.page.on("request", lambda request: _note_foreign(page_reader, request.url))
    page_reader.page.on("pageerror", lambda error: page_reader.errors.append(str(error)))
    try:
        yield page_reader
    finally:
        context.close()


def _bytes(frame: str | bytes) -> bytes:
    return frame.encode() if isinstance(frame, str) else frame


def _note_foreign(reader: Reader, url: str) -> None:
    if not url.startswith(("http://127.0.0.1", "data:", "blob:")):
        reader.foreign.append(url)
