"""How a serving engine makes of a request what its chat template gets, as far as engines differ.

Each engine class states its rules and where its source has them (`shadowspec.servers.engines`); the defaults are for
an engine that is not named, and those of most.  `shadowspec.tap.chat_messages` applies them.

In: nothing.  Out: values.  Imports: nothing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final

_MEDIA: Final = re.compile("image|audio|video|vision")
OMITTED: Final = object()  # a field of a tool that is shown only where a request has it


class BrokenArguments(StrEnum):
    """What a server makes of a tool call's arguments that are cut off, or no JSON object."""

    EMPTY = "empty"  # {}
    KEPT = "kept"  # what they are
    REFUSED = "refused"  # it answers no such request


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What of a chat template decides how its messages have to look.

    `loops_over_parts`: it takes a message's content as a list; `shows_any_role`: it shows messages of any role, with
    the role's name or without asking for it.
    """

    source: str = ""
    loops_over_parts: bool = False
    shows_any_role: bool = True

    @property
    def names_media(self) -> bool:
        return _MEDIA.search(self.source) is not None

    def names_role(self, role: str) -> bool:
        """Whether a role is written in it, in quotes."""
        return f"'{role}'" in self.source or f'"{role}"' in self.source


@dataclass(frozen=True, slots=True)
class PromptRules:
    """The rules of one engine.

    Texts in a list of parts are joined by `part_separator`, without the empty ones where it `drops_empty_parts`, or
    stay a list where the template loops over parts (or, where `media_means_parts`, names a medium); it `wraps_texts` if
    it then makes a list of every text.  A developer is the system where `developer_is_system` and the template does not
    name that role, and then all messages of the system are joined at the beginning where it `joins_system`.
    `refuses_unknown_roles`: a message of a role that the template does not have could vanish, and nothing says what the
    server did.  The first of `reasoning_read` that a message has is shown as each of `reasoning_shown`.  Absent, null
    and empty arguments are {} where `empties_arguments`, else null.  Where `ends_on_user`, a last message of the
    assistant becomes one of the user.  Tools are hidden from a request that chooses none where `hides_refused_tools`;
    `tool_fields` are those of a function in their order with their defaults; None:
    they are shown as they came.
    """

    part_separator: str = "\n"
    drops_empty_parts: bool = True
    wraps_texts: bool = True
    media_means_parts: bool = False
    developer_is_system: bool = True
    joins_system: bool = True
    refuses_unknown_roles: bool = False
    reasoning_read: tuple[str, ...] = ("reasoning", "reasoning_content")
    reasoning_shown: tuple[str, ...] = ("reasoning", "reasoning_content")
    empties_arguments: bool = True
    broken_arguments: BrokenArguments = BrokenArguments.EMPTY
    ends_on_user: bool = False
    hides_refused_tools: bool = False
    tool_fields: tuple[tuple[str, Any], ...] | None = None

    @property
    def identity(self) -> str:
        """The rules that differ from the defaults, as a fingerprint has them; "" where none does.

        Whether a role is refused changes no prompt that is rendered.
        """
        defaults = PromptRules()
        differing = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name != "refuses_unknown_roles" and getattr(self, field.name) != getattr(defaults, field.name)
        }
        return ", ".join(f"{name}={json.dumps(value, default=_omitted)}" for name, value in sorted(differing.items()))


def _omitted(value: object) -> str:
    assert value is OMITTED
    return "omitted"


UNNAMED: Final = PromptRules(refuses_unknown_roles=True)  # of an engine that is not named
