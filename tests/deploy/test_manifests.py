"""Every document is what Kubernetes takes, keeps to its strictest standard, and says what code and docs say."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from shadowspec.config import load_config
from tests.builders.manifests import CHECKOUT, DOCS, written
from tests.deploy.manifests import FOLDER, KUSTOMIZATIONS, Document, build, container, named, pod, pods, probed_port

VERSION = "1.37"


def check(document: Document) -> None:
    kubernetes_validate.validate(document, VERSION, strict=True)


@pytest.mark.parametrize("name", KUSTOMIZATIONS)
def test_every_document_is_valid(name: str) -> None:
    documents = build(name)
    assert {document["kind"] for document in documents} >= {"ConfigMap"}
    for document in documents:
        check(document)
        assert document["kind"] == "Namespace" or document["metadata"]["namespace"] == "shadowspec"


def mistaken(change: Callable[[Document], object], kind: str, name: str) -> Document:
    found = copy.deepcopy(named(build("base"), kind, name))
    change(found["spec"])
    return found


@pytest.mark.parametrize(
    ("kind", "name", "change", "says"),
    [
        ("Deployment", "shadowspec-worker-chat", lambda spec: spec.update(replica=1), "'replica' was unexpected"),
        (
            "Deployment",
            "shadowspec-worker-chat",
            lambda spec: spec.pop("selector"),
            "'selector' is a required property",
        ),
        ("Deployment", "shadowspec-worker-chat", lambda spec: spec.update(replicas="one"), "is not of type"),
        (
            "Deployment",
            "shadowspec-dashboard",
            lambda spec: spec["template"]["spec"]["containers"][0]["livenessProbe"].update(period=5),
            "'period' was unexpected",
        ),
        ("NetworkPolicy", "worker", lambda spec: spec["egress"][0].update(port=9093), "'port' was unexpected"),
    ],
)
def test_a_mistake_is_found(kind: str, name: str, change: Callable[[Document], object], says: str) -> None:
    with pytest.raises(kubernetes_validate.ValidationError, match=says):
        check(mistaken(change, kind, name))


@pytest.mark.parametrize("name", KUSTOMIZATIONS)
def test_pods_keep_to_the_restricted_standard(name: str) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards, and a root that nobody writes to."""
    dockerfile = (CHECKOUT / "Dockerfile").read_text(encoding="utf-8")
    found = list(pods(build(name)))
    assert found
    for component, template in found:
        spec = template["spec"]
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True, component
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert f"--uid {context['runAsUser']} " in dockerfile
        assert spec["automountServiceAccountToken"] is False
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        for each in spec["containers"]:
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert each["resources"]["requests"].keys() == {"cpu", "memory"}
            assert "memory" in each["resources"]["limits"]
            writable = {item["mountPath"] for item in each["volumeMounts"] if not item.get("readOnly")}
            assert writable == {"/tmp"}
        kinds = {frozenset(item.keys() - {"name"}) for item in spec["volumes"]}
        assert kinds <= {
            frozenset({literal}) for literal in ("configMap", "secret", "persistentVolumeClaim", "emptyDir")
        }
    if name == "base":
        labels = named(build(name), "Namespace", "shadowspec")["metadata"]["labels"]
        assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize("name", KUSTOMIZATIONS)
def test_volumes_and_claims_are_there(name: str) -> None:
    documents = build(name)
    maps = {document["metadata"]["name"] for document in documents if document["kind"] == "ConfigMap"}
    for component, template in pods(documents):
        spec = template["spec"]
        volumes = {item["name"]: item for item in spec["volumes"]}
        assert {item["name"] for each in spec["containers"] for item in each["volumeMounts"]} == volumes.keys(), (
            component
        )
        assert {volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume} <= maps
        for volume in volumes.values():
            if "persistentVolumeClaim" in volume:
                assert f"`{volume['persistentVolumeClaim']['claimName']}`" in DOCS


