"""What kind of request a prompt is: the class and the context bucket that slices are made of.

A request that says what it is is believed: the operator's `prompt_class` label, then the tools it offers,
then the format it asks for.  Any other is classified by rules on its text, tried in the order below; the
first that holds names the class:

1. translation: asks for a translation, or to say something in another language.
2. summarisation: asks for a summary, the key points, a shorter version.
3. tool_calling: lists functions with their parameters and asks for a call.
4. structured: asks for SQL over a schema, or for JSON, YAML, CSV or XML.
5. code: is source text, or asks for a program, a function, a fix.
6. creative: asks for a story, a poem, a letter, a role to play; or for a story to go on.
7. maths: is a word problem, or asks to solve, compute, prove.
8. chat: a question or an instruction in plain words.
9. other: none of these.

Of a conversation the newest user message is asked first, then the older ones; "chat" and "other" from the
newest stand only if no earlier message, the system's included, says more.  Only the beginning and the end
of a text are read: instructions stand there.
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
LARGEST_CONTEXT_BUCKET: Final = ">=128k"

HEAD_CHARACTERS = 4_000  # an instruction at the beginning, with the start of what it is about
TAIL_CHARACTERS = 1_500  # an instruction at the end
INSTRUCTION_CHARACTERS = 400  # how far from either end a summary or a translation is asked for
MIN_CODE_LINE_SHARE = 0.3  # of the lines that are not empty

_LANGUAGES = (
    r"(?:english|german|french|spanish|italian|portuguese|dutch|swedish|danish|norwegian|finnish|polish|czech|russian|"
    r"ukrainian|georgian|greek|turkish|arabic|hebrew|hindi|chinese|mandarin|japanese|korean|vietnamese|thai|latin)"
)
_I = re.IGNORECASE

_TRANSLATION = re.compile(
    rf"\btranslat(?:e|ion|ing)\b|\b(?:in|into|to|from) {_LANGUAGES}\s*[:?.!]"
    rf"|\b(?:say|write|put|render|express)\b[^.\n]{{0,60}}\b(?:in|into) {_LANGUAGES}\b"
    r"|\b(?:übersetze|traduis|traduisez|traduce|traduzca|traduci|traduza|vertaal|översätt)\b",
    _I,
)
_SUMMARISATION = re.compile(
    r"\bsummar(?:ise|ize|ising|izing|y|ies)\b|\btl;?dr\b|\bkey (?:points|takeaways)\b|\bmain (?:points|ideas)\b"
    r"|\bin (?:one|two|three|a few) sentences?\b|\b(?:shorten|condense|recap|gist of|boil (?:this|it) down)\b",
    _I,
)
_FUNCTIONS_OFFERED = re.compile(
    r"\b(?:functions?|tools?|apis?)\b[^\n]{0,80}\b(?:available|access|following|call|use|invoke)\b"
    r"|\b(?:access to|available|following|use|call)\b[^\n]{0,80}\b(?:functions?|tools?)\b",
    _I,
)
_FUNCTION_SCHEMA = re.compile(r"[\"']parameters[\"']\s*:\s*\{")
_SQL = re.compile(
    r"\bcreate table\b|\bsql\b|\bselect\b[\s\S]{1,400}?\bfrom\b[\s\S]{1,200}?(?:\bwhere\b|\bjoin\b|\bgroup by\b|;)", _I
)
_FORMAT = re.compile(
    r"\b(?:json|yaml|csv|xml)\b[^.\n]{0,40}\b(?:object|array|format|string|list|document|dictionary|schema|file|line)s?\b"
    r"|\b(?:as|in|into|return|returns|output|outputs|respond|reply|answer|generate|produce|convert|valid)\b[^.\n]{0,60}"
    r"\b(?:json|yaml|csv|xml)\b"
    r"|\b(?:output|present|return|list|extract|write)\b[^.\n]{0,80}\bin the (?:following )?format\b",
    _I,
)
_CODE_LINE = re.compile(
    r"^\s*(?:def \w+\s*\(|class \w+\s*[:({]|(?:async )?(?:function|def)\b|import [\w.{*]|from [\w.]+ import\b|return\b[^.]*$"
    r"|@\w+|>>> |#include\b|#!/|(?:if|elif|for|while|with|except)\b.*:$|(?:else|try|finally):$|raise \w+|assert\b"
    r"|(?:public|private|protected|static|const|let|var|func|fn|struct|enum|package|using|namespace)\b.*[;{(=]"
    r"|[\w.\[\]\"']+(?:, ?[\w.\[\]\"']+)* ?[-+*/|&]?= ?\S|[\w.]+\([^.]*\)[;:]?$|[{}();]+$|(?:#|//) ?\S)"
)
_CODE_FENCE = re.compile(r"^\s*```", re.MULTILINE)
_CODE_LANGUAGES = (
    r"(?:python|c\+\+|c#|java|javascript|typescript|rust|go(?:lang)?|ruby|php|bash|shell|html|css|kotlin|swift)"
)
_CODE_ASKED = re.compile(
    rf"\b(?:write|implement|create|develop|design|complete|build|give me|provide|code|fix|debug|refactor|review|optimi[sz]e)\b"
    rf"[^.?\n]{{0,80}}\b(?:functions?|programs?|scripts?|class|method|code|algorithm|regex|regular expression|website|unit tests?|"
    rf"api endpoint|decorator|bug)\b"
    rf"|\b(?:in|using|a|this|of) {_CODE_LANGUAGES}\b(?! (?:to|about) )[^.?\n]{{0,40}}(?:\b(?:function|program|script|code|class)\b|:|$)"
    r"|\btime complexity\b|\bstack ?trace\b|\btraceback\b|\bcompile(?:r|s)? error\b",
    _I | re.MULTILINE,
)
_CREATIVE = re.compile(
    r"\b(?:write|compose|draft|craft|create|tell|pen|invent|make up)\b[^.?\n]{0,80}\b(?:story|stories|poem|haiku|limerick|sonnet|song|lyrics|"
    r"novel|tale|fable|scene|dialogue|screenplay|script for|letter|email|e-mail|speech|essay|blog|paragraph|headlines?|slogan|"
    r"article|post|toast|joke|character|plot|monologue)s?\b"
    r"|\bcontinue (?:the|this|my) (?:story|tale|poem|scene)\b|\bonce upon a time\b"
    r"|\b(?:imagine|pretend|suppose) (?:that )?you(?:'re| are)?\b|\b(?:role[- ]?play|act as|take on the (?:role|persona)|"
    r"assume the role|play the role|in the (?:style|voice|persona) of|embody|embrace the role|adopt the (?:role|persona)|speak like|"
    r"picture yourself|you are (?:now )?(?:a|an) (?!ai\b|helpful|assistant|expert|language)|describe a vivid)\b"
    r"|\b(?:edit|rewrite|improve|proofread) (?:the|this|my)\b[^.\n]{0,40}\b(?:paragraph|text|letter|email|essay)\b",
    _I,
)
_MATHS_ASKED = re.compile(
    r"\b(?:solve|evaluate|simplify|factori[sz]e|differentiate|integrate|prove that|compute|calculate)\b"
    r"|\b(?:equation|inequality|integral|derivative|probability|polynomial|remainder|hypotenuse|triangle|perimeter|"
    r"square root|prime number|divisor|divided by|f\(x\)|percent(?:age)?)\b|\bwhat is (?:the (?:value|sum|product|area)\b|\d)",
    _I,
)
_WORD_PROBLEM = re.compile(
    r"\bhow (?:many|much|far|long|old|fast|tall|heavy|big)\b|\bwhat (?:is|was|will be|are) (?:the|his|her|their|its)\b[^.?]{0,80}"
    r"\b(?:total|average|cost|price|profit|sum|difference|number|amount|ratio|age|length|weight|speed|value|change)\b"
    r"|\bin total\b|\baltogether\b|\bon average\b|\bhow (?:\w+ ){1,4}(?:is|are|was|were|did|does|do|will)\b",
    _I,
)
_NUMBER = re.compile(
    r"\d|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|dozen|half|twice|third|quarter|double)\b", _I
)
_ADDRESSES_SOMEONE = re.compile(
    r"\?|^\s*(?:hi|hello|hey|thanks|thank you|please|can|could|would|what|who|where|when|why|how|which|is|are|do|does|did|should|"
    r"explain|describe|compare|give|list|discuss|tell|suggest|recommend|help|identify|analy[sz]e|provide|show|find|name|define|"
    r"outline|evaluate|i |i'm|my |you |let's|rewrite|edit|make|think|consider|choose|advise|write|draw|examine|plan|organi[sz]e|"
    r"propose|talk|chat|offer|remind|check|rank|evaluate)\b",
    _I,
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
    newest = OTHER
    for index, text in enumerate(reversed(texts)):
        found = classify_text(text)
        if found not in (CHAT, OTHER):
            return found
        newest = found if index == 0 else newest
    return newest


def classify_text(text: str) -> str:
    """The class of one text by the rules of this module, in their order."""
    read = text if len(text) <= HEAD_CHARACTERS + TAIL_CHARACTERS else text[:HEAD_CHARACTERS] + text[-TAIL_CHARACTERS:]
    ends = read[:INSTRUCTION_CHARACTERS] + "\n" + read[-INSTRUCTION_CHARACTERS:]
    is_source = _is_source_text(read)
    if _TRANSLATION.search(ends) and not is_source:
        return TRANSLATION
    if _SUMMARISATION.search(ends) and not is_source:
        return SUMMARISATION
    if _FUNCTION_SCHEMA.search(read) and _FUNCTIONS_OFFERED.search(read):
        return TOOL_CALLING
    if not is_source and (_SQL.search(read) or _FORMAT.search(read)):
        return STRUCTURED
    if is_source or _CODE_FENCE.search(read) or _CODE_ASKED.search(ends):
        return CODE
    if _CREATIVE.search(ends):
        return CREATIVE
    if _NUMBER.search(read) and (_MATHS_ASKED.search(ends) or _WORD_PROBLEM.search(ends)):
        return MATHS
    return CHAT if _ADDRESSES_SOMEONE.search(ends) else OTHER


def context_bucket(num_prompt_tokens: int) -> str:
    """The bucket of a prompt's length in tokens."""
    for limit, name in CONTEXT_BUCKETS:
        if num_prompt_tokens < limit:
            return name
    return LARGEST_CONTEXT_BUCKET


def _is_source_text(text: str) -> bool:
    """Whether the text is a program rather than words about one: a fair share of its lines look like code."""
    if re.search(r"\bcreate table\b", text, _I):
        return False
    lines = [line for line in text.splitlines() if line.strip()]
    code_lines = sum(1 for line in lines if _CODE_LINE.match(line))
    return code_lines >= 2 and code_lines / len(lines) >= MIN_CODE_LINE_SHARE
