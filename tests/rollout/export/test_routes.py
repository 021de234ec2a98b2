"""Routes by slice: which slices go to the speculative pool, and how gateways read what is exported."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.errors import UsageError
from shadowspec.rollout.export import gateways
from shadowspec.rollout.export.gateways import Gateway, RoutedEndpoint
from shadowspec.rollout.export.routes import WEIGHTS, Pools, Routes, ServerPool, choose_routes
from shadowspec.servers.client import run_async
from shadowspec.servers.engines.export_parts import Export
from shadowspec.types import SLICE_HEADER, Decision, Override, Rollout, Stage, Verdict, slice_tag
from tests.deploy import crds
from tests.rollout.export.worlds import NOW, config, decision, judged

CODE, CHAT, MATHS = (f"prompt_class={name},sampling_regime=greedy" for name in ("code", "chat", "maths"))
pytestmark = pytest.mark.filterwarnings("ignore:Item .* on TypedDict class:UserWarning")  # of LiteLLM's types
POOLS = Pools("spec.local:8001", "plain.local:8002")
EDGE = Gateway("edge")
MIXED = [
    decision(Verdict.HOLD, load=4),
    decision(load=2, slice_key=CODE, number=21),
    decision(load=8, slice_key=CODE, number=22),
    decision(load=4, slice_key=MATHS, number=23),
    decision(Verdict.DISABLE, load=2, slice_key=CHAT),
]


def chosen(decisions: Iterable[Decision], rollouts: Sequence[Rollout] = (), orders: Sequence[Override] = ()) -> Routes:
    return choose_routes("chat", judged(decisions, rollouts=rollouts), overrides=orders)


def rollout(load: int, share: float) -> Rollout:
    return Rollout(
        endpoint="chat",
        concurrency=load,
        stage=Stage.PARTIAL,
        share=share,
        depth_caps={"": 4},
        fingerprint="fp-draft_model-4",
        since=NOW,
        decided_at=NOW,
        reason_code="forward",
        reason="as the test says",
    )


def litellm(found: Routes, pools: Pools = POOLS) -> Export:
    return gateways.litellm([RoutedEndpoint(found, pools, ("llm",))])


def httproute(found: Routes, pools: Pools = POOLS) -> Export:
    return gateways.httproute([RoutedEndpoint(found, pools)], EDGE)


def envoy(found: Routes, pools: Pools = POOLS) -> Export:
    return gateways.envoy([RoutedEndpoint(found, pools)], EDGE)


def tags(found: Routes) -> set[str]:
    return {route.tag for route in found.on}


def test_slices_that_are_on_at_every_measured_load_are_routed() -> None:
    found = chosen(MIXED)
    assert tags(found) == {slice_tag("chat", CODE), slice_tag("chat", MATHS)}
    assert found.off == (slice_tag("chat", CHAT),)
    assert found.max_concurrency == 4  # nothing above it was measured for maths
    assert found.pool_schedule.decision_ids == (21, 22, 23)


def test_a_slice_that_is_off_at_one_load_is_not_routed() -> None:
    found = chosen([decision(load=2, slice_key=CODE), decision(Verdict.DISABLE, load=8, slice_key=CODE)])
    assert not found.on
    assert found.config is None


def test_the_pool_runs_the_config_with_the_most_proven_slices() -> None:
    other = config(2)
    found = chosen([
        decision(load=2, slice_key=CODE),
        decision(load=2, slice_key=CODE, of=other),
        decision(load=2, slice_key=MATHS, of=other),
    ])  # fmt: skip
    assert found.config is not None
    assert found.pool_schedule.max_num_speculative_tokens == 2
    assert tags(found) == {slice_tag("chat", CODE), slice_tag("chat", MATHS)}


@pytest.mark.parametrize("covered", ["", CODE, "prompt_class=code"])
def test_an_order_takes_a_slice_off_its_route(covered: str) -> None:
    order = Override(
        override_id=1,
        endpoint="chat",
        slice_key=covered,
        concurrency=None,
        verdict=Verdict.DISABLE,
        reason="incident",
        author="op",
        created_at=NOW,
    )
    assert slice_tag("chat", CODE) not in tags(chosen(MIXED, orders=[order]))


def routed_hosts(document: str, tag: str | None, calls: int = 1) -> set[str]:
    """The hosts that LiteLLM's own router chooses for requests with this tag."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # no prices from the network
    from litellm import Router  # takes seconds

    settings = yaml.safe_load(document)
    router = Router(model_list=settings["model_list"], **settings["router_settings"])

    async def ask() -> set[str]:
        metadata = {} if tag is None else {"tags": [tag]}
        found = [
            await router.async_get_available_deployment(
                model="llm", request_kwargs={"metadata": dict(metadata)}, messages=[{"role": "user", "content": "x"}]
            )
            for _ in range(calls)
        ]
        return {each["litellm_params"]["api_base"] for each in found}

    return run_async(ask())


