"""Make the bundled traffic: held-out prompts, answers of the bundled target, arrival times of a public trace.

    python -m kernels.benchmarks.bundled_traffic --corpora DIR --pair PAIR --traces DIR --out traffic.jsonl.gz

The same corpora, models, Python and seed make the same file, byte for byte.  A text that shares a run of 13
lower-cased words with a training document (a shorter one: that stands in one whole) is dropped, and the rest of its
session stays if two of its requests do.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import json
import random
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import UTC, datetime
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernels.benchmarks.bundled_pair import (
    DOMAIN_SHARES,
    Document,
    Turn,
    load_model,
    load_tokenizer,
    read_documents,
)
from kernels.benchmarks.decoding import in_batches
from shadowspec.engine.batch import Request
from shadowspec.engine.decode import Decoded
from shadowspec.quality.outputs import is_repetition_loop
from shadowspec.types import SamplingParameters

RUN_LENGTH = 13  # words; that of the contamination studies of large language models
HASH_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no word of a run is lost from its 64-bit hash
SESSION_SIZES, SESSION_WEIGHTS = (1, 2, 3, 4), (0.04, 0.40, 0.36, 0.20)  # 2.7 requests on average
LONG_SHARE = 0.045  # of the sessions of endpoints with long prompts
DEFINITION = re.compile(r"^ {0,4}(?:async )?(?:def|class) ", re.MULTILINE)
WORD_END = re.compile(r"(?<=\S)(?=\s)")
BAD_KINDS = ("broken", "array", "truncated", "cached", "image", "silent", "duplicate", "unknown")
BAD_OF_EACH_KIND = 2

Prompt = str | tuple[str, ...]  # a completion's text, or a chat's messages: the user's and the assistant's in turn
Clean = Callable[[Sequence[str]], list[bool]]
Count = Callable[[str], int]


class Endpoint(NamedTuple):
    """An endpoint of the traffic; `parameters` are the requests' own sampling parameters."""

    name: str
    served_model: str
    domain: str
    trace: str
    num_sessions: int
    parameters: Mapping[str, Any]


SAMPLED = {"temperature": 0.8, "top_p": 0.95, "max_tokens": 32}
ENDPOINTS = (
    Endpoint("code-completion", "demo-code", "code", "code", 412, SAMPLED),
    Endpoint("text-to-sql", "demo-sql", "sql", "code", 445, {"temperature": 0.0, "max_tokens": 40}),
    Endpoint("api-json", "demo-json", "json", "code", 88, {"temperature": 0.3, "max_tokens": 32}),
    Endpoint("maths-tutor", "demo-maths", "maths", "conv", 88, SAMPLED),
    Endpoint("story", "demo-story", "prose", "conv", 88, SAMPLED),
    Endpoint("translate", "demo-translate", "translation", "conv", 88, {"temperature": 0.0, "max_tokens": 32}),
)


