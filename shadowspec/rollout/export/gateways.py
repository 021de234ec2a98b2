"""Routes of one endpoint or many as LiteLLM, Gateway API, KServe and Envoy read them.

Endpoints that share a gateway never take each other's requests.  An endpoint with its `hosts` has every request of
these.  The others share all other hosts: each has the requests that the classifier's header names, and exactly one rule
catches the rest.  An endpoint that shares with nobody catches them with its plain pool.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from shadowspec.errors import UsageError
from shadowspec.rollout.export.routes import PLAIN, SPECULATIVE, WEIGHTS, Pools, Route, Routes, ServerPool
from shadowspec.servers.engines.export_parts import Export, comment_lines
from shadowspec.types import ENDPOINT_HEADER

MAX_RULES: Final = 16  # of one HTTPRoute
MAX_MATCHES: Final = 64  # of one rule; Gateway API allows 128 in all rules together
MAX_ALL_MATCHES: Final = 128
NAME_DIGITS: Final = 8  # of the digest that tells names apart which are written alike
DEFAULT_GROUP: Final = "default"  # LiteLLM's tag of deployments for requests without a known tag
RESOURCE: Final = "shadowspec"  # begins the names of everything that is exported
CLUSTERS: Final = ".clusters.yaml"  # ends the name of the file with Envoy's clusters
_TYPES: Final = "type.googleapis.com/envoy.config"


@dataclass(frozen=True, slots=True)
class RoutedEndpoint:
    """An endpoint's routes, its pools, and the names under which clients ask for its model.

    `is_shared`: others have requests on the same hosts.
    """

    routes: Routes
    pools: Pools
    served_models: tuple[str, ...] = ()
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class Gateway:
    """The gateway's name, which an HTTPRoute attaches to, and the pool of requests that are of no endpoint.

    `otherwise` is None where no endpoint shares a host, or where another export has that rule.
    """

    name: str = "gateway"
    otherwise: ServerPool | None = None


def litellm(endpoints: Sequence[RoutedEndpoint]) -> Export:
    """LiteLLM's proxy configuration with tag-based routing.

    Each model name has a deployment in either pool.  Requests without a known tag go to the one tagged `default`, which
    is plain.  LiteLLM keeps a tagged request from other deployments even if all of its own are down, so a fallback
    group leads to the plain pool.  Where several endpoints serve a model name, the first one's plain pool is the
    default, and the others' slices that are off have plain deployments.
    """
    deployments: list[dict[str, Any]] = []
    fallbacks = []
    known: set[str] = set()
    for endpoint in endpoints:
        hosts = (pool.address for pool in (endpoint.pools.speculative_pool, endpoint.pools.plain_pool))
        speculative, plain = (f"http://{host}:{port}/v1" for host, port in hosts)
        by_share: dict[float, list[Route]] = defaultdict(list)
        for route in endpoint.routes.on:
            by_share[route.share].append(route)
        for model in endpoint.served_models:
            for routed in by_share.values():
                tags, weights = [route.tag for route in routed], routed[0].weights
                deployments.append(_deployment(model, model, speculative, tags, weights[0]))
                if weights[1]:
                    deployments.append(_deployment(model, model, plain, tags, weights[1]))
            if model in known:
                off = [tag for tag in endpoint.routes.off if tag]
                deployments += [_deployment(model, model, plain, off)] if off else []
                continue
            known.add(model)
            backup = f"{model}-{PLAIN}"
            deployments += [
                _deployment(model, model, plain, [DEFAULT_GROUP]),
                _deployment(backup, model, plain, [DEFAULT_GROUP]),
            ]
            fallbacks.append({model: [backup]})
    document = {
        "model_list": deployments,
        "router_settings": {"enable_tag_filtering": True, "fallbacks": fallbacks},
    }
    return _commented(endpoints, [document])


def _deployment(group: str, model: str, url: str, tags: list[str], weight: int | None = None) -> dict[str, Any]:
    parameters: dict[str, Any] = {"model": f"hosted_vllm/{model}", "api_base": url, "tags": tags}
    if weight is not None:
        parameters["weight"] = weight
    return {"model_name": group, "litellm_params": parameters}


def httproute(endpoints: Sequence[RoutedEndpoint], gateway: Gateway) -> Export:
    """A Gateway API HTTPRoute (v1) for each endpoint, by the headers of the classifier, and one for all else.

    Raises:
        UsageError: more slices are on than an HTTPRoute can match.
    """
    documents = [
        _route(
            _resource_name(endpoint.routes.endpoint),
            gateway,
            _rules(endpoint),
            hosts=endpoint.pools.hosts,
            annotations={}
            if endpoint.routes.expires_at is None
            else {"shadowspec/expires-at": endpoint.routes.expires_at.isoformat()},
        )
        for endpoint in endpoints
    ]
    if gateway.otherwise is not None:
        documents.append(_route(RESOURCE, gateway, [{"backendRefs": [gateway.otherwise.backend]}]))
    return _commented(endpoints, documents)


def _route(
    name: str,
    gateway: Gateway,
    rules: Sequence[Mapping[str, Any]],
    hosts: Sequence[str] = (),
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": name, **({"annotations": annotations} if annotations else {})},
        "spec": {
            "parentRefs": [{"name": gateway.name}],
            **({"hostnames": list(hosts)} if hosts else {}),
            "rules": list(rules),
        },
    }


def _rules(endpoint: RoutedEndpoint) -> list[dict[str, Any]]:
    """The endpoint's slices first: of matches of one weight Gateway API takes the first of an HTTPRoute."""
    by_share: dict[float, list[Route]] = defaultdict(list)
    for route in endpoint.routes.on:
        by_share[route.share].append(route)
    groups = [
        (routed[0].weights, routed[start : start + MAX_MATCHES])
        for routed in by_share.values()
        for start in range(0, len(routed), MAX_MATCHES)
    ]
    if len(groups) >= MAX_RULES or len(endpoint.routes.on) >= MAX_ALL_MATCHES:
        raise UsageError(
            f"export --format httproute: {len(endpoint.routes.on)} slices with {len(by_share)} shares exceed an "
            f"HTTPRoute's {MAX_RULES} rules or {MAX_ALL_MATCHES} matches; use --format envoy, or slice by fewer labels"
        )
    pools = endpoint.pools.speculative_pool, endpoint.pools.plain_pool
    rules = [
        {
            "matches": [_gateway_match(*route.header) for route in routed],
            "backendRefs": [
                {**pool.backend, "weight": weight} for pool, weight in zip(pools, weights, strict=True) if weight
            ],
        }
        for weights, routed in groups
    ]
    rest = {"matches": [_gateway_match(ENDPOINT_HEADER, endpoint.routes.endpoint)]} if endpoint.is_shared else {}
    return [*rules, {**rest, "backendRefs": [pools[1].backend]}]


