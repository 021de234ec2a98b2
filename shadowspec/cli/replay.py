"""`shadowspec replay`: exact acceptance from logged responses, for every number of speculative tokens at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from shadowspec import metrics
from shadowspec.app.before_loading import require_inputs
from shadowspec.cli.console import print_json, require_folder_of, results
from shadowspec.cli.options import (
    ArrivalsOption,
    ConfigOption,
    DepthsOption,
    EndpointOption,
    FilesArgument,
    JsonOption,
    MapOption,
    MaxRequestsOption,
    NearTieOption,
    StoreOption,
    VerifyRulesOption,
    chosen_map,
    chosen_rules,
    chosen_trace,
    print_consequences,
)
from shadowspec.cli.run import FunnelCount, funnel_counts, print_funnel
from shadowspec.config import find_config, load_config
from shadowspec.errors import NoDataError, UsageError
from shadowspec.servers.engines.rules import used_rules
from shadowspec.text import slice_title, whole_file
from shadowspec.types import ExpectedCounts, LogprobsMode, SpeculationConfig, VerifyRule
from shadowspec.types.public_documents import Labels, PublicDocument, PublicValue, public

if TYPE_CHECKING:
    from shadowspec.app.replay_records import PoolKey, RecordOutcome, ReplayedTraffic
    from shadowspec.engine.replay.pooling import PooledCounts

DEFAULT_DEPTHS = "1..8"
MAX_DEPTH = 32
DEPTHS_ACROSS = 8  # columns of a table that fit where there is no terminal


class ReplayedFigures(PublicValue, frozen=True, kw_only=True):
    """The acceptance that was replayed of a slice, by a config and a number of speculative tokens."""

    endpoint: str
    slice: Labels
    config: Annotated[str, "name"]
    proposer: str
    verify_rule: VerifyRule
    drafting_rules: Mapping[str, str | bool]
    num_speculative_tokens: int
    num_requests: int
    num_sessions: Annotated[int, "num_units"]
    mean_acceptance_length: float | None
    mean_acceptance_length_lower: Annotated[float | None, "lower"]
    mean_acceptance_length_upper: Annotated[float | None, "upper"]
    first_position_acceptance_rate: float | None
    draft_acceptance_rate: float | None


class ReplayedCounts(ReplayedFigures, frozen=True, kw_only=True):
    """The same, and the counters that it is made of, as expected given the responses."""

    marginal_acceptance_rates: Sequence[float | None]
    expected: Annotated[ExpectedCounts, "counts"]


class ReplayDocument(PublicDocument, frozen=True, kw_only=True):
    """What `replay --json` computed of the files."""

    files: Sequence[str]
    draft_only: bool
    requests_replayed: int
    near_tie_tokens: int
    replays: Sequence[ReplayedCounts]
    funnel: Sequence[FunnelCount]


def replay(
    files: FilesArgument,
    config_path: ConfigOption = None,
    depths: DepthsOption = None,
    endpoint: EndpointOption = None,
    verify_rules: VerifyRulesOption = None,
    draft_only: Annotated[
        bool, typer.Option("--draft-only", help="Load no target: read its probabilities from the records' logprobs.")
    ] = False,
    logprobs_mode: Annotated[
        LogprobsMode, typer.Option("--logprobs-mode", help="Which logprobs the records hold; vLLM logs raw ones.")
    ] = LogprobsMode.RAW,
    near_tie_logit: NearTieOption = None,
    max_requests: MaxRequestsOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Also write one JSON line per request: counters, or the reason."
        ),
    ] = None,
    store: StoreOption = None,
    field_map: MapOption = None,
    arrivals: ArrivalsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute each candidate's acceptance from logged responses, for every number of speculative tokens at once.

    Two forward passes over each response give the exact expectation of all counters. Nothing is decoded, timed or
    decided; the counters are stored apart from measured ones.
    """
    wanted = parse_depths(depths or DEFAULT_DEPTHS)
    require_folder_of(out)
    if arrivals is not None and store:
        raise UsageError("--arrivals excludes --store, because stored records keep their time; leave one of them out")
    trace = chosen_trace(arrivals)
    store = store if trace is None else False
    config = replace(load_config(find_config(config_path)), given_format=chosen_map(field_map), given_arrivals=trace)
    require_inputs(config, files, endpoint, needs_weights=False)  # a lookup is replayed without
    from shadowspec.app.replay_records import replay_files
    from shadowspec.app.replayers import Asked, replay_writer
    from shadowspec.engine.replay.replayer import NEAR_TIE_LOGIT

    asked = Asked(
        wanted,
        endpoint,
        chosen_rules(verify_rules),
        draft_only,
        logprobs_mode,
        NEAR_TIE_LOGIT if near_tie_logit is None else near_tie_logit,
    )
    with nullcontext() if out is None else whole_file(out) as lines:

        def write(outcome: RecordOutcome) -> None:
            if lines is not None:
                lines.write(json.dumps(outcome.document(wanted)) + "\n")

        with replay_writer(config, store, draft_only=draft_only) as writer:
            done = replay_files(
                config, files, asked,
                max_requests=max_requests, on_outcome=write, on_replayed=writer.add if writer is not None else None,
            )  # fmt: skip
    print_consequences(done.notes)
    if as_json:
        print_json(
            ReplayDocument(
                files=files,
                draft_only=draft_only,
                requests_replayed=done.num_replayed,
                near_tie_tokens=done.num_near_ties,
                replays=[_cell(done, key, pooled) for key, pool in done.pools.items() for pooled in pool.pool()],
                funnel=funnel_counts(done.funnel),
            )
        )
    else:
        _print(done)
    if not done.num_replayed:
        raise NoDataError("no response could be replayed" + ("" if as_json else "; the table says why"))


