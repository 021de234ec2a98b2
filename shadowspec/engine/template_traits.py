"""What of a chat template decides how servers make its messages: read from its syntax tree, as vLLM and SGLang read it.

In: a template's source.  Out: its traits.  Imports: types.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from jinja2 import nodes
from transformers.utils import chat_template_utils

from shadowspec.types.prompt_rules import TemplateTraits


@lru_cache(maxsize=32)
def template_traits(source: str) -> TemplateTraits:
    """The traits of a template; those of one that takes texts where it cannot be read, as servers then take it."""
    try:
        compiled = chat_template_utils._compile_jinja_template(source)  # noqa: SLF001
        tree = compiled.environment.parse(source)
    except Exception:  # what is wrong with it is said where it is rendered
        return TemplateTraits(source)
    return TemplateTraits(source, any(map(_is_content, _loops(tree))), _shows_any_role(tree))


def _loops(tree: nodes.Template) -> Iterator[nodes.Node]:
    """What the template's loops go over; a macro's parameter is what its calls give it."""
    macros = {macro.name: macro for macro in tree.find_all(nodes.Macro)}
    inside = {id(loop) for macro in macros.values() for loop in macro.find_all(nodes.For)}
    for loop in tree.find_all(nodes.For):
        if id(loop) not in inside:
            yield loop.iter
    for call in tree.find_all(nodes.Call):
        macro = macros.get(call.node.name) if isinstance(call.node, nodes.Name) else None
        if macro is None:
            continue
        given = dict(zip((parameter.name for parameter in macro.args), call.args, strict=False))
        given |= {keyword.key: keyword.value for keyword in call.kwargs}
        for loop in macro.find_all(nodes.For):
            over = _bare(loop.iter)
            argument = given.get(over.name) if isinstance(over, nodes.Name) else None
            yield loop.iter if argument is None else argument


def _is_content(node: nodes.Node) -> bool:
    """Whether it is a message's content, or a variable of that name."""
    node = _bare(node)
    return (isinstance(node, nodes.Name) and node.name == "content") or _field_of(node) == "content"


def _bare(node: nodes.Node) -> nodes.Node:
    """A value without filters and slices."""
    while True:
        is_slice = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        if not (isinstance(node, nodes.Filter | nodes.Test) or is_slice):
            return node
        inner: Any = node.node  # type: ignore[attr-defined]
        if inner is None:
            return node
        node = inner


def _field_of(node: nodes.Node) -> str | None:
    """The field that an access names; None if it is none of a variable."""
    if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
        return node.attr
    is_item = isinstance(node, nodes.Getitem) and isinstance(node.node, nodes.Name)
    return str(node.arg.value) if is_item and isinstance(node.arg, nodes.Const) else None  # type: ignore[attr-defined]


def _shows_any_role(tree: nodes.Template) -> bool:
    """Whether a message's role is shown as it is, or never asked for."""
    if not any(_field_of(node) == "role" for node in tree.find_all((nodes.Getattr, nodes.Getitem))):
        return True
    return any(_field_of(node) == "role" for output in tree.find_all(nodes.Output) for node in _shown(output))


def _shown(node: nodes.Node) -> Iterator[nodes.Node]:
    """The parts of an output, but for those that are only compared."""
    for child in node.iter_child_nodes():
        if not isinstance(child, nodes.Compare | nodes.Test):
            yield child
            yield from _shown(child)
