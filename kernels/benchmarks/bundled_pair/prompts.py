"""The sessions of the bundled traffic: what each endpoint's users ask, from held-out documents alone.

A session shares one thing: a place in a source file that grows under the cursor, one database schema, the
APIs of one product, a conversation in one language, successive passages of one book.  The history of a
conversation holds the document's own answers, so that every prompt is held-out text; nothing that the
training text contains is asked (see `contamination`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Any

from kernels.benchmarks.bundled_pair.contamination import TrainingText
from kernels.benchmarks.bundled_pair.corpora import Document, Turn

# One word away from the training documents' own instruction: word for word, it and the name of a product make
# a run of 13 words that stands in the training text, whatever the API.
JSON_INSTRUCTION = "Return the API document as one JSON object."
JSON_PURPOSE_WORDS = 9  # longer purposes of one product repeat each other's sentences
SESSION_SIZES, SESSION_WEIGHTS = (1, 2, 3, 4), (0.04, 0.40, 0.36, 0.20)  # 2.7 requests on average
LONG_SHARE = 0.045  # of the sessions of endpoints with long prompts
CODE_FIRST_TOKENS = (60, 100)  # prompt length at a code session's first cut
CODE_LONG_FIRST_TOKENS = (600, 1_300)
CODE_STEP_TOKENS = (15, 35)  # typed between one request and the next
MATHS_PROBLEM_TOKENS = 150  # question and answer, so that two of them make a history of ordinary length
LONG_HISTORY_TOKENS = (600, 1_100)
_DEFINITION = re.compile(r"^ {0,4}(?:async )?(?:def|class) ", re.MULTILINE)
_WORD_END = re.compile(r"(?<=\S)(?=\s)")

Message = Mapping[str, str]
TokenCounter = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request's prompt: `text` of a completion, or `messages` of a chat."""

    text: str = ""
    messages: tuple[Message, ...] = ()

    @property
    def pieces(self) -> tuple[str, ...]:
        return tuple(message["content"] for message in self.messages) or (self.text,)


@dataclass(frozen=True, slots=True)
class Session:
    """Successive prompts of one user about one thing; `document` names the held-out document."""

    document: str
    prompts: tuple[Prompt, ...]


@dataclass(frozen=True, slots=True)
class EndpointPlan:
    """One endpoint of the traffic.  `parameters` are the request body's own sampling parameters."""

    name: str
    served_model: str
    domain: str
    trace: str  # whose arrival times: "code" or "conv"
    num_sessions: int
    parameters: Mapping[str, Any]


def _plan(name: str, model: str, domain: str, trace: str, num_sessions: int, **parameters: Any) -> EndpointPlan:
    return EndpointPlan(name, model, domain, trace, num_sessions, MappingProxyType(parameters))


ENDPOINTS: tuple[EndpointPlan, ...] = (
    # Several suggestions are drawn from a code model, hence its temperature; greedy answers of a model this
    # small repeat themselves in one of four cases, which would inflate acceptance.
    _plan("code-completion", "demo-code", "code", "code", 412, temperature=0.8, top_p=0.95, max_tokens=32),
    _plan("text-to-sql", "demo-sql", "sql", "code", 445, temperature=0.0, max_tokens=40),
    _plan("api-json", "demo-json", "json", "code", 88, temperature=0.3, max_tokens=32),
    _plan("maths-tutor", "demo-maths", "maths", "conv", 88, temperature=0.8, top_p=0.95, max_tokens=32),
    _plan("story", "demo-story", "prose", "conv", 88, temperature=0.8, top_p=0.95, max_tokens=32),
    _plan("translate", "demo-translate", "translation", "conv", 88, temperature=0.0, max_tokens=32),
)


def user_message(content: str) -> Message:
    """A message of the user."""
    return {"role": "user", "content": content}


def conversation(history: Sequence[Turn], question: str) -> Prompt:
    """A chat prompt: earlier turns with their answers, then the question."""
    messages: list[Message] = []
    for turn in history:
        messages += [user_message(turn.user), {"role": "assistant", "content": turn.assistant}]
    return Prompt(messages=(*messages, user_message(question)))


def _session_size(rng: random.Random) -> int:
    return rng.choices(SESSION_SIZES, SESSION_WEIGHTS)[0]


