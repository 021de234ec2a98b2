"""Make what the demo ships but for its heads: two models with their tokenizer, and the traffic.

    python -m kernels.benchmarks.bundled_pair pair    --corpora DIR --out PAIR
    python -m kernels.benchmarks.bundled_pair traffic --corpora DIR --out FILE --target PAIR/target --traces DIR

The same corpora, Python (its standard library is the code corpus), torch and seed make the same files, of the shapes
that are shipped.  A hash of each text's group decides what is held out, so that a further corpus moves nothing across
the line.  The draft learns the target's own distribution (forward KL) from the same batches as the target learns the
text, and goes on alone against the finished target.  The traffic has held-out prompts, the target's answers and times
of a public trace.  A text that occurs in a training document is dropped; its session stays if two requests do.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import json
import random
import re
import sysconfig
from bisect import bisect_left
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import UTC, datetime
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from kernels.benchmarks.contamination import Prompt, TrainingText, checked
from kernels.benchmarks.decoding import in_batches
from kernels.benchmarks.harness import options, write
from shadowspec import demo
from shadowspec.engine.batch import Request
from shadowspec.types import SamplingParameters

# Texts -----------------------------------------------------------------------------------------------------------

# Shares of the training tokens by domain: none is read many times over.
DOMAIN_SHARES = {"code": 0.26, "sql": 0.16, "json": 0.13, "maths": 0.13, "prose": 0.18, "translation": 0.14}
API_PROMPT, STORY_PROMPT = "Return the API document as a JSON object.", "Continue the story:"
DATA = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
SQL = DATA["sql"]
Turn = namedtuple("Turn", "user assistant")  # what the user says, and what the assistant answers
BOS, END = "<|bos|>", "<|end|>"


class Document(NamedTuple):
    """A text of one domain: either `text` (a completion) or `turns` (a conversation) is set."""

    domain: str
    group: str
    held_out: bool
    text: str = ""
    turns: tuple[Turn, ...] = ()

    def whole(self) -> str:
        """All of its text."""
        return "\n".join(text for turn in self.turns for text in turn) if self.turns else self.text

    def rendered(self) -> str:
        """As the models see it."""
        turns = (f"<|user|>\n{turn.user}{END}\n<|assistant|>\n{turn.assistant}{END}\n" for turn in self.turns)
        return f"{BOS}{''.join(turns)}" if self.turns else f"{BOS}{self.text}{END}"


def digest(*parts: object) -> int:
    """64 bits, the same for the same parts."""
    return int.from_bytes(hashlib.blake2b(":".join(map(str, parts)).encode(), digest_size=8).digest(), "big")


def lines_of(path: Path) -> list[Any]:
    """The values of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def sql_schema(rng: random.Random, names: Sequence[str]) -> tuple[str, dict[str, str]]:
    """A schema of one or two made-up tables, and up to four questions on it with their queries."""
    tables: list[tuple[str, list[str], list[str], list[str], str]] = []  # name, text, number and date columns, parent
    ddl, questions = [], {}
    for name in rng.sample(names, rng.choice((1, 2, 2))):
        texts = rng.sample(sorted(SQL["text_columns"]), rng.choice((1, 2)))
        numbers = rng.sample(SQL["number_columns"], rng.choice((1, 2)))
        dates = rng.sample(SQL["date_columns"], rng.choice((0, 1)))
        parent = tables[-1][0] if tables else ""
        tables.append((name, texts, numbers, dates, parent))
        columns = [f"{parent.removesuffix('s')}_id INTEGER REFERENCES {parent}(id)"] if parent else []
        columns += ["name TEXT", *(f"{column} TEXT" for column in texts), *(f"{column} NUMERIC" for column in numbers)]
        columns = ["id INTEGER PRIMARY KEY", *columns, *(f"{column} DATE" for column in dates)]
        ddl.append(f"CREATE TABLE {name} (\n  " + ",\n  ".join(columns) + "\n);")
    for _ in range(4):
        name, texts, numbers, dates, parent = rng.choice(tables)
        words = {"t": name, "c": (column := rng.choice(texts)), "v": rng.choice(SQL["text_columns"][column])}
        words |= {"n": rng.choice(numbers), "b": rng.choice((5, 10, 20, 25, 50, 100, 200, 500, 1000))}
        words["l"], (words["a"], words["w"]) = rng.choice((3, 5, 10)), rng.choice(SQL["aggregates"])
        words["s"] = name[:-3] + "y" if name.endswith("ies") else name.removesuffix("s")
        forms = list(SQL["questions"])
        if dates:
            year = rng.randint(2015, 2024)
            words |= {"d": dates[0], "y": year, "z": year + 1}
            forms += SQL["date_questions"]
        if parent:
            words |= {"p": parent, "k": f"{parent.removesuffix('s')}_id"}
            forms += SQL["parent_questions"]
        question, query = rng.choice(forms)
        questions[question.format(**words)] = query.format(**words)
    return "\n\n".join(ddl), questions


