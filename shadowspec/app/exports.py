"""Exports: current decisions as the configuration of a serving engine, of routes, or of a flag system."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Self

from shadowspec.app.stored_evidence import no_decision
from shadowspec.config import Config
from shadowspec.errors import NoDataError, UsageError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.current_decision import Expectation, read_endpoint_decisions, require_promotable
from shadowspec.metrics import pool_counts
from shadowspec.rollout.export import flagd, gateways, modelopt
from shadowspec.rollout.export.formats import ROUTES, ExportFormat, reader_of, require_engine
from shadowspec.rollout.export.gateways import Gateway, RoutedEndpoint
from shadowspec.rollout.export.load_schedule import (
    Schedule,
    endpoint_schedule,
    engine_schedule,
    ranges_text,
    slice_schedules,
    with_share,
)
from shadowspec.rollout.export.routes import Pools, ServerPool, choose_routes
from shadowspec.rollout.served_decision import Off, ServedDecision, judge_decisions, read_fleet
from shadowspec.servers.engines import ENGINES
from shadowspec.servers.engines.export_parts import Export
from shadowspec.store import Store
from shadowspec.types import Override, SpeculationCounts, Verdict
from shadowspec.types.public_documents import AtLoad, Labels, PublicDocument, PublicValue, public

BESIDE_WITHOUT_FILE = "speculation"  # named where nothing says where the export will lie
TO_CONFIRM = "this file is for a confirming run only: the rollout decides when clients are served by it"


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedExport:
    """What to export, of verdicts at most `max_age` old; `out` is the file that will hold it, if any.

    `endpoint`: None is the only one, and all of them for flags and routes.  `speculative` and `plain` are pools in
    place of the endpoint's.  `is_to_confirm`: for a confirming run, so that no rollout stage holds anything back.
    `is_unattended`: nobody reads a refusal; what would be refused is off, with a remark.
    """

    form: str  # one of FORMATS
    endpoint: str | None = None
    max_age: timedelta
    engine: str | None = None
    speculative: str | None = None
    plain: str | None = None
    gateway: str = "gateway"
    otherwise: str | None = None
    is_routed: bool = False
    is_to_confirm: bool = False
    accepts_other_engine: bool = False
    out: Path | None = None
    is_unattended: bool = False

    def __post_init__(self) -> None:
        if self.is_routed and self.form not in ENGINES:
            raise UsageError(f"--routed goes with --format {', '.join(ENGINES)}: {self.form} configures no server")
        if self.is_to_confirm and self.form not in ENGINES:
            raise UsageError(f"--to-confirm goes with --format {', '.join(ENGINES)}: {self.form} starts no server")


@dataclass(frozen=True, slots=True)
class ServedDecisions:
    """What every decision exports as, and the operator's overrides that are in force."""

    decisions: tuple[ServedDecision, ...]
    orders: tuple[Override, ...]


class ExportedDecision(PublicValue, frozen=True, kw_only=True):
    """A decision, and what it exports as; `off_because` is null where speculation is on."""

    endpoint: str
    slice: Labels
    load: AtLoad
    candidate: Annotated[str, "decision.config.name"]
    fingerprint: str
    engine: str
    verdict_engine: str
    decision_id: int | None
    verdict: Verdict
    is_on: bool
    off_because: Annotated[Off | None, "off"]
    num_speculative_tokens: int | None
    expires_at: datetime

    @classmethod
    def of(cls, value: ServedDecision) -> Self:
        return public(cls, value, value.decision)


class ExportedOverride(PublicValue, frozen=True, kw_only=True):
    """An override in force; a load that is null is every load."""

    override_id: int
    endpoint: str
    slice: Labels
    load: AtLoad | None
    verdict: Verdict


class ExportDocument(PublicDocument, frozen=True, kw_only=True):
    """The export of `export --json`, and its reasons; `beside` has further files' texts by the ends of their names."""

    format: str
    text: str
    beside: Mapping[str, str]
    remarks: Sequence[str]
    decisions: Sequence[ExportedDecision]
    overrides: Annotated[Sequence[ExportedOverride], "orders"]


