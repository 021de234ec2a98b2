"""The board's first screen as HTML: what changed since yesterday, what needs somebody, what it costs."""

from __future__ import annotations

from collections.abc import Sequence

from shadowspec.reports.content.changes import Change
from shadowspec.reports.pages.board import BoardEndpoint
from shadowspec.reports.pages.fleet_digest import ASKING, FleetCost, FleetDigest
from shadowspec.reports.pages.page_charts import KIND_MARKS
from shadowspec.text import percent, plural, slice_title, span_text

from .board_table import evidence_address, money
from .formats import mark_verdict, sentence_html, short_local, text
from .links import address

DAY = "1 day"  # the shortest time of the timeline


def today_html(digest: FleetDigest, currency: str) -> str:
    """Three parts beside each other; each names its number, shows its first lines and leads to the rest."""
    parts = (
        _part("Changed since yesterday", _changes(digest.changes), _more_changes(digest)),
        _part("Needs somebody", _asking(digest.asking), _more_asking(digest)),
        _part("Costs, last 7 days of traffic", _costs(digest.cost, currency), ""),
    )
    return f'<div class="ss-today">{"".join(parts)}</div>'


def _part(title: str, lines: Sequence[str], more: str) -> str:
    rows = "".join(f"<li>{line}</li>" for line in lines)
    return f"<section><h2>{title}</h2><ul>{rows}</ul>{more}</section>"


def _changes(changes: Sequence[Change]) -> list[str]:
    if not changes:
        return ["Nothing changed."]
    return [
        f"{KIND_MARKS[change.kind][0]} {_go(_evidence_of(change), change.endpoint)}{_slice(change)}: "
        f"{text(change.what)} <small>{short_local(change.at)}</small>"
        for change in changes
    ]


def _slice(change: Change) -> str:
    return f" <small>{text(slice_title(change.slice_key))}</small>" if change.slice_key else ""


def _evidence_of(change: Change) -> str:
    if change.fingerprint is None or change.concurrency is None:
        return address("changes", endpoint=change.endpoint, window=DAY)
    return address(
        "evidence",
        endpoint=change.endpoint,
        slice=change.slice_key,
        load=change.concurrency,
        config=change.fingerprint[:12],
    )


def _more_changes(digest: FleetDigest) -> str:
    left = digest.num_changes - len(digest.changes)
    return _more(address("changes", window=DAY), f"{plural(left, 'more change')}") if left else ""


def _asking(endpoints: Sequence[BoardEndpoint]) -> list[str]:
    if not endpoints:
        return ["Nothing does: more traffic decides the rest."]
    return [
        f'<b class="ss-severity">{text(endpoint.head.severity)}</b> '
        f"{_go(evidence_address(endpoint.head), endpoint.name)} {mark_verdict(endpoint.head.verdict)}"
        f"{_owner(endpoint)}: {sentence_html(endpoint.head.next_action)}"
        for endpoint in endpoints
    ]


def _owner(endpoint: BoardEndpoint) -> str:
    return f" <small>{text(endpoint.head.owner)}</small>" if endpoint.head.owner else ""


def _more_asking(digest: FleetDigest) -> str:
    left = digest.num_asking - len(digest.asking)
    asked = "&".join(address("", severity=severity) for severity in ASKING).replace("?", "")
    return _more(f"?{asked}&sort=severity", f"{plural(left, 'more endpoint')}") if left else ""


def _costs(cost: FleetCost, currency: str) -> list[str]:
    lines = []
    saved = None if cost.enabled is None else cost.enabled.saved_share
    if saved is not None:
        word = "saves" if saved >= 0.0 else "costs"
        lines.append(
            f"Where it is ENABLE ({plural(cost.num_enabled, 'endpoint')}), speculation {word} "
            f"<b>{percent(abs(saved), 0)}</b> of the device time of an output token."
        )
    if cost.measuring_s > 0.0:
        price = "" if cost.price is None else f", {text(money(cost.price, currency))}"
        lines.append(f"Measuring both arms took at least <b>{span_text(cost.measuring_s)}</b> of a device{price}.")
    return lines or ["Nothing was measured."]


def _go(where: str, name: str) -> str:
    """A link that the board's script follows without loading the page again."""
    return f'<a class="ss-go" href="{text(where)}">{text(name)}</a>'


def _more(where: str, words: str) -> str:
    return f'<p><a class="ss-go" href="{text(where)}">{words}</a></p>'
