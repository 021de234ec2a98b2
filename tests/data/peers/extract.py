"""Write the fields that a peer's configuration class has, from its source: `python extract.py FILE CLASS [CLASS ...]`.

A name that is no class but a `Literal` gives its values, those of the names in it included.

The lists beside this file were made with it; each names the peer, its version, the file and the licence.  What is
kept is names, types and defaults: no code.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path


def fields(path: Path, names: list[str]) -> dict[str, dict[str, dict[str, str]]]:
    """The annotated attributes of each class named, with annotation and default as they stand in the source."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef) and node.name in names:
            found[node.name] = {
                item.target.id: {"type": _type(item.annotation), "default": _default(item.value)}
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.target.id[0] != "_"
            }
    return found


def values(path: Path, name: str) -> list[str]:
    """The values of a `Literal`, which may name others."""
    literals = {
        node.targets[0].id: node.value.slice
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Subscript)
    }

    def of(item: ast.expr) -> list[str]:
        if isinstance(item, ast.Tuple):
            return [value for part in item.elts for value in of(part)]
        return of(literals[item.id]) if isinstance(item, ast.Name) else [str(ast.literal_eval(item))]

    return of(literals[name])


def _type(annotation: ast.expr) -> str:
    """The type alone, where the annotation also carries help (SGLang's `A[type, help]`)."""
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.value, ast.Name) and annotation.value.id == "A":
        assert isinstance(annotation.slice, ast.Tuple)
        return ast.unparse(annotation.slice.elts[0])
    return ast.unparse(annotation)


def _default(value: ast.expr | None) -> str:
    """The default of a plain value or of `Field(default=...)`; "" where there is none."""
    if isinstance(value, ast.Call):
        return next((ast.unparse(word.value) for word in value.keywords if word.arg == "default"), "")
    return "" if value is None else ast.unparse(value)


if __name__ == "__main__":
    found = fields(Path(sys.argv[1]), sys.argv[2:])
    literals = {name: values(Path(sys.argv[1]), name) for name in sys.argv[2:] if name not in found}
    print(json.dumps(found | literals, indent=2))