def export_document(form: str, document: Export, served: ServedDecisions) -> ExportDocument:
    """The export with its reasons."""
    return public(ExportDocument, document, served, format=form)


def export_decisions(config: Config, wanted: WantedExport, store: Store) -> tuple[Export, ServedDecisions]:
    """The export, and the decisions and overrides that it rests on.

    Raises:
        UsageError: one endpoint must be named, pools or the rule of all other requests are missing, or the verdicts
            are for another engine.
        NoDataError: nothing has been decided, or by a trial policy.
    """
    names = _endpoints(wanted.form, wanted.endpoint, config)
    policies = {name: config.endpoints[name].policy for name in names}
    served = _load_served(store, policies, wanted)
    if wanted.form in ROUTES:
        return _render_routes(names, served, wanted, config), served
    return _render(names, served, store, wanted), served


def require_exportable(config: Config, wanted: WantedExport) -> None:
    """Check all that the configuration alone decides.

    Raises:
        UsageError: as `export_decisions`.
    """
    nothing = ServedDecisions((), ())
    names = _endpoints(wanted.form, wanted.endpoint, config)
    if wanted.form in ROUTES:
        _render_routes(names, nothing, wanted, config)


def _endpoints(form: str, endpoint: str | None, config: Config) -> list[str]:
    names = list(config.chosen(endpoint))
    if form not in (ExportFormat.FLAGD, *ROUTES) and len(names) != 1:
        raise UsageError(
            f"--endpoint NAME is needed: {form} configures one server (configured: {', '.join(names) or 'none'})"
        )
    return names


def _load_served(store: Store, policies: Mapping[str, GatePolicy], wanted: WantedExport) -> ServedDecisions:
    """The current decisions on these endpoints.

    Raises:
        NoDataError: nothing has been decided on any of them, or by a trial policy on one, and somebody is there to
            read it.
    """
    now = datetime.now(UTC)
    configs, fleet = store.fingerprints(), read_fleet(store, policies.values())
    served: list[ServedDecision] = []
    orders: list[Override] = []
    for name, policy in policies.items():
        current = read_endpoint_decisions(store, name, policy, now)
        orders += current.overrides
        try:
            require_promotable(name, current)
        except NoDataError:
            if not wanted.is_unattended:
                raise
            continue  # nothing of it is on
        served += judge_decisions(
            current.latest,
            now=now,
            max_age=wanted.max_age,
            configs=configs,
            expected=Expectation(engine=wanted.engine),
            rollouts=() if wanted.is_to_confirm else store.rollouts(name),
            reader=reader_of(wanted.form),
            accepts_any_engine=wanted.accepts_other_engine,
            fleet=fleet,
            policy=policy,
        )
    if not served and not wanted.is_unattended:
        raise no_decision(store, policies)
    return ServedDecisions(tuple(served), tuple(orders))


def _accepted(wanted: WantedExport, schedules: Sequence[Schedule]) -> list[str]:
    """Remarks on verdicts for other engines.

    Raises:
        ConfigError: as `require_engine`, where somebody reads it.
    """
    if not wanted.is_unattended:
        return require_engine(wanted.form, schedules, is_accepted=wanted.accepts_other_engine)
    return sorted({served.reason for schedule in schedules for served in schedule.for_other_engines})


