"""The class of a prompt: the kind of its request.

An explicit label takes precedence: the operator's `prompt_class` label, then the offered tools, then the requested
format.  Any other request is classified by rules on its text, of which the first that holds names the class:

1. functions are listed with their parameters, to be called: tool_calling.
2. the first line is an instruction (below), unless it is source text: the class that it asks for.
3. it is source text: code.
4. an instruction near the beginning or the end: translation, summarisation, structured (SQL, JSON,
   YAML, CSV, XML, a stated output format), code or creative (stories, poems, letters, roles), in this order.
5. it holds SQL or data formats: structured; a code fence: code.
6. it is a word problem, or asks to solve, compute or prove: maths.
7. it is a question or an instruction in plain words: chat.  Otherwise: other.

In a conversation the newest message that is more than chat or other names the class, so that a follow-up question has
the class of its subject.  Only the beginning and the end of a long text are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from shadowspec.tap import prompt_class_patterns as patterns

CODE: Final = "code"
STRUCTURED: Final = "structured"
TOOL_CALLING: Final = "tool_calling"
CHAT: Final = "chat"
SUMMARISATION: Final = "summarisation"
MATHS: Final = "maths"
TRANSLATION: Final = "translation"
CREATIVE: Final = "creative"
OTHER: Final = "other"
PROMPT_CLASSES: Final = (
    CODE, STRUCTURED, TOOL_CALLING, CHAT, SUMMARISATION, MATHS, TRANSLATION, CREATIVE, OTHER,
)  # fmt: skip

HEAD_CHARACTERS = 4_000  # an instruction at the beginning, with the start of its subject
TAIL_CHARACTERS = 1_500  # an instruction at the end
INSTRUCTION_CHARACTERS = 400  # how far from either end a summary or a translation is asked for
MIN_CODE_LINE_SHARE = 0.3  # of the lines that are not empty
MIN_PROBLEM_NUMBERS = 3  # numbers in a text that ends in a question, to be a word problem without other signs
# In the order in which they count.
_CLASS_ASKED: Final[Mapping[int, str]] = {
    patterns.TRANSLATION: TRANSLATION, patterns.SUMMARISATION: SUMMARISATION, patterns.SQL: STRUCTURED,
    patterns.FORMAT: STRUCTURED, patterns.CODE_ASKED: CODE, patterns.CREATIVE: CREATIVE,
}  # fmt: skip
_ASKING: Final = frozenset(_CLASS_ASKED)
_DATA: Final = (patterns.SQL_HELD, patterns.FORMAT_HELD)


def prompt_class(
    texts: Sequence[str], *, declared: str | None = None, offers_tools: bool = False, asks_for_json: bool = False
) -> str:
    """The class of a request, one of PROMPT_CLASSES.

    Args:
        texts: instructions and user messages in order; one text for a completion; empty where only token ids are known.
        declared: the record's label; used if it is a class, else without effect.
        offers_tools: the request offers tools to call.
        asks_for_json: the request asks for a format by parameter.
    """
    if declared is not None and declared in PROMPT_CLASSES:
        return declared
    if offers_tools:
        return TOOL_CALLING
    if asks_for_json:
        return STRUCTURED
    if len(texts) == 1:
        return classify_text(texts[0])
    text_classes = [classify_text(text) for text in texts]
    if TOOL_CALLING in text_classes:  # offered once, at the beginning, for the whole conversation
        return TOOL_CALLING
    for text_class in reversed(text_classes):
        if text_class not in (CHAT, OTHER):
            return text_class
    return text_classes[-1] if text_classes else OTHER


def classify_text(text: str) -> str:
    """The class of one text by the rules of this module, in their order."""
    read = text if len(text) <= HEAD_CHARACTERS + TAIL_CHARACTERS else text[:HEAD_CHARACTERS] + text[-TAIL_CHARACTERS:]
    whole = read.encode()
    if b"parameters" in whole and patterns.FUNCTIONS.all_hold(whole):
        return TOOL_CALLING
    is_short = len(read) <= 2 * INSTRUCTION_CHARACTERS  # all of it is near one of its ends
    ends = whole if is_short else (read[:INSTRUCTION_CHARACTERS] + "\n" + read[-INSTRUCTION_CHARACTERS:]).encode()
    rules = patterns.TEXT.possible(ends)
    is_asked = not _ASKING.isdisjoint(rules)
    # An instruction in the first line states the purpose of the rest, be it a poem or a program.  A short text contains
    # the line, unless it is cut, so a pattern that is not in the text is not in the line.  In a longer text the line
    # belongs to an end, unless there is space before it.
    if is_asked or read[:1].isspace():
        first_line = read.lstrip().partition("\n")[0][:INSTRUCTION_CHARACTERS]
        if is_asked or not is_short or len(first_line) == INSTRUCTION_CHARACTERS:
            asked = _asked_in_line(first_line)
            if asked is not None:
                return asked
    possible_rules: Sequence[int] = ()
    # To rules on lines a text is the same as its lines with ordinary ends, and to be split only where one may hold.
    if not is_short or (possible_rules := patterns.LINES.possible(whole)):
        lines, body = _body(read)
        if not is_short or patterns.ODD_LINE_END in possible_rules:
            possible_rules = patterns.BODY.possible(body)
        if _is_source_text(lines, body, possible_rules):
            return CODE
    asked = _asked_for(ends, rules) if is_asked else None
    if asked is not None:
        return asked
    if not is_short and any(place in possible_rules and patterns.BODY.holds(place, body) for place in _DATA):
        return STRUCTURED
    if b"```" in whole and patterns.CODE_FENCE.search(whole):
        return CODE
    if _is_maths(whole, ends, rules):
        return MATHS
    return CHAT if patterns.ADDRESS in rules else OTHER


def _asked_for(text: bytes, rules: Sequence[int]) -> str | None:
    """The class that an instruction names, of the rules that may hold; None if it names none."""
    for place, asked in _CLASS_ASKED.items():
        if place in rules and patterns.TEXT.holds(place, text):
            return asked
    return None


def _asked_in_line(first_line: str) -> str | None:
    """The class that an instruction names in a line that is no source text."""
    line = first_line.encode()
    asked = _asked_for(line, patterns.TEXT.possible(line))
    if asked is None:
        return None
    lines, body = _body(first_line)
    return None if _is_source_text(lines, body, patterns.BODY.possible(body)) else asked


def _body(text: str) -> tuple[Sequence[str], bytes]:
    """A text's lines, and the text with "\\n" between them."""
    lines = text.splitlines()
    return lines, "\n".join(lines).encode()