SPECULATIVE, PLAIN = "http://spec.local:8001/v1", "http://plain.local:8002/v1"


@pytest.mark.all  # loads LiteLLM
@pytest.mark.parametrize(
    ("tag", "host"),
    [
        (slice_tag("chat", CODE), SPECULATIVE),
        (slice_tag("chat", MATHS), SPECULATIVE),
        (slice_tag("chat", CHAT), PLAIN),
        (slice_tag("other", CODE), PLAIN),
        ("none", PLAIN),
        (None, PLAIN),
    ],
)
def test_litellm_routes_by_the_tag(tag: str | None, host: str) -> None:
    document = litellm(chosen(MIXED))
    assert routed_hosts(document.text, tag, calls=5) == {host}


@pytest.mark.all  # loads LiteLLM
def test_litellm_draws_the_share_of_a_partial_rollout() -> None:
    found = chosen([decision(load=2, slice_key=CODE)], rollouts=[rollout(2, 0.5)])
    document = litellm(found)
    assert routed_hosts(document.text, slice_tag("chat", CODE), calls=60) == {SPECULATIVE, PLAIN}
    weights = [each["litellm_params"].get("weight") for each in yaml.safe_load(document.text)["model_list"]]
    assert weights == [500, 500, None, None]


def test_litellm_has_a_plain_group_to_fall_back_to() -> None:
    settings = yaml.safe_load(litellm(chosen(MIXED)).text)
    assert settings["router_settings"]["fallbacks"] == [{"llm": ["llm-plain"]}]
    backup = [each for each in settings["model_list"] if each["model_name"] == "llm-plain"]
    assert [each["litellm_params"]["api_base"] for each in backup] == [PLAIN]


def envoy_cluster(document: dict[str, Any], header: str | None) -> set[str]:
    """The clusters of the first route that matches, as Envoy reads routes in order."""
    for route in document["resources"][0]["virtual_hosts"][0]["routes"]:
        wanted = [each["string_match"]["exact"] for each in route["match"].get("headers", ())]
        if not wanted or header in wanted:
            target = route["route"]
            parts = target.get("weighted_clusters", {}).get("clusters", [{"name": target.get("cluster")}])
            return {part["name"] for part in parts}
    raise AssertionError("no route matches")


def gateway_backends(document: dict[str, Any], header: str | None) -> set[str]:
    for rule in document["spec"]["rules"]:
        wanted = [match["headers"][0]["value"] for match in rule.get("matches", ())]
        if not wanted or header in wanted:
            return {backend["name"] for backend in rule["backendRefs"]}
    raise AssertionError("no rule matches")


