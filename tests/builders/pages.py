"""A parsed HTML page, and text that attacks one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

from shadowspec.reports.report import (
    Report,
    build_report,
)
from shadowspec.types import FunnelCounter, RecordKey, StoredRecord
from tests.builders.report_worlds import CODE, POLICY, judged, world
from tests.reports.worlds import NOW, MemorySource, add_slice, config

VOID = {"meta", "br", "img", "input", "hr", "link"}
EVIL = "<script>alert(1)</script>\"'&|`*[x](y)"


class Page(HTMLParser):
    """Checks nesting, and collects what a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@cache
def reports() -> dict[str, Report]:
    """The states that a report can be in."""
    slow = MemorySource()
    add_slice(
        slow, "story", "prompt_class=creative,sampling_regime=high", num_blocks=40, speedup=0.8, rate=0.3, failures=1
    )
    only_unread = MemorySource(unread=[StoredRecord(RecordKey("f", 0, 1), FunnelCounter.MALFORMED, "not_json")])
    tiny = MemorySource()
    add_slice(tiny, "editor", CODE, num_blocks=1, speedup=1.0, rate=0.0)
    failed = MemorySource()
    add_slice(failed, "editor", CODE, num_blocks=1, speedup=1.0, rate=0.0, failures=4)
    sources = {
        "full": judged(world()),
        "slow": judged(slow),
        "not judged": world(),
        "empty": MemorySource(),
        "nothing measured": only_unread,
        "nothing told": only_unread,
        "one block": judged(tiny),
        "all failed": judged(failed),
    }
    return {
        name: build_report(
            source,
            {} if name in ("empty", "nothing told") else {"editor": POLICY},
            NOW,
            data_note="A replay, not production traffic.",
        )
        for name, source in sources.items()
    }


STATES = ("full", "slow", "not judged", "empty", "nothing measured", "nothing told", "one block", "all failed")


def evil_report() -> Report:
    source = MemorySource()
    key = f"prompt_class=code,sampling_regime=greedy,tier={EVIL.replace('=', '').replace(',', '')}"
    add_slice(source, EVIL, key, num_blocks=6, speedup=1.2, rate=0.5, fingerprinted=config(EVIL, device=EVIL))
    source.unread.append(
        StoredRecord(RecordKey("f", 0, 1), FunnelCounter.UNSUPPORTED, f"unknown_parameter:{EVIL}", EVIL)
    )
    judged(source)
    source.decisions = [replace(decision, reason=EVIL) for decision in source.decisions]
    return build_report(source, {EVIL: POLICY}, NOW, data_note=EVIL, title=EVIL)