class TrainingText:
    """The word sequences of the training documents; answers whether texts occur in them."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._word_ids: dict[str, int] = {}
        known = self._word_ids
        rows = [
            np.array([known.setdefault(word, len(known)) for word in words_of(document_text(document))], dtype=np.int64)
            for document in documents
        ]
        self._documents = np.repeat(np.arange(len(rows)), [len(row) for row in rows])  # [words]
        self._codes = np.random.default_rng(13).integers(0, 2**63, size=len(self._word_ids), dtype=np.uint64)
        self._words = self._codes[np.concatenate([np.empty(0, dtype=np.int64), *rows])]  # [words]

    def occurs(self, texts: Sequence[str]) -> list[bool]:
        """For each text, whether it shares a run of RUN_LENGTH words with a document (or, shorter, stands in one)."""
        is_known = [False] * len(texts)
        stretches: dict[int, list[tuple[int, np.ndarray]]] = {}  # of known words, by the length of runs: text and codes
        for index, text in enumerate(texts):
            words = words_of(text)
            length = min(RUN_LENGTH, len(words))
            for known, stretch in groupby((self._word_ids.get(word) for word in words), lambda code: code is not None):
                codes = self._codes[list(stretch)] if known else np.empty(0, dtype=np.uint64)
                if len(codes) >= length:
                    stretches.setdefault(length, []).append((index, codes))
        for length, pieces in stretches.items():
            hashes = [run_hashes(codes, length) for _, codes in pieces]
            owners = np.repeat([index for index, _ in pieces], [len(row) for row in hashes])
            within = self._documents[length - 1 :] == self._documents[: max(0, len(self._words) - length + 1)]
            wanted, places = np.unique(np.concatenate(hashes), return_inverse=True)
            training = run_hashes(self._words, length)[within]
            slots = np.minimum(np.searchsorted(wanted, training), len(wanted) - 1)
            present = np.isin(np.arange(len(wanted)), slots[wanted[slots] == training])
            for index in owners[present[places]]:
                is_known[int(index)] = True
        return is_known

    def contaminated(self, records: Sequence[tuple[Prompt, str]]) -> list[bool]:
        """For each prompt with its continuation, whether it or a piece of it occurs."""
        texts = [(row, text) for row, (prompt, answer) in enumerate(records) for text in checked(prompt, answer)]
        occurring = self.occurs([text for _, text in texts])
        rows = {row for (row, _), occurs in zip(texts, occurring, strict=True) if occurs}
        return [row in rows for row in range(len(records))]


def words_of(text: str) -> list[str]:
    """The lower-cased words of a text."""
    return re.findall(r"\w+", text.lower())


def document_text(document: Document) -> str:
    """All text of a document."""
    return "\n".join(text for turn in document.turns for text in turn) if document.turns else document.text


def run_hashes(codes: np.ndarray, length: int) -> np.ndarray:
    """64-bit hash of every run of `length` codes; uint64 [len(codes) - length + 1]."""
    count = max(0, len(codes) - length + 1)
    hashes = np.zeros(count, dtype=np.uint64)
    for offset in range(length):
        hashes = hashes * HASH_BASE + codes[offset : offset + count]
    return hashes


def checked(prompt: Prompt, *answer: str) -> list[str]:
    """What is looked up of a request: each piece by itself, as a short one is checked whole, and all as one run."""
    pieces = [prompt, *answer] if isinstance(prompt, str) else [*prompt, *answer]
    return [*pieces, "\n".join(pieces)]


def session_size(rng: random.Random) -> int:
    """How many requests a session has."""
    return rng.choices(SESSION_SIZES, SESSION_WEIGHTS)[0]


def code_sessions(documents: Sequence[Document], _clean: Clean, count: Count, rng: random.Random) -> Iterator[Any]:
    """Successive cuts at word ends while a definition is typed; sessions of a file do not overlap."""
    for text in (document.text for document in documents):
        free_from = 0
        for start in (match.start() for match in DEFINITION.finditer(text)):
            if start < free_from:
                continue
            goal = rng.randint(*((600, 1_300) if rng.random() < LONG_SHARE else (60, 100)))  # tokens
            cuts = [start + match.start() for match in WORD_END.finditer(text[start:][: goal * 12])]
            session: list[Prompt] = []
            for _ in range(session_size(rng)):
                # No token is shorter than a character, so that short texts need no tokenising.
                long_enough = (cut for cut in cuts if cut - start >= goal and count(text[start:cut]) >= goal)
                if (cut := next(long_enough, None)) is None:
                    break
                session.append(text[start:cut])
                free_from, cuts = cut, [later for later in cuts if later > cut]
                goal += rng.randint(15, 35)  # typed between one request and the next
            if session:
                yield session


def questions_apart(questions: Sequence[str], rng: random.Random) -> Iterator[list[Prompt]]:
    """Sessions of successive questions, each without a history; the last one may be smaller."""
    rest = list(questions)
    while rest:
        size = session_size(rng)
        yield [(question,) for question in rest[:size]]
        rest = rest[size:]


def sql_sessions(documents: Sequence[Document], clean: Clean, _count: Count, rng: random.Random) -> Iterator[Any]:
    """Questions on one schema, each with the schema."""
    usable = zip(documents, clean([document.turns[0].user for document in documents]), strict=True)
    for _, members in groupby((one for one, is_clean in usable if is_clean), lambda document: document.group):
        yield [(document.turns[0].user,) for document in members][: session_size(rng)]


def json_question(question: str) -> str:
    """A document's question with an instruction one word away from it and a purpose of a few words.

    Word for word the instruction and a product's name would be a run of 13 words that stands in the training text.
    """
    _, name, *purpose = question.split("\n", 2)
    return f"Return the API document as one JSON object.\n{name}\n" + " ".join(" ".join(purpose).split()[:10])


def json_sessions(documents: Sequence[Document], clean: Clean, _count: Count, rng: random.Random) -> Iterator[Any]:
    """Entries of one product's API, asked for by name and the first words of their purpose."""
    for _, members in groupby(documents, lambda document: document.group.split(":")[0]):
        questions = [json_question(document.turns[0].user) for document in members]
        yield from questions_apart([one for one, ok in zip(questions, clean(questions), strict=True) if ok], rng)