@given(
    st.lists(
        st.tuples(st.sampled_from([CODE, CHAT, MATHS]), st.sampled_from([2, 4]), st.sampled_from(list(Verdict))),
        unique_by=lambda each: each[:2],
    )
)
def test_all_formats_route_the_same_slices_and_none_without_an_enable(
    drawn: list[tuple[str, int, Verdict]],
) -> None:
    found = chosen([decision(verdict, load=load, slice_key=key) for key, load, verdict in drawn])
    proxy = yaml.safe_load(envoy(found).text)
    gateway = yaml.safe_load(httproute(found).text)
    crds.check(gateway)
    for key in (CODE, CHAT, MATHS):
        verdicts = [verdict for of, _, verdict in drawn if of == key]
        is_on = bool(verdicts) and all(verdict is Verdict.ENABLE for verdict in verdicts)
        tag = slice_tag("chat", key)
        assert envoy_cluster(proxy, tag) == {f"shadowspec-chat-{'speculative' if is_on else 'plain'}"}
        assert gateway_backends(gateway, tag) == {"spec.local" if is_on else "plain.local"}
    assert envoy_cluster(proxy, None) == {"shadowspec-chat-plain"}
    assert gateway_backends(gateway, "none") == {"plain.local"}


def test_objects_of_different_endpoints_have_different_names() -> None:
    names, clusters = set(), set()
    for endpoint in ("team.chat", "team-chat", "Team_Chat", "Team-chat"):
        found = choose_routes(endpoint, judged([decision(load=2)]), overrides=())
        gateway = yaml.safe_load(httproute(found).text)
        crds.check(gateway)
        names.add(gateway["metadata"]["name"])
        held = yaml.safe_load(envoy(found).beside[gateways.CLUSTERS])
        clusters |= {cluster["name"] for cluster in held["resources"]}
    assert "shadowspec-team-chat" in names  # a name of Kubernetes stays as it is
    assert (len(names), len(clusters)) == (4, 8)


def test_an_endpoint_without_slices_has_one_route() -> None:
    found = chosen([decision(load=2)])
    assert [route.header for route in found.on] == [("x-shadowspec-endpoint", "chat")]
    document = litellm(found).text
    assert routed_hosts(document, "chat", calls=5) == {SPECULATIVE}


def test_an_httproute_of_many_slices_is_what_gateway_api_takes() -> None:
    many = [decision(load=2, slice_key=f"tenant={number}", number=number) for number in range(127)]
    rollouts = [rollout(2, 0.25)]
    crds.check(yaml.safe_load(httproute(chosen(many)).text))
    crds.check(yaml.safe_load(httproute(chosen(many[:40], rollouts)).text))


def test_an_httproute_with_too_many_slices_is_refused() -> None:
    many = [decision(load=2, slice_key=f"tenant={number}", number=number) for number in range(128)]
    with pytest.raises(UsageError, match="128 slices"):
        httproute(chosen(many))


def test_an_httproute_leads_to_inference_pools_and_other_formats_refuse_them() -> None:
    """As the Gateway API Inference Extension has its backends: by group and kind, without a port."""
    pool = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "fast"}
    pools = Pools("InferencePool/fast", "plain.local:80")
    found = chosen([decision(slice_key=CODE)])
    document = yaml.safe_load(httproute(found, pools).text)
    crds.check(document)
    assert [rule["backendRefs"] for rule in document["spec"]["rules"]] == [
        [{**pool, "weight": WEIGHTS}],
        [{"name": "plain.local", "port": 80}],
    ]
    for refusing in (lambda: envoy(found, pools), lambda: litellm(found, pools)):
        with pytest.raises(UsageError, match="InferencePool/fast: only --format httproute"):
            refusing()


def kserve(decisions: Iterable[Decision], rollouts: Sequence[Rollout] = (), pools: Pools | None = None) -> Export:
    served = judged(decisions, rollouts=rollouts)
    found = choose_routes("Team_Chat" if pools else "chat", served, overrides=(), by_slice=False)
    pools = pools or Pools("LLMInferenceService/fast", "LLMInferenceService/plain")
    return gateways.kserve([RoutedEndpoint(found, pools)])


