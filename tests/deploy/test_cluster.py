"""What `make test-kubernetes` takes from the documentation and the manifests is there."""

from __future__ import annotations

import shlex
from pathlib import Path

from shadowspec.config import load_config
from tests.builders.deployment import ROLES
from tests.builders.manifests import written
from tests.deploy.manifests import build, named, pods
from tests.kubernetes.trial import CHECKOUT, COMPONENTS, IMAGE, OVERLAY, blocks, filled

FILES = ("shadowspec.toml", "policy.toml")


def test_the_documented_commands_are_found_and_filled() -> None:
    namespace, secrets, migration = blocks()
    assert shlex.split(namespace)[:2] == ["kubectl", "apply"]
    passwords = {name: f"password-of-{name}" for name in (*ROLES.values(), "kafka")}
    words = shlex.split(filled(secrets, passwords))
    assert words.count("kubectl") == 4
    assert all(any(password in word for word in words) for password in passwords.values())
    assert migration.count("deploy/kubernetes/base ") == 1


def test_the_clusters_images_and_components_are_those_of_the_manifests() -> None:
    found = {component: template["spec"]["containers"][0] for component, template in pods(build("base"))}
    assert set(COMPONENTS) < found.keys()
    assert {entry["image"] for entry in found.values()} == {IMAGE}
    assert all(found[component]["name"] == component for component in COMPONENTS)  # kubectl set image names them


def test_the_overlays_configuration_is_valid(tmp_path: Path) -> None:
    overlay = {file: (CHECKOUT / OVERLAY / file).read_text(encoding="utf-8") for file in FILES}
    mirrors = []
    for number, data in enumerate((overlay, named(build("gpu"), "ConfigMap", "shadowspec")["data"])):
        folder = tmp_path / str(number)
        folder.mkdir()
        mirrors.append(load_config(written({"data": data}, folder), {}).kafka)
    ours, given = mirrors
    assert ours is not None
    assert given is not None
    assert (ours.bootstrap_servers, ours.topics) == (given.bootstrap_servers, given.topics)
