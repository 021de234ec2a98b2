"""How verdicts look (word, shape and colour: never colour alone), and where definitions come from."""

from __future__ import annotations

from html import escape

from shadowspec.reports.words import DEFINITIONS, VERDICT_MEANING
from shadowspec.types import Verdict

# Okabe and Ito's colours, told apart with every kind of colour blindness; shapes say the same without any.
SHAPE = {Verdict.ENABLE: "\u25cf", Verdict.DISABLE: "\u25a0", Verdict.HOLD: "\u25c6", None: "\u25cb"}
COLOUR = {Verdict.ENABLE: "#009E73", Verdict.DISABLE: "#D55E00", Verdict.HOLD: "#E69F00", None: "#8A949E"}
UNDECIDED = "undecided"


def word(verdict: Verdict | None) -> str:
    """The verdict's word; what nobody has spoken of is undecided."""
    return UNDECIDED if verdict is None else verdict.value


def marked(verdict: Verdict | None) -> str:
    """Shape and word."""
    return f"{SHAPE[verdict]} {word(verdict)}"


def meaning(verdict: Verdict | None) -> str:
    """What the verdict says, in a sentence."""
    return "the gate has not looked at it yet" if verdict is None else VERDICT_MEANING[verdict]


def verdict_html(verdict: Verdict | None, hover: str | None = None) -> str:
    """The verdict as a badge; the hover says why, else what the word means."""
    text = escape(hover or meaning(verdict))
    return f'<span class="ss-verdict ss-{word(verdict).lower()}" title="{text}">{marked(verdict)}</span>'


def definition(name: str) -> str:
    """What a figure means, for its hover."""
    return DEFINITIONS[name][1]