@pytest.mark.parametrize(
    ("decisions", "rollouts", "weights"),
    [
        ([decision(load=2)], [], (1_000, 0)),
        ([decision(load=2)], [rollout(2, 0.25)], (250, 750)),
        ([decision(Verdict.DISABLE, load=2)], [], (0, 1_000)),
        ([decision(load=2, slice_key=CODE)], [], (0, 1_000)),  # the group takes every request of the model
        ([decision(load=2), decision(Verdict.DISABLE, load=2, slice_key=CHAT)], [], (0, 1_000)),
        ([], [], (0, 1_000)),
    ],
)
def test_kserve_has_the_weights_of_the_whole_endpoint(
    decisions: list[Decision], rollouts: list[Rollout], weights: tuple[int, int]
) -> None:
    documents = list(yaml.safe_load_all(kserve(decisions, rollouts).text))
    assert [(each["kind"], each["metadata"]["name"]) for each in documents] == [
        ("LLMInferenceService", "fast"),
        ("LLMInferenceService", "plain"),
    ]
    assert tuple(each["spec"]["router"]["route"]["weight"] for each in documents) == weights
    assert {each["spec"]["router"]["route"]["group"] for each in documents} == {"shadowspec-chat"}


def test_kserve_needs_two_services_of_its_kind() -> None:
    with pytest.raises(UsageError, match="pool plain:80: --format kserve needs LLMInferenceService/NAME"):
        kserve([], pools=Pools("LLMInferenceService/fast", "plain:80"))
    with pytest.raises(UsageError, match="LLMInferenceService/one: is in two pools"):
        kserve([], pools=Pools("LLMInferenceService/one", "LLMInferenceService/one"))
    with pytest.raises(UsageError, match="LLMInferenceService/fast: only --format kserve"):
        httproute(chosen([decision(load=2)]), Pools("LLMInferenceService/fast", "plain:80"))


def test_routes_say_what_the_pool_runs_and_when_they_become_stale() -> None:
    document = envoy(chosen(MIXED))
    assert any("draft_model-4" in remark for remark in document.remarks)
    assert any("4 requests at once" in remark for remark in document.remarks)
    assert any("stale" in remark for remark in document.remarks)
    assert document.text.startswith("# chat: decisions 21, 22, 23")
    assert SLICE_HEADER in json.dumps(yaml.safe_load(document.text))


@pytest.mark.parametrize("text", ["plain", "plain:", ":8000", "http://plain:8000", "plain:0", "plain:70000"])
def test_a_pool_without_host_or_port_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        ServerPool.parse(text, "--plain")


def gateway_of(names: Sequence[str], hosts: Mapping[str, tuple[str, ...]] | None = None) -> list[RoutedEndpoint]:
    """Endpoints, each ENABLE for code only, with pools of servers, on these hosts."""
    pools = {name: Pools(f"{name}.fast:80", f"{name}.plain:80", (hosts or {}).get(name, ())) for name in names}
    shared = gateways.sharing(pools)
    decisions = [decision(load=2, slice_key=CODE, endpoint=name, number=number) for number, name in enumerate(names, 1)]
    served = judged(decisions)
    return [RoutedEndpoint(choose_routes(name, served), pools[name], (name,), name in shared) for name in names]


REST = Gateway("edge", ServerPool("router", 80))
REQUESTS = [  # host, the classifier's headers, and where Gateway API and Envoy take them
    ("any", {"x-shadowspec-endpoint": "sql", "x-shadowspec-slice": slice_tag("sql", CODE)}, "sql.fast"),
    ("any", {"x-shadowspec-endpoint": "sql", "x-shadowspec-slice": slice_tag("sql", CHAT)}, "sql.plain"),
    ("any", {"x-shadowspec-endpoint": "chat", "x-shadowspec-slice": slice_tag("chat", CODE)}, "chat.fast"),
    ("any", {"x-shadowspec-endpoint": "chat"}, "chat.plain"),
    ("any", {"x-shadowspec-endpoint": "none"}, "router"),
    ("any", {}, "router"),
    ("own.example.com", {"x-shadowspec-slice": slice_tag("own", CODE)}, "own.fast"),
    ("own.example.com", {}, "own.plain"),
]