def read_sql(corpora: Path) -> Iterator[Document]:
    """PostgreSQL's own scripts, and questions on schemas; those held out share no table name with the others."""
    for row in lines_of(corpora / "pg_sql" / "pg15_sql.jsonl"):
        yield Document("sql", "pg_sql", False, text=row["text"])
    for held_out, count in ((False, 9_000), (True, 1_500)):
        rng = random.Random(f"text-to-sql:0:{held_out}")
        for index in range(count):
            schema, questions = sql_schema(rng, SQL["tables"]["held_out" if held_out else "training"])
            for question, query in questions.items():
                turn = Turn(f"{schema}\n\nQuestion: {question}", query)
                yield Document("sql", f"schema-{held_out}-{index}", held_out, turns=(turn,))


def read_json(corpora: Path) -> Iterator[Document]:
    """API documents, asked for by name and purpose."""
    for path in sorted((corpora / "apizoo_json" / "apizoo").glob("*.json")):
        try:
            entries = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError:
            continue  # two community files are not JSON
        for index, entry in enumerate(entries):
            entry.pop("user_name", None)
            purpose = str(entry.get("functionality", "")).split("\n")[0][:160]
            answer, group = json.dumps(entry, indent=1, ensure_ascii=False), f"{path.name}:{index}"
            if len(answer) <= 2_400:
                turn = Turn(f"{API_PROMPT}\nName: {entry.get('api_name', '')}\nPurpose: {purpose}", answer)
                yield Document("json", group, digest(group) % 100 < 10, turns=(turn,))


def read_prose(corpora: Path) -> Iterator[Document]:
    """Novels: long runs of text, and passages that are to be continued."""
    rng = random.Random("prose")
    books = [path for path in sorted((corpora / "gutenberg_prose").glob("*.md")) if path.name != "SOURCE.md"]
    for path in (*books, corpora / "tinyshakespeare" / "input.txt"):
        held_out, position = path.name in DATA["held_out_books"], 0
        paragraphs = [part.strip() for part in path.read_text(encoding="utf-8").split("\n\n") if part.strip()]
        while position < len(paragraphs):
            length = 60 if rng.random() < 0.4 and not held_out else 6
            text = "\n\n".join(paragraphs[position : position + length])
            position += length
            words = text.split(" ")
            if length == 60:
                yield Document("prose", path.name, held_out, text=text)
            elif len(words) >= 60:
                cut = rng.randint(30, min(120, len(words) - 25))
                turn = Turn(f"{STORY_PROMPT}\n\n{' '.join(words[:cut])}", " ".join(words[cut : cut + 200]))
                yield Document("prose", path.name, held_out, turns=(turn,))


def read_translation(corpora: Path) -> Iterator[Document]:
    """PostgreSQL's messages: conversations of one to four translations."""
    rng, pools = random.Random("translation"), dict[tuple[str, bool], list[Turn]]()
    for row in lines_of(corpora / "pg_gettext" / "pg15_messages.jsonl"):
        english, language = row["en"].strip(), DATA["languages"].get(row["lang"])
        if language and 12 <= len(english) <= 400:
            turn = Turn(f"Translate to {language}:\n{english}", row["text"].strip())
            pools.setdefault((row["lang"], digest(english) % 100 < 8), []).append(turn)
    for (language, held_out), turns in sorted(pools.items()):
        position = 0
        while position < len(turns):
            taken = tuple(turns[position : position + rng.randint(1, 4)])
            yield Document("translation", f"{language}:{position}", held_out, turns=taken)
            position += len(taken)