def _render(names: Sequence[str], served: ServedDecisions, store: Store, wanted: WantedExport) -> Export:
    form, decisions, orders = wanted.form, served.decisions, served.orders
    if form == ExportFormat.FLAGD:
        endpoints = [
            (endpoint_schedule(name, decisions, overrides=orders), slice_schedules(name, decisions, overrides=orders))
            for name in names
        ]
        schedules = [schedule for whole, slices in endpoints for schedule in (whole, *slices)]
        accepted = _accepted(wanted, schedules)
        document = flagd.render(endpoints)
        loads = [f"{whole.endpoint}, by the verdicts: {ranges_text(whole)}" for whole, _ in endpoints]
        return replace(document, remarks=(*accepted, *loads, *document.remarks))
    schedule = endpoint_schedule(names[0], decisions, overrides=orders)
    if wanted.is_routed:
        schedule = choose_routes(names[0], decisions, overrides=orders).pool_schedule
    if form in ENGINES:
        engine = ENGINES[form]()
        if not wanted.is_routed:
            schedule = engine_schedule(names[0], decisions, engine, overrides=orders)
        suffix = engine.beside_suffix
        path = beside(wanted.out, suffix) if wanted.out else Path(BESIDE_WITHOUT_FILE + suffix)
        document = engine.export(schedule, str(path))
    else:
        document = modelopt.render(schedule, _counts(store, names[0]), store.fingerprints())
    accepted = _accepted(wanted, [schedule])
    document = with_share(document, schedule)
    ranges, confirming = f"by the verdicts: {ranges_text(schedule)}", [TO_CONFIRM] * wanted.is_to_confirm
    return replace(document, remarks=(*accepted, ranges, *confirming, *document.remarks))


def _render_routes(names: Sequence[str], served: ServedDecisions, wanted: WantedExport, config: Config) -> Export:
    shared = gateways.sharing({name: endpoint.pools or Pools() for name, endpoint in config.endpoints.items()})
    endpoints = [
        RoutedEndpoint(
            choose_routes(name, served.decisions, overrides=served.orders, by_slice=wanted.form != ExportFormat.KSERVE),
            _pools(name, wanted, config),
            tuple(config.endpoints[name].rule.served_models),
            is_shared=name in shared,
        )
        for name in names
    ]
    accepted = _accepted(wanted, [endpoint.routes.pool_schedule for endpoint in endpoints])
    gateway = Gateway(wanted.gateway, _otherwise(wanted, sorted(shared & set(names))))
    match wanted.form:
        case ExportFormat.LITELLM:
            document = gateways.litellm(endpoints)
        case ExportFormat.HTTPROUTE:
            document = gateways.httproute(endpoints, gateway)
        case ExportFormat.KSERVE:
            document = gateways.kserve(endpoints)
        case _:
            document = gateways.envoy(endpoints, gateway)
    return replace(document, remarks=(*accepted, *document.remarks))


def _pools(name: str, wanted: WantedExport, config: Config) -> Pools:
    """The endpoint's pools; those of the options count more.

    Raises:
        UsageError: several endpoints are exported, and this one's pools are unknown.
    """
    pools = config.endpoints[name].pools
    if pools is None and wanted.endpoint is None and len(config.endpoints) > 1:
        raise UsageError(
            f"endpoints.{name}.pools: is missing; name the pools of servers there, or export one endpoint with "
            "--endpoint NAME, --speculative and --plain"
        )
    given = {key: value for key in ("speculative", "plain") if (value := getattr(wanted, key)) is not None}
    return replace(pools or Pools(), **given)


def _otherwise(wanted: WantedExport, shared: Sequence[str]) -> ServerPool | None:
    """The pool of requests of no endpoint, where endpoints share hosts.

    Raises:
        UsageError: it is not named.
    """
    if not shared or wanted.form in (ExportFormat.LITELLM, ExportFormat.KSERVE):
        return None
    if wanted.otherwise is not None:
        return ServerPool.parse(wanted.otherwise, "--otherwise")
    if wanted.endpoint is not None:
        return None  # the export of all endpoints has the rule
    raise UsageError(
        f"{', '.join(shared)} share all hosts: give --otherwise HOST:PORT, the servers of requests that the classifier "
        "cannot name, or name `hosts` in [endpoints.NAME.pools]"
    )


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


def beside(path: Path, suffix: str) -> Path:
    """Where a file beside an export lies."""
    return path.with_name(path.stem + suffix)
