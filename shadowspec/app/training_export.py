"""An endpoint's logged conversations as a data set for the training of a draft, with a card that says what is in it.

The form is that which `speculators prepare-data` reads (speculators 0.9.0, data_generation/preprocessing.py): one JSON
object a line, `conversations` with turns of `role` (system, user, assistant or tool), `content`, `reasoning_content`,
`tool_calls` and `tool_call_id`, and `tools` as text of JSON.  It takes any other role for the assistant's, so that
conversations with one are refused.  The arguments of a tool call are text of JSON too: as objects of many kinds they
would be one struct of all their keys.  Every line has every key, and the first lines have a value for each, because
`datasets` takes the types of a file from its beginning.

No conversation is there twice, and of one that continues another only the longer: a hash of what stands before a turn
knows both.  Memory holds these hashes and one file of records, not the data set.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final

from shadowspec.app.before_loading import any_tokenizers
from shadowspec.app.progress_bar import progress_bar, track_records
from shadowspec.config import Config, load_hash_secret
from shadowspec.config.sections import BUILT_IN_LABELS
from shadowspec.errors import InputError, NoDataError, RecordError, UsageError
from shadowspec.tap.context_buckets import context_bucket
from shadowspec.tap.endpoints import EndpointRule
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.parameters import unsupported_error
from shadowspec.tap.responses import Conversation, LoggedCall, ResponseReader
from shadowspec.text import moment, slice_title
from shadowspec.types import FunnelCounter, FunnelKey, RecordKey, format_slice_key

DATA_FILE: Final = "conversations.jsonl"
CARD_FILE: Final = "README.md"
ROLES: Final = frozenset({"system", "user", "assistant", "tool"})
CONTEXT_BUCKET: Final = "context_bucket"
HASH_BYTES: Final = 16

Row = dict[str, Any]


@dataclass(slots=True)
class ExportedSlice:
    """What one slice has in the data set.  Tokens are the server's counts, of the conversations that have them."""

    num_conversations: int = 0
    num_assistant_turns: int = 0  # each is a training example
    num_greedy: int = 0
    num_counted: int = 0  # conversations with both counts of tokens
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TrainingExport:
    """What was written: counts by slice, where the other records ended, and the sha256 of each data file."""

    endpoint: str
    out: Path
    labels: Mapping[str, str]
    num_read: int
    by_slice: Mapping[str, ExportedSlice]
    temperatures: Mapping[float, int]  # conversations by temperature
    funnel: Mapping[FunnelKey, int]
    first_event: datetime
    last_event: datetime
    sha256: Mapping[str, str]

    @property
    def num_used(self) -> int:
        """Records whose conversation is in the data set."""
        return sum(counts.num_conversations for counts in self.by_slice.values())