def parse_depths(text: str) -> tuple[int, ...]:
    """The numbers of a range `1..8` or of a list `1,2,4`, in order.

    Raises:
        UsageError: it has another form, or a number is not from 1 to 32.
    """
    try:
        first, is_range, last = text.partition("..")
        numbers = range(int(first), int(last) + 1) if is_range else [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1 or max(numbers) > MAX_DEPTH:
        raise UsageError(f"--k must be a range such as 1..8 or a list such as 1,2,4, from 1 to {MAX_DEPTH}")
    return tuple(sorted(set(numbers)))


def _cell(done: ReplayedTraffic, key: PoolKey, pooled: PooledCounts) -> ReplayedCounts:
    endpoint, slice_key, drafting = key
    config, counts = done.configs[endpoint][drafting], pooled.counts
    return public(
        ReplayedCounts,
        config,
        pooled,
        endpoint=endpoint,
        slice=slice_key,
        drafting_rules=used_rules(config),
        num_speculative_tokens=len(counts.num_accepted_tokens_per_pos),
        mean_acceptance_length=metrics.mean_acceptance_length(counts),
        first_position_acceptance_rate=metrics.first_position_acceptance_rate(counts),
        draft_acceptance_rate=metrics.draft_acceptance_rate(counts),
        marginal_acceptance_rates=metrics.marginal_acceptance_rates(counts),
    )


def _print(done: ReplayedTraffic) -> None:
    for endpoint, configs in done.configs.items():
        keys = [key for key in done.pools if key[0] == endpoint]
        has_several_slices = len({slice_key for _, slice_key, _ in keys}) > 2  # the whole endpoint is one of them
        shown = [key for key in keys if key[1] or has_several_slices]
        for start in range(0, len(done.depths) if shown else 0, DEPTHS_ACROSS):
            results.print(
                _table(endpoint, configs, shown, range(start, min(start + DEPTHS_ACROSS, len(done.depths))), done)
            )
    results.print(
        f"{done.num_replayed} responses replayed"
        + (f", {done.num_near_ties} greedy tokens are near-ties" if done.num_near_ties else ""),
        highlight=False,
    )
    if done.num_replayed:
        results.print("the best K at each load is in the frontier of `shadowspec report`, once steps are profiled")
    print_funnel(done.funnel, done.refusals)


def _table(
    endpoint: str, configs: Sequence[SpeculationConfig], keys: Sequence[PoolKey], places: range, done: ReplayedTraffic
) -> Table:
    title = f"{endpoint}: mean acceptance length by K, with 95% intervals over sessions"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column("slice, config, rule", overflow="fold", min_width=24)
    for name in ("requests", "1st", *(f"K={done.depths[place]}" for place in places)):
        table.add_column(name, justify="right", no_wrap=True)
    for key in keys:
        config, pooled = configs[key[2]], done.pools[key].pool()
        label = f"{slice_title(key[1])}, {config.name}, {config.verify_rule.value}"
        first = metrics.first_position_acceptance_rate(pooled[0].counts)
        table.add_row(
            escape(label),
            f"{pooled[0].num_requests:,}",
            "-" if first is None else f"{first:.0%}",
            *(_length(pooled[place]) for place in places),
        )
    return table


def _length(pooled: PooledCounts) -> str:
    return length_text(metrics.mean_acceptance_length(pooled.counts), pooled.lower, pooled.upper)


def length_text(length: float | None, lower: float | None, upper: float | None) -> str:
    """A mean acceptance length with what it may be off by, where that is known."""
    if length is None:
        return "-"
    if lower is None or upper is None:
        return f"{length:.2f}"
    return f"{length:.2f}±{max(length - lower, upper - length):.2f}"