def read_documents(corpora: Path) -> list[Document]:
    """Every document of every domain."""
    documents, root = list[Document](), Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        text, name = path.read_text(encoding="utf-8", errors="ignore"), path.relative_to(root)
        if len(text) > 500 and not {*DATA["skipped_code"]} & {*name.parts}:
            documents.append(Document("code", str(name), digest(name) % 100 < 8, text=text))
    documents += (*read_sql(corpora), *read_json(corpora))
    for name, held_out in {"train.jsonl": False, "test.jsonl": True}.items():  # the split is the benchmark's own
        turns = [Turn(row["question"], row["answer"]) for row in lines_of(corpora / "gsm8k" / name)]
        documents += [Document("maths", f"{name}:{index}", held_out, "", (turn,)) for index, turn in enumerate(turns)]
    return [*documents, *read_prose(corpora), *read_translation(corpora)]


# The pair --------------------------------------------------------------------------------------------------------

VOCABULARY, CONTEXT = 4_096, 2_048
SHORT_BATCH, LONG_BATCH = (18, 256), (2, CONTEXT)  # rows x tokens; every eighth step has the whole context
load_tokenizer = PreTrainedTokenizerFast.from_pretrained
LEARNING_RATE = 3e-3  # of both optimizers: Muon's updates are scaled to AdamW's size


def train_tokenizer(documents: Sequence[Document], rng: np.random.Generator) -> PreTrainedTokenizerFast:
    """The shipped byte-level BPE tokenizer, trained over three million characters of each domain's documents."""

    def sample() -> Iterator[str]:
        for domain in DOMAIN_SHARES:
            texts = [document.rendered() for document in documents if document.domain == domain]
            characters = 0
            for index in rng.permutation(len(texts)):
                if characters <= 3_000_000:
                    yield texts[index]
                    characters += len(texts[index])

    tokenizer = load_tokenizer(demo.TARGET).train_new_from_iterator(sample(), VOCABULARY, show_progress=False)
    tokenizer.init_kwargs = {name: value for name, value in tokenizer.init_kwargs.items() if "local" not in name}
    return tokenizer  # with none of what says where the shipped one was read


def token_streams(documents: Sequence[Document], tokenizer: Any, *, held_out: bool, seed: int) -> dict[str, np.ndarray]:
    """Each domain's documents, shuffled and joined into one run of token ids."""
    rng, streams = np.random.default_rng(seed), dict[str, np.ndarray]()
    for domain in DOMAIN_SHARES:
        texts = [one.rendered() for one in documents if one.domain == domain and one.held_out is held_out]
        shuffled = [texts[index] for index in rng.permutation(len(texts))]
        encoded = tokenizer.backend_tokenizer.encode_batch(shuffled, add_special_tokens=False)
        streams[domain] = np.concatenate([np.asarray(tokens.ids, dtype=np.uint16) for tokens in encoded])
    return streams


def draw_batch(streams: Mapping[str, np.ndarray], shape: tuple[int, int], rng: np.random.Generator) -> torch.Tensor:
    """Rows of consecutive tokens, each from one domain drawn by its share; int64 [rows, tokens]."""
    names = rng.choice(list(streams), size=shape[0], p=[DOMAIN_SHARES[name] for name in streams])
    starts = [int(rng.integers(0, len(streams[name]) - shape[1])) for name in names]
    rows = [streams[name][start : start + shape[1]] for name, start in zip(names, starts, strict=True)]
    return torch.from_numpy(np.stack(rows).astype(np.int64))