def export_training(
    config: Config, paths: Sequence[str], endpoint: str, labels: Mapping[str, str], out: Path
) -> TrainingExport:
    """Write the endpoint's conversations with these labels to a new folder that only its owner can read.

    The folder appears whole or not at all.

    Raises:
        UsageError: the folder exists and is not empty, or the endpoint keeps no such label.
        ConfigError: there is no such endpoint, or no secret.
        InputError: a file cannot be read, or the folder cannot be written.
        NoDataError: no record has a conversation that can be used.
    """
    rule = config.chosen(endpoint)[endpoint].rule
    kept_labels = (*BUILT_IN_LABELS, *rule.labels)
    if unknown := [name for name in labels if name not in kept_labels]:
        raise UsageError(
            f"--slice {unknown[0]}={labels[unknown[0]]}: endpoint {endpoint!r} keeps no label {unknown[0]!r} "
            f"(its labels: {', '.join(kept_labels)})"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out {out}: exists already and is not empty; choose another folder")
    rules = [settings.rule for settings in config.endpoints.values()]
    secret = KeyedHash(load_hash_secret(config))
    reader = ResponseReader(rules, any_tokenizers(rules), secret, format=config.file_format, takes_untimed=True)
    with _new_folder(out) as folder, _DataSet(folder) as data:
        chosen = _ChosenCalls(rule, labels, data)
        with progress_bar() as bar:
            for path in paths:
                chosen.read(track_records(path, bar, "reading", lambda: f"{data.num_kept} conversations"), reader)
            chosen.end(reader.drain())
        if not data.num_kept:
            reasons = ", ".join(sorted({reason or counter for _, counter, reason in chosen.funnel})) or "no record"
            raise NoDataError(
                f"no record of endpoint {endpoint!r} has a conversation with its answer that can be used ({reasons})"
                f"{'; record responses too (docs/capture.md)' if 'no_response' in reasons else ''}"
            )
        export = chosen.finish(endpoint, out)
        _write_private(folder / CARD_FILE, card(export, config.endpoints[endpoint].target).encode())
    return export


class _ChosenCalls:
    """Chooses calls of an endpoint, and counts where every record ended."""

    def __init__(self, rule: EndpointRule, labels: Mapping[str, str], data: _DataSet) -> None:
        self._rule, self._labels, self._data = rule, labels, data
        self.funnel: Counter[FunnelKey] = Counter()
        self.num_read = 0

    def read(self, raws: Iterable[Any], reader: ResponseReader) -> None:
        """Take the calls of a file's messages."""
        self.end(chain.from_iterable(reader.read(raw) for raw in raws))

    def end(self, calls: Iterable[LoggedCall | tuple[RecordKey, FunnelKey]]) -> None:
        """Take calls, and count records that ended before."""
        for call in calls:
            self.num_read += 1
            if isinstance(call, tuple):
                self.funnel[call[1]] += 1
                continue
            try:
                if not self._take(call):
                    self.funnel[call.prompt.endpoint, FunnelCounter.DUPLICATE, "same_conversation"] += 1
            except RecordError as error:
                self.funnel[call.prompt.endpoint, FunnelCounter(error.counter), error.reason] += 1

    def _take(self, call: LoggedCall) -> bool:
        """Add a call's conversation; False where the data set has it already."""
        if call.prompt.endpoint != self._rule.name:
            raise RecordError(FunnelCounter.SAMPLED_OUT, "other_endpoint")
        conversation = call.conversation()
        labels = dict(call.prompt.labels)
        if conversation.num_prompt_tokens is not None:
            labels[CONTEXT_BUCKET] = context_bucket(conversation.num_prompt_tokens)
        elif CONTEXT_BUCKET in (*self._rule.slice_by, *self._labels):
            raise unsupported_error("no_prompt_token_count")
        if any(labels.get(name) != value for name, value in self._labels.items()):
            raise RecordError(FunnelCounter.SAMPLED_OUT, "other_label")
        sampling, logged = call.prompt.sampling, call.prompt.response
        assert logged is not None, "the conversation has an answer"
        return self._data.add(
            training_row(conversation),
            _Facts(
                format_slice_key(labels, self._rule.slice_by),
                self._rule.name,
                call.prompt.event_time,
                sampling.temperature,
                conversation.num_prompt_tokens,
                logged.num_output_tokens,
            ),
        )

    def finish(self, endpoint: str, out: Path) -> TrainingExport:
        """Write the data file, and say what is in it."""
        by_slice: dict[str, ExportedSlice] = {}
        temperatures: Counter[float] = Counter()
        times: list[datetime] = []
        digest = self._data.finish()
        for facts, num_turns in self._data.kept():
            counts = by_slice.setdefault(facts.slice_key, ExportedSlice())
            counts.num_conversations += 1
            counts.num_assistant_turns += num_turns
            counts.num_greedy += facts.temperature == 0.0
            if facts.num_prompt_tokens is not None and facts.num_output_tokens is not None:
                counts.num_counted += 1
                counts.num_prompt_tokens += facts.num_prompt_tokens
                counts.num_output_tokens += facts.num_output_tokens
            temperatures[facts.temperature] += 1
            times.append(facts.event_time)
        if self._data.num_continued:
            self.funnel[endpoint, FunnelCounter.DUPLICATE, "continued_later"] += self._data.num_continued
        return TrainingExport(
            endpoint, out, dict(self._labels), self.num_read, dict(sorted(by_slice.items())),
            dict(sorted(temperatures.items())), dict(self.funnel), min(times), max(times), {DATA_FILE: digest},
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the card counts of one conversation."""

    slice_key: str
    endpoint: str
    event_time: datetime
    temperature: float
    num_prompt_tokens: int | None
    num_output_tokens: int | None


@dataclass(slots=True)
class _KeptRow:
    """A line of the spool."""

    offset: int  # bytes
    num_bytes: int
    num_turns: int
    facts: _Facts
    traits: frozenset[str] = field(default_factory=frozenset)  # keys that have a value somewhere in it
    is_continued: bool = False  # a longer conversation begins with this one


class _DataSet:
    """The data file as it is made: a spool of all rows, and hashes by which repeated beginnings are known."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._spool: BinaryIO = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed by __exit__)
        self._rows: list[_KeptRow] = []
        self._by_hash: dict[bytes, _KeptRow] = {}  # of whole conversations
        self._beginnings: set[bytes] = set()  # of whole conversations without their last turns
        self._num_bytes = 0
        self.num_continued = 0  # conversations that were added and are the beginning of a longer one

    def __enter__(self) -> _DataSet:
        return self

    def __exit__(self, *_: object) -> None:
        self._spool.close()

    @property
    def num_kept(self) -> int:
        """Conversations that will be in the file, by those added so far."""
        return len(self._rows) - self.num_continued

    def add(self, row: Row, facts: _Facts) -> bool:
        """Add a conversation; False where it is there already, alone or as the beginning of another."""
        *beginnings, whole = _turn_hashes(row)
        if whole in self._by_hash or whole in self._beginnings:
            return False
        for beginning in beginnings:
            shorter = self._by_hash.get(beginning)
            if shorter is not None and not shorter.is_continued:
                shorter.is_continued = True
                self.num_continued += 1
        turns = row["conversations"]
        line = json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        traits = {name for turn in turns for name, value in turn.items() if value is not None}
        traits |= {"tools"} if row["tools"] is not None else set()
        num_turns = sum(turn["role"] == "assistant" for turn in turns)
        kept = _KeptRow(self._num_bytes, len(line), num_turns, facts, frozenset(traits))
        self._spool.write(line)
        self._num_bytes += len(line)
        self._rows.append(kept)
        self._by_hash[whole] = kept
        self._beginnings.update(beginnings)
        return True

    def kept(self) -> Iterator[tuple[_Facts, int]]:
        """The facts of the conversations in the file, and their numbers of assistant turns."""
        return ((row.facts, row.num_turns) for row in self._rows if not row.is_continued)

    def finish(self) -> str:
        """Write the file; its sha256."""
        rows = [row for row in self._rows if not row.is_continued]
        typed: set[str] = set()
        first: list[_KeptRow] = []
        for row in rows:
            if not row.traits <= typed:
                typed |= row.traits
                first.append(row)
        leading = {id(row) for row in first}
        digest = hashlib.sha256()
        with os.fdopen(_private(self._folder / DATA_FILE), "wb") as file:
            for row in chain(first, (row for row in rows if id(row) not in leading)):
                self._spool.seek(row.offset)
                line = self._spool.read(row.num_bytes)
                digest.update(line)
                file.write(line)
        return digest.hexdigest()


def training_row(conversation: Conversation) -> Row:
    """The line of a conversation.

    Raises:
        RecordError: unsupported; a turn has another role.
    """
    turns = [_turn(message) for message in (*conversation.messages, conversation.answer)]
    tools = conversation.tools
    return {"conversations": turns, "tools": json.dumps(tools, ensure_ascii=False) if tools else None}


def _turn(message: Mapping[str, Any]) -> Row:
    role = message["role"]
    if role not in ROLES:
        raise unsupported_error("other_role")
    calls = [_tool_call(call) for call in message.get("tool_calls") or ()]
    return {
        "role": role,
        "content": message.get("content") or "",
        "reasoning_content": message.get("reasoning_content"),
        "tool_calls": calls or None,
        "tool_call_id": message.get("tool_call_id"),
    }


def _tool_call(call: Mapping[str, Any]) -> Row:
    function = call["function"]
    arguments = json.dumps(function.get("arguments") or {}, ensure_ascii=False)
    return {
        "id": call.get("id"), "type": "function", "function": {"name": function.get("name"), "arguments": arguments}
    }  # fmt: skip


def _turn_hashes(row: Row) -> list[bytes]:
    """For every turn the hash of the tools and all turns up to it."""
    running = hashlib.blake2b((row["tools"] or "").encode(), digest_size=HASH_BYTES)
    hashes = []
    for turn in row["conversations"]:
        running.update(json.dumps(turn, sort_keys=True).encode() + b"\n")
        hashes.append(running.copy().digest())
    return hashes


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A folder that becomes `out` where the block ends well; of mode 0700."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))  # of mode 0700
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written ({error.strerror}); give another path") from error
    try:
        yield folder
        folder.replace(out)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be written ({error.strerror}); give another path") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _private(path: Path) -> int:
    """The descriptor of a new file of mode 0600."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def _write_private(path: Path, content: bytes) -> None:
    with os.fdopen(_private(path), "wb") as file:
        file.write(content)


def card(export: TrainingExport, target: str) -> str:
    """The card of the data set, in Markdown; it holds no text of a prompt or an answer."""
    rows = [
        f"| {slice_title(slice_key)} | {counts.num_conversations:,} | {counts.num_assistant_turns:,} | "
        f"{counts.num_greedy:,} | {_tokens(counts, counts.num_prompt_tokens)} | "
        f"{_tokens(counts, counts.num_output_tokens)} |"
        for slice_key, counts in export.by_slice.items()
    ]
    refused = [
        f"| {endpoint or 'unmatched'} | {counter.value} | {reason or ''} | {number:,} |"
        for (endpoint, counter, reason), number in sorted(
            export.funnel.items(), key=lambda ending: (-ending[1], str(ending[0]))
        )
    ]
    chosen = ", ".join(f"{name}={value}" for name, value in export.labels.items()) or "every slice"
    temperatures = ", ".join(f"{value:g} ({number:,})" for value, number in export.temperatures.items())
    digests = "\n".join(f"- `{name}`: sha256 `{digest}`" for name, digest in export.sha256.items())
    return "\n".join(
        [
            f"# Training conversations of endpoint {export.endpoint}",
            "",
            "**These files hold the text of prompts and answers.** Handle them as the log they were made of. Keep "
            "them private (mode 0600 in a folder of mode 0700), and delete them with it. Do not publish them, nor, "
            "unasked, a draft that was trained on them, because weights can reproduce text.",
            "",
            f"Made by `shadowspec export-training` for the target {target}, in the form that `speculators "
            "prepare-data` reads.",
            "",
            f"- Chosen: {chosen}.",
            f"- Records: {export.num_read:,} read, {export.num_used:,} used, "
            f"{export.num_read - export.num_used:,} not used (below). Every record of the log was read: the "
            "endpoint's sampling rate did not apply.",
            f"- Time: {moment(export.first_event)} to {moment(export.last_event)}.",
            f"- Sampling, by temperature: {temperatures}.",
            "- No conversation is there twice, and of one that continues another only the longer. A longer one's "
            "earlier assistant turns are as the client sent them back.",
            "",
            digests,
            "",
            "| slice | conversations | assistant turns | greedy | prompt tokens | output tokens |",
            "|---|---:|---:|---:|---:|---:|",
            *rows,
            "",
            "Tokens are the server's counts of each conversation's last request; + where some records have none.",
            "",
            "## Records that were not used",
            "",
            *(["| endpoint | counter | reason | records |", "|---|---|---|---:|", *refused] if refused else ["None."]),
            "",
        ]
    )


def _tokens(counts: ExportedSlice, number: int) -> str:
    if not counts.num_counted:
        return "not counted"
    return f"{number:,}{'' if counts.num_counted == counts.num_conversations else '+'}"
