"""The words by which prompts are classified: patterns, and the engine that tries them on a text all at once.

`prompt_class` defines which class a pattern means, and in which order.  Texts are UTF-8: the places of characters do
not matter here, and finding them would cost more than the patterns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import re2  # linear in any text, and ten times as fast as `re` on these rules

RULES_BYTES = 64 * 1024 * 1024  # for the states of rules that are tried together; they use far less
SPACES: Final = b"\t\n\f\r "  # as RE2 means them
_DISTANCE = re.compile(r"(?<!\\)\{([01]),\d+\}")


def _words(words: str) -> str:
    """An alternation of whole words; "_" is a space, "*" for any ending."""
    return r"\b(?:" + "|".join(w.replace("_", " ").replace("*", r"\w*") for w in words.split()) + r")\b"


def _rule(*patterns: str) -> Sequence[str]:
    """Any of these, case-insensitive; ^ and $ are ends of lines."""
    return [f"(?im){pattern}" for pattern in patterns]


def _compile(rule: Sequence[str]) -> Any:
    return re2.compile("|".join(rule))


class PatternRules:
    """Rules that are tried on a text all at once.

    A rule that counts how far apart two words are has a state for every distance, so that every text would have other
    states; yet most texts do not hold both words.  The one pass therefore takes them at any distance, which holds
    wherever the rule does.  A counting rule is tried itself only where that holds: first its parts that do not count,
    then each pattern that does, as all of them at once would have far more states.
    """

    def __init__(self, *rules: Sequence[str]) -> None:
        """Each rule is the patterns of which one has to match."""
        options = re2.Options()
        options.max_mem = RULES_BYTES
        self.rules = rules
        self._screen = re2.Set.SearchSet(options)
        self._counting: dict[int, Sequence[Any]] = {}
        for place, rule in enumerate(rules):
            at_any_distance = [
                _DISTANCE.sub(lambda distance: "*" if distance[1] == "0" else "+", pattern) for pattern in rule
            ]
            self._screen.Add("|".join(at_any_distance))
            counting = [pattern for pattern in rule if _DISTANCE.search(pattern)]
            if counting:
                others = [pattern for pattern in rule if pattern not in counting]
                self._counting[place] = [
                    _compile(alternatives)
                    for alternatives in (others, *([pattern] for pattern in counting))
                    if alternatives
                ]
        self._screen.Compile()

    def all_hold(self, text: bytes) -> bool:
        possible = self.possible(text)
        return len(possible) == len(self.rules) and all(self.holds(place, text) for place in possible)

    def possible(self, text: bytes) -> Sequence[int]:
        """The places of the rules that may hold in the text; the others do not."""
        return self._screen.Match(text) or ()

    def holds(self, place: int, text: bytes) -> bool:
        """Whether a possible rule does hold."""
        parts = self._counting.get(place)
        return parts is None or any(part.search(text) is not None for part in parts)


# Between a verb and its object: the rest of one sentence, not the next.
_NEAR = r"[^.?\n]{0,80}"
_LANGUAGES = _words(
    "english german french spanish italian portuguese dutch swedish danish norwegian finnish polish czech russian "
    "ukrainian georgian greek turkish arabic hebrew hindi chinese mandarin japanese korean vietnamese thai latin"
)
_TRANSLATION = _rule(
    rf"\btranslat(?:e|ing)\b{_NEAR}\b(?:to|into|in|from) {_LANGUAGES}",
    # not "translate api ..."
    r"^[^\w\n]*(?:please |now |also )?translate(?:[^\w ]|$| (?:[^a]|a[^p]|ap[^i]|api\w|$))",
    r"\btranslate (?:this|these|it|the following|each|every|everything)\b",
    rf"{_LANGUAGES} translations? of\b",
    rf"{_words('say write put render express mean')}{_NEAR}\b(?:in|into) {_LANGUAGES}",
    # \b knows no letters but English ones
    r"(?:^|\P{L})(?:übersetz|traduis|traduce|traduzca|traduci|traduza|vertaal|översätt|переведи)",
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
_FUNCTION_SCHEMA = r"[\"']parameters[\"']\s*:\s*\{"
_SQL = _rule(
    r"\bcreate table\b|\bsql\b", r"\bselect\b[\s\S]{1,200}?\bfrom\b[\s\S]{1,100}?(?:\bwhere\b|\bjoin\b|\bgroup by\b|;)"
)
_DATA_FORMATS = _words("json yaml csv xml")
_FORMAT = _rule(
    rf"{_DATA_FORMATS}[^.\n]{{0,40}}"
    + _words("objects? arrays? format strings? lists? dictionary schema configuration"),
    _words("as in into return* output* respond reply answer generate produce convert valid") + _NEAR + _DATA_FORMATS,
    rf"{_words('output present return list extract write')}{_NEAR}\bin the (?:following )?format\b",
)
# A line that is nothing but source text, and lines that could be: the first kind is rare in prose.  Tried on all
# lines at once, so that nothing in them may reach beyond a line's end.
_SOURCE_LINE = (
    r"(?m)^[\t ]*(?:def \w+[\t ]*\(|async def \w|class \w+[\t ]*(?:\([^)\n]*\))?:|from [\w.]+ import\b"
    r"|import [\w.]+(?: as \w+|, .*)?$|>>> |#include\b|#!/|(?:export |async )?function \w*[\t ]*\("
    r"|(?:public|private|protected) (?:static |class |void |int )"
    r"|(?:const|let|var) \w+ = |func \w+\(|fn \w+\()"
)
_PROGRAM = (
    r"return\b[^.\n]*$|@\w+|(?:if|elif|for|while|with|except)\b.*:$|(?:else|try|finally):$|raise \w+"
    r"|assert\b|yield\b|(?:static|struct|enum|package|using|namespace)\b.*[;{(=]"
    r"|[\w.\[\]\"']+(?:, ?[\w.\[\]\"']+)*[\t ]*[-+*/|&]?= ?\S|[\w.]+\([^.\n]*\)[;:]?$|[{}()\[\],;]+$"
    r"|\"{3}|'{3}|[\w\"'.\[\]]+[\t ]*[:,][\t ]*[\w\"'(\[{%-].*[,({\[]$"
)
_PROGRAM_TRACE = r"(?:self\.|%\(|\w\(\)|\w\[\w+\]|\\n)"
_NO_COMMENT = r"(?:[^#/\s].*|/(?:[^/\n].*)?)?"  # before a trace in a line other than a comment
_CODE_LINE = rf"(?m)^[\t ]*(?:{_PROGRAM}|# ?\S|//|.*{_PROGRAM_TRACE})"
_PROGRAM_LINE = rf"(?m)^[\t ]*(?:{_PROGRAM}|{_NO_COMMENT}{_PROGRAM_TRACE})"  # a code line other than a comment
TABLE_MADE = re.compile(rb"(?i)\s*create table\b")  # at the begin of one line: not worth more
CODE_FENCE = re2.compile(r"(?m)^\s*```")
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


# Where `str.splitlines` ends a line, but for the ordinary end.
_ODD_LINE_END = r"[\r\v\f\x1c-\x1e\x{85}\x{2028}\x{2029}]"

# Rules that are tried together, and their places.  Those on lines have a separate pass: the states of a line, for each
# state of a text, would exceed a processor's nearest memory.
TEXT = PatternRules(
    _TRANSLATION, _SUMMARISATION, _SQL, _FORMAT, _CODE_ASKED, _CREATIVE,
    _PROOF, _MATHS_ASKED, _WORD_PROBLEM, _ADDRESSES_SOMEONE, _NUMBER,
)  # fmt: skip
TRANSLATION, SUMMARISATION, SQL, FORMAT, CODE_ASKED, CREATIVE, PROOF, MATHS_ASKED, WORD_PROBLEM, ADDRESS, HAS_NUMBER = (
    range(11)
)
NUMBER = PatternRules(_NUMBER)  # whether there is any
NUMBERS = _compile(_NUMBER)  # where they are
FUNCTIONS = PatternRules([_FUNCTION_SCHEMA], _FUNCTIONS_OFFERED)
LINES = PatternRules([_PROGRAM_LINE], [_SOURCE_LINE], [_ODD_LINE_END])
BODY = PatternRules([_PROGRAM_LINE], [_SOURCE_LINE], _SQL, _FORMAT)
PROGRAM_LINE, SOURCE_LINE = range(2)  # of both
ODD_LINE_END = 2
SQL_HELD, FORMAT_HELD = 2, 3
CODE_LINES = re2.compile(_CODE_LINE)
