"""Custom resources as their controllers' published definitions take them.

`tests/deploy/schemas/` holds the openAPIV3Schema of each definition, made from the controller's Go module by
`python -m tests.deploy.crds CRD.yaml KIND SOURCE > tests/deploy/schemas/KIND.json` (KIND in small letters there).
SOURCE names module, version and copyright.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml  # type: ignore[import-untyped]

from tests.deploy.manifests import Document

SCHEMAS = Path(__file__).with_name("schemas")
WIDTH = 118


def check(document: Document) -> None:
    """Raise jsonschema's ValidationError unless the definition takes the document, with no field that it lacks.

    Rules in CEL (`x-kubernetes-validations`) are not evaluated: an API server does that.
    """
    _validator(document["kind"], document["apiVersion"]).validate(document)


def definition(kind: str) -> Document:
    """The schema of a kind as its controller publishes it, without descriptions."""
    found: Document = json.loads((SCHEMAS / f"{kind.lower()}.json").read_text(encoding="utf-8"))
    return found


@functools.cache
def _validator(kind: str, api_version: str) -> Any:
    schema = definition(kind)
    group = schema["x-kubernetes-group-version-kind"][0]
    assert api_version == f"{group['group']}/{group['version']}", f"{kind} is of another version: {group}"
    strict = _strict(schema)
    strict["properties"] |= {"apiVersion": {"const": api_version}, "kind": {"const": kind}}
    strict["required"] = sorted({*strict.get("required", ()), "apiVersion", "kind", "metadata"})
    # Every custom resource has Kubernetes' own metadata, which a definition does not repeat.
    strict["properties"]["metadata"] = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"},
            "namespace": {"type": "string"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "additionalProperties": False,
    }
    validator = jsonschema.validators.extend(
        jsonschema.Draft202012Validator, {"x-kubernetes-list-map-keys": _different_keys}
    )
    return validator(strict)


def _strict(schema: Document) -> Document:
    """An API server drops what a structural schema does not name; here it is an error."""
    made = dict(schema)
    if "properties" in made:
        made["properties"] = {name: _strict(each) for name, each in made["properties"].items()}
    if "items" in made:
        made["items"] = _strict(made["items"])
    if isinstance(made.get("additionalProperties"), dict):
        made["additionalProperties"] = _strict(made["additionalProperties"])
    elif made.get("type") == "object" and not made.get("x-kubernetes-preserve-unknown-fields"):
        made["additionalProperties"] = False
    if made.get("nullable"):
        made = {"anyOf": [{"type": "null"}, made]}
    return made


def _different_keys(_: object, keys: list[str], items: list[Document], schema: Document) -> Iterator[Any]:
    """A list that is a map by keys (`x-kubernetes-list-type: map`) names none twice."""
    defaults = {key: schema["items"]["properties"][key].get("default") for key in keys}
    found = [tuple(item.get(key, defaults[key]) for key in keys) for item in items]
    for key in {each for each in found if found.count(each) > 1}:
        yield jsonschema.ValidationError(f"{dict(zip(keys, key, strict=True))} comes twice")


def _published(definitions: str, kind: str, source: str) -> Document:
    for document in yaml.safe_load_all(definitions):
        if document and document["spec"]["names"]["kind"] == kind:
            group = document["spec"]["group"]
            (version, *_) = [each for each in document["spec"]["versions"] if each["storage"]]
            return {
                "$comment": f"From {source}. "
                "Licensed under the Apache License, Version 2.0. Descriptions were left out.",
                "x-kubernetes-group-version-kind": [{"group": group, "version": version["name"], "kind": kind}],
                **_without_descriptions(version["schema"]["openAPIV3Schema"]),
            }
    raise ValueError(f"no definition of {kind}; name a kind that the file defines")


def _without_descriptions(node: Any, *, names: bool = False) -> Any:
    if isinstance(node, list):
        return [_without_descriptions(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _without_descriptions(value, names=key == "properties" and not names)
        for key, value in node.items()
        if names or key != "description"  # a property may have that name
    }


def _written(node: Any, depth: int = 0) -> str:
    """JSON with each node on one line where it fits."""
    line = json.dumps(node)
    if len(line) + depth <= WIDTH or not isinstance(node, (dict, list)):
        return line
    pairs = isinstance(node, dict)
    parts = (
        [f"{json.dumps(k)}: {_written(v, depth + 1)}" for k, v in node.items()]
        if pairs
        else [_written(each, depth + 1) for each in node]
    )
    inside = ",\n".join(" " * (depth + 1) + part for part in parts)
    opened, closed = "{}" if pairs else "[]"
    return f"{opened}\n{inside}\n{' ' * depth}{closed}"


if __name__ == "__main__":
    file, wanted, origin = sys.argv[1:]
    print(_written(_published(Path(file).read_text(encoding="utf-8"), wanted, origin)))