def httproute_backend(documents: Sequence[dict[str, Any]], host: str, headers: Mapping[str, str]) -> set[str]:
    """By Gateway API's order over all HTTPRoutes of a Gateway: the host, then the most headers, then the first rule."""
    candidates = []
    for document in documents:
        spec = document["spec"]
        if host not in spec.get("hostnames", [host]):
            continue
        for place, rule in enumerate(spec["rules"]):
            for match in rule.get("matches", [{}]):
                wanted = match.get("headers", [])
                if all(headers.get(each["name"]) == each["value"] for each in wanted):
                    rank = "hostnames" in spec, len(wanted)
                    candidates.append((rank, document["metadata"]["name"], place, rule))
    best = max(rank for rank, *_ in candidates)
    chosen = [entry for entry in candidates if entry[0] == best]
    assert len({name for _, name, *_ in chosen}) == 1, "two HTTPRoutes claim the same request: the older one takes it"
    return {backend["name"] for backend in min(chosen, key=lambda entry: entry[2])[3]["backendRefs"]}


def envoy_host(document: Export, host: str, headers: Mapping[str, str]) -> str:
    (routing,) = yaml.safe_load(document.text)["resources"]
    clusters = yaml.safe_load(document.beside[gateways.CLUSTERS])["resources"]
    hosts = routing["virtual_hosts"]
    virtual = next((each for each in hosts if host in each["domains"]), hosts[-1])
    for route in virtual["routes"]:
        wanted = route["match"].get("headers", [])
        if all(headers.get(each["name"]) == each["string_match"]["exact"] for each in wanted):
            (cluster,) = [each for each in clusters if each["name"] == route["route"]["cluster"]]
            (place,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
            return str(place["endpoint"]["address"]["socket_address"]["address"])
    raise AssertionError("no route matches")


@pytest.mark.parametrize(("host", "headers", "pool"), REQUESTS)
def test_endpoints_of_one_gateway_never_take_each_other_s_requests(
    host: str, headers: dict[str, str], pool: str
) -> None:
    endpoints = gateway_of(["sql", "chat", "own"], {"own": ("own.example.com",)})
    documents = list(yaml.safe_load_all(gateways.httproute(endpoints, REST).text))
    for document in documents:
        crds.check(document)
    assert httproute_backend(documents, host, headers) == {pool}
    assert envoy_host(gateways.envoy(endpoints, REST), host, headers) == pool


def test_exactly_one_rule_catches_all_else() -> None:
    documents = list(yaml.safe_load_all(gateways.httproute(gateway_of(["sql", "chat"]), REST).text))
    rules = [rule for document in documents for rule in document["spec"]["rules"]]
    assert len([rule for rule in rules if "matches" not in rule]) == 1
    alone = yaml.safe_load(gateways.httproute(gateway_of(["sql"]), Gateway()).text)
    assert [rule for rule in alone["spec"]["rules"] if "matches" not in rule] == [alone["spec"]["rules"][-1]]


def test_a_host_belongs_to_one_endpoint() -> None:
    with pytest.raises(UsageError, match=r"hosts: a\.b is a host of two endpoints"):
        gateway_of(["sql", "chat"], {"sql": ("a.b",), "chat": ("a.b",)})


def test_litellm_has_one_default_for_a_model_of_two_endpoints() -> None:
    endpoints = [replace(endpoint, served_models=("llm",)) for endpoint in gateway_of(["sql", "chat"])]
    listed = yaml.safe_load(gateways.litellm(endpoints).text)["model_list"]
    parameters = [each["litellm_params"] for each in listed if each["model_name"] == "llm"]
    default = [each["api_base"] for each in parameters if each["tags"] == ["default"]]
    assert default == ["http://sql.plain:80/v1"]
    routed = {each["api_base"]: each["tags"] for each in parameters if each["tags"] != ["default"]}
    assert routed == {f"http://{name}.fast:80/v1": [slice_tag(name, CODE)] for name in ("sql", "chat")}
