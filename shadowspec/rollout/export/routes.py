"""Routes by slice between two pools of servers, one that speculates and one that does not.

A gateway reads the slice of a request from headers that `shadowspec classify` sets.  Only slices that are on go to
the speculative pool; all other requests, those without a slice included, go to the plain pool.  A pool runs one draft
at one depth, and a gateway knows no concurrency.  So a slice is on where that config is on at every load measured with
it.  The pool may hold no more requests than the smallest of the slices' largest measured loads.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Any, Final

from shadowspec.errors import UsageError
from shadowspec.rollout.export.load_schedule import Schedule, endpoint_schedule, slice_schedules
from shadowspec.rollout.served_decision import ServedDecision
from shadowspec.servers.engines.export_parts import BatchRange, Export, comment_lines
from shadowspec.types import ENDPOINT_HEADER, SLICE_HEADER, Override, SpeculationConfig, slice_tag
from shadowspec.types.settings import LAST_PORT
from shadowspec.types.speculation import draft_key

SPECULATIVE, PLAIN = "speculative", "plain"
INFERENCE_POOL: Final = "InferencePool"  # of the Gateway API Inference Extension (v1)
INFERENCE_GROUP: Final = "inference.networking.k8s.io"
WEIGHTS: Final = 1_000  # a share in whole parts of this, rounded down
MAX_RULES: Final = 16  # of one HTTPRoute
MAX_MATCHES: Final = 64  # of one rule; Gateway API allows 128 in all rules together
MAX_ALL_MATCHES: Final = 128
NAME_DIGITS: Final = 8  # of the digest that tells names apart which are written alike
DEFAULT_GROUP: Final = "default"  # LiteLLM's tag of deployments for requests without a known tag


@dataclass(frozen=True, slots=True)
class ServerPool:
    """Where a pool's servers are reached; an InferencePool has no port (None), and its picker chooses a server."""

    host: str
    port: int | None

    @classmethod
    def parse(cls, text: str, option: str) -> ServerPool:
        """The pool at HOST:PORT, or `InferencePool/NAME`.

        Raises:
            UsageError: the text is neither.
        """
        kind, _, name = text.partition("/")
        if kind == INFERENCE_POOL and name and not set("/:") & set(name):
            return cls(name, None)
        host, _, port = text.rpartition(":")
        if not host or ":" in host or "/" in host or not port.isdigit() or not 1 <= int(port) <= LAST_PORT:
            raise UsageError(
                f"{option} {text!r}: must be HOST:PORT, such as {PLAIN}:8000, or {INFERENCE_POOL}/NAME for an HTTPRoute"
            )
        return cls(host, int(port))

    @property
    def address(self) -> tuple[str, int]:
        """Host and port.

        Raises:
            UsageError: it is an InferencePool, which only an HTTPRoute reaches.
        """
        if self.port is None:
            raise UsageError(
                f"{INFERENCE_POOL}/{self.host}: only --format httproute routes to it; give HOST:PORT for this format"
            )
        return self.host, self.port

    @property
    def backend(self) -> dict[str, Any]:
        """As an HTTPRoute refers to it."""
        if self.port is None:
            return {"group": INFERENCE_GROUP, "kind": INFERENCE_POOL, "name": self.host}
        return {"name": self.host, "port": self.port}


@dataclass(frozen=True, slots=True)
class Pools:
    """Both pools, and the name of the gateway that an HTTPRoute attaches to."""

    speculative: ServerPool
    plain: ServerPool
    gateway: str = "gateway"


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
    endpoint: str, served_decisions: Sequence[ServedDecision], *, overrides: Collection[Override] = ()
) -> Routes:
    """The routes by slice, with the config that serves the largest share of the traffic.

    Of equal shares the config with the better lower bounds counts, then the last by name.  An endpoint without decided
    slices has one route, by its whole verdict; an order on any part of it takes that off.
    """
    at_endpoint = [served for served in served_decisions if served.decision.endpoint == endpoint]
    subjects = [served for served in at_endpoint if served.decision.slice_key] or at_endpoint
    shares = {served.decision.slice_key: served.decision.traffic_share or 0.0 for served in subjects}
    by_config: dict[tuple[SpeculationConfig, int], list[ServedDecision]] = defaultdict(list)
    for served in subjects:
        by_config[draft_key(served.decision.config), served.decision.config.num_speculative_tokens].append(served)
    choices = []
    for_other_engines: list[ServedDecision] = []
    for decisions in by_config.values():
        schedules = slice_schedules(endpoint, decisions, overrides=overrides)
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
        if all(part.num_speculative_tokens for part in schedule.measured_ranges) and int(schedule.share * WEIGHTS)
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