def _gateway_match(header: str, value: str) -> dict[str, Any]:
    return {"headers": [{"type": "Exact", "name": header, "value": value}]}


def kserve(endpoints: Sequence[RoutedEndpoint]) -> Export:
    """The routing groups of KServe's LLMInferenceServices: the traffic's share of either service, by weight.

    A service without traffic keeps its weight of 0, by which KServe retains it in the group.

    Raises:
        UsageError: a pool is no LLMInferenceService, or two endpoints share one.
    """
    counted = Counter(
        pool.service for endpoint in endpoints for pool in (endpoint.pools.speculative_pool, endpoint.pools.plain_pool)
    )
    if twice := [name for name, number in counted.items() if number > 1]:
        raise UsageError(
            f"LLMInferenceService/{twice[0]}: is in two pools, and a service is in one group at one weight"
        )
    documents = []
    for endpoint in endpoints:
        weights = next((route.weights for route in endpoint.routes.on), (0, WEIGHTS))
        pools = endpoint.pools.speculative_pool, endpoint.pools.plain_pool
        documents += [
            {
                "apiVersion": "serving.kserve.io/v1alpha2",
                "kind": "LLMInferenceService",
                "metadata": {"name": pool.service},
                "spec": {"router": {"route": {"group": _resource_name(endpoint.routes.endpoint), "weight": weight}}},
            }
            for pool, weight in zip(pools, weights, strict=True)
        ]
    applied = "apply it to the services that run: kubectl apply --server-side --field-manager shadowspec -f FILE"
    document = _commented(endpoints, documents)
    return Export(document.text, (*document.remarks, applied))