def clean_turns(documents: Iterable[Document], clean: Clean) -> list[Turn]:
    """The turns of whose texts none occurs in the training text."""
    turns = [turn for document in documents for turn in document.turns]
    flags = clean([text for turn in turns for text in turn])
    return [turn for place, turn in enumerate(turns) if flags[2 * place] and flags[2 * place + 1]]


def maths_sessions(documents: Sequence[Document], clean: Clean, count: Count, rng: random.Random) -> Iterator[Any]:
    """A pupil's short problems one after the other, in one growing conversation."""
    turns = [turn for turn in dict.fromkeys(clean_turns(documents, clean)) if count("".join(turn)) <= 150]
    rng.shuffle(turns)
    yield from conversations(turns, count, rng)


def translation_sessions(
    documents: Sequence[Document], clean: Clean, count: Count, rng: random.Random
) -> Iterator[Any]:
    """Messages of one program translated into one language, in one growing conversation."""
    for _, members in groupby(documents, lambda document: document.group.split(":")[0]):
        yield from conversations(clean_turns(members, clean), count, rng)


def conversations(turns: Sequence[Turn], count: Count, rng: random.Random) -> Iterator[list[Prompt]]:
    """Growing conversations, whose history holds the documents' answers; a few begin in the middle of a long one."""
    position = 0
    while position < len(turns):
        goal = rng.randint(600, 1_100) if rng.random() < LONG_SHARE else 0
        tokens, first = 0, position
        while tokens < goal and position < len(turns) - 1:
            tokens += count("".join(turns[position]))
            position += 1
        asked = range(position, min(position + (size := session_size(rng)), len(turns)))
        yield [(*(text for turn in turns[first:at] for text in turn), turns[at].user) for at in asked]
        position += size


def story_sessions(documents: Sequence[Document], _clean: Clean, _count: Count, rng: random.Random) -> Iterator[Any]:
    """Successive passages of one book, each to be continued."""
    for _, members in groupby(documents, lambda document: document.group):
        yield from questions_apart([document.turns[0].user for document in members], rng)


SESSIONS = dict(zip(DOMAIN_SHARES, (code_sessions, sql_sessions, json_sessions, maths_sessions, story_sessions,
                                    translation_sessions), strict=True))  # fmt: skip


def candidate_sessions(
    endpoint: Endpoint, held_out: Sequence[Document], training: TrainingText, count: Count, seed: int
) -> tuple[list[list[Prompt]], dict[str, bool]]:
    """All sessions that the held-out documents give without prompts in the training text; and whether texts occur."""
    known: dict[str, bool] = {}

    def clean(texts: Sequence[str]) -> list[bool]:
        new = [text for text in dict.fromkeys(texts) if text not in known]
        known.update(zip(new, training.occurs(new), strict=True))
        return [not known[text] for text in texts]

    rng = random.Random(f"prompts:{seed}:{endpoint.name}")
    documents = [document for document in held_out if document.domain == endpoint.domain]
    sessions = list(SESSIONS[endpoint.domain](documents, clean, count, rng))
    clean([text for session in sessions for prompt in session for text in checked(prompt)])
    kept = [(session, [prompt for prompt in session if all(clean(checked(prompt)))]) for session in sessions]
    candidates = [left for session, left in kept if left and len(left) >= min(2, len(session))]
    rng.shuffle(candidates)
    return candidates, known


