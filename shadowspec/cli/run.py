"""`shadowspec run`: measure files of mirrored traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from shadowspec.app.before_loading import name_loads, require_database, require_inputs, require_records
from shadowspec.app.progress_bar import notes
from shadowspec.app.try_out.survey import NO_ENDPOINT
from shadowspec.cli.console import print_json, results
from shadowspec.cli.options import ConfigOption, FilesArgument, JsonOption, MapOption, MaxRequestsOption, chosen_map
from shadowspec.config import find_config, load_config
from shadowspec.errors import NoDataError
from shadowspec.metrics import cached_shares, ratio
from shadowspec.tap.parameters import REMEDIES
from shadowspec.text import percent, plural
from shadowspec.types import CachedPrompts, FunnelCounter, FunnelKey
from shadowspec.types.public_documents import PublicDocument, PublicValue

if TYPE_CHECKING:
    from shadowspec.app.measure_files import FileMeasurement

_UNUSABLE = frozenset({FunnelCounter.MALFORMED, FunnelCounter.UNSUPPORTED})  # what measuring again would not change


class FunnelCount(PublicValue, frozen=True, kw_only=True):
    """How many records ended in one place."""

    endpoint: str | None
    counter: FunnelCounter
    reason: str | None
    num_records: int


class RunDocument(PublicDocument, frozen=True, kw_only=True):
    """What `run --json` measured of the files."""

    files: Sequence[str]
    records_read: int
    blocks_measured: int
    requests_found: int
    requests_measured: int
    num_compared_prompts: int
    num_other_prompts: int
    prefix_caches: CachedPrompts
    funnel: Sequence[FunnelCount]


def run(
    files: FilesArgument,
    config_path: ConfigOption = None,
    max_requests: MaxRequestsOption = None,
    field_map: MapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure mirrored traffic with and without speculation, and store the results in the database.

    Interrupt it at any time; run the same command again to resume. A second full run changes nothing.
    """
    config = replace(load_config(find_config(config_path)), given_format=chosen_map(field_map))
    require_inputs(config, files)
    require_database(config)
    require_records(config, files)
    name_loads(config.endpoints)
    from shadowspec.app.measure_files import measure_files

    done = measure_files(config, files, max_requests=max_requests)
    show_measured(done, files, as_json=as_json)
    if max_requests is not None and sum(progress.requests_measured for progress in done.progress) >= max_requests:
        notes.print(
            "stopped by --max-requests: sessions may continue in the unread part, so the gate may count few or none of "
            "them. Run the same command without it to read the rest",
            highlight=False,
        )
    if any(progress.requests_measured or progress.requests_found for progress in done.progress):
        notes.print("next: shadowspec gate, then shadowspec report", highlight=False)
    else:
        notes.print("no requests were measured", highlight=False)


def show_measured(done: FileMeasurement, files: Sequence[str], *, as_json: bool) -> None:
    """The results of measuring files, on stdout.

    Raises:
        NoDataError: no record could be used.
    """
    totals = RunDocument(
        files=files,
        records_read=sum(progress.records_read for progress in done.progress),
        blocks_measured=sum(progress.blocks_measured for progress in done.progress),
        requests_found=sum(progress.requests_found for progress in done.progress),
        requests_measured=sum(progress.requests_measured for progress in done.progress),
        num_compared_prompts=sum(progress.num_compared_prompts for progress in done.progress),
        num_other_prompts=sum(progress.num_other_prompts for progress in done.progress),
        prefix_caches=sum((progress.cached for progress in done.progress), CachedPrompts()),
        funnel=funnel_counts(done.funnel),
    )
    if as_json:
        print_json(totals)
    else:
        results.print(
            f"{totals.records_read} records read, {totals.requests_measured} requests measured in "
            f"{totals.blocks_measured} blocks"
            + (f" ({totals.requests_found} were measured before)" if totals.requests_found else ""),
            highlight=False,
        )
        print_funnel(done.funnel, {})
        if (share := ratio(totals.num_other_prompts, totals.num_compared_prompts)) is not None:
            counted = plural(totals.num_compared_prompts, "prompt")
            results.print(f"the server counts another length of {percent(share)} of {counted}", highlight=False)
        production, *arms = map(percent, cached_shares(totals.prefix_caches))
        if totals.prefix_caches.num_requests:
            results.print(
                f"prompt tokens in prefix caches: production {production}, baseline {arms[0]}, speculative {arms[1]} "
                f"(of {plural(totals.prefix_caches.num_requests, 'request')})",
                highlight=False,
            )
    if done.funnel and all(counter in _UNUSABLE for _, counter, _ in done.funnel) and not totals.requests_found:
        malformed = any(counter is FunnelCounter.MALFORMED for _, counter, _ in done.funnel)
        unmatched = any(reason == "no_endpoint" for _, _, reason in done.funnel)
        raise NoDataError(
            "no record could be used"
            + ("" if as_json else "; the table says why")
            + ("; malformed: give JSON lines of mirrored requests (docs/formats.md)" if malformed else "")
            + (f"; no_endpoint: {NO_ENDPOINT}" if unmatched else "")
        )


def print_funnel(funnel: Mapping[FunnelKey, int], messages: Mapping[str, str]) -> None:
    """Where records ended, the remedy of each reason that has one, and the first message of each reason."""
    if funnel:
        results.print(funnel_table(funnel))
    for reason in sorted({reason for _, _, reason in funnel if reason is not None} & REMEDIES.keys()):
        notes.print(f"{reason}: {REMEDIES[reason]}", markup=False, highlight=False, soft_wrap=True)
    for reason, message in messages.items():
        notes.print(f"first {reason}: {message}", markup=False, highlight=False, soft_wrap=True)


def funnel_counts(funnel: Mapping[FunnelKey, int]) -> list[FunnelCount]:
    """Where records ended, as --json shows it."""
    return [
        FunnelCount(endpoint=endpoint, counter=counter, reason=reason, num_records=number)
        for (endpoint, counter, reason), number in _in_order(funnel)
    ]


def funnel_table(funnel: Mapping[FunnelKey, int]) -> Table:
    """Where records ended."""
    table = Table("endpoint", "counter", "reason", title="Where the records ended", title_justify="left", box=None)
    table.add_column("records", justify="right")
    for (endpoint, counter, reason), number in _in_order(funnel):
        table.add_row(escape(endpoint or "unmatched"), counter.value, reason or "", f"{number:,}")
    return table


def _in_order(funnel: Mapping[FunnelKey, int]) -> list[tuple[FunnelKey, int]]:
    return sorted(funnel.items(), key=lambda count: (count[0][0] or "", -count[1], count[0][1], count[0][2] or ""))