class Optimizer:
    """Muon for the matrices, AdamW for embeddings, heads' last layers and norms."""

    def __init__(self, *modules: nn.Module) -> None:
        matrices, others = list[nn.Parameter](), list[nn.Parameter]()
        for name, weight in (named for module in modules for named in module.named_parameters()):
            is_matrix = weight.ndim == 2 and "embed" not in name and "lm_head" not in name
            (matrices if is_matrix else others).append(weight)
        muon = torch.optim.Muon(matrices, weight_decay=0.1, ns_steps=3, adjust_lr_fn="match_rms_adamw")
        adam = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.0)
        self._optimizers, self._weights = (muon, adam), matrices + others

    def step(self, loss: torch.Tensor, factor: float) -> None:
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self._weights, 1.0)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def learning_rate_factor(step: int, steps: int) -> float:
    """Warm-up, a plateau, and a linear fall to 4% over the last 45% of the steps."""
    return min(1.0, (step + 1) / 80) * max(0.04, min(1.0, (steps - step) / (steps * 0.45)))


def pair_losses(target: nn.Module, draft: nn.Module, tokens: torch.Tensor, *, is_frozen: bool) -> tuple[Any, Any]:
    """Next-token cross-entropy of the target (0: it is frozen), and of the draft against the target's distribution."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.set_grad_enabled(not is_frozen):
            target_logits = target(tokens, use_cache=False).logits
        draft_logits = draft(tokens, use_cache=False).logits
    target_logits = target_logits[:, :-1].float().reshape(-1, VOCABULARY)  # [rows * (tokens - 1), vocabulary]
    draft_logits = draft_logits[:, :-1].float().reshape(-1, VOCABULARY)
    target_loss = torch.zeros(()) if is_frozen else functional.cross_entropy(target_logits, tokens[:, 1:].reshape(-1))
    target_probs = torch.softmax(target_logits.detach(), -1)
    return target_loss, -(target_probs * torch.log_softmax(draft_logits, -1)).sum(-1).mean()


def train_pair(corpora: Path, out: Path, seed: int, steps: int, draft_steps: int) -> None:
    """Write the tokenizer, both models and `training.json`."""
    torch.manual_seed(seed)
    documents, history = read_documents(corpora), list[dict[str, float]]()
    tokenizer = train_tokenizer([one for one in documents if not one.held_out], np.random.default_rng(seed))
    streams, held_out = (token_streams(documents, tokenizer, held_out=held, seed=seed) for held in (False, True))
    configs = (LlamaConfig.from_pretrained(shipped, dtype=None) for shipped in (demo.TARGET, demo.DRAFT))
    target, draft = pair = [LlamaForCausalLM(config) for config in configs]
    together, alone, losses = Optimizer(target, draft), Optimizer(draft), torch.compile(pair_losses, dynamic=False)
    for step in range(steps + draft_steps):
        tokens = draw_batch(streams, LONG_BATCH if step % 8 == 7 else SHORT_BATCH, np.random.default_rng((seed, step)))
        target_loss, draft_loss = losses(target, draft, tokens, is_frozen=step >= steps)
        if step < steps:
            together.step(target_loss + draft_loss, learning_rate_factor(step, steps))
        else:
            alone.step(draft_loss, 0.35 * (1.0 - (step - steps) / draft_steps) + 0.01)
        if step % 25 == 0:
            history.append({"step": step, "target_loss": target_loss.item(), "draft_loss": draft_loss.item()})
            print(history[-1], flush=True)
    report = {"seed": seed, "steps": steps, "draft_steps": draft_steps, "history": history}
    report["training_tokens"] = {domain: len(stream) for domain, stream in streams.items()}
    for name, model in zip(("target", "draft"), pair, strict=True):
        with torch.inference_mode():  # nats per token, in at most 40 rows of 512
            for domain, stream in held_out.items():
                rows = torch.from_numpy(stream[: 40 * 512].astype(np.int64)).unfold(0, 512, 512)
                loss = functional.cross_entropy(model.eval()(rows).logits[:, :-1].flatten(0, 1), rows[:, 1:].flatten())
                report[f"held_out_loss_{name}_{domain}"] = loss.item()
        model.to(torch.bfloat16).save_pretrained(out / name)
        tokenizer.save_pretrained(out / name)
    write(out / "training.json", report)


def load_model(folder: Path) -> Any:
    """A model of the pair in fp32 on the CPU, as the demo runs it."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()


