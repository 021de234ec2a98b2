"""Routes by slice: which slices go to the speculative pool, and how gateways read what is exported."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shadowspec.errors import UsageError
from shadowspec.rollout.export import routes
from shadowspec.rollout.export.routes import Pools, Routes, ServerPool, choose_routes
from shadowspec.servers.client import run_async
from shadowspec.types import SLICE_HEADER, Decision, Override, Rollout, Stage, Verdict, slice_tag
from tests.deploy import crds
from tests.rollout.export.worlds import NOW, config, decision, judged

CODE, CHAT, MATHS = (f"prompt_class={name},sampling_regime=greedy" for name in ("code", "chat", "maths"))
pytestmark = pytest.mark.filterwarnings("ignore:Item .* on TypedDict class:UserWarning")  # of LiteLLM's types
POOLS = Pools(ServerPool("spec.local", 8001), ServerPool("plain.local", 8002), "edge")
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
    document = routes.litellm(chosen(MIXED), POOLS, ["llm"])
    assert routed_hosts(document.text, tag, calls=5) == {host}


@pytest.mark.all  # loads LiteLLM
def test_litellm_draws_the_share_of_a_partial_rollout() -> None:
    found = chosen([decision(load=2, slice_key=CODE)], rollouts=[rollout(2, 0.5)])
    document = routes.litellm(found, POOLS, ["llm"])
    assert routed_hosts(document.text, slice_tag("chat", CODE), calls=60) == {SPECULATIVE, PLAIN}
    weights = [each["litellm_params"].get("weight") for each in yaml.safe_load(document.text)["model_list"]]
    assert weights == [500, 500, None, None]


def test_litellm_has_a_plain_group_to_fall_back_to() -> None:
    settings = yaml.safe_load(routes.litellm(chosen(MIXED), POOLS, ["llm"]).text)
    assert settings["router_settings"]["fallbacks"] == [{"llm": ["llm-plain"]}]
    backup = [each for each in settings["model_list"] if each["model_name"] == "llm-plain"]
    assert [each["litellm_params"]["api_base"] for each in backup] == [PLAIN]


def envoy_cluster(document: dict[str, Any], header: str | None) -> set[str]:
    """The clusters of the first route that matches, as Envoy reads routes in order."""
    for route in document["route_config"]["virtual_hosts"][0]["routes"]:
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
    envoy = yaml.safe_load(routes.envoy(found, POOLS).text)
    gateway = yaml.safe_load(routes.httproute(found, POOLS).text)
    crds.check(gateway)
    for key in (CODE, CHAT, MATHS):
        verdicts = [verdict for of, _, verdict in drawn if of == key]
        is_on = bool(verdicts) and all(verdict is Verdict.ENABLE for verdict in verdicts)
        tag = slice_tag("chat", key)
        assert envoy_cluster(envoy, tag) == {f"shadowspec-chat-{'speculative' if is_on else 'plain'}"}
        assert gateway_backends(gateway, tag) == {"spec.local" if is_on else "plain.local"}
    assert envoy_cluster(envoy, None) == {"shadowspec-chat-plain"}
    assert gateway_backends(gateway, "none") == {"plain.local"}


def test_objects_of_different_endpoints_have_different_names() -> None:
    names, clusters = set(), set()
    for endpoint in ("team.chat", "team-chat", "Team_Chat", "Team-chat"):
        found = choose_routes(endpoint, judged([decision(load=2)]), overrides=())
        gateway = yaml.safe_load(routes.httproute(found, POOLS).text)
        crds.check(gateway)
        names.add(gateway["metadata"]["name"])
        document = yaml.safe_load(routes.envoy(found, POOLS).text)
        assert document["route_config"]["name"] == gateway["metadata"]["name"]
        clusters |= {cluster["name"] for cluster in document["clusters"]}
    assert "shadowspec-team-chat" in names  # a name of Kubernetes stays as it is
    assert (len(names), len(clusters)) == (4, 8)


def test_an_endpoint_without_slices_has_one_route() -> None:
    found = chosen([decision(load=2)])
    assert [route.header for route in found.on] == [("x-shadowspec-endpoint", "chat")]
    document = routes.litellm(found, POOLS, ["llm"]).text
    assert routed_hosts(document, "chat", calls=5) == {SPECULATIVE}


def test_an_httproute_of_many_slices_is_what_gateway_api_takes() -> None:
    many = [decision(load=2, slice_key=f"tenant={number}", number=number) for number in range(127)]
    rollouts = [rollout(2, 0.25)]
    crds.check(yaml.safe_load(routes.httproute(chosen(many), POOLS).text))
    crds.check(yaml.safe_load(routes.httproute(chosen(many[:40], rollouts), POOLS).text))


def test_an_httproute_with_too_many_slices_is_refused() -> None:
    many = [decision(load=2, slice_key=f"tenant={number}", number=number) for number in range(128)]
    with pytest.raises(UsageError, match="128 slices"):
        routes.httproute(chosen(many), POOLS)


def test_an_httproute_leads_to_inference_pools_and_other_formats_refuse_them() -> None:
    """As the Gateway API Inference Extension has its backends: by group and kind, without a port."""
    pool = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "fast"}
    pools = Pools(
        ServerPool.parse("InferencePool/fast", "--speculative"), ServerPool.parse("plain.local:80", "--plain")
    )
    found = chosen([decision(slice_key=CODE)])
    document = yaml.safe_load(routes.httproute(found, pools).text)
    crds.check(document)
    assert [rule["backendRefs"] for rule in document["spec"]["rules"]] == [
        [{**pool, "weight": routes.WEIGHTS}],
        [{"name": "plain.local", "port": 80}],
    ]
    for refusing in (lambda: routes.envoy(found, pools), lambda: routes.litellm(found, pools, ["llm"])):
        with pytest.raises(UsageError, match="InferencePool/fast: only --format httproute"):
            refusing()


def test_routes_say_what_the_pool_runs_and_when_they_become_stale() -> None:
    document = routes.envoy(chosen(MIXED), POOLS)
    assert any("draft_model-4" in remark for remark in document.remarks)
    assert any("4 requests at once" in remark for remark in document.remarks)
    assert any("stale" in remark for remark in document.remarks)
    assert document.text.startswith("# chat: decisions 21, 22, 23")
    assert SLICE_HEADER in json.dumps(yaml.safe_load(document.text))


@pytest.mark.parametrize("text", ["plain", "plain:", ":8000", "http://plain:8000", "plain:0", "plain:70000"])
def test_a_pool_without_host_or_port_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        ServerPool.parse(text, "--plain")
