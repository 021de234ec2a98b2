"""Tool calls as models write them in text, which a server's parser cuts out of the answer.

`find_calls` recognises the common ways of writing them, by text with which only a call begins:

| written as | by |
|---|---|
| `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` | Hermes, Qwen 2.5 and 3 |
| `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>` | Qwen 3 Coder |
| `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`, `[TOOL_CALLS]NAME[ARGS]{...}` | Mistral |
| `<|python_tag|>{"name": ..., "parameters": {...}}` | Llama 3 |
| `<|tool_call|>[{"name": ..., "arguments": {...}}]` | Granite |
| a name and arguments between DeepSeek's special tokens | DeepSeek |
| the whole answer is such an object, several with `;` between them, or a list of them | Llama 3, and others |
| the whole answer is `[NAME(KEY=VALUE, ...), ...]` | Llama 3.2 and 4 |

Nothing here raises for the content of a text.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_.-]{0,255}"
_HERMES: Final = "<tool_call>"
_MISTRAL: Final = "[TOOL_CALLS]"
_LLAMA: Final = "<|python_tag|>"
_GRANITE: Final = "<|tool_call|>"
_DEEPSEEK: Final = "<\uff5ctool\u2581call\u2581begin\uff5c>"
_DEEPSEEK_SEPARATOR, _DEEPSEEK_END = "<\uff5ctool\u2581sep\uff5c>", "<\uff5ctool\u2581call\u2581end\uff5c>"
_FENCED: Final = re.compile(r"```(?:json)?(.*?)```", re.DOTALL)  # to be stripped: spaces in it would be tried often
_FUNCTION: Final = re.compile(rf"\s*<function=({_NAME})>(.*)</function>\s*", re.DOTALL)
_PARAMETER: Final = re.compile(r"\s*<parameter=([^>\s]+)>(.*?)</parameter>", re.DOTALL)
_PYTHONIC: Final = re.compile(rf"\[\s*{_NAME}\s*\(")
_ARGUMENTS: Final = ("arguments", "parameters")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A well-formed call.  `is_typed`: the arguments are JSON values; otherwise all of them are text."""

    name: str
    arguments: Mapping[str, Any] = field(repr=False)
    is_typed: bool = True


def find_calls(text: str) -> list[ToolCall | None] | None:
    """The calls in a text, None in place of each malformed one; None where the text has no call.

    The first mark decides the form: a later one may lie in an argument.  A call that starts and does not end is
    malformed.
    """
    marked = [(text.index(mark), mark, read) for mark, read in _MARKED if mark in text]
    if marked:
        _, mark, read = min(marked, key=lambda place_and_mark: place_and_mark[0])
        return read(text.partition(mark)[2], mark)
    stripped = text.strip()
    if _PYTHONIC.match(stripped):
        return _pythonic(stripped)
    return _bare(stripped) if stripped[:1] in ("{", "[") else None


def _hermes(rest: str, mark: str) -> list[ToolCall | None]:
    """Between marks: JSON, or Qwen 3 Coder's elements."""
    calls: list[ToolCall | None] = []
    for piece in rest.split(mark):
        body, end, _ = piece.partition("</tool_call>")
        element = _FUNCTION.fullmatch(body)
        if element is not None:
            calls.append(ToolCall(element[1], dict(_PARAMETER.findall(element[2])), is_typed=False))
        else:
            calls.append(_call(_parse_json(body)) if end else None)
    return calls


def _mistral(rest: str, mark: str) -> list[ToolCall | None]:
    if "[ARGS]" not in rest:
        return _list_calls(_parse_json(rest))
    calls: list[ToolCall | None] = []
    for piece in rest.split(mark):
        name, _, arguments = piece.partition("[ARGS]")
        calls.append(_make_call(name.strip(), _parse_json(arguments)))
    return calls


def _json_after_mark(rest: str, _: str) -> list[ToolCall | None]:
    value = _parse_json(rest)
    return _list_calls(value) if value is not _NOTHING else _parse_separated(rest)


