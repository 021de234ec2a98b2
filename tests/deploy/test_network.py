"""The policies let each component reach the hosts of its configuration, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from shadowspec.config import Config, load_config
from shadowspec.scheduler.job_settings import EmailSettings, WebhookSettings
from tests.builders.manifests import DOCS, written
from tests.deploy.manifests import Document, build, named, pods

OUTSIDE = "outside"  # of the cluster: a policy names it by its address alone
DATABASE = "postgres.database.svc:5432"  # of the secrets' URLs, in docs/kubernetes.md
COMPONENTS = {"worker", "scheduler", "classifier", "dashboard", "retention", "migrate"}


@dataclass(frozen=True)
class Peer:
    """Whom a component speaks to: pods of a name in a namespace, or somebody outside."""

    namespace: str
    name: str
    port: int
    protocol: str = "TCP"


def peer_of(address: str) -> Peer:
    """HOST:PORT; SERVICE.NAMESPACE.svc is in the cluster."""
    host, _, port = address.rpartition(":")
    service, *rest = host.split(".")
    return Peer(rest[0], service, int(port)) if rest[1:2] == ["svc"] else Peer(OUTSIDE, OUTSIDE, int(port))


def contacted(component: str, config: Config | None) -> set[Peer]:
    """Every host that a component contacts, by its configuration."""
    found = {Peer("kube-system", "kube-dns", 53), Peer("kube-system", "kube-dns", 53, "UDP")}
    if component == "classifier":
        return found
    found.add(peer_of(DATABASE))
    if config is None or component in ("retention", "migrate"):
        return found
    if component == "worker":
        assert config.kafka is not None
        found |= {peer_of(server) for server in config.kafka.bootstrap_servers}
        for endpoint in config.endpoints.values():
            for url in () if endpoint.servers is None else endpoint.servers.roots:
                found.add(peer_of(urlsplit(url).netloc))
    elif component == "scheduler":
        for receiver in config.schedule.receivers.values():
            if isinstance(receiver, EmailSettings):
                found.add(peer_of(":".join(map(str, receiver.server))))
            elif isinstance(receiver, WebhookSettings):
                found.add(peer_of("hooks.example.com:443"))
    elif component == "dashboard" and config.dashboard.access.auth_file is not None:
        found.add(peer_of("login.example.com:443"))
    return found


def allowed(documents: list[Document], labels: dict[str, str]) -> set[Peer]:
    """Every peer that the policies of a pod let it reach."""
    policies = [document["spec"] for document in documents if document["kind"] == "NetworkPolicy"]
    rows = [spec for spec in policies if _selects(spec["podSelector"], labels)]
    assert any("Egress" in spec["policyTypes"] for spec in rows), "nothing is denied"
    return {peer for spec in rows for rule in spec.get("egress", ()) for peer in _peers(rule)}


def _selects(selector: Document, labels: dict[str, str]) -> bool:
    excluded = selector.get("matchExpressions", ())
    assert all(each["operator"] == "NotIn" for each in excluded)
    is_excluded = any(labels.get(each["key"]) in each["values"] for each in excluded)
    return not is_excluded and selector.get("matchLabels", {}).items() <= labels.items()


def _peers(rule: Document) -> Iterator[Peer]:
    assert rule["to"], "an empty list means everybody"
    for port in rule["ports"]:
        assert "endPort" not in port
        for to in rule["to"]:
            if "ipBlock" in to:
                assert not to["ipBlock"]["cidr"].endswith("/0")
                yield Peer(OUTSIDE, OUTSIDE, port["port"], port["protocol"])
                continue
            (namespace,) = to["namespaceSelector"]["matchLabels"].items()
            assert namespace[0] == "kubernetes.io/metadata.name"
            for name in _names(to["podSelector"]):
                yield Peer(namespace[1], name, port["port"], port["protocol"])


def _names(selector: Document) -> list[str]:
    if "matchLabels" in selector:
        ((key, name),) = selector["matchLabels"].items()
        assert key in ("app.kubernetes.io/name", "k8s-app")
        return [name]
    (expression,) = selector["matchExpressions"]
    assert (expression["key"], expression["operator"]) == ("app.kubernetes.io/name", "In")
    return list(expression["values"])


@pytest.mark.parametrize("name", ["base", "gpu"])
def test_the_peers_allowed_are_the_hosts_contacted(name: str, tmp_path: Path) -> None:
    documents = build(name)
    config = load_config(written(named(documents, "ConfigMap", "shadowspec"), tmp_path), {})
    found = list(pods(documents)) + list(pods(build("migrate")))
    assert {component for component, _ in found} == COMPONENTS
    for component, template in found:
        labels = template["metadata"]["labels"]
        assert allowed(documents, labels) == contacted(component, config), component
    assert any(peer.name == "chat-baseline" for peer in contacted("worker", config)) == (name == "base")


def test_the_peers_are_those_of_the_docs() -> None:
    assert f"@{DATABASE}/" in DOCS
    table = DOCS[DOCS.index("| pod | may reach") :]
    for peer in contacted("worker", None):
        assert f"| {peer.port} |" in table
    for _, template in pods(build("base")):
        for peer in allowed(build("base"), template["metadata"]["labels"]):
            assert f"| {peer.port} |" in table
            assert peer.name == OUTSIDE or f"`{peer.name}`" in table or f": {peer.name}`" in table


def test_everything_is_denied_first() -> None:
    denied = named(build("base"), "NetworkPolicy", "default-deny")["spec"]
    assert denied == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    # No policy that lets somebody in or out leaves the direction open by not naming it.
    for each in build("base"):
        if each["kind"] == "NetworkPolicy":
            spec = each["spec"]
            assert ("ingress" in spec) <= ("Ingress" in spec["policyTypes"])
            assert ("egress" in spec) <= ("Egress" in spec["policyTypes"])
