"""Changes to a message that keep it JSON: what a fuzzer of bytes seldom finds.

A node of the document, or of a document in one of its strings, is replaced by an odd value, removed, doubled,
renamed, nested or exchanged for another node.
"""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

ODD = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, "", " ", "x", "\x00", "\u00e9\U0001f600", "1",
    "true", "hit", "failure", "Hit", "2020-01-01", "0001-01-01T00:00:00-23:59", "9999-12-31T23:59:59-01:00", "//[",
    "http://[x", "litellm_truncated", "redacted-by-litellm", "data: {}\n", "{}", "[]", [], {}, [[]], [{}], [None],
    {"": None}, {"type": "image_url"}, [1, "a", None], {"index": 1e6},
)  # fmt: skip
MAX_BYTES = 20_000  # of a mutated value: doubling must not run away


def mutated(value: bytes, generator: Random) -> bytes:
    """The value with one to four changes; bytes that are no JSON are returned with one byte changed."""
    try:
        document = json.loads(value)
    except (ValueError, RecursionError):
        at = generator.randrange(len(value) + 1)
        return value[:at] + bytes([generator.randrange(256)]) + value[at + generator.randrange(2) :]
    for _ in range(generator.randint(1, 4)):
        document = _changed(document, generator)
    try:
        written = json.dumps(document).encode()
    except RecursionError:
        return value
    return written if len(written) <= MAX_BYTES else value


def _changed(document: Any, generator: Random) -> Any:
    root = [document]
    places = list(_places(root))
    holder, name = generator.choice(places)
    node = holder[name]
    kind = generator.randrange(8)
    if kind <= 2:
        holder[name] = copy.deepcopy(generator.choice(ODD))
    elif kind == 3 and holder is not root:
        del holder[name]
    elif kind == 4:
        other_holder, other_name = generator.choice(places)
        holder[name] = copy.deepcopy(other_holder[other_name])
    elif kind == 5:
        holder[name] = generator.choice(([node], {"a": node}, [node, copy.deepcopy(node)]))
    elif kind == 6 and isinstance(node, str):
        holder[name] = _changed_inside(node, generator)
    elif isinstance(node, dict):
        node[generator.choice(_names(places))] = copy.deepcopy(generator.choice(ODD))
    return root[0]


def _changed_inside(text: str, generator: Random) -> str:
    """A document in a string, changed; other text cut somewhere."""
    try:
        return json.dumps(_changed(json.loads(text), generator))
    except (ValueError, RecursionError):
        return text[: generator.randrange(len(text) + 1)]


def _places(holder: Any) -> Any:
    """Every (container, key) within, at most some hundreds deep."""
    stack = [holder]
    while stack:
        container = stack.pop()
        for name, node in list(container.items()) if isinstance(container, dict) else list(enumerate(container)):
            yield container, name
            if isinstance(node, (dict, list)):
                stack.append(node)


def _names(places: list[tuple[Any, Any]]) -> list[str]:
    return [name for _, name in places if isinstance(name, str)] or ["a"]