class AnsweredPrompt(NamedTuple):
    """One request with its answer."""

    prompt: Prompt
    token_ids: tuple[int, ...]
    decoded: Decoded
    text: str


def messages_of(prompt: Sequence[str]) -> list[dict[str, str]]:
    """A chat as the API writes it."""
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(prompt)]


class TrafficMaker:
    """The target with its tokenizer, and the training text that nothing bundled may occur in."""

    def __init__(self, pair: Path, documents: Sequence[Document], seed: int) -> None:
        self._tokenizer, self._target = load_tokenizer(pair / "target"), load_model(pair / "target")
        self._held_out, self._seed = [document for document in documents if document.held_out], seed
        self._training = TrainingText(document for document in documents if not document.held_out)

    def endpoint(self, endpoint: Endpoint) -> tuple[list[list[AnsweredPrompt]], dict[str, int]]:
        """Answer candidates round by round until the endpoint has its sessions; and what was checked and dropped."""
        candidates, known = candidate_sessions(endpoint, self._held_out, self._training, self._count, self._seed)
        remaining, sessions = iter(candidates), list[list[AnsweredPrompt]]()
        counts = {"prompt_texts_checked": len(known), "prompt_texts_dropped": sum(known.values())}
        counts |= {"answers_checked": 0, "answers_dropped": 0}
        while missing := endpoint.num_sessions - len(sessions):
            if missing < 0 or not (asked := list(islice(remaining, max(8, int(missing * 1.15))))):
                break
            rows = self._answer(endpoint, asked)
            flags = self._training.contaminated([(one.prompt, one.text) for row in rows for one in row])
            counts["answers_checked"] += len(flags)
            counts["answers_dropped"] += sum(flags)
            is_known = iter(flags)
            for row in rows:
                left = [answered for answered in row if not next(is_known)]
                if len(left) >= min(2, len(row)):
                    sessions.append(left)
            print(f"{endpoint.name}: {len(sessions)} of {endpoint.num_sessions} sessions", flush=True)
        return sessions[: endpoint.num_sessions], counts

    def _count(self, text: str) -> int:
        return len(self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)

    def token_ids(self, prompt: Prompt) -> tuple[int, ...]:
        """As the server would see it: a completion's text after the beginning token, a chat by template."""
        if isinstance(prompt, str):
            return tuple(self._tokenizer(prompt)["input_ids"])
        return tuple(self._tokenizer.apply_chat_template(messages_of(prompt), add_generation_prompt=True)["input_ids"])

    def _answer(self, endpoint: Endpoint, sessions: Sequence[Sequence[Prompt]]) -> list[list[AnsweredPrompt]]:
        sampling = SamplingParameters(**endpoint.parameters)
        prompts = [(prompt, self.token_ids(prompt)) for session in sessions for prompt in session]
        # The seed is the prompt's own, so that an answer does not depend on which round asked for it.
        requests = [Request(ids, sampling, digest(self._seed, endpoint.name, *ids) >> 1) for _, ids in prompts]
        decoded = respond(self._target, requests)
        texts = [self._tokenizer.decode(list(one.output), skip_special_tokens=True) for one in decoded]
        answers = iter(AnsweredPrompt(*row, one, text) for row, one, text in zip(prompts, decoded, texts, strict=True))
        return [list(islice(answers, len(session))) for session in sessions]


def digest(*parts: object) -> int:
    """64 bits, the same for the same parts."""
    return int.from_bytes(hashlib.blake2b(":".join(map(str, parts)).encode(), digest_size=8).digest(), "big")


def public_id(prefix: str, *parts: object) -> str:
    """An opaque id, the same for the same parts."""
    return f"{prefix}-{digest(*parts):016x}"


def respond(target: Any, requests: Sequence[Request]) -> list[Decoded]:
    """Sample every answer by the engine's own baseline loop; prompts of like length share a batch."""
    return in_batches(target, requests, end_token_ids=frozenset({int(target.config.eos_token_id)}))


