"""The manifests as `kubectl kustomize` builds them, as far as ours go: resources, files, images, labels, JSON patches.

(Names of generated ConfigMaps get no hash here.)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
KUSTOMIZATIONS = ("base", "migrate", "gpu")

Document = dict[str, Any]


def build(name: str) -> list[Document]:
    """Every document of a kustomization."""
    return _build(FOLDER / name)


def named(documents: list[Document], kind: str, name: str) -> Document:
    (found,) = [document for document in documents if (document["kind"], document["metadata"]["name"]) == (kind, name)]
    return found


def pods(documents: list[Document]) -> Iterator[tuple[str, Document]]:
    """Component and pod template of everything that runs."""
    for document in documents:
        spec = document.get("spec", {})
        template = spec.get("jobTemplate", {}).get("spec", spec).get("template")
        if template is not None:
            yield template["metadata"]["labels"]["app.kubernetes.io/component"], template


def pod(documents: list[Document], component: str) -> Document:
    """The pod's spec of a component; the first worker's, where there are several (they differ in arguments alone)."""
    found = [template["spec"] for text, template in pods(documents) if text == component]
    assert len(found) == 1 or component == "worker"
    return dict(found[0])


def container(documents: list[Document], component: str) -> Document:
    """The one container of a component."""
    (found,) = pod(documents, component)["containers"]
    return dict(found)


def probed_port(container: Document, probe: str) -> tuple[str, int]:
    """Path and number of the port that a probe asks."""
    asked = container[probe]["httpGet"]
    ports = {item["name"]: item["containerPort"] for item in container["ports"]}
    return asked["path"], ports[asked["port"]]


def _build(folder: Path) -> list[Document]:
    safe_load = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    known = {"apiVersion", "kind", "resources", "configMapGenerator", "images", "patches", "nameSuffix", "labels"}
    assert safe_load.keys() <= known, safe_load.keys() - known
    documents: list[Document] = []
    for resource in safe_load["resources"]:
        path = folder / resource
        documents += _build(path) if path.is_dir() else yaml.safe_load_all(path.read_text(encoding="utf-8"))
    for made in safe_load.get("configMapGenerator", ()):
        data = {file: (folder / file).read_text(encoding="utf-8") for file in made["files"]}
        metadata = {"name": made["name"], "namespace": made["namespace"]}
        if made.get("behavior") == "replace":
            named(documents, "ConfigMap", made["name"])["data"] = data
        else:
            documents.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    for image in safe_load.get("images", ()):
        for _, template in pods(documents):
            for each in template["spec"]["containers"]:
                if each["image"] == image["name"]:
                    each["image"] = f"{image['newName']}:{image['newTag']}"
    for patch in safe_load.get("patches", ()):
        target = named(documents, patch["target"]["kind"], patch["target"]["name"])
        for operation in yaml.safe_load(patch["patch"]):
            _apply(target, operation)
    documents = [_unshared(document) for document in documents]
    for document in documents:
        document["metadata"]["name"] += safe_load.get("nameSuffix", "")
        for added in safe_load.get("labels", ()):
            assert added["includeSelectors"], "else they are not the selectors'"
            spec = document["spec"]
            places = [document["metadata"].setdefault("labels", {}), spec["selector"]["matchLabels"]]
            places += [spec["template"]["metadata"]["labels"]] if "template" in spec else []
            for place in places:
                place.update(added["pairs"])
    return documents


def _unshared(value: Any) -> Any:
    """A copy without YAML's anchors, so that no change of a part is one of another part."""
    if isinstance(value, dict):
        return {name: _unshared(part) for name, part in value.items()}
    return [_unshared(part) for part in value] if isinstance(value, list) else value


def _apply(document: Document, operation: Document) -> None:
    """One operation of RFC 6902."""
    *parents, last = [re.sub("~1", "/", part).replace("~0", "~") for part in operation["path"].split("/")[1:]]
    place: Any = document
    for part in parents:
        place = place[int(part) if isinstance(place, list) else part]
    key = int(last) if isinstance(place, list) else last
    match operation["op"]:
        case "test":
            assert place[key] == operation["value"], operation
        case "remove":
            del place[key]
        case "replace":
            assert key in place or isinstance(place, list)
            place[key] = operation["value"]
        case "add" if not isinstance(place, list):
            place[key] = operation["value"]
        case other:
            raise ValueError(f"no operation of ours: {other}")