def litellm(routes: Routes, pools: Pools, served_models: Sequence[str]) -> Export:
    """LiteLLM's proxy configuration with tag-based routing.

    Each model name has a deployment in either pool.  Requests without a known tag go to the one tagged `default`, which
    is plain.  LiteLLM keeps a tagged request from other deployments even if all of its own are down, so a fallback
    group leads to the plain pool.
    """
    hosts = (pool.address for pool in (pools.speculative, pools.plain))
    speculative, plain = (f"http://{host}:{port}/v1" for host, port in hosts)
    deployments: list[dict[str, Any]] = []
    fallbacks = []
    by_share: dict[float, list[Route]] = defaultdict(list)
    for route in routes.on:
        by_share[route.share].append(route)
    for model in served_models:
        backup = f"{model}-{PLAIN}"
        for routed in by_share.values():
            tags, weights = [route.tag for route in routed], routed[0].weights
            deployments.append(_deployment(model, model, speculative, tags, weights[0]))
            if weights[1]:
                deployments.append(_deployment(model, model, plain, tags, weights[1]))
        deployments += [
            _deployment(model, model, plain, [DEFAULT_GROUP]),
            _deployment(backup, model, plain, [DEFAULT_GROUP]),
        ]
        fallbacks.append({model: [backup]})
    document = {
        "model_list": deployments,
        "router_settings": {"enable_tag_filtering": True, "fallbacks": fallbacks},
    }
    return _commented(routes, document)


def _deployment(group: str, model: str, url: str, tags: list[str], weight: int | None = None) -> dict[str, Any]:
    parameters: dict[str, Any] = {"model": f"hosted_vllm/{model}", "api_base": url, "tags": tags}
    if weight is not None:
        parameters["weight"] = weight
    return {"model_name": group, "litellm_params": parameters}


def httproute(routes: Routes, pools: Pools) -> Export:
    """A Gateway API HTTPRoute (v1) that matches the header of the slice.

    Raises:
        UsageError: more slices are on than an HTTPRoute can match.
    """
    by_share: dict[float, list[Route]] = defaultdict(list)
    for route in routes.on:
        by_share[route.share].append(route)
    groups = [
        (routed[0].weights, routed[start : start + MAX_MATCHES])
        for routed in by_share.values()
        for start in range(0, len(routed), MAX_MATCHES)
    ]
    if len(groups) >= MAX_RULES or len(routes.on) >= MAX_ALL_MATCHES:
        raise UsageError(
            f"export --format httproute: {len(routes.on)} slices with {len(by_share)} shares exceed an HTTPRoute's "
            f"{MAX_RULES} rules or {MAX_ALL_MATCHES} matches; use --format envoy, or slice by fewer labels"
        )
    rules: list[dict[str, Any]] = [
        {
            "matches": [
                {"headers": [{"type": "Exact", "name": route.header[0], "value": route.header[1]}]} for route in routed
            ],
            "backendRefs": [
                {**pool.backend, "weight": weight}
                for pool, weight in zip((pools.speculative, pools.plain), weights, strict=True)
                if weight
            ],
        }
        for weights, routed in groups
    ]
    rules.append({"backendRefs": [pools.plain.backend]})
    metadata: dict[str, Any] = {"name": f"shadowspec-{_resource_name(routes.endpoint)}"}
    if routes.expires_at is not None:
        metadata["annotations"] = {"shadowspec/expires-at": routes.expires_at.isoformat()}
    document = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": metadata,
        "spec": {"parentRefs": [{"name": pools.gateway}], "rules": rules},
    }
    return _commented(routes, document)


def envoy(routes: Routes, pools: Pools) -> Export:
    """Envoy's route configuration and clusters, as fragments of a static or a file-based dynamic configuration."""
    listed: list[dict[str, Any]] = []
    resource = f"shadowspec-{_resource_name(routes.endpoint)}"
    speculative, plain = f"{resource}-{SPECULATIVE}", f"{resource}-{PLAIN}"
    for route in routes.on:
        name, value = route.header
        match = {"prefix": "/", "headers": [{"name": name, "string_match": {"exact": value}}]}
        weights = [
            {"name": pool, "weight": weight}
            for pool, weight in zip((speculative, plain), route.weights, strict=True)
            if weight
        ]
        target = {"weighted_clusters": {"clusters": weights}} if len(weights) > 1 else {"cluster": speculative}
        listed.append({"match": match, "route": {**target, "timeout": "0s"}})
    listed.append({"match": {"prefix": "/"}, "route": {"cluster": plain, "timeout": "0s"}})
    document = {
        "route_config": {
            "name": resource,
            "virtual_hosts": [{"name": "llm", "domains": ["*"], "routes": listed}],
        },
        "clusters": [_cluster(speculative, pools.speculative), _cluster(plain, pools.plain)],
    }
    return _commented(routes, document)


def _cluster(name: str, pool: ServerPool) -> dict[str, Any]:
    host, port = pool.address
    address = {"socket_address": {"address": host, "port_value": port}}
    return {
        "name": name,
        "type": "STRICT_DNS",
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }


def _resource_name(endpoint: str) -> str:
    """The endpoint's name as a name of Kubernetes: lower case, without underscores, and another for every endpoint."""
    name = "".join(character if character.isalnum() else "-" for character in endpoint.lower()).strip("-")
    return name if name == endpoint else f"{name}-{sha256(endpoint.encode()).hexdigest()[:NAME_DIGITS]}".strip("-")


def _commented(routes: Routes, document: Mapping[str, Any]) -> Export:
    """The document as YAML: JSON, which YAML includes, below comments."""
    remarks = routes.describe()
    text = "".join(f"{line}\n" for line in comment_lines(remarks)) + json.dumps(document, indent=2) + "\n"
    return Export(text, tuple(remarks))
