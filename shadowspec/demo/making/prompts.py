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
from itertools import groupby, pairwise
from types import MappingProxyType
from typing import Any

from shadowspec.demo.making.contamination import TrainingText
from shadowspec.demo.making.corpora import Document, Turn

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


def _chunks(turns: Sequence[Turn], rng: random.Random) -> Iterator[tuple[Turn, ...]]:
    """Successive turns, in groups of a session's size; a last group may be smaller."""
    position = 0
    while position < len(turns):
        size = _session_size(rng)
        yield tuple(turns[position : position + size])
        position += size


def _clean_turns(documents: Sequence[Document], training: TrainingText) -> dict[Turn, bool]:
    """Every turn, and whether neither its question nor its answer occurs in the training text."""
    turns = list(dict.fromkeys(turn for document in documents for turn in document.turns))
    texts = [text for turn in turns for text in (turn.user, turn.assistant)]
    occurs = training.occurs(texts)
    return {turn: not (occurs[2 * index] or occurs[2 * index + 1]) for index, turn in enumerate(turns)}


def code_sessions(
    documents: Sequence[Document], training: TrainingText, count_tokens: TokenCounter, rng: random.Random
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
    documents: Sequence[Document], training: TrainingText, count_tokens: TokenCounter, rng: random.Random
) -> Iterator[Session]:
    """Questions on one schema, each with the schema."""
    for group, members in groupby(documents, key=lambda document: document.group):
        questions = [turn.user for document in members for turn in document.turns]
        occurs = training.occurs(questions)
        clean = [question for question, is_known in zip(questions, occurs, strict=True) if not is_known]
        yield Session(group, tuple(conversation((), question) for question in clean[: _session_size(rng)]))


def json_sessions(
    documents: Sequence[Document], training: TrainingText, count_tokens: TokenCounter, rng: random.Random
) -> Iterator[Session]:
    """Entries of one product's API, asked for by name and the first words of their purpose."""
    for product, members in groupby(documents, key=lambda document: document.group.split(":")[0]):
        prompts = [conversation((), json_question(document.turns[0].user)) for document in members]
        clean = [not occurs for occurs in training.occurs([prompt.pieces[0] for prompt in prompts])]
        usable = [Turn(prompt.pieces[0], "") for prompt, is_clean in zip(prompts, clean, strict=True) if is_clean]
        for chunk in _chunks(usable, rng):
            yield Session(product, tuple(conversation((), turn.user) for turn in chunk))


def json_question(question: str) -> str:
    """A training document's question with the traffic's instruction and a purpose of a few words."""
    _, name, *purpose = question.split("\n", 2)
    shortened = " ".join(" ".join(purpose).split()[: JSON_PURPOSE_WORDS + 1])
    return f"{JSON_INSTRUCTION}\n{name}\n{shortened}"


def maths_sessions(
    documents: Sequence[Document], training: TrainingText, count_tokens: TokenCounter, rng: random.Random
) -> Iterator[Session]:
    """A pupil's problems one after the other, in one growing conversation."""
    clean = _clean_turns(documents, training)
    short = [
        turn for turn, is_clean in clean.items()
        if is_clean and count_tokens(f"{turn.user}{turn.assistant}") <= MATHS_PROBLEM_TOKENS
    ]  # fmt: skip
    rng.shuffle(short)
    yield from _conversations("test.jsonl", short, count_tokens, rng)


def translation_sessions(
    documents: Sequence[Document], training: TrainingText, count_tokens: TokenCounter, rng: random.Random
) -> Iterator[Session]:
    """Messages of one program translated into one language, in one growing conversation."""
    clean = _clean_turns(documents, training)
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
    documents: Sequence[Document], training: TrainingText, count_tokens: TokenCounter, rng: random.Random
) -> Iterator[Session]:
    """Successive passages of one book, each to be continued."""
    for book, members in groupby(documents, key=lambda document: document.group):
        for chunk in _chunks([document.turns[0] for document in members], rng):
            yield Session(book, tuple(conversation((), turn.user) for turn in chunk))


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
    """Sessions of one endpoint whose prompts are clean, in random order, and how many prompts were not."""

    sessions: tuple[Session, ...]
    num_prompts: int
    num_dropped: int


def candidate_sessions(
    plan: EndpointPlan,
    held_out: Sequence[Document],
    training: TrainingText,
    count_tokens: TokenCounter,
    seed: int,
) -> CandidateSessions:
    """All sessions that the held-out documents give this endpoint, without the prompts in the training text."""
    rng = random.Random(f"prompts:{seed}:{plan.name}")
    documents = [document for document in held_out if document.domain == plan.domain]
    sessions = list(SESSION_BUILDERS[plan.domain](documents, training, count_tokens, rng))
    flat = [prompt for session in sessions for prompt in session.prompts]
    texts = [text for prompt in flat for text in (*prompt.pieces, "\n".join(prompt.pieces))]
    owners = [index for index, prompt in enumerate(flat) for _ in range(len(prompt.pieces) + 1)]
    dirty = {owner for owner, occurs in zip(owners, training.occurs(texts), strict=True) if occurs}
    bounds = [0]
    for session in sessions:
        bounds.append(bounds[-1] + len(session.prompts))
    clean = [
        Session(session.document, tuple(flat[index] for index in range(first, last) if index not in dirty))
        for session, (first, last) in zip(sessions, pairwise(bounds), strict=True)
    ]
    rng.shuffle(clean)
    kept = tuple(session for session in clean if session.prompts)
    return CandidateSessions(kept, len(flat), len(dirty))
