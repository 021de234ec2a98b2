"""`shadowspec export`: current decisions as the configuration of a serving engine or of a flag system."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from shadowspec.app.console import notes, print_json, require_folder_of, write_file
from shadowspec.app.stored_evidence import no_decision
from shadowspec.cli.options import MAX_AGE_HELP, ConfigOption, ExpectEngineOption
from shadowspec.config import Config, find_config, load_config
from shadowspec.errors import UsageError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.current_decision import Expectation, read_endpoint_decisions, require_promotable
from shadowspec.metrics import pool_counts
from shadowspec.rollout.export import flagd, modelopt, routes
from shadowspec.rollout.export.endpoint_state import ServedDecision, describe, describe_orders, judge_decisions
from shadowspec.rollout.export.formats import FORMATS, ExportFormat, require_engine
from shadowspec.rollout.export.load_schedule import (
    endpoint_schedule,
    engine_schedule,
    ranges_text,
    slice_schedules,
    with_share,
)
from shadowspec.rollout.export.routes import Pools, ServerPool, choose_routes
from shadowspec.servers.engines import ENGINES
from shadowspec.servers.engines.export_parts import Document
from shadowspec.store import Store
from shadowspec.text import parse_duration
from shadowspec.types import Override, SpeculationCounts

DEFAULT_MAX_AGE = "7d"  # one cycle of the traffic
ROUTES = (ExportFormat.LITELLM, ExportFormat.HTTPROUTE, ExportFormat.ENVOY)
BESIDE_WITHOUT_FILE = "speculation"  # named where nothing says where the export will lie


@dataclass(frozen=True, slots=True)
class ServedDecisions:
    """What every decision exports as, and the operator's overrides that are in force."""

    decisions: tuple[ServedDecision, ...]
    orders: tuple[Override, ...]


def _known_format(text: str) -> str:
    if text not in FORMATS:
        raise typer.BadParameter(f"{text!r} is not one of {', '.join(FORMATS)}.")
    return text


def export(
    form: Annotated[
        str,
        typer.Option("--format", "-f", help="What to write.", parser=_known_format, metavar=f"<{'|'.join(FORMATS)}>"),
    ],
    endpoint: Annotated[
        str | None,
        typer.Option("--endpoint", "-e", metavar="NAME", help="The endpoint; default: the only one, for flagd all."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="File to write; default: standard output.")
    ] = None,
    max_age: Annotated[str, typer.Option("--max-age", metavar="TIME", help=MAX_AGE_HELP)] = DEFAULT_MAX_AGE,
    expect_engine: ExpectEngineOption = None,
    accept_other_engine: Annotated[
        bool, typer.Option("--accept-other-engine", help="Also export verdicts for another engine.")
    ] = False,
    routed: Annotated[
        bool,
        typer.Option("--routed", help="For the servers behind routes: they get only the slices that are on."),
    ] = False,
    speculative: Annotated[
        str, typer.Option("--speculative", metavar="HOST:PORT", help="Routes: the pool of servers that speculate.")
    ] = "speculative:8000",
    plain: Annotated[
        str, typer.Option("--plain", metavar="HOST:PORT", help="Routes: the pool of servers that do not.")
    ] = "plain:8000",
    gateway: Annotated[
        str, typer.Option("--gateway", metavar="NAME", help="Routes: the Gateway that an HTTPRoute attaches to.")
    ] = "gateway",
    config_path: ConfigOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document: the export and its reasons.")
    ] = False,
) -> None:
    """Write serving configuration from current ENABLE verdicts.

    Speculation is on only where an ENABLE is fresh and no override covers it. The reason of each decision goes to
    standard error. The command refuses verdicts for another engine (exit code 2): their latency was measured elsewhere.
    """
    require_folder_of(out)
    pools = Pools(ServerPool.parse(speculative, "--speculative"), ServerPool.parse(plain, "--plain"), gateway)
    if routed and form not in ENGINES:
        raise UsageError(f"--routed goes with --format {', '.join(ENGINES)}: {form} configures no server")
    age = parse_duration(max_age)
    config = load_config(find_config(config_path))
    names = _endpoints(form, endpoint, config)
    with Store.open(config.database_url) as store:
        served = _load_served(store, {name: config.endpoints[name].policy for name in names}, age, expect_engine)
        if form in ROUTES:
            models = config.endpoints[names[0]].rule.served_models
            document = _render_routes(form, names[0], served, pools, models, accept_other_engine=accept_other_engine)
        else:
            document = _render(form, names, served, store, out, routed=routed, accept_other_engine=accept_other_engine)

    if as_json:
        print_json({
            "format": form,
            "text": document.text,
            "beside": dict(document.beside),
            "remarks": list(document.remarks),
            "decisions": [_entry(served_decision) for served_decision in served.decisions],
            "overrides": [_order(order) for order in served.orders],
        })  # fmt: skip
    elif out is None and document.instead is None:
        typer.echo(document.text, nl=False)
    if document.instead is not None:
        notes.print(document.instead, markup=False, highlight=False)
    for line in (*describe(served.decisions), *describe_orders(served.orders), *document.remarks):
        notes.print(line, markup=False, highlight=False, soft_wrap=True)
    if out is not None:
        for path, text in ((out, document.text), *((_beside(out, end), each) for end, each in document.beside.items())):
            write_file(path, text)
            notes.print(f"written: {path}", markup=False, highlight=False)


