"""`shadowspec backfill`: months of logged responses replayed on a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from shadowspec import metrics
from shadowspec.app.before_loading import require_inputs
from shadowspec.app.progress_bar import notes
from shadowspec.cli.console import is_verbose, print_json, results
from shadowspec.cli.options import (
    ConfigOption,
    DepthsOption,
    EndpointOption,
    JsonOption,
    MapOption,
    MaxRequestsOption,
    NearTieOption,
    VerifyRulesOption,
    chosen_map,
    chosen_rules,
)
from shadowspec.cli.replay import DEFAULT_DEPTHS, DEPTHS_ACROSS, ReplayedFigures, length_text, parse_depths
from shadowspec.cli.run import FunnelCount, funnel_counts, print_funnel, show_measured
from shadowspec.config import find_config, load_config
from shadowspec.errors import InputError, NoDataError, UsageError
from shadowspec.reports.figures.frontiers import length_of
from shadowspec.servers.engines.rules import used_rules
from shadowspec.tap.sources import is_parquet
from shadowspec.text import slice_title
from shadowspec.types import AcceptanceSums, FingerprintedConfig
from shadowspec.types.extras import require_extra
from shadowspec.types.public_documents import PublicDocument, PublicValue, public

if TYPE_CHECKING:
    from shadowspec.app.backfill_replay import Backfilled
    from shadowspec.backfill.cluster import Actors
    from shadowspec.backfill.connection import Resources


class ReplayedSums(ReplayedFigures, frozen=True, kw_only=True):
    """The acceptance that was replayed, with the fingerprint by which it is stored."""

    fingerprint: str


class ReplayedFile(PublicValue, frozen=True, kw_only=True):
    """A file, and why it could not be read."""

    file: str
    sha256: str | None
    is_finished: bool
    error: str | None


class BackfillDocument(PublicDocument, frozen=True, kw_only=True):
    """What `backfill --json` replayed, with what earlier ones had finished."""

    files: Sequence[ReplayedFile]
    unfinished_files: Sequence[str]
    depths: Sequence[int]
    records: Annotated[int, "num_records"]
    requests_replayed: Annotated[int, "num_replayed"]
    near_tie_tokens: Annotated[int, "num_near_ties"]
    blocks: Annotated[int, "num_blocks"]
    blocks_found: Annotated[int, "num_blocks_found"]
    new_rows: Annotated[int, "num_new_rows"]
    seconds: float
    replays: Sequence[ReplayedSums]
    funnel: Sequence[FunnelCount]


def backfill(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Files of JSON lines (gzip or not) or Parquet, or folders of them: local, s3://, gs://, https:// ...",
        ),
    ],
    config_path: ConfigOption = None,
    depths: DepthsOption = None,
    endpoint: EndpointOption = None,
    verify_rules: VerifyRulesOption = None,
    near_tie_logit: NearTieOption = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            "--ray-address",
            envvar="RAY_ADDRESS",
            help="An existing Ray cluster: HOST:PORT, or auto. Default: start one on this machine for this run.",
        ),
    ] = None,
    actors: Annotated[
        int | None, typer.Option("--actors", min=1, help="Number of actors; default: one per GPU, else one per CPU.")
    ] = None,
    gpus_per_actor: Annotated[
        float | None, typer.Option("--gpus-per-actor", min=0.0, help="Default: 1 if the cluster has GPUs, else 0.")
    ] = None,
    cpus_per_actor: Annotated[
        float, typer.Option("--cpus-per-actor", min=0.0, help="CPUs of each actor, and its compute threads.")
    ] = 1.0,
    is_loop: Annotated[
        bool,
        typer.Option(
            "--loop", help="Decode with and without speculation, as `run` does, instead of replaying responses."
        ),
    ] = False,
    max_requests: MaxRequestsOption = None,
    field_map: MapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Replay logged responses on a Ray cluster: `replay` for many files.

    The results go into the database, block by block. Interrupt it at any time; run the same command again to resume. A
    second full run changes nothing. --max-requests needs --loop.
    """
    if is_loop:
        _refuse_for_loop(
            {"--k": depths, "--endpoint": endpoint, "--verify-rule": verify_rules, "--near-tie": near_tie_logit}
        )
    elif max_requests is not None:
        raise UsageError("--max-requests needs --loop: a replay reads whole blocks")
    require_extra("backfill", "backfill")  # before torch is loaded
    wanted = parse_depths(depths or DEFAULT_DEPTHS)
    config = replace(load_config(find_config(config_path)), given_format=chosen_map(field_map))
    lines = [file for file in files if not ("://" in file or Path(file).is_dir() or is_parquet(file))]
    require_inputs(config, lines, endpoint, needs_weights=is_loop)
    from shadowspec.app.backfill_judge import chosen_parallel
    from shadowspec.app.backfill_loop import loop_files, require_measurable
    from shadowspec.app.backfill_replay import backfill_files
    from shadowspec.app.replayers import Asked
    from shadowspec.backfill.places import find_files
    from shadowspec.engine.replay.replayer import NEAR_TIE_LOGIT

    cluster = partial(_cluster, ray_address, actors, gpus_per_actor, cpus_per_actor)
    if is_loop:
        require_measurable(config)
        recordings = find_files(files)
        with cluster() as (resources, pool):
            measured = loop_files(config, recordings, resources, pool, max_requests=max_requests)
        show_measured(measured, files, as_json=as_json)
        return
    asked = Asked(
        wanted,
        endpoint,
        chosen_rules(verify_rules),
        near_tie_logit=NEAR_TIE_LOGIT if near_tie_logit is None else near_tie_logit,
    )
    chosen_parallel(config, endpoint)  # refuses wrong input before a cluster starts
    recordings = find_files(files)
    began = time.monotonic()
    with cluster() as (resources, pool):
        done = backfill_files(config, recordings, asked, resources, pool)
    seconds = time.monotonic() - began
    if as_json:
        print_json(_document(done, asked.depths, seconds))
    else:
        _print(done, asked.depths, seconds)
    _raise_what_is_missing(done)
    if not done.num_replayed:
        raise NoDataError("no response could be replayed" + ("" if as_json else "; the table says why"))