def test_every_secret_is_by_reference_and_documented() -> None:
    wanted: set[tuple[str, str]] = set()
    for name in KUSTOMIZATIONS:
        documents = build(name)
        assert not [document for document in documents if document["kind"] == "Secret"]
        for _, template in pods(documents):
            for entry in template["spec"]["volumes"]:
                if "secret" in entry:
                    wanted |= {(entry["secret"]["secretName"], item["key"]) for item in entry["secret"]["items"]}
            for each in template["spec"]["containers"]:
                for variable in each["env"]:
                    is_plain = variable["name"] in {"SHADOWSPEC_CONFIG", "HOME", "HF_HUB_OFFLINE"}
                    assert is_plain == ("value" in variable), variable["name"]
                    if not is_plain:
                        reference = variable["valueFrom"]["secretKeyRef"]
                        wanted.add((reference["name"], reference["key"]))
    made = set()
    for secret, options in re.findall(r"create secret generic (\S+)((?:.*\\\n)*.*)", DOCS):
        made |= {(secret, key) for key in re.findall(r"--from-(?:literal|file)=([^= ]+)=", options)}
    assert made == wanted


def test_base_has_a_worker_for_each_endpoint(tmp_path: Path) -> None:
    documents = build("base")
    config = load_config(written(named(documents, "ConfigMap", "shadowspec"), tmp_path), {})
    workers = [template for component, template in pods(documents) if component == "worker"]
    assert [template["spec"]["containers"][0].pop("args") for template in workers] == [
        ["--endpoints", name] for name in config.endpoints
    ]
    names = [template["metadata"]["labels"].pop("shadowspec/worker") for template in workers]
    assert (names, len(names)) == (list(config.endpoints), 3)
    assert all(template == workers[0] for template in workers)
    selected = [
        {**document["spec"]["selector"]["matchLabels"]}["shadowspec/worker"]
        for document in documents
        if document["kind"] in ("Deployment", "PodDisruptionBudget") and "-worker-" in document["metadata"]["name"]
    ]
    assert sorted(selected) == sorted(2 * names)


@pytest.mark.parametrize("name", ["base", "gpu"])
def test_probes_and_grace_fit_the_configuration(name: str, tmp_path: Path) -> None:
    documents = build(name)
    config = load_config(written(named(documents, "ConfigMap", "shadowspec"), tmp_path), {})
    worker, dashboard = container(documents, "worker"), container(documents, "dashboard")
    assert config.worker.health_address == f"0.0.0.0:{probed_port(worker, 'readinessProbe')[1]}"
    assert probed_port(worker, "livenessProbe") == probed_port(worker, "startupProbe")
    assert probed_port(dashboard, "readinessProbe")[1] == config.dashboard.port
    service = named(documents, "Service", "shadowspec-dashboard")["spec"]
    assert [item["targetPort"] for item in service["ports"]] == [item["name"] for item in dashboard["ports"]]
    assert service["selector"].items() <= dict(pods_labels(documents))["dashboard"].items()
    assert pod(documents, "worker")["terminationGracePeriodSeconds"] > config.worker.drain_timeout_s + 10
    assert pod(documents, "scheduler")["terminationGracePeriodSeconds"] > config.schedule.timeout_s + 10
    mounts = [item["mountPath"] for item in worker["volumeMounts"]]
    named_files = [config.endpoints["chat"].target, config.kafka and config.kafka.security.ca_file]
    assert all(any(str(file).startswith(f"{mount}/") for mount in mounts) for file in named_files)
    for document in documents:
        if document["kind"] == "PodDisruptionBudget":
            component = document["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]
            assert component in {"worker", "scheduler", "classifier"}
            assert document["spec"]["maxUnavailable"] == 1


def test_the_gpu_overlay_asks_for_a_gpu_each_and_leaves_the_servers() -> None:
    worker = container(build("gpu"), "worker")
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "SERVERS_API_KEY" not in {item["name"] for item in worker["env"]}
    spec = named(build("gpu"), "Deployment", "shadowspec-worker")["spec"]
    assert (spec["replicas"], spec["strategy"]["rollingUpdate"]["maxSurge"]) == (2, 0)
    assert "nvidia.com/gpu" not in container(build("base"), "worker")["resources"]["limits"]
    base, text = ((FOLDER / name / "shadowspec.toml").read_text(encoding="utf-8") for name in ("base", "gpu"))
    assert base.partition("[endpoints.")[0] == text.partition("[endpoints.")[0]


def pods_labels(documents: list[Document]) -> list[tuple[str, dict[str, Any]]]:
    return [(component, template["metadata"]["labels"]) for component, template in pods(documents)]