def _endpoints(form: str, endpoint: str | None, config: Config) -> list[str]:
    found = list(config.chosen(endpoint))
    if form != ExportFormat.FLAGD and len(found) != 1:
        raise UsageError(
            f"--endpoint NAME is needed: {form} configures one server (configured: {', '.join(found) or 'none'})"
        )
    return found


def _load_served(
    store: Store, policies: Mapping[str, GatePolicy], max_age: timedelta, engine: str | None
) -> ServedDecisions:
    """The current decisions on these endpoints.

    Raises:
        NoDataError: nothing has been decided on any of them, or by a trial policy on one.
    """
    now = datetime.now(UTC)
    configs = store.fingerprints()
    served: list[ServedDecision] = []
    orders: list[Override] = []
    for name, policy in policies.items():
        found = read_endpoint_decisions(store, name, policy, now)
        require_promotable(name, found)
        orders += found.overrides
        served += judge_decisions(
            found.latest,
            now=now,
            max_age=max_age,
            configs=configs,
            expected=Expectation(engine=engine),
            rollouts=store.rollouts(name),
        )
    if not served:
        raise no_decision(store, policies)
    return ServedDecisions(tuple(served), tuple(orders))


def _render(
    form: str,
    names: Sequence[str],
    served: ServedDecisions,
    store: Store,
    out: Path | None,
    *,
    routed: bool,
    accept_other_engine: bool,
) -> Document:
    decisions, orders = served.decisions, served.orders
    if form == ExportFormat.FLAGD:
        endpoints = [
            (endpoint_schedule(n, decisions, overrides=orders), slice_schedules(n, decisions, overrides=orders))
            for n in names
        ]
        schedules = [each for whole, slices in endpoints for each in (whole, *slices)]
        accepted = require_engine(form, schedules, is_accepted=accept_other_engine)
        document = flagd.render(endpoints)
        loads = [f"{whole.endpoint}, by the verdicts: {ranges_text(whole)}" for whole, _ in endpoints]
        return replace(document, remarks=(*accepted, *loads, *document.remarks))
    schedule = endpoint_schedule(names[0], decisions, overrides=orders)
    if routed:
        schedule = choose_routes(names[0], decisions, overrides=orders).pool_schedule
    if form in ENGINES:
        engine = ENGINES[form]()
        if not routed:
            schedule = engine_schedule(names[0], decisions, engine, overrides=orders)
        beside = _beside(out, engine.beside_suffix) if out else Path(BESIDE_WITHOUT_FILE + engine.beside_suffix)
        document = engine.export(schedule, str(beside))
    else:
        document = modelopt.render(schedule, _counts(store, names[0]), store.fingerprints())
    accepted = require_engine(form, [schedule], is_accepted=accept_other_engine)
    document = with_share(document, schedule)
    return replace(document, remarks=(*accepted, f"by the verdicts: {ranges_text(schedule)}", *document.remarks))


def _render_routes(
    form: str,
    endpoint: str,
    served: ServedDecisions,
    pools: Pools,
    served_models: Sequence[str],
    *,
    accept_other_engine: bool,
) -> Document:
    found = routes.choose_routes(endpoint, served.decisions, overrides=served.orders)
    accepted = require_engine(form, [found.pool_schedule], is_accepted=accept_other_engine)
    match form:
        case ExportFormat.LITELLM:
            document = routes.litellm(found, pools, served_models)
        case ExportFormat.HTTPROUTE:
            document = routes.httproute(found, pools)
        case _:
            document = routes.envoy(found, pools)
    return replace(document, remarks=(*accepted, *document.remarks))


def _counts(store: Store, endpoint: str) -> dict[str, dict[str, SpeculationCounts]]:
    """Everything measured at an endpoint, pooled by fingerprint and slice."""
    rows: dict[str, dict[str, list[SpeculationCounts]]] = defaultdict(lambda: defaultdict(list))
    for rollup in store.rollups(endpoint):
        rows[rollup.key.fingerprint][rollup.key.slice_key].append(rollup.counts)
    sums = {fingerprint: {key: pool_counts(counts) for key, counts in row.items()} for fingerprint, row in rows.items()}
    return {
        fingerprint: {key: counts for key, counts in by_slice.items() if counts is not None}
        for fingerprint, by_slice in sums.items()
    }


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.stem + suffix)


def _order(order: Override) -> dict[str, Any]:
    return {
        "override_id": order.override_id,
        "endpoint": order.endpoint,
        "slice": order.slice_labels,
        "load": None if order.concurrency is None else {"concurrency": order.concurrency},
        "verdict": order.verdict.value,
    }


def _entry(served_decision: ServedDecision) -> dict[str, Any]:
    decision = served_decision.decision
    return {
        "endpoint": decision.endpoint,
        "slice": decision.slice_labels,
        "load": {"concurrency": decision.concurrency},
        "candidate": decision.config.name,
        "fingerprint": decision.fingerprint,
        "engine": decision.engine,
        "verdict_engine": decision.verdict_engine,
        "decision_id": decision.decision_id,
        "verdict": decision.verdict.value,
        "is_on": served_decision.is_on,
        "off_because": served_decision.off,
        "num_speculative_tokens": served_decision.num_speculative_tokens,
        "expires_at": served_decision.expires_at.isoformat(),
    }
