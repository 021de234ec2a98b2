"""What is handed to other controllers is what their published definitions take."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
import yaml  # type: ignore[import-untyped]

from tests.deploy import crds
from tests.deploy.manifests import FOLDER, Document

ROLLOUTS = {
    document["metadata"]["name"]: document
    for path in sorted((FOLDER.parent / "rollouts").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
}
POOLS: Document = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "HTTPRoute",
    "metadata": {"name": "chat"},
    "spec": {
        "parentRefs": [{"name": "gateway"}],
        "rules": [
            {
                "matches": [{"headers": [{"name": "x-shadowspec-slice", "value": "code"}]}],
                "backendRefs": [{"name": "speculative", "port": 8000}],
            },
            {"backendRefs": [{"name": "plain", "port": 8000}]},
        ],
    },
}
DOCUMENTS = ROLLOUTS | {"an HTTPRoute": POOLS}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_definition_takes_what_we_ship(name: str) -> None:
    crds.check(DOCUMENTS[name])


def metric(document: Document) -> Any:
    return document["spec"]["metrics"][0]


def job(document: Document) -> Any:
    return metric(document)["provider"]["job"]["spec"]["template"]


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("shadowspec-verdict", lambda it: metric(it).update(failureLimits=0), "'failureLimits' was unexpected"),
        ("shadowspec-verdict", lambda it: metric(it).pop("provider"), "'provider' is a required property"),
        ("shadowspec-verdict", lambda it: it["spec"].update(query="up"), "'query' was unexpected"),
        ("shadowspec-verdict", lambda it: it["metadata"].update(name="Verdict of chat"), "does not match"),
        ("shadowspec-verdict", lambda it: it.update(apiVersion="argoproj.io/v1"), "of another version"),
        ("shadowspec-check", lambda it: job(it)["spec"].update(containers={}), "is not of type 'array'"),
        ("shadowspec-check", lambda it: job(it)["spec"].pop("containers"), "'containers' is a required property"),
        (
            "shadowspec-check",
            lambda it: job(it)["spec"]["containers"][0]["securityContext"].update(readOnlyRoot=True),
            "'readOnlyRoot' was unexpected",
        ),
        (
            "shadowspec-check",
            lambda it: job(it)["spec"]["containers"].append(job(it)["spec"]["containers"][0]),
            r"\{'name': 'check'\} comes twice",
        ),
        ("shadowspec-enabled", lambda it: it["spec"].pop("query"), "'query' is a required property"),
        ("shadowspec-enabled", lambda it: it["spec"]["provider"].update(type="prometeus"), "is not one of"),
        ("shadowspec-enabled", lambda it: it["spec"]["provider"].update(url="http://here"), "'url' was unexpected"),
        ("an HTTPRoute", lambda it: it["spec"]["rules"][0].update(backends=[]), "'backends' was unexpected"),
        (
            "an HTTPRoute",
            lambda it: it["spec"]["rules"][0]["matches"][0]["headers"][0].update(name="x slice"),
            "does not match",
        ),
        (
            "an HTTPRoute",
            lambda it: it["spec"]["rules"][0]["matches"][0]["headers"].append(
                {"name": "x-shadowspec-slice", "value": "b"}
            ),
            "comes twice",
        ),
        ("an HTTPRoute", lambda it: it["spec"]["rules"][0]["backendRefs"][0].update(port=0), "less than the minimum"),
    ],
)
def test_a_mistake_is_found(name: str, change: Callable[[Document], object], says: str) -> None:
    document = copy.deepcopy(DOCUMENTS[name])
    change(document)
    with pytest.raises((jsonschema.ValidationError, AssertionError), match=says):
        crds.check(document)