def _is_maths(whole: bytes, ends: bytes, rules: Sequence[int]) -> bool:
    if patterns.PROOF in rules and patterns.TEXT.holds(patterns.PROOF, ends):
        return True
    if patterns.MATHS_ASKED in rules or (
        patterns.WORD_PROBLEM in rules and patterns.TEXT.holds(patterns.WORD_PROBLEM, ends)
    ):
        return patterns.HAS_NUMBER in rules if ends is whole else bool(patterns.NUMBER.possible(whole))
    if not whole.rstrip(patterns.SPACES).endswith(b"?"):
        return False
    return sum(1 for _ in islice(patterns.NUMBERS.finditer(whole), MIN_PROBLEM_NUMBERS)) == MIN_PROBLEM_NUMBERS


def _is_source_text(lines: Sequence[str], body: bytes, possible_rules: Sequence[int]) -> bool:
    """Whether the text is a program rather than words about one."""
    if patterns.SOURCE_LINE not in possible_rules:
        # Comments do not suffice: Markdown has headings, logs have hashes.
        if patterns.PROGRAM_LINE not in possible_rules:
            return False
        num_lines = sum(1 for line in lines if line.strip())
        if not any(
            number / num_lines >= MIN_CODE_LINE_SHARE
            for number, _ in enumerate(patterns.CODE_LINES.finditer(body), start=1)
        ):
            return False
    first_line = next(line for line in lines if line.strip())
    return patterns.TABLE_MADE.match(first_line.encode()) is None