def envoy(endpoints: Sequence[RoutedEndpoint], gateway: Gateway) -> Export:
    """Envoy's route configuration as a file for RDS, and the clusters beside it as one for CDS."""
    hosts, shared = [], []
    clusters: list[dict[str, Any]] = []
    for endpoint in endpoints:
        resource = _resource_name(endpoint.routes.endpoint)
        names = f"{resource}-{SPECULATIVE}", f"{resource}-{PLAIN}"
        pools = endpoint.pools.speculative_pool, endpoint.pools.plain_pool
        clusters += [_cluster(name, pool) for name, pool in zip(names, pools, strict=True)]
        listed = [_envoy_route([route.header], names, route.weights) for route in endpoint.routes.on]
        rest = [(ENDPOINT_HEADER, endpoint.routes.endpoint)] if endpoint.is_shared else []
        listed.append(_envoy_route(rest, names, (0, WEIGHTS)))
        if endpoint.pools.hosts:
            hosts.append({"name": resource, "domains": list(endpoint.pools.hosts), "routes": listed})
        else:
            shared += listed
    if gateway.otherwise is not None:
        clusters.append(_cluster(RESOURCE, gateway.otherwise))
        shared.append(_envoy_route([], (RESOURCE, RESOURCE), (WEIGHTS, 0)))
    everywhere = [{"name": RESOURCE, "domains": ["*"], "routes": shared}] if shared else []
    routing = {
        "name": RESOURCE,
        "ignore_port_in_host_matching": True,
        "virtual_hosts": [*hosts, *everywhere],
    }
    routes = _resources("route.v3.RouteConfiguration", [routing])
    document = _commented(endpoints, [routes])
    beside = f"the clusters are another file: --out NAME.yaml writes NAME{CLUSTERS} as well"
    held = json.dumps(_resources("cluster.v3.Cluster", clusters), indent=2) + "\n"
    return Export(document.text, (*document.remarks, beside), {CLUSTERS: held})


def _envoy_route(
    headers: Sequence[tuple[str, str]], clusters: tuple[str, str], weights: tuple[int, int]
) -> dict[str, Any]:
    match: dict[str, Any] = {"prefix": "/"}
    if headers:
        match["headers"] = [{"name": name, "string_match": {"exact": value}} for name, value in headers]
    parts = [{"name": name, "weight": weight} for name, weight in zip(clusters, weights, strict=True) if weight]
    target = {"weighted_clusters": {"clusters": parts}} if len(parts) > 1 else {"cluster": parts[0]["name"]}
    return {"match": match, "route": {**target, "timeout": "0s"}}


def _resources(kind: str, resources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A discovery response, as Envoy reads files."""
    return {"resources": [{"@type": f"{_TYPES}.{kind}", **resource} for resource in resources]}


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
    digest = sha256(endpoint.encode()).hexdigest()[:NAME_DIGITS]
    return f"{RESOURCE}-" + (name if name == endpoint else f"{name}-{digest}".strip("-"))


def _commented(endpoints: Sequence[RoutedEndpoint], documents: Sequence[Mapping[str, Any]]) -> Export:
    """The documents as YAML: JSON, which YAML includes, below comments."""
    remarks = [line for endpoint in endpoints for line in endpoint.routes.describe()]
    comments = "".join(f"{line}\n" for line in comment_lines(remarks))
    text = comments + "---\n".join(json.dumps(document, indent=2) + "\n" for document in documents)
    return Export(text, tuple(remarks))


def sharing(endpoints: Mapping[str, Pools]) -> set[str]:
    """The endpoints that share hosts with others.

    Raises:
        UsageError: two endpoints name the same host.
    """
    counted = Counter(host for pools in endpoints.values() for host in pools.hosts)
    if twice := [host for host, number in counted.items() if number > 1]:
        raise UsageError(f"hosts: {twice[0]} is a host of two endpoints; remove it from both, which then share it")
    without = {name for name, pools in endpoints.items() if not pools.hosts}
    return without if len(without) > 1 else set()
