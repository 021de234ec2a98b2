"""Chat templates as transformers renders them for servers, and what of one decides how servers make its messages.

The traits are read from a template's syntax tree, as vLLM and SGLang read them.

In: a template's source, messages and tools.  Out: the prompt's text; traits.  Imports: types.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from jinja2 import Environment, Template, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from shadowspec.types.prompt_rules import TemplateTraits

REASONING: Final = ("reasoning_content", "thinking", "reasoning")  # names of a message's reasoning, the usual one first


class _Generation(Extension):
    """Takes `{% generation %}`, by which templates mark answers for training; their text is shown as it is."""

    tags = {"generation"}  # noqa: RUF012  # jinja's own

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_shown"), [], [], body).set_lineno(line)

    def _shown(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dictionaries:
    """`dict` of a template, without the attributes of Python's class."""

    def __call__(self, *items: Any, **named: Any) -> dict[Any, Any]:
        return dict(*items, **named)

    def fromkeys(self, *keys: Any) -> dict[Any, Any]:
        return dict.fromkeys(*keys)


class _Names(Namespace):
    """`namespace` of a template, in which no name reaches Python's own attributes."""

    def __init__(*arguments: Any, **named: Any) -> None:
        self, *items = arguments
        names = dict(*items, **named)
        for name in names:
            _refuse_private(name)
        Namespace.__init__(self, names)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError("a template stores a name that begins with an underscore")


def _raise(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    """Jinja as transformers sets it up: templates are foreign code, and get no objects but JSON's."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda format: datetime.now().strftime(format),
        "dict": _Dictionaries(),
        "namespace": _Names,
    }
    return environment


@lru_cache(maxsize=32)
def _compiled(source: str) -> Template:
    return _environment().from_string(source)


def render_template(
    source: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    special_tokens: Mapping[str, str],
) -> str:
    """The text that a template makes of messages, with the assistant's turn opened.

    Fields that are null are left out, and a message's reasoning goes by all of its names, as transformers has it.

    Args:
        special_tokens: by the names of tokenizer_config.json, such as `bos_token`.

    Raises:
        Exception: whatever a template raises; the text may quote a message.
    """
    if not messages:
        raise TemplateError("a conversation needs a message")
    shown = [
        _with_reasoning({name: value for name, value in message.items() if value is not None}) for message in messages
    ]
    given = {**special_tokens, "messages": shown, "tools": None if not tools else [dict(tool) for tool in tools]}
    return _compiled(source).render(**given, documents=None, add_generation_prompt=True)


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    reasoning = next((message[name] for name in REASONING if message.get(name) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


@lru_cache(maxsize=32)
def template_traits(source: str) -> TemplateTraits:
    """The traits of a template; those of one that takes texts where it cannot be read, as servers then take it."""
    try:
        tree = _environment().parse(source)
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