# The traffic -----------------------------------------------------------------------------------------------------

SESSION_SIZES = (1, 2, 3, 4), (0.04, 0.40, 0.36, 0.20)  # and their shares: 2.7 requests on average
LONG_SHARE, BAD_OF_EACH_KIND = 0.045, 2  # of the sessions of endpoints with long prompts; lines
DEFINITION = re.compile(r"^ {0,4}(?:async )?(?:def|class) ", re.MULTILINE)
WORD_END = re.compile(r"(?<=\S)(?=\s)")
BAD_KINDS = ("broken", "array", "truncated", "cached", "image", "silent", "duplicate", "unknown")

Clean, Count = Callable[..., bool], Callable[[str], int]
# `parameters` are the requests' own sampling parameters; `trace` has the arrival times.
Endpoint = namedtuple("Endpoint", "name served_model domain trace num_sessions parameters")
ENDPOINTS = tuple(Endpoint(**endpoint) for endpoint in DATA["endpoints"])
to_line = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))
Answered = namedtuple("Answered", "prompt token_ids decoded text")


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
            for _ in range(rng.choices(*SESSION_SIZES)[0]):
                # No token is shorter than a character, so that short texts need no tokenising.
                long_enough = (cut for cut in cuts if cut - start >= goal and count(text[start:cut]) >= goal)
                if (cut := next(long_enough, None)) is None:
                    break
                session.append(text[start:cut])
                free_from, cuts = cut, [later for later in cuts if later > cut]
                goal += rng.randint(15, 35)  # typed between one request and the next
            if session:
                yield session


def json_question(question: str) -> str:
    """With an instruction one word away, and few words of purpose: with a name they are a run of the training text."""
    _, name, *purpose = question.split("\n", 2)
    return f"Return the API document as one JSON object.\n{name}\n" + " ".join(" ".join(purpose).split()[:10])


def chat_sessions(documents: Sequence[Document], clean: Clean, count: Count, rng: random.Random) -> Iterator[Any]:
    """Questions on one schema, API entries of one product, successive passages of one book, or growing conversations.

    The history of a conversation, a pupil's problems or the messages of one program, holds the documents' answers.
    """
    for (domain, _), members in groupby(documents, lambda document: (document.domain, document.group.split(":")[0])):
        grows = domain in {"maths", "translation"}
        turns = [turn for document in members for turn in document.turns]
        if domain == "json":
            turns = [Turn(json_question(turn.user), turn.assistant) for turn in turns]
        if domain != "prose":
            turns = [turn for turn in turns if clean(*turn[: 2 if grows else 1])]
        if domain == "maths":
            turns = [turn for turn in dict.fromkeys(turns) if count("".join(turn)) <= 150]
            rng.shuffle(turns)
        position = 0
        while position < len(turns):
            # A few conversations begin in the middle of a long one.
            goal = rng.randint(600, 1_100) if grows and rng.random() < LONG_SHARE else 0
            tokens, first = 0, position
            while tokens < goal and position < len(turns) - 1:
                tokens += count("".join(turns[position]))
                position += 1
            asked = range(position, min(position + rng.choices(*SESSION_SIZES)[0], len(turns)))
            yield [
                (*(text for turn in turns[first if grows else at : at] for text in turn), turns[at].user)
                for at in asked
            ]
            position = len(turns) if domain == "sql" else asked.stop


def candidate_sessions(
    endpoint: Endpoint, held_out: Sequence[Document], training: TrainingText, count: Count, seed: int
) -> tuple[list[list[Prompt]], dict[str, bool]]:
    """All sessions that the held-out documents give without prompts in the training text; and whether texts occur."""
    known: dict[str, bool] = {}

    def clean(*texts: str) -> bool:
        known.update({text: training.occurs(text) for text in texts if text not in known})
        return not any(known[text] for text in texts)

    rng = random.Random(f"prompts:{seed}:{endpoint.name}")
    documents = [document for document in held_out if document.domain == endpoint.domain]
    drawn = (code_sessions if endpoint.domain == "code" else chat_sessions)(documents, clean, count, rng)
    kept = [(session, [prompt for prompt in session if clean(*checked(prompt))]) for session in drawn]
    candidates = [left for session, left in kept if left and len(left) >= min(2, len(session))]
    rng.shuffle(candidates)
    return candidates, known


