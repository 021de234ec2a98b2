"""Routes by slice between two pools of servers, one that speculates and one that does not: what is routed.

A gateway reads the slice of a request from headers that `shadowspec classify` sets.  Only slices that are on go to
the speculative pool; all other requests, those without a slice included, go to the plain pool.  A pool runs one draft
at one depth, and a gateway knows no concurrency.  So a slice is on where that config is on at every load measured with
it.  The pool may hold no more requests than the smallest of the slices' largest measured loads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from shadowspec.errors import UsageError
from shadowspec.rollout.export.load_schedule import Schedule, endpoint_schedule, slice_schedules
from shadowspec.rollout.served_decision import ServedDecision
from shadowspec.servers.engines.export_parts import BatchRange
from shadowspec.types import ENDPOINT_HEADER, SLICE_HEADER, Override, SpeculationConfig, slice_tag
from shadowspec.types.settings import LAST_PORT, require_distinct
from shadowspec.types.speculation import draft_key

SPECULATIVE, PLAIN = "speculative", "plain"
INFERENCE_POOL: Final = "InferencePool"  # of the Gateway API Inference Extension (v1)
INFERENCE_SERVICE: Final = "LLMInferenceService"  # of KServe
INFERENCE_GROUP: Final = "inference.networking.k8s.io"
WEIGHTS: Final = 1_000  # a share in whole parts of this, rounded down


@dataclass(frozen=True, slots=True)
class ServerPool:
    """Where a pool's servers are reached; a pool of Kubernetes' `kind` has no port (None), and chooses a server."""

    host: str
    port: int | None
    kind: str = ""

    @classmethod
    def parse(cls, text: str, option: str) -> ServerPool:
        """The pool at HOST:PORT, `InferencePool/NAME` or `LLMInferenceService/NAME`.

        Raises:
            UsageError: the text is none of them.
        """
        kind, _, name = text.partition("/")
        if kind in (INFERENCE_POOL, INFERENCE_SERVICE) and name and not set("/:") & set(name):
            return cls(name, None, kind)
        host, _, port = text.rpartition(":")
        if not host or ":" in host or "/" in host or not port.isdigit() or not 1 <= int(port) <= LAST_PORT:
            raise UsageError(
                f"{option} {text!r}: must be HOST:PORT, such as {PLAIN}:8000, {INFERENCE_POOL}/NAME for an HTTPRoute, "
                f"or {INFERENCE_SERVICE}/NAME for KServe"
            )
        return cls(host, int(port))

    @property
    def address(self) -> tuple[str, int]:
        """Host and port.

        Raises:
            UsageError: it has none, as a pool of Kubernetes.
        """
        if self.port is None:
            form = "httproute" if self.kind == INFERENCE_POOL else "kserve"
            raise UsageError(
                f"{self.kind}/{self.host}: only --format {form} routes to it; give HOST:PORT for this format"
            )
        return self.host, self.port

    @property
    def backend(self) -> dict[str, Any]:
        """As an HTTPRoute refers to it.

        Raises:
            UsageError: an HTTPRoute cannot.
        """
        if self.kind == INFERENCE_POOL:
            return {"group": INFERENCE_GROUP, "kind": INFERENCE_POOL, "name": self.host}
        host, port = self.address
        return {"name": host, "port": port}

    @property
    def service(self) -> str:
        """The name of KServe's LLMInferenceService.

        Raises:
            UsageError: it is no such service.
        """
        if self.kind != INFERENCE_SERVICE:
            where = self.host if self.port is None else f"{self.host}:{self.port}"
            raise UsageError(f"pool {where}: --format kserve needs {INFERENCE_SERVICE}/NAME for both pools")
        return self.host


def _pool_address(text: str) -> str:
    try:
        ServerPool.parse(text, "the pool")
    except UsageError as error:
        raise ValueError(str(error)) from None
    return text


PoolAddress = Annotated[str, AfterValidator(_pool_address)]
HostName = Annotated[str, Field(pattern=r"^(\*\.)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=253)]


@dataclass(frozen=True, slots=True)
class Pools:
    """[endpoints.NAME.pools]: the pools that routes choose between.

    `hosts` are names of the gateway under which clients ask only for this endpoint; without any it shares the others.
    """

    speculative: PoolAddress = "speculative:8000"
    plain: PoolAddress = "plain:8000"
    hosts: tuple[HostName, ...] = ()

    def __post_init__(self) -> None:
        require_distinct(hosts=self.hosts)

    @property
    def speculative_pool(self) -> ServerPool:
        return ServerPool.parse(self.speculative, "speculative")

    @property
    def plain_pool(self) -> ServerPool:
        return ServerPool.parse(self.plain, "plain")


@dataclass(frozen=True, slots=True)
class Route:
    """One slice that is on ("": the whole endpoint), and the share of its requests that its rollout lets through."""

    endpoint: str
    slice_key: str
    share: float

    @property
    def tag(self) -> str:
        return slice_tag(self.endpoint, self.slice_key)

    @property
    def header(self) -> tuple[str, str]:
        """The header, with its value, by which a request of the slice is known."""
        return SLICE_HEADER if self.slice_key else ENDPOINT_HEADER, self.tag

    @property
    def weights(self) -> tuple[int, int]:
        """Parts of WEIGHTS for the speculative and the plain pool."""
        speculative = int(self.share * WEIGHTS)
        return speculative, WEIGHTS - speculative


@dataclass(frozen=True, slots=True)
class Routes:
    """The routes of one endpoint.

    `pool_schedule` is that of the speculative pool's servers: `config` at its one depth, up to `max_concurrency`
    requests at once.  `off` are the tags of decided slices that stay in the plain pool.
    """

    endpoint: str
    pool_schedule: Schedule
    on: tuple[Route, ...]
    off: tuple[str, ...]

    @property
    def config(self) -> SpeculationConfig | None:
        """What the speculative pool runs; None: nothing is on."""
        return self.pool_schedule.config

    @property
    def expires_at(self) -> datetime | None:
        """When the first of the decisions behind the routes becomes stale."""
        return self.pool_schedule.expires_at

    @property
    def max_concurrency(self) -> int:
        """The largest number of requests at once for which every routed slice is proven; 0: nothing is on."""
        return self.pool_schedule.ranges[0].last or 0

    def describe(self) -> list[str]:
        """What the reader of the routes has to know, one fact a line."""
        if self.config is None:
            return [f"{self.endpoint}: no slice is on, every request goes to the plain pool"]
        assert self.expires_at is not None, "something is on without evidence"
        return [
            self.pool_schedule.basis,
            f"the speculative pool runs {self.config.name}: write its settings with `shadowspec export --routed`",
            f"keep it at {self.max_concurrency} requests at once or fewer: more were not measured",
            f"the evidence becomes stale at {self.expires_at:%Y-%m-%dT%H:%M}Z: export again before then",
        ]


def choose_routes(
    endpoint: str,
    served_decisions: Sequence[ServedDecision],
    *,
    overrides: Collection[Override] = (),
    by_slice: bool = True,
) -> Routes:
    """The routes by slice, with the config that serves the largest share of the traffic.

    Of equal shares the config with the better lower bounds counts, then the last by name.  An endpoint without decided
    slices, and any where `by_slice` is false, has one route, by its whole verdict; an order on any part of it takes
    that off.
    """
    at_endpoint = [served for served in served_decisions if served.decision.endpoint == endpoint]
    subjects = [served for served in at_endpoint if by_slice and served.decision.slice_key] or at_endpoint
    shares = {served.decision.slice_key: served.decision.traffic_share or 0.0 for served in subjects}
    by_config: dict[tuple[SpeculationConfig, int], list[ServedDecision]] = defaultdict(list)
    for served in subjects:
        by_config[draft_key(served.decision.config), served.decision.config.num_speculative_tokens].append(served)
    choices = []
    for_other_engines: list[ServedDecision] = []
    for decisions in by_config.values():
        schedules = slice_schedules(endpoint, decisions, overrides=overrides) if by_slice else []
        schedules = schedules or [endpoint_schedule(endpoint, decisions, overrides=overrides)]
        choices.append(_routed(schedules))
        for_other_engines += [served for schedule in schedules for served in schedule.for_other_engines]
    routed = max(choices, key=lambda schedules: _merit(schedules, shares), default=[])
    on = tuple(Route(endpoint, schedule.slice_key, schedule.share) for schedule in routed)
    keys = {route.slice_key for route in on}
    off = tuple(slice_tag(endpoint, key) for key in sorted(shares) if key not in keys)
    pool = _pool_schedule(endpoint, routed)
    return Routes(endpoint, pool if routed else replace(pool, for_other_engines=tuple(for_other_engines)), on, off)


def _routed(schedules: Sequence[Schedule]) -> list[Schedule]:
    """Those that are on at every load that was measured, for some of the traffic at least."""
    return [
        schedule
        for schedule in schedules
        if schedule.config is not None
        and all(part.num_speculative_tokens for part in schedule.measured_ranges)
        and int(schedule.share * WEIGHTS)
    ]


def _merit(schedules: Sequence[Schedule], shares: Mapping[str, float]) -> tuple[float, float, str]:
    share = sum(shares[schedule.slice_key] for schedule in schedules)
    bounds = sum(min(served.speedup_lower for served in schedule.served_decisions) for schedule in schedules)
    names = sorted(schedule.config.name for schedule in schedules if schedule.config is not None)
    return share, bounds, names[0] if names else ""


def _pool_schedule(endpoint: str, routed: Sequence[Schedule]) -> Schedule:
    """One depth up to the largest load at which all of the slices are on."""
    behind = tuple(served for schedule in routed for served in schedule.served_decisions if served.is_on)
    if not routed:
        return Schedule(endpoint, "", None, (BatchRange(1, None, 0),), behind)
    last = min(schedule.measured_ranges[-1].last or 0 for schedule in routed)
    ids = tuple(sorted({number for schedule in routed for number in schedule.decision_ids}))
    ranges = (BatchRange(1, last, routed[0].max_num_speculative_tokens, ids), BatchRange(last + 1, None, 0))
    expires_at = min(schedule.expires_at for schedule in routed if schedule.expires_at is not None)
    return Schedule(endpoint, "", routed[0].config, ranges, behind, expires_at=expires_at)