def _chunks(questions: Sequence[str], rng: random.Random) -> Iterator[Sequence[str]]:
    """Successive questions, in groups of a session's size; a last group may be smaller."""
    position = 0
    while position < len(questions):
        size = _session_size(rng)
        yield questions[position : position + size]
        position += size


class CheckedTexts:
    """Which texts occur in the training text; each is looked up once."""

    def __init__(self, training: TrainingText) -> None:
        self._training = training
        self._occurs: dict[str, bool] = {}

    def clean(self, texts: Sequence[str]) -> list[bool]:
        """For each text, whether it does not occur in the training text.  One call for many texts is cheap."""
        new = [text for text in dict.fromkeys(texts) if text not in self._occurs]
        self._occurs.update(zip(new, self._training.occurs(new), strict=True))
        return [not self._occurs[text] for text in texts]

    @property
    def num_checked(self) -> int:
        return len(self._occurs)

    @property
    def num_occurring(self) -> int:
        return sum(self._occurs.values())


def _clean_turns(documents: Sequence[Document], texts: CheckedTexts) -> dict[Turn, bool]:
    """Every turn, and whether neither its question nor its answer occurs in the training text."""
    turns = list(dict.fromkeys(turn for document in documents for turn in document.turns))
    clean = texts.clean([text for turn in turns for text in (turn.user, turn.assistant)])
    return {turn: clean[2 * index] and clean[2 * index + 1] for index, turn in enumerate(turns)}


def code_sessions(
    documents: Sequence[Document], texts: CheckedTexts, count_tokens: TokenCounter, rng: random.Random
) -> Iterator[Session]:
    """Successive cuts at word ends while a definition is typed; sessions of a file do not overlap."""
    for document in documents:
        text, free_from = document.text, 0
        for match in _DEFINITION.finditer(text):
            if match.start() < free_from:
                continue
            is_long = rng.random() < LONG_SHARE
            goal = rng.randint(*(CODE_LONG_FIRST_TOKENS if is_long else CODE_FIRST_TOKENS))
            cuts = [match.start() + cut.start() for cut in _WORD_END.finditer(text[match.start() :][: goal * 12])]
            prompts: list[Prompt] = []
            cut_before = match.start()
            for _ in range(_session_size(rng)):
                cut = next((cut for cut in cuts if _reaches(count_tokens, text[match.start() : cut], goal)), None)
                if cut is None:
                    break
                prompts.append(Prompt(text=text[match.start() : cut]))
                cuts = [later for later in cuts if later > cut]
                cut_before = cut
                goal += rng.randint(*CODE_STEP_TOKENS)
            if prompts:
                free_from = cut_before
                yield Session(document.group, tuple(prompts))


def _reaches(count_tokens: TokenCounter, text: str, goal: int) -> bool:
    # No token is shorter than a character, so that short texts need no tokenising.
    return len(text) >= goal and count_tokens(text) >= goal


def sql_sessions(
    documents: Sequence[Document], texts: CheckedTexts, count_tokens: TokenCounter, rng: random.Random
) -> Iterator[Session]:
    """Questions on one schema, each with the schema."""
    asked = [(document.group, turn.user) for document in documents for turn in document.turns]
    clean = texts.clean([question for _, question in asked])
    usable = [one for one, is_clean in zip(asked, clean, strict=True) if is_clean]
    for group, members in groupby(usable, key=lambda one: one[0]):
        questions = [question for _, question in members]
        yield Session(group, tuple(conversation((), question) for question in questions[: _session_size(rng)]))


def json_sessions(
    documents: Sequence[Document], texts: CheckedTexts, count_tokens: TokenCounter, rng: random.Random
) -> Iterator[Session]:
    """Entries of one product's API, asked for by name and the first words of their purpose."""
    for product, members in groupby(documents, key=lambda document: document.group.split(":")[0]):
        questions = [json_question(document.turns[0].user) for document in members]
        clean = texts.clean(questions)
        usable = [question for question, is_clean in zip(questions, clean, strict=True) if is_clean]
        for chunk in _chunks(usable, rng):
            yield Session(product, tuple(conversation((), question) for question in chunk))