def read_trace(traces: Path, name: str) -> list[datetime]:
    """Arrival times of an hour of the Azure LLM inference trace 2023, "code" or "conv", ascending, UTC."""
    with (traces / "azure_llm_2023" / f"AzureLLMInferenceTrace_{name}.csv").open(encoding="utf-8", newline="") as file:
        # Seven fractional digits in the file; datetime holds six.
        return sorted(datetime.fromisoformat(row["TIMESTAMP"][:26]).replace(tzinfo=UTC) for row in csv.DictReader(file))


class Arrivals:
    """Hands out the rows of a trace, each once; which of them are a session is ours: the trace has none."""

    def __init__(self, times: Sequence[datetime], rng: random.Random) -> None:
        self._times, self._rng, self._free = times, rng, [True] * len(times)
        self._seconds = [(time - times[0]).total_seconds() for time in times]

    def session(self, size: int) -> list[datetime]:
        """A row that is drawn, and for each later request the first free one after a drawn pause."""
        for _ in range(100):
            rows = [self._rng.randrange(len(self._times))]
            if not self._free[rows[0]]:
                continue
            while len(rows) < size and rows[-1] < len(self._free):
                # A person reads the answer before asking again.
                row = bisect_left(self._seconds, self._seconds[rows[-1]] + 5.0 + self._rng.expovariate(1.0 / 40.0))
                rows.append(
                    next((later for later in range(row, len(self._free)) if self._free[later]), len(self._free))
                )
            if rows[-1] < len(self._free):
                for row in rows:
                    self._free[row] = False
                return [self._times[row] for row in rows]
        raise SystemExit(f"the arrival trace of {len(self._times)} rows has no room for another session")


def record(
    endpoint: Endpoint, answered: AnsweredPrompt, time: datetime, names: Mapping[str, str], tier: str
) -> dict[str, Any]:
    """One mirrored record as vLLM serves it: it reports a chat's prompt tokens beside its choices, else within."""
    prompt, ids, output = answered.prompt, list(answered.token_ids), list(answered.decoded.output)
    end = {"finish_reason": answered.decoded.finish_reason, "token_ids": output}
    if is_chat := not isinstance(prompt, str):
        asked: dict[str, Any] = {"messages": messages_of(prompt)}
        choice: dict[str, Any] = {"message": {"role": "assistant", "content": answered.text}, **end}
    else:
        asked, choice = {"prompt": prompt}, {"text": answered.text, "prompt_token_ids": ids, **end}
    usage = {"prompt_tokens": len(ids), "completion_tokens": len(output), "total_tokens": len(ids) + len(output)}
    response = {
        "id": public_id("chatcmpl" if is_chat else "cmpl", names["request_id"]),
        "object": "chat.completion" if is_chat else "text_completion", "created": int(time.timestamp()),
        "model": endpoint.served_model, "choices": [{"index": 0, **choice}], "usage": usage,
    }  # fmt: skip
    return {
        "timestamp": time.isoformat(timespec="microseconds"), **names,
        "path": "/v1/chat/completions" if is_chat else "/v1/completions",
        "request": {"model": endpoint.served_model, **asked, **endpoint.parameters, "return_token_ids": True},
        "response": response | ({"prompt_token_ids": ids} if is_chat else {}), "metadata": {"tier": tier},
    }  # fmt: skip


def to_line(value: object) -> str:
    """One line of the file."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def bad_line(good: dict[str, Any], kind: str) -> str:
    """A copy that is bad on purpose, with ids of its own so that it fails for its one fault, not as a duplicate."""
    bad = deepcopy(good)
    bad["request_id"] = public_id("req", kind, good["request_id"])
    bad["response"]["id"] = public_id("resp", kind, good["request_id"])
    first, last = bad["request"]["messages"][0], bad["request"]["messages"][-1]
    match kind:
        case "broken":
            return to_line(bad)[: len(to_line(bad)) // 2]
        case "array":
            return to_line([bad])
        case "truncated":
            first["content"] = f"{first['content'][:40]}... (litellm_truncated {len(first['content']) - 40} chars)"
        case "cached":
            bad["cache_hit"] = True
        case "image":
            image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
            last["content"] = [{"type": "text", "text": last["content"]}, image]
        case "silent":
            bad["is_silent_experiment"] = True
        case "duplicate":
            return to_line(good)
        case "unknown":
            bad["request"]["model"] = bad["response"]["model"] = "retired-model"
    return to_line(bad)


def timed_records(
    endpoint: Endpoint, sessions: Sequence[Sequence[AnsweredPrompt]], arrivals: Arrivals, rng: random.Random
) -> list[dict[str, Any]]:
    """The endpoint's records with times, sessions and users."""
    tiers = ["pro" if rng.random() < 0.25 else "free" for _ in range(max(1, round(len(sessions) / 1.5)))]
    records = []
    for index, session in enumerate(sessions):
        user = rng.randrange(len(tiers))
        names = {"session_id": public_id("session", endpoint.name, index)}
        names["user"] = public_id("user", endpoint.name, user)
        for position, (answered, time) in enumerate(zip(session, arrivals.session(len(session)), strict=True)):
            names["request_id"] = public_id("req", endpoint.name, index, position)
            records.append(record(endpoint, answered, time, names, tiers[user]))
    return records