def _deepseek(rest: str, mark: str) -> list[ToolCall | None]:
    calls: list[ToolCall | None] = []
    for piece in rest.split(mark):
        body, end, _ = piece.partition(_DEEPSEEK_END)
        first, _, last = body.partition(_DEEPSEEK_SEPARATOR)
        fenced = _FENCED.search(last)
        if fenced is not None:  # the older form: "function", then the name, then the arguments in a fence
            first, last = last[: fenced.start()], fenced[1]
        calls.append(_make_call(first.strip(), _parse_json(last)) if end else None)
    return calls


def _bare(text: str) -> list[ToolCall | None] | None:
    """An answer that is JSON from its beginning; a call only if it has a call's fields, or seems to begin one."""
    parsed = _parse_json(text)
    if parsed is _NOTHING:
        separated = _parse_separated(text)
        if None not in separated:
            return separated
        return [None] if _seems_to_begin_call(text) else None
    values = parsed if isinstance(parsed, list) else [parsed]
    if not values or not all(_is_like_a_call(value) for value in values):
        return None
    return [_call(value) for value in values]


def _pythonic(text: str) -> list[ToolCall | None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they quote the text
            tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [None]
    return [_python_call(node) for node in tree.elts] if isinstance(tree, ast.List) else [None]


def _python_call(node: ast.expr) -> ToolCall | None:
    if not isinstance(node, ast.Call) or node.args:
        return None
    try:
        arguments = {
            str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg is not None
        }
        name = ast.unparse(node.func)
        json.dumps(arguments, allow_nan=False)  # NaN and infinity are not JSON
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None
    return _make_call(name, arguments) if len(arguments) == len(node.keywords) else None


def _parse_separated(text: str) -> list[ToolCall | None]:
    """Objects with semicolons between them, as Llama writes several calls."""
    decoder, place = json.JSONDecoder(), 0
    calls: list[ToolCall | None] = []
    while place < len(text):
        try:
            value, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return [*calls, None]
        calls.append(_call(value))
        rest = text[place:].lstrip()
        if rest and not rest.startswith(";"):
            return [*calls, None]
        place = len(text) - len(rest[1:].lstrip())
    return calls or [None]


def _list_calls(parsed: Any) -> list[ToolCall | None]:
    if isinstance(parsed, list):
        return [_call(value) for value in parsed] or [None]
    return [_call(parsed)]


def _call(value: Any) -> ToolCall | None:
    """A call from an object that names it; OpenAI's form, with the function in a field, too."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict):
        return None
    given = [value[name] for name in _ARGUMENTS if name in value]
    return _make_call(value.get("name"), given[0]) if len(given) == 1 else None


def _make_call(name: Any, arguments: Any) -> ToolCall | None:
    """A call of a name with its arguments, a JSON object or the text of one."""
    if isinstance(arguments, str):
        arguments = _parse_json(arguments)
    if not isinstance(name, str) or not re.fullmatch(_NAME, name) or not isinstance(arguments, dict):
        return None
    return ToolCall(name, arguments)


def _is_like_a_call(value: Any) -> bool:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    return isinstance(value, dict) and "name" in value and any(name in value for name in _ARGUMENTS)


def _seems_to_begin_call(text: str) -> bool:
    """Whether broken JSON has both of a call's fields."""
    return '"name"' in text and any(f'"{name}"' in text for name in _ARGUMENTS)


_NOTHING: Final = object()  # not JSON; None is


def arguments_of(text: str) -> dict[str, Any] | None:
    """The arguments of a call that a server cut out, from their text ("": none); None where they are no JSON object."""
    value = _parse_json(text or "{}")
    return value if isinstance(value, dict) else None


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NOTHING


_MARKED: Final = (
    (_HERMES, _hermes),
    (_MISTRAL, _mistral),
    (_LLAMA, _json_after_mark),
    (_GRANITE, _json_after_mark),
    (_DEEPSEEK, _deepseek),
)
CALL_MARKS: Final = tuple(mark for mark, _ in _MARKED)  # text with which only a call begins