def _refuse_for_loop(options: Mapping[str, object]) -> None:
    """
    Raises:
        UsageError: an option was given that only replay has.
    """
    given = [name for name, value in options.items() if value]
    if given:
        raise UsageError(f"{', '.join(given)}: only for a replay; leave them out with --loop")


@contextmanager
def _cluster(
    address: str | None, number: int | None, gpus: float | None, cpus: float
) -> Iterator[tuple[Resources, Actors]]:
    """The cluster's resources, and the actors that it runs."""
    from shadowspec.backfill.connection import connect

    notes.print(f"starting Ray {'on this machine' if address is None else f'at {address}'}", highlight=False)
    with connect(address, verbose=is_verbose()) as resources:
        yield resources, _pool(resources, number, gpus, cpus)


def _pool(resources: Resources, number: int | None, gpus: float | None, cpus: float) -> Actors:
    """The number of actors that was given, else one for each GPU, or each CPU.

    Raises:
        UsageError: the cluster has less than one actor needs.
    """
    from shadowspec.backfill.cluster import Actors

    gpus_per_actor = gpus if gpus is not None else float(resources.gpus > 0)
    if gpus_per_actor > resources.gpus or cpus > resources.cpus:
        raise UsageError(
            f"an actor needs {cpus:g} CPUs and {gpus_per_actor:g} GPUs, and the cluster has {resources.cpus} and "
            f"{resources.gpus}; give fewer with --cpus-per-actor or --gpus-per-actor"
        )
    most = int(resources.gpus / gpus_per_actor) if gpus_per_actor else int(resources.cpus / cpus) if cpus else 1
    return Actors(max(1, most if number is None else number), gpus_per_actor, cpus)


def _raise_what_is_missing(done: Backfilled) -> None:
    """
    Raises:
        InputError: files could not be read, or blocks were not finished.
    """
    from shadowspec.backfill.places import describe_place

    broken = [file for file in done.files if file.error is not None and not isinstance(file.error, NoDataError)]
    for file in done.files:
        if isinstance(file.error, NoDataError):
            notes.print(f"skipped: {file.error}", markup=False, highlight=False, soft_wrap=True)
    for file_read in broken[1:]:
        notes.print(f"not read: {file_read.error}", markup=False, highlight=False, soft_wrap=True)
    if broken:
        others = f", and {len(broken) - 1} more of {len(done.files)} files could not be read" if broken[1:] else ""
        raise InputError(f"{broken[0].error}{others}")
    places_with_errors = {file.place for file in done.files if file.error is not None}
    lost = [place for place in done.unfinished_files if place not in places_with_errors]
    if lost:
        why = ", ".join(f"{number} ended in {kind}" for kind, number in sorted(done.failures.items()))
        raise InputError(
            f"{len(lost)} files are not finished, first {describe_place(lost[0])}: of their "
            f"blocks {why or 'some were lost'}; finished blocks are stored, run the same command again to resume"
        )


