"""What kind of request a prompt is: the class and the context bucket that slices are made of.

A request that says what it is is believed: the operator's `prompt_class` label, then the tools it offers,
then the format it asks for.  Any other is classified by rules on its text, of which the first that holds
names the class:

1. functions are listed with their parameters, to be called: tool_calling.
2. the first line is an instruction (below), unless it is source text: the class that it asks for.
3. it is source text: code.
4. an instruction stands near the beginning or the end: translation, summarisation, structured (SQL, JSON,
   YAML, CSV, XML, a stated output format), code or creative (stories, poems, letters, roles), in this order.
5. it holds SQL or data formats: structured; a code fence: code.
6. it is a word problem, or asks to solve, compute or prove: maths.
7. it is a question or an instruction in plain words: chat.  Otherwise: other.

Of a conversation the newest message that is more than chat or other names the class, so that a follow-up
question belongs to what it follows up.  Only the beginning and the end of a long text are read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

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

# Upper bounds in prompt tokens, exclusive; a bucket's name holds no comma and no "=", it is part of slice keys.
CONTEXT_BUCKETS: Final = (
    (512, "<512"), (2_048, "512-2k"), (8_192, "2k-8k"), (32_768, "8k-32k"), (131_072, "32k-128k"),
)  # fmt: skip
LARGEST_CONTEXT_BUCKET: Final = "128k+"

HEAD_CHARACTERS = 4_000  # an instruction at the beginning, with the start of what it is about
TAIL_CHARACTERS = 1_500  # an instruction at the end
INSTRUCTION_CHARACTERS = 400  # how far from either end a summary or a translation is asked for
MIN_CODE_LINE_SHARE = 0.3  # of the lines that are not empty

_I = re.IGNORECASE


def _words(words: str) -> str:
    """An alternation of whole words; "_" stands for a space, "*" for any ending."""
    return r"\b(?:" + "|".join(w.replace("_", " ").replace("*", r"\w*") for w in words.split()) + r")\b"


def _rule(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns), _I | re.MULTILINE)


# Between a verb and what it asks for: the rest of one sentence, not the next.
_NEAR = r"[^.?\n]{0,80}"
_LANGUAGES = _words(
    "english german french spanish italian portuguese dutch swedish danish norwegian finnish polish czech russian "
    "ukrainian georgian greek turkish arabic hebrew hindi chinese mandarin japanese korean vietnamese thai latin"
)
_TRANSLATION = _rule(
    rf"\btranslat(?:e|ing)\b{_NEAR}\b(?:to|into|in|from) {_LANGUAGES}",
    r"^[^\w\n]*(?:please |now |also )?translate\b(?! api)",
    r"\btranslate (?:this|these|it|the following|each|every|everything)\b",
    rf"{_LANGUAGES} translations? of\b",
    rf"{_words('say write put render express mean')}{_NEAR}\b(?:in|into) {_LANGUAGES}",
    _words("übersetz* traduis traduisez traduce traduzca traduci traduza vertaal översätt переведи переведите"),
    "翻译|翻譯|翻訳",
)
_SUMMARISATION = _rule(
    _words("summari[sz]e summari[sz]ing"),
    rf"^{_NEAR}{_words('write give provide create need make')}{_NEAR}\bsummary\b",
    r"\btl;?dr\b|\b(?:key|main|most important) (?:points|takeaways|ideas|statements)\b",
    r"\bin (?:one|two|three|a few) sentences?,? what\b|\bboil (?:this|it) down\b|\bgist of\b",
    r"^[^\w\n]*(?:please )?(?:shorten|condense|recap)\b",
)
_FUNCTIONS_OFFERED = _rule(
    rf"{_words('functions? tools? apis?')}[^\n]{{0,80}}{_words('available access following call use invoke')}",
    rf"{_words('access_to available following use call')}[^\n]{{0,80}}{_words('functions? tools?')}",
)
_FUNCTION_SCHEMA = re.compile(r"[\"']parameters[\"']\s*:\s*\{")
_SQL = _rule(
    r"\bcreate table\b|\bsql\b",
    r"\bselect\b[\s\S]{1,200}?\bfrom\b[\s\S]{1,100}?(?:\bwhere\b|\bjoin\b|\bgroup by\b|;)",
)
_DATA_FORMATS = _words("json yaml csv xml")
_FORMAT = _rule(
    rf"{_DATA_FORMATS}[^.\n]{{0,40}}"
    + _words("objects? arrays? format strings? lists? dictionary schema configuration"),
    _words("as in into return* output* respond reply answer generate produce convert valid") + _NEAR + _DATA_FORMATS,
    rf"{_words('output present return list extract write')}{_NEAR}\bin the (?:following )?format\b",
)
# A line that is nothing but source text, and lines that could be: the first kind is rare in prose.
_SOURCE_LINE = re.compile(
    r"\s*(?:def \w+\s*\(|async def \w|class \w+\s*(?:\([^)]*\))?:|from [\w.]+ import\b|import [\w.]+(?: as \w+|, .*)?$"
    r"|>>> |#include\b|#!/|(?:export |async )?function \w*\s*\("
    r"|(?:public|private|protected) (?:static |class |void |int )"
    r"|(?:const|let|var) \w+ = |func \w+\(|fn \w+\()"
)
_CODE_LINE = re.compile(
    r"\s*(?:return\b[^.]*$|@\w+|(?:if|elif|for|while|with|except)\b.*:$|(?:else|try|finally):$|raise \w+"
    r"|assert\b|yield\b|(?:static|struct|enum|package|using|namespace)\b.*[;{(=]"
    r"|[\w.\[\]\"']+(?:, ?[\w.\[\]\"']+)*\s*[-+*/|&]?= ?\S|[\w.]+\([^.]*\)[;:]?$|[{}()\[\],;]+$|# ?\S|//|\"{3}|'{3}"
    r"|[\w\"'.\[\]]+\s*[:,]\s*[\w\"'(\[{%-].*[,({\[]$|.*(?:self\.|%\(|\w\(\)|\w\[\w+\]|\\n))"
)
_COMMENT_LINE = re.compile(r"\s*#|\s*//")
_CODE_FENCE = re.compile(r"^\s*```", re.MULTILINE)
_CODE_LANGUAGES = (
    r"(?:python|c\+\+|c#|java|javascript|typescript|rust|golang|ruby|php|bash|shell|html|css|kotlin|swift)"
)
_CODE_ASKED = _rule(
    _words("write implement create develop design complete build provide code fix debug refactor review optimi[sz]e")
    + _NEAR
    + _words("functions? programs? scripts? class method code algorithm regex website unit_tests? decorator bug"),
    rf"\b(?:in|using|a|this|of) {_CODE_LANGUAGES}[^.?\n]{{0,40}}{_words('functions? programs? scripts? code class')}",
    r"\btime complexity\b|\bstack ?trace\b|\btraceback\b|\bcompiler? errors?\b",
)
_CREATIVE = _rule(
    rf"{_words('write compose draft craft create tell pen invent make_up')}{_NEAR}"
    + _words(
        "story stories poems? haikus? limericks? sonnets? songs? lyrics novels? tales? fables? scenes? dialogues? "
        "screenplay letters? emails? e-mails? speech essays? blog paragraphs? headlines? slogans? articles? posts? "
        "toast jokes? characters? plot monologue"
    ),
    r"\bcontinue (?:the|this|my) (?:story|tale|poem|scene)\b|\bonce upon a time\b|\bdescribe a vivid\b",
    r"\b(?:imagine|pretend|suppose) (?:that )?(?:you(?:'re| are)?|yourself)\b|\bpicture yourself\b",
    r"\brole[- ]?play|\bact as\b|\bspeak like\b|\bin the (?:style|voice|persona) of\b",
    rf"{_words('take_on assume play embrace adopt embody')} (?:the )?{_words('role persona character')}",
    r"\b(?:edit|rewrite|improve|proofread) (?:the|this|my)\b[^.\n]{0,40}\b(?:paragraph|text|letter|email|essay)\b",
)
_MATHS_ASKED = _rule(
    _words("solve evaluate simplify factori[sz]e differentiate integrate compute calculate determine_the find_the"),
    _words(
        "equations? inequality integral derivative probability polynomial remainder hypotenuse triangle perimeter "
        "square_root prime_number divisor divided_by percent percentage"
    ),
    r"f\(x\)|\d ?%|\bwhat(?: is|'s) (?:the (?:value|sum|product|area|average)\b|\d)",
)
_PROOF = _rule(rf"\bprove that\b{_NEAR}{_words('numbers? even odd equal* prime integers? sum square')}")
_WORD_PROBLEM = _rule(
    r"\bhow (?:many|much|far|long|old|fast|tall|heavy|big)\b|\bin total\b|\baltogether\b|\bon average\b",
    rf"\bwhat(?:'s| is| was| were| will be| are) {_NEAR}"
    + _words(
        "total average cost price profit sum difference number amount ratio age ages length weight speed value change"
    ),
)
_NUMBER = _rule(
    r"\d[\d,.]*",
    _words(
        "one two three four five six seven eight nine ten eleven twelve dozen half twice third quarter double triple"
    ),
)
MIN_PROBLEM_NUMBERS = 3  # numbers in a text that ends in a question, to be a word problem without other signs
_ENDS_IN_QUESTION = re.compile(r"\?\s*$")
_ADDRESSES_SOMEONE = _rule(
    r"\?",
    r"^\s*"
    + _words(
        "hi hello hey thanks thank_you please can could would what who whom where when why how which is are do does "
        "did should explain describe compare give list discuss tell suggest recommend help identify analy[sz]e provide "
        "show find name define outline evaluate i i'm my you let's rewrite edit make think consider choose advise "
        "write draw examine plan organi[sz]e propose talk offer remind check rank"
    ),
)


def prompt_class(
    texts: Sequence[str], *, declared: str | None = None, offers_tools: bool = False, asks_for_json: bool = False
) -> str:
    """The class of a request, one of PROMPT_CLASSES.

    Args:
        texts: instructions and user messages in order; one text for a completion; none where only token ids are known.
        declared: what the record itself says; believed if it is a class, else without effect.
        offers_tools: the request offers tools to call.
        asks_for_json: the request asks for a format by parameter.
    """
    if declared in PROMPT_CLASSES:
        return declared
    if offers_tools:
        return TOOL_CALLING
    if asks_for_json:
        return STRUCTURED
    found = [classify_text(text) for text in texts]
    if TOOL_CALLING in found:  # offered once, at the beginning, for the whole conversation
        return TOOL_CALLING
    for text_class in reversed(found):
        if text_class not in (CHAT, OTHER):
            return text_class
    return found[-1] if found else OTHER


def classify_text(text: str) -> str:
    """The class of one text by the rules of this module, in their order."""
    read = text if len(text) <= HEAD_CHARACTERS + TAIL_CHARACTERS else text[:HEAD_CHARACTERS] + text[-TAIL_CHARACTERS:]
    ends = read[:INSTRUCTION_CHARACTERS] + "\n" + read[-INSTRUCTION_CHARACTERS:]
    if _FUNCTION_SCHEMA.search(read) and _FUNCTIONS_OFFERED.search(read):
        return TOOL_CALLING
    # An instruction in the first line says what all the rest is for, be it a poem or a program.
    first_line = read.lstrip().partition("\n")[0][:INSTRUCTION_CHARACTERS]
    if not _is_source_text(first_line) and (asked := _asked_for(first_line)) is not None:
        return asked
    if _is_source_text(read):
        return CODE
    if (asked := _asked_for(ends)) is not None:
        return asked
    if _SQL.search(read) or _FORMAT.search(read):
        return STRUCTURED
    if _CODE_FENCE.search(read):
        return CODE
    if _is_maths(read, ends):
        return MATHS
    return CHAT if _ADDRESSES_SOMEONE.search(ends) else OTHER


def _asked_for(text: str) -> str | None:
    """The class that an instruction names; None if it names none."""
    rules = (
        (_TRANSLATION, TRANSLATION),
        (_SUMMARISATION, SUMMARISATION),
        (_SQL, STRUCTURED),
        (_FORMAT, STRUCTURED),
        (_CODE_ASKED, CODE),
        (_CREATIVE, CREATIVE),
    )
    return next((text_class for rule, text_class in rules if rule.search(text)), None)


def _is_maths(text: str, ends: str) -> bool:
    if _PROOF.search(ends):
        return True
    numbers = len(_NUMBER.findall(text))
    if numbers and (_MATHS_ASKED.search(ends) or _WORD_PROBLEM.search(ends)):
        return True
    return numbers >= MIN_PROBLEM_NUMBERS and _ENDS_IN_QUESTION.search(text) is not None


def context_bucket(num_prompt_tokens: int) -> str:
    """The bucket of a prompt's length in tokens."""
    for limit, name in CONTEXT_BUCKETS:
        if num_prompt_tokens < limit:
            return name
    return LARGEST_CONTEXT_BUCKET


def _is_source_text(text: str) -> bool:
    """Whether the text is a program rather than words about one."""
    if re.match(r"\s*create table\b", text, _I):
        return False
    lines = [line for line in text.splitlines() if line.strip()]
    if any(_SOURCE_LINE.match(line) for line in lines):
        return True
    code_lines = [line for line in lines if _CODE_LINE.match(line)]
    if all(_COMMENT_LINE.match(line) for line in code_lines):  # Markdown has headings, logs have hashes
        return False
    return len(code_lines) / len(lines) >= MIN_CODE_LINE_SHARE