def messages_of(prompt: Sequence[str]) -> list[dict[str, str]]:
    """A chat as the API writes it."""
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(prompt)]


class TrafficMaker:
    """The target with its tokenizer, and the training text that nothing bundled may occur in."""

    def __init__(self, target: Path, documents: Sequence[Document], seed: int) -> None:
        self._tokenizer, self._target = load_tokenizer(target), load_model(target)
        self._held_out, self._seed = [document for document in documents if document.held_out], seed
        self._training = TrainingText(document.whole() for document in documents if not document.held_out)

    def endpoint(self, endpoint: Endpoint) -> tuple[list[list[Answered]], dict[str, int]]:
        """Answer candidates round by round until the endpoint has its sessions; and what was checked and dropped."""
        candidates, known = candidate_sessions(endpoint, self._held_out, self._training, self._count, self._seed)
        counts = {"prompt_texts_checked": len(known), "prompt_texts_dropped": sum(known.values())}
        counts |= {"answers_checked": 0, "answers_dropped": 0}
        remaining, sessions = iter(candidates), list[list[Answered]]()
        while (missing := endpoint.num_sessions - len(sessions)) > 0:
            if not (asked := list(islice(remaining, max(8, int(missing * 1.15))))):
                break
            answers = self._answer(endpoint, [prompt for session in asked for prompt in session])
            for session in asked:
                answered = list(islice(answers, len(session)))
                left = [one for one in answered if not any(map(self._training.occurs, checked(one.prompt, one.text)))]
                counts["answers_checked"] += len(answered)
                counts["answers_dropped"] += len(answered) - len(left)
                if len(left) >= min(2, len(answered)):
                    sessions.append(left)
            print(f"{endpoint.name}: {len(sessions)} of {endpoint.num_sessions} sessions", flush=True)
        return sessions[: endpoint.num_sessions], counts

    def _count(self, text: str) -> int:
        return len(self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)

    def _token_ids(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(self._tokenizer(prompt)["input_ids"])
        return tuple(self._tokenizer.apply_chat_template(messages_of(prompt), add_generation_prompt=True)["input_ids"])

    def _answer(self, endpoint: Endpoint, prompts: Sequence[Prompt]) -> Iterator[Answered]:
        """Sample every answer by the engine's own baseline loop."""
        sampling, ids = SamplingParameters(**endpoint.parameters), [self._token_ids(prompt) for prompt in prompts]
        # The seed is the prompt's own, so that an answer does not depend on which round asked for it.
        requests = [Request(row, sampling, digest(self._seed, endpoint.name, *row) >> 1) for row in ids]
        decoded = in_batches(self._target, requests, end_token_ids=frozenset({self._target.config.eos_token_id}))
        texts = [self._tokenizer.decode(list(one.output), skip_special_tokens=True) for one in decoded]
        return map(Answered, prompts, ids, decoded, texts)


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
            rows, end = [self._rng.randrange(len(self._times))], len(self._times)
            if not self._free[rows[0]]:
                continue
            while len(rows) < size and rows[-1] < end:
                # A person reads the answer before asking again.
                row = bisect_left(self._seconds, self._seconds[rows[-1]] + 5.0 + self._rng.expovariate(1.0 / 40.0))
                rows.append(next((later for later in range(row, end) if self._free[later]), end))
            if rows[-1] < end:
                for row in rows:
                    self._free[row] = False
                return [self._times[row] for row in rows]
        raise SystemExit(f"the arrival trace of {len(self._times)} rows has no room for another session")


def public_id(prefix: str, *parts: object) -> str:
    """An opaque id, the same for the same parts."""
    return f"{prefix}-{digest(*parts):016x}"


def record(endpoint: Endpoint, answered: Answered, time: datetime, names: Mapping[str, str], tier: str) -> Any:
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


def bad_line(good: dict[str, Any], kind: str) -> str:
    """A copy that is bad on purpose, with ids of its own so that it fails for its one fault, not as a duplicate."""
    bad = deepcopy(good)
    bad["request_id"] = public_id("req", kind, good["request_id"])
    bad["response"]["id"] = public_id("resp", kind, good["request_id"])
    first, last = bad["request"]["messages"][0], bad["request"]["messages"][-1]
    match kind:
        case "broken":
            return to_line(bad)[: len(to_line(bad)) // 2]
        case "array" | "duplicate":
            return to_line([bad] if kind == "array" else good)
        case "truncated":
            first["content"] = f"{first['content'][:40]}... (litellm_truncated {len(first['content']) - 40} chars)"
        case "cached":
            bad["cache_hit"] = True
        case "image":
            image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
            last["content"] = [{"type": "text", "text": last["content"]}, image]
        case "silent":
            bad["is_silent_experiment"] = True
        case "unknown":
            bad["request"]["model"] = bad["response"]["model"] = "retired-model"
    return to_line(bad)


def make_traffic(corpora: Path, out: Path, seed: int, target: Path, traces: Path) -> None:
    """Write the traffic file, and beside it what is in it and what was dropped (`FILE.summary.json`)."""
    maker, rng = TrafficMaker(target, read_documents(corpora), seed), random.Random(f"traffic:{seed}")
    arrivals = {name: Arrivals(read_trace(traces, name), rng) for name in ("code", "conv")}
    records, summaries, lines = list[dict[str, Any]](), dict[str, Any](), list[str]()
    for endpoint in ENDPOINTS:
        sessions, counts = maker.endpoint(endpoint)
        tiers = ["pro" if rng.random() < 0.25 else "free" for _ in range(max(1, round(len(sessions) / 1.5)))]
        for index, session in enumerate(sessions):
            user = rng.randrange(len(tiers))
            session_id = public_id("session", endpoint.name, index)
            names = {"session_id": session_id, "user": public_id("user", endpoint.name, user)}
            times = arrivals[endpoint.trace].session(len(session))
            for position, (answered, time) in enumerate(zip(session, times, strict=True)):
                names["request_id"] = public_id("req", endpoint.name, index, position)
                records.append(record(endpoint, answered, time, names, tiers[user]))
        summaries[endpoint.name] = {"sessions": len(sessions), "records": sum(map(len, sessions)), **counts}
    records.sort(key=lambda row: (row["timestamp"], row["request_id"]))
    chats = [index for index, good in enumerate(records) if "messages" in good["request"]]
    chosen = rng.sample(chats, len(BAD_KINDS) * BAD_OF_EACH_KIND)
    bad = {index: BAD_KINDS[place % len(BAD_KINDS)] for place, index in enumerate(chosen)}
    for index, good in enumerate(records):
        lines += [to_line(good), *([bad_line(good, bad[index])] if index in bad else [])]
    out.parent.mkdir(parents=True, exist_ok=True)
    # Without a time and a name in its header the file is the same for the same input.
    out.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), compresslevel=9, mtime=0))
    summary = {"seed": seed, "lines": len(lines), "records": len(records), "endpoints": summaries}
    write(out.with_name(out.name.removesuffix(".gz").removesuffix(".jsonl") + ".summary.json"), summary)


def maker_options(parser: argparse.ArgumentParser, **steps: int) -> argparse.ArgumentParser:
    """Those of every maker, with its numbers of steps."""
    for name in ("--corpora", "--out"):
        parser.add_argument(name, type=Path, required=True)
    for name, default in {"seed": 0, **steps}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    return parser


def main() -> None:
    """Command line."""
    commands = (parser := options(__doc__)).add_subparsers(required=True)
    maker_options(commands.add_parser("pair"), steps=1_900, draft_steps=400).set_defaults(make=train_pair)
    traffic = maker_options(commands.add_parser("traffic"))
    for name in ("--target", "--traces"):
        traffic.add_argument(name, type=Path, required=True)
    traffic.set_defaults(make=make_traffic)
    given = vars(parser.parse_args())
    given.pop("make")(**given)


if __name__ == "__main__":
    main()