Cells = list[tuple["AcceptanceSums", "FingerprintedConfig"]]


def _group_cells(done: Backfilled, endpoint: str) -> list[tuple[str, Cells]]:
    """By slice, candidate and rule: the sums of each depth."""
    by_fingerprint = {(sums.slice_key, sums.fingerprint): sums for sums in done.sums[endpoint]}
    slices = list(dict.fromkeys(sums.slice_key for sums in done.sums[endpoint]))
    groups = []
    for slice_key in slices:
        for configs in done.configs[endpoint]:
            cells = [
                (by_fingerprint[slice_key, config.fingerprint], config)
                for config in configs
                if (slice_key, config.fingerprint) in by_fingerprint
            ]
            if cells:
                groups.append((slice_key, cells))
    return groups


def _document(done: Backfilled, depths: Sequence[int], seconds: float) -> BackfillDocument:
    from shadowspec.backfill.places import describe_place

    cells = [
        (endpoint, slice_key, *cell)
        for endpoint in done.configs
        for slice_key, cells in _group_cells(done, endpoint)
        for cell in cells
    ]
    return public(
        BackfillDocument,
        done,
        files=[
            ReplayedFile(
                file=describe_place(file.place),
                sha256=file.source,
                is_finished=file.place not in done.unfinished_files,
                error=None if file.error is None else str(file.error),
            )
            for file in done.files
        ],
        unfinished_files=list(map(describe_place, done.unfinished_files)),
        depths=depths,
        seconds=round(seconds, 3),
        replays=[_replayed(*cell) for cell in cells],
        funnel=funnel_counts(done.funnel),
    )


def _replayed(endpoint: str, slice_key: str, sums: AcceptanceSums, config: FingerprintedConfig) -> ReplayedSums:
    length = length_of(sums, config.config.num_speculative_tokens)
    return public(
        ReplayedSums,
        config.config,
        sums,
        config,
        endpoint=endpoint,
        slice=slice_key,
        drafting_rules=used_rules(config.config),
        mean_acceptance_length=length and length.estimate,
        mean_acceptance_length_lower=length and length.lower,
        mean_acceptance_length_upper=length and length.upper,
        first_position_acceptance_rate=metrics.first_position_acceptance_rate(sums),
        draft_acceptance_rate=metrics.draft_acceptance_rate(sums),
    )


def _print(done: Backfilled, depths: Sequence[int], seconds: float) -> None:
    for endpoint in done.configs:
        groups = _group_cells(done, endpoint)
        several = len({slice_key for slice_key, _ in groups}) > 2  # the whole endpoint is one of them
        groups = [group for group in groups if group[0] or several]
        for start in range(0, len(depths) if groups else 0, DEPTHS_ACROSS):
            results.print(_table(endpoint, groups, depths[start : start + DEPTHS_ACROSS]))
    finished_before = f" ({done.num_blocks_found} were finished before)" if done.num_blocks_found else ""
    results.print(
        f"{done.num_records:,} records of {len(done.files)} files: {done.num_replayed:,} responses replayed in "
        f"{done.num_blocks} blocks{finished_before}, {done.num_new_rows:,} new rows, {seconds:.0f} s"
        + (f", {done.num_near_ties:,} greedy tokens are near-ties" if done.num_near_ties else ""),
        highlight=False,
    )
    print_funnel(done.funnel, done.messages)


def _table(endpoint: str, groups: Sequence[tuple[str, Cells]], depths: Sequence[int]) -> Table:
    title = f"{endpoint}: mean acceptance length by K, with 95% intervals over sessions"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("slice, config, rule", overflow="fold", min_width=24)
    for name in ("requests", "1st", *(f"K={depth}" for depth in depths)):
        table.add_column(name, justify="right", no_wrap=True)
    for slice_key, cells in groups:
        first_sums, config = cells[0]
        label = f"{slice_title(slice_key)}, {config.config.name}, {config.config.verify_rule}"
        first = metrics.first_position_acceptance_rate(first_sums)
        by_depth = {fingerprinted.config.num_speculative_tokens: sums for sums, fingerprinted in cells}
        table.add_row(
            escape(label),
            f"{first_sums.num_requests:,}",
            "-" if first is None else f"{first:.0%}",
            *(_length(by_depth.get(depth), depth) for depth in depths),
        )
    return table


def _length(sums: AcceptanceSums | None, depth: int) -> str:
    length = None if sums is None else length_of(sums, depth)
    return "-" if length is None else length_text(length.estimate, length.lower, length.upper)