def summary(
    endpoint: Endpoint, sessions: Sequence[Sequence[AnsweredPrompt]], counts: Mapping[str, int]
) -> dict[str, Any]:
    """What an endpoint's traffic is."""
    answers = [answered for session in sessions for answered in session]
    lengths = [len(answered.token_ids) for answered in answers]
    quantiles = np.quantile(lengths, (0.05, 0.5, 0.95, 1.0), method="inverted_cdf")
    return {
        "domain": endpoint.domain, "parameters": dict(endpoint.parameters), "arrivals": endpoint.trace,
        "sessions": len(sessions), "records": len(answers),
        "session_sizes": dict(sorted(Counter(map(len, sessions)).items())),
        "prompt_tokens_p5_p50_p95_max": [int(length) for length in quantiles],
        "prompts_of_600_tokens_or_more": sum(length >= 600 for length in lengths),
        "output_tokens": sum(len(answered.decoded.output) for answered in answers),
        "finished_by_stop": sum(answered.decoded.finish_reason == "stop" for answered in answers),
        "repetition_loops": sum(is_repetition_loop(answered.decoded.output) for answered in answers), **counts,
    }  # fmt: skip


def make_traffic(pair: Path, corpora: Path, traces: Path, out: Path, seed: int) -> None:
    """Write the traffic file, and beside it what is in it and what was dropped (`FILE.summary.json`)."""
    maker, rng = TrafficMaker(pair, read_documents(corpora), seed), random.Random(f"traffic:{seed}")
    arrivals = {name: Arrivals(read_trace(traces, name), rng) for name in ("code", "conv")}
    records, summaries, lines = list[dict[str, Any]](), dict[str, Any](), list[str]()
    for endpoint in ENDPOINTS:
        sessions, counts = maker.endpoint(endpoint)
        records += timed_records(endpoint, sessions, arrivals[endpoint.trace], rng)
        summaries[endpoint.name] = summary(endpoint, sessions, counts)
    records.sort(key=lambda row: (row["timestamp"], row["request_id"]))
    chats = [index for index, good in enumerate(records) if "messages" in good["request"]]
    chosen = rng.sample(chats, len(BAD_KINDS) * BAD_OF_EACH_KIND)
    bad = {index: BAD_KINDS[place % len(BAD_KINDS)] for place, index in enumerate(chosen)}
    for index, good in enumerate(records):
        lines += [to_line(good), *([bad_line(good, bad[index])] if index in bad else [])]
    out.parent.mkdir(parents=True, exist_ok=True)
    # Without a time and a name in its header the file is the same for the same input.
    out.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), compresslevel=9, mtime=0))
    whole = {"seed": seed, "lines": len(lines), "records": len(records), "endpoints": summaries}
    beside = out.with_name(out.name.removesuffix(".gz").removesuffix(".jsonl") + ".summary.json")
    beside.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, words in {
        "--corpora": "folder with one sub-folder per corpus",
        "--pair": "folder with target and draft",
        "--traces": "folder with azure_llm_2023",
        "--out": "the file to write",
    }.items():
        parser.add_argument(option, type=Path, required=True, help=words)
    parser.add_argument("--seed", type=int, default=0)
    make_traffic(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
