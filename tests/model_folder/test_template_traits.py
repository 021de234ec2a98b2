"""Which templates take a list of parts, and which roles they show."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from shadowspec.engine.tokenizer import FolderTokenizer
from shadowspec.model_folder.chat_template import template_traits
from shadowspec.types.prompt_rules import TemplateTraits

CHATML = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + m.content }}{% endfor %}"
ROLES = (
    "{% for m in messages %}{{ 'U' if m.role == 'user' }}{{ 'S' if m.role == \"system\" }}{{ m.content }}{% endfor %}"
)


def macro(parameters: str, over: str, call: str) -> str:
    """A template whose macro loops, called for every message."""
    body = "{% for part in " + over + " %}{{ part }}{% endfor %}"
    return (
        f"{{% macro show({parameters}) %}}{body}{{% endmacro %}}{{% for m in messages %}}{{{{ {call} }}}}{{% endfor %}}"
    )


@pytest.mark.parametrize(
    ("source", "loops"),
    [
        (CHATML, False),
        ("{% for m in messages %}{% for part in m['content'] %}{{ part.text }}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% for p in m.content | selectattr('type') %}{{ p }}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% for p in m.content[1:] %}{{ p }}{% endfor %}{% endfor %}", True),
        (
            "{% for m in messages %}{% set content = m.content %}{% for p in content %}{{ p }}{% endfor %}{% endfor %}",
            True,
        ),
        (macro("x", "x", "show(messages[0].content)"), False),
        (macro("x", "x", "show(m.content)"), True),
        (macro("a, x", "x", "show(1, x=m['content'])"), True),
        (macro("x", "x", "show(m.tool_calls)"), False),
        ("{% macro r(content) %}{% for p in content %}{{ p }}{% endfor %}{% endmacro %}", False),
        ("{% for m in messages %}{{ m.content", False),
    ],
)
def test_loops_over_parts(source: str, loops: bool) -> None:
    assert template_traits(source).loops_over_parts is loops


def test_roles() -> None:
    printed, named = template_traits(CHATML), template_traits(ROLES)
    assert (printed.shows_any_role, named.shows_any_role) == (True, False)
    assert [named.names_role(role) for role in ("user", "system", "developer")] == [True, True, False]
    assert template_traits("{% for m in messages %}{{ m.content }}{% endfor %}").shows_any_role
    assert template_traits("{% for m in messages %}{{ m.role | trim }}{% endfor %}").shows_any_role
    assert template_traits("{# <image> #}").names_media


def test_a_folder_s_template_is_that_of_its_tools() -> None:
    raw = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, "a")))
    assert FolderTokenizer.of(raw, 8, 1).traits_of(None) == TemplateTraits()
    raw.chat_template = {"default": CHATML, "tool_use": ROLES}
    tokenizer = FolderTokenizer.of(raw, 8, 1)
    assert tokenizer.traits_of(None) == template_traits(CHATML)
    assert tokenizer.traits_of([{"type": "function"}]) == template_traits(ROLES)
