"""The messages and tools that a server's chat template gets, made of a request's as that engine makes them.

In: messages as a body has them, and the engine's rules.  Out: messages for a template.  Imports: types, errors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from shadowspec.tap.parameters import unsupported_error
from shadowspec.types.prompt_rules import OMITTED, BrokenArguments, PromptRules, TemplateTraits

COMMON_ROLES: Final = frozenset({"system", "user", "assistant", "tool"})
NO_PARTS: Final = TemplateTraits()  # of a reader that takes a content as one text

Message = Mapping[str, Any]


def served_messages(messages: Sequence[Message], rules: PromptRules, traits: TemplateTraits) -> list[dict[str, Any]]:
    """The messages as the engine gives them to its template.

    Args:
        messages: as `MessageBody.plain` gives them: a content is a text, a list of texts or None.

    Raises:
        RecordError: unsupported; the engine refuses them, or it is not known what becomes of a role.
    """
    takes_parts = traits.loops_over_parts or (rules.media_means_parts and traits.names_media)
    served = [_served(message, rules, takes_parts=takes_parts) for message in messages]
    if any(message["role"] not in COMMON_ROLES for message in served):
        served = _with_known_roles(served, rules, traits)
    if rules.ends_on_user and served and served[-1]["role"] == "assistant" and isinstance(served[-1]["content"], str):
        served[-1] = {"role": "user", "content": served[-1]["content"]}
    return served


def served_tools(tools: Sequence[Mapping[str, Any]] | None, rules: PromptRules) -> Sequence[Mapping[str, Any]] | None:
    """The tools as the engine gives them to its template."""
    if rules.tool_fields is None or not tools:
        return tools
    return [_tool(tool, rules.tool_fields) for tool in tools]


def text_of(content: str | Sequence[str] | None) -> str:
    """A message's content as one text, for who only reads it."""
    return content if isinstance(content, str) else "\n".join(filter(None, content or ()))


def _served(message: Message, rules: PromptRules, *, takes_parts: bool) -> dict[str, Any]:
    role, given = message["role"], message["content"]
    served: dict[str, Any] = {"role": role}
    texts = [given] if isinstance(given, str) else given or ()
    if takes_parts and role != "tool" and (rules.wraps_texts or isinstance(given, list)):
        served["content"] = [{"type": "text", "text": text} for text in texts]
    else:
        drops_empty = rules.drops_empty_parts and not takes_parts
        served["content"] = rules.part_separator.join(filter(None, texts) if drops_empty else texts)
    served |= {name: message[name] for name in ("name", "tool_call_id") if name in message}
    reasoning = next((message[name] for name in rules.reasoning_read if name in message), None)
    if reasoning is not None and role == "assistant":
        served |= dict.fromkeys(rules.reasoning_shown, reasoning)
    if calls := message.get("tool_calls"):
        served["tool_calls"] = [_tool_call(call, rules) for call in calls]
    return served


def _with_known_roles(
    messages: list[dict[str, Any]], rules: PromptRules, traits: TemplateTraits
) -> list[dict[str, Any]]:
    """The messages with the developer's as the system's, where the engine makes them so."""
    is_mapped = rules.developer_is_system and not traits.names_role("developer")
    for message in messages:
        if is_mapped and message["role"] == "developer":
            message["role"] = "system"
        is_shown = message["role"] in COMMON_ROLES or traits.shows_any_role or traits.names_role(message["role"])
        if rules.refuses_unknown_roles and not is_shown:
            raise unsupported_error("unknown_role")
    if not is_mapped or not rules.joins_system:
        return messages
    system = [message for message in messages if message["role"] == "system"]
    if not system or (len(system) == 1 and system[0] is messages[0]):
        return messages
    texts = [_flat(message["content"]) for message in system]
    first = {"role": "system", "content": "\n\n".join(filter(None, texts))}
    return [first, *(message for message in messages if message["role"] != "system")]


def _flat(content: str | list[dict[str, str]]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _tool_call(call: Mapping[str, Any], rules: PromptRules) -> dict[str, Any]:
    """A call with its arguments as a value."""
    function = call["function"]
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"), rules)}}


def _arguments(given: Any, rules: PromptRules) -> Any:
    value = given
    if isinstance(given, str):
        try:
            value = json.loads(given) if given.strip() else None
        except (ValueError, RecursionError):
            value = given
    if value is None:
        return {} if rules.empties_arguments else None
    if isinstance(value, dict) or rules.broken_arguments is BrokenArguments.KEPT:
        return value
    if rules.broken_arguments is BrokenArguments.REFUSED:
        raise unsupported_error("tool_arguments")
    return {}


def _tool(tool: Mapping[str, Any], fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return dict(tool)
    shown = {name: function.get(name, default) for name, default in fields}
    return {"type": "function", "function": {name: value for name, value in shown.items() if value is not OMITTED}}