def json_question(question: str) -> str:
    """A training document's question with the traffic's instruction and a purpose of a few words."""
    _, name, *purpose = question.split("\n", 2)
    shortened = " ".join(" ".join(purpose).split()[: JSON_PURPOSE_WORDS + 1])
    return f"{JSON_INSTRUCTION}\n{name}\n{shortened}"


def maths_sessions(
    documents: Sequence[Document], texts: CheckedTexts, count_tokens: TokenCounter, rng: random.Random
) -> Iterator[Session]:
    """A pupil's problems one after the other, in one growing conversation."""
    clean = _clean_turns(documents, texts)
    short = [
        turn for turn, is_clean in clean.items()
        if is_clean and count_tokens(f"{turn.user}{turn.assistant}") <= MATHS_PROBLEM_TOKENS
    ]  # fmt: skip
    rng.shuffle(short)
    yield from _conversations("test.jsonl", short, count_tokens, rng)


def translation_sessions(
    documents: Sequence[Document], texts: CheckedTexts, count_tokens: TokenCounter, rng: random.Random
) -> Iterator[Session]:
    """Messages of one program translated into one language, in one growing conversation."""
    clean = _clean_turns(documents, texts)
    for language, members in groupby(documents, key=lambda document: document.group.split(":")[0]):
        turns = [turn for document in members for turn in document.turns if clean[turn]]
        yield from _conversations(language, turns, count_tokens, rng)


def _conversations(
    name: str, turns: Sequence[Turn], count_tokens: TokenCounter, rng: random.Random
) -> Iterator[Session]:
    """Growing conversations; a few begin in the middle of a long one."""
    position = 0
    while position < len(turns):
        goal = rng.randint(*LONG_HISTORY_TOKENS) if rng.random() < LONG_SHARE else 0
        tokens, first = 0, position
        while tokens < goal and position < len(turns) - 1:
            tokens += count_tokens(f"{turns[position].user}{turns[position].assistant}")
            position += 1
        size = _session_size(rng)
        asked = range(position, min(position + size, len(turns)))
        yield Session(name, tuple(conversation(turns[first:index], turns[index].user) for index in asked))
        position += size


def story_sessions(
    documents: Sequence[Document], texts: CheckedTexts, count_tokens: TokenCounter, rng: random.Random
) -> Iterator[Session]:
    """Successive passages of one book, each to be continued."""
    for book, members in groupby(documents, key=lambda document: document.group):
        for chunk in _chunks([document.turns[0].user for document in members], rng):
            yield Session(book, tuple(conversation((), passage) for passage in chunk))


SESSION_BUILDERS: Mapping[str, Callable[..., Iterator[Session]]] = {
    "code": code_sessions,
    "sql": sql_sessions,
    "json": json_sessions,
    "maths": maths_sessions,
    "prose": story_sessions,
    "translation": translation_sessions,
}


@dataclass(frozen=True, slots=True)
class CandidateSessions:
    """Sessions of one endpoint whose prompts are clean, in random order.

    `num_texts` counts the distinct texts that were checked on the way (questions, answers in a history and
    whole prompts), `num_texts_dropped` those that occur in the training text.
    """

    sessions: tuple[Session, ...]
    num_texts: int
    num_texts_dropped: int


def candidate_sessions(
    plan: EndpointPlan, held_out: Sequence[Document], training: TrainingText, count_tokens: TokenCounter, seed: int
) -> CandidateSessions:
    """All sessions that the held-out documents give this endpoint, without the prompts in the training text.

    A session that has lost prompts stays if two are left.
    """
    rng = random.Random(f"prompts:{seed}:{plan.name}")
    texts = CheckedTexts(training)
    documents = [document for document in held_out if document.domain == plan.domain]
    sessions = list(SESSION_BUILDERS[plan.domain](documents, texts, count_tokens, rng))
    texts.clean([text for session in sessions for prompt in session.prompts for text in _texts_of(prompt)])
    candidates = []
    for session in sessions:
        clean = tuple(prompt for prompt in session.prompts if all(texts.clean(_texts_of(prompt))))
        if clean and len(clean) >= min(2, len(session.prompts)):
            candidates.append(Session(session.document, clean))
    rng.shuffle(candidates)
    return CandidateSessions(tuple(candidates), texts.num_checked, texts.num_occurring)


def _texts_of(prompt: Prompt) -> list[str]:
    return [*prompt.pieces, "\n".join(prompt.pieces)]
