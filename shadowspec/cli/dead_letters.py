"""`shadowspec dead-letters`: list records that could not be measured, and send them again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from shadowspec.app.before_loading import require_mirror
from shadowspec.app.progress_bar import notes
from shadowspec.cli.console import print_json, results
from shadowspec.cli.options import ConfigOption, JsonOption, MaxMessagesOption
from shadowspec.config import find_config, load_config
from shadowspec.errors import UsageError
from shadowspec.tap.dead_letter_topic import DeadLetter, make_retry_message, read_dead_letters
from shadowspec.tap.kafka import KafkaSettings
from shadowspec.tap.kafka.producer import TopicWriter, deliver
from shadowspec.types.public_documents import PublicDocument, PublicValue, public, shows

REPLAY_BATCH = 500  # messages in hand at a time


@shows(DeadLetter, "message")
class LetterPart(PublicValue, frozen=True, kw_only=True):
    """A dead letter: where it lies, and where it came from; its content is never shown."""

    source_topic: Annotated[str | None, "topic"]


class LettersDocument(PublicDocument, frozen=True, kw_only=True):
    """The letters of `dead-letters list --json`."""

    topic: str
    dead_letters: Sequence[LetterPart]


class ReplayedLettersDocument(PublicDocument, frozen=True, kw_only=True):
    """What `dead-letters replay --json` sent."""

    topic: str
    to: str
    replayed: int
    without_value: int  # not sent: their values were too large to be stored


app = typer.Typer(no_args_is_help=True)

StageOption = Annotated[str | None, typer.Option("--stage", help="Only failures at this stage.")]
ReasonOption = Annotated[str | None, typer.Option("--reason", help="Only failures for this reason.")]
TopicOption = Annotated[str | None, typer.Option("--topic", help="Only records of this topic.")]


@app.callback()
def dead_letters() -> None:
    """List dead letters, and send them again."""


@app.command("list")
def list_(
    config_path: ConfigOption = None,
    topic: TopicOption = None,
    stage: StageOption = None,
    reason: ReasonOption = None,
    max_messages: Annotated[int, typer.Option("--max-messages", metavar="N", min=1, help="Show the newest N.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """Show source and reason of dead letters, never their content."""
    settings = _settings(config_path)
    is_filtered = any((topic, stage, reason))
    letters = read_dead_letters(settings, limit=None if is_filtered else max_messages)
    chosen = [letter for letter in letters if _matches(letter, topic, stage, reason)]
    chosen = sorted(chosen, key=_age)[-max_messages:]
    if as_json:
        print_json(public(LettersDocument, topic=settings.dead_letter_topic, dead_letters=chosen))
        return
    if not chosen:
        notes.print(f"no {'such ' if is_filtered else ''}dead letter on {settings.dead_letter_topic}", highlight=False)
        return
    table = Table("time", "source", "stage", "reason", "dead letter", box=None)
    for letter in chosen:
        came = f"{letter.topic}[{letter.source_partition}]@{letter.source_offset}"
        lies = f"[{letter.partition}]@{letter.offset}"
        time = "" if letter.time is None else letter.time.isoformat(timespec="milliseconds")
        omitted = "" if letter.num_omitted_bytes is None else f" (value of {letter.num_omitted_bytes:,} bytes omitted)"
        cells = (time, came, letter.stage or "", f"{letter.reason or ''}{omitted}", lies)
        table.add_row(*(_plain(cell) for cell in cells))
    results.print(table)


@app.command()
def replay(
    to: Annotated[str, typer.Option("--to", help="Topic to send them to, one of kafka.retry_topics.")],
    config_path: ConfigOption = None,
    topic: TopicOption = None,
    stage: StageOption = None,
    reason: ReasonOption = None,
    max_messages: MaxMessagesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send dead letters to a retry topic, unchanged, to be measured again.

    The dead letters stay on their topic: a second replay sends them a second time. Those whose value was too large to
    be stored are not sent.
    """
    settings = _settings(config_path)
    if to not in settings.retry_topics:
        topics = ", ".join(settings.retry_topics) or "none"
        unknown = f"is not one of kafka.retry_topics (configured: {topics})"
        why = "is a mirrored topic; shadowspec never writes to one" if to in settings.topics else unknown
        raise UsageError(f"--to {to}: {why}")
    num_replayed = num_without_value = 0
    with TopicWriter(settings, to, name="shadowspec-replay") as writer:
        for letter in read_dead_letters(settings):
            if max_messages is not None and num_replayed >= max_messages:
                break
            if not _matches(letter, topic, stage, reason):
                continue
            if letter.num_omitted_bytes is not None:
                num_without_value += 1
            else:
                writer.send(make_retry_message(letter))
                num_replayed += 1
                if num_replayed % REPLAY_BATCH == 0:
                    deliver(writer)
        deliver(writer)
    if as_json:
        print_json(
            ReplayedLettersDocument(
                topic=settings.dead_letter_topic, to=to, replayed=num_replayed, without_value=num_without_value
            )
        )
        return
    notes.print(f"{num_replayed} messages on {to}", highlight=False, markup=False)
    if num_without_value:
        notes.print(f"{num_without_value} not sent: their values were too large to be stored", highlight=False)


def _settings(config_path: Path | None) -> KafkaSettings:
    return require_mirror(load_config(find_config(config_path)))


def _matches(letter: DeadLetter, topic: str | None, stage: str | None, reason: str | None) -> bool:
    wanted = ((topic, letter.topic), (stage, letter.stage), (reason, letter.reason))
    return all(value is None or value == actual for value, actual in wanted)


def _age(letter: DeadLetter) -> tuple[float, int, int]:
    return (0.0 if letter.time is None else letter.time.timestamp(), letter.partition, letter.offset)


def _plain(cell: str) -> str:
    """A header without characters that a terminal or rich would act on."""
    return escape("".join(character if character.isprintable() else "?" for character in cell))
