"""The first lines of a recording: which formats and models they hold, before a tokenizer is loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from shadowspec.errors import NoDataError, RecordError, UsageError
from shadowspec.gate.policy import GatePolicy
from shadowspec.tap.documents import split_message
from shadowspec.tap.formats import FieldMap, MessageFormat, Opened, open_message, propose
from shadowspec.tap.joining import DEFAULT_WINDOW, Joiner
from shadowspec.tap.load_trace import ArrivalTimes, LoadTrace
from shadowspec.tap.parameters import REMEDIES
from shadowspec.tap.records import NOT_LOGGED
from shadowspec.tap.sources import STANDARD_INPUT, RawRecord, read_records
from shadowspec.text import plain_text, plural, span_text

SAMPLED_LINES: Final = 4_000  # some seconds of tokenizing; enough for the shares of slices and lengths
SHOWN_MODELS: Final = 5


class UnknownFormatError(NoDataError):
    """No line of a file is a record in any format; `proposal` is a map by which they may be, if one is recognised."""

    def __init__(self, message: str, proposal: FieldMap | None) -> None:
        super().__init__(message)
        self.proposal = proposal


@dataclass(frozen=True, slots=True)
class Sample:
    """What the first SAMPLED_LINES of a file hold; `digest` is the sha256 of the whole content."""

    path: str
    digest: str
    num_lines: int  # of the file; blank ones do not count
    num_sampled: int
    opened: tuple[Opened, ...]
    trace: LoadTrace | None = None  # whose times the records have

    @property
    def gaps(self) -> tuple[str, ...]:
        """What the records lack that a verdict of production needs, each as a sentence that says what follows."""
        records = [message.record for message in self.opened if message.record is not None]
        num_untimed = sum(
            message.record.is_untimed(message.key.timestamp_ms) for message in self.opened if message.record is not None
        )
        num_unsampled = sum(record.is_unsampled for record in records)
        of_all = f"of {plural(len(records), 'record')}"
        gaps = [] if self.trace is None else list(self.trace.consequences(self.num_lines))
        if num_untimed:
            gaps.append(
                f"{num_untimed:,} {of_all} have no time: their order replaces it, and those that begin with the same "
                "user message count as one session. So nothing is said of arrivals"
            )
        if num_unsampled:
            gaps.append(
                f"{num_unsampled:,} {of_all} have no sampling parameters: they are sampled with the defaults below, "
                "and acceptance may differ from production's"
            )
        unlogged = Counter(text for record in records if isinstance(text := record.annotation(NOT_LOGGED), str))
        gaps += [
            f"{number:,} {of_all} come from a log that never holds {plain_text(names)}. Where production sets these, "
            "acceptance may differ"
            for names, number in unlogged.items()
        ]
        return tuple(gaps)

    @property
    def scale(self) -> float:
        """Lines of the file for each one that was sampled."""
        return self.num_lines / self.num_sampled


@dataclass(frozen=True, slots=True)
class ServedModels:
    """The names under which the target is served, the most frequent first; `others` are those of other models."""

    names: tuple[str, ...]
    others: Counter[str]


def read_sample(
    path: str, format: MessageFormat | FieldMap = MessageFormat.AUTO, trace: LoadTrace | None = None
) -> Sample:
    """Open the first lines of a file, in whichever format they are where none is given, and count the others.

    The records take the times of the trace, if there is one.

    Raises:
        UsageError: it is standard input, which cannot be read twice.
        InputError: the file is missing or unreadable.
        NoDataError: it holds no line, or none that is a record.
    """
    if path == STANDARD_INPUT:
        raise UsageError("--traffic -: standard input cannot be read again to continue; give a file")
    lines = read_records(path)
    raws = list(islice(lines, SAMPLED_LINES))
    num_lines = len(raws) + sum(1 for _ in lines)
    joiner = Joiner(DEFAULT_WINDOW)
    opened: list[Opened] = []
    for raw in raws:
        for message in open_message(raw, format):
            opened += joiner.add(message.key, message.half) if message.half is not None else [message]
    opened += joiner.drain()
    if all(message.record is None for message in opened):
        reasons = Counter(message.error.reason for message in opened if message.error is not None)
        proposal = _propose(raws) if set(reasons) == {"unknown_format"} else None
        if proposal is not None:
            found = ", ".join(f"{part} under `{paths[0]}`" for part, paths in proposal.places.items())
            remedy = f"line {raws[0].key.offset} has {found}: give --map {proposal}{_unnamed(proposal)}"
        elif remedies := [REMEDIES[reason] for reason in reasons if reason in REMEDIES]:
            remedy = remedies[0]
        else:
            remedy = (
                "give JSON lines of requests in one of the formats of docs/formats.md, or say with --map where they are"
            )
        raise UnknownFormatError(
            f"{path}: no record is among the first {plural(len(raws), 'line')} ({_counts(reasons)}); {remedy}",
            proposal,
        )
    if trace is not None:
        arrivals = ArrivalTimes(trace)
        for message in opened:
            arrivals.give(message)
    return Sample(path, raws[0].key.source, num_lines, len(raws), tuple(opened), trace)


def _propose(raws: Sequence[RawRecord]) -> FieldMap | None:
    documents = []
    for raw in raws:
        try:
            documents += split_message(raw.value or b"")
        except RecordError:
            continue
    return propose(documents)


def _unnamed(proposal: FieldMap) -> str:
    """What follows where a proposed map has no session, as further sentences."""
    if "session" in proposal.places:
        return ""
    unit = "a user's requests of a day count as one session"
    if "user" not in proposal.places:
        block = span_text(GatePolicy().time_block_s)
        unit = f"requests of the same {block} (without times, of the same first user message) count as one session"
    missing = [part for part in ("session", "user") if part not in proposal.places]
    names, paths = " or ".join(missing), " or ".join(f"{part}=PATH" for part in missing)
    return f". No {names} was recognised, so {unit}; if the lines name one, add {paths}"


def served_models(sample: Sample, given: Sequence[str]) -> ServedModels:
    """The names of the target: those that are given, else the one that most records ask for; and what it answers as.

    Raises:
        UsageError: no record asks for a given name.
        NoDataError: no record names a model.
    """
    asked: Counter[str] = Counter()
    answers: dict[str, Counter[str]] = {}
    for message in sample.opened:
        if message.record is None:
            continue
        answer = message.record.in_response("model")
        name = message.record.model or answer
        if isinstance(name, str) and name:
            asked[name] += 1
            if isinstance(answer, str) and answer:
                answers.setdefault(name, Counter())[answer] += 1
    if not asked and given:  # nothing contradicts them
        return ServedModels(tuple(given), Counter())
    if not asked:
        raise NoDataError(f"{sample.path}: no record names a model; name it with --model, or write request.model")
    if missing := [name for name in given if name not in asked]:
        raise UsageError(f"--model {missing[0]}: no record asks for it; the records ask for {_counts(asked)}")
    chosen = list(given) or [asked.most_common(1)[0][0]]
    names = dict.fromkeys([*chosen, *(answer for name in chosen for answer in answers.get(name, ()))])
    return ServedModels(tuple(names), Counter({name: number for name, number in asked.items() if name not in names}))


def _counts(answers: Counter[str]) -> str:
    shown = ", ".join(f"{plain_text(name)}: {number}" for name, number in answers.most_common(SHOWN_MODELS))
    return shown + (", ..." if len(answers) > SHOWN_MODELS else "")
