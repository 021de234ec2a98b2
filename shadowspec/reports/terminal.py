"""The report's first page for a terminal: a table of verdicts per endpoint, and the funnel."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shadowspec.reports.charts import interval_text
from shadowspec.reports.model import EndpointReport, Funnel, Hypothesis, Report
from shadowspec.reports.words import DASH, percent, plural, slice_title, times
from shadowspec.types import FunnelCounter, Verdict

STYLE = {Verdict.ENABLE: "bold green", Verdict.DISABLE: "bold red", Verdict.HOLD: "yellow"}


def terminal_tables(report: Report) -> list[RenderableType]:
    """Renderables in reading order.  Every text is literal: names from traffic are never read as markup."""
    judged = [endpoint for endpoint in report.endpoints if endpoint.hypotheses]
    tables: list[RenderableType] = [_endpoint(endpoint) for endpoint in judged]
    if not judged:
        tables.append(Text("Nothing has been measured yet, so there is no verdict."))
    tables.append(_funnel(report))
    return tables


def _endpoint(endpoint: EndpointReport) -> RenderableType:
    """A table that fits 80 columns; the reasons, which are sentences, stand under it."""
    table = _table(Text(endpoint.name, style="bold"))
    for name in ("slice", "verdict", "speedup [bounds]", "acceptance [bounds]", "evidence"):
        table.add_column(Text(name), no_wrap=name != "slice")
    reasons: list[RenderableType] = []
    several = len({(h.config_name, h.concurrency) for h in endpoint.hypotheses}) > 1
    for h in endpoint.hypotheses:
        name = slice_title(h.slice_key) + (f" ({h.config_name}, load {h.concurrency})" if several else "")
        table.add_row(
            Text(name, style="" if h.slice_key else "bold"),
            _verdict(h),
            Text(interval_text(h.speedup, times) if h.speedup else DASH),
            Text(interval_text(h.acceptance_interval, percent) if h.acceptance_interval else DASH),
            Text(plural(h.decision.num_blocks if h.decision else h.num_blocks, "block")),
        )
        reason = h.decision.reason if h.decision else "measured, not judged yet"
        reasons.append(Padding(Text.assemble((f"{name}: ", "dim"), reason), (0, 0, 0, 1)))
    return Group(table, *reasons, Text(""))


def _verdict(hypothesis: Hypothesis) -> Text:
    if hypothesis.decision is None:
        return Text("not judged", style="dim")
    verdict = hypothesis.decision.verdict
    return Text(verdict.value, style=STYLE[verdict])


def _funnel(report: Report) -> Table:
    table = _table(Text("Where the records ended", style="bold"))
    table.add_column("endpoint")
    table.add_column("read", justify="right")
    shown = [row.counter for row in report.total_funnel.rows if row.num_records]  # the others are 0 everywhere
    for counter in shown:
        table.add_column(counter.value.replace("_", " "), justify="right")
    for funnel in report.funnels:
        if funnel.num_records:
            _funnel_row(table, "no endpoint told" if funnel.endpoint is None else funnel.endpoint, funnel, shown)
    table.add_section()
    _funnel_row(table, "all", report.total_funnel, shown)
    return table


def _funnel_row(table: Table, name: str, funnel: Funnel, shown: list[FunnelCounter]) -> None:
    numbers = {row.counter: row.num_records for row in funnel.rows}
    table.add_row(Text(name), f"{funnel.num_records:,}", *(f"{numbers[counter]:,}" for counter in shown))


def _table(title: Text) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False)
