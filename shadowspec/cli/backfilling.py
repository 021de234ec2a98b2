"""From a configuration and places of logs to rows in the database, by way of a cluster.

The reading of files and the judging of their blocks run on the cluster; this process alone writes, and holds the
database's address.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any

from shadowspec.backfill.blocks import Part, Unused, parts
from shadowspec.backfill.cluster import Actors, Judge, called, judged
from shadowspec.backfill.connection import Resources
from shadowspec.backfill.logs import read_log
from shadowspec.backfill.places import shown
from shadowspec.cli.console import notes, progress_bar
from shadowspec.cli.logged import Ended, EndpointTexts, logged_responses
from shadowspec.cli.pipeline import load_tokenizers, new_models
from shadowspec.cli.replay_store import replayed_record
from shadowspec.cli.replayers import Asked, EndpointReplay, chosen_endpoints, load_endpoint
from shadowspec.cli.replaying import WINDOW
from shadowspec.config import Config, EndpointConfig, load_hash_secret
from shadowspec.engine.models import load_end_token_ids
from shadowspec.engine.replay.responses import Response
from shadowspec.errors import ConfigError, InputError, NoDataError, RecordError, ShadowSpecError
from shadowspec.garbage import give_back
from shadowspec.store import Store
from shadowspec.tap.endpoints import Load
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.responses import LoggedCall, ResponseReader
from shadowspec.types import (
    AcceptanceSums,
    BackfilledBlock,
    BlockPlace,
    FingerprintedConfig,
    FunnelKey,
    ReplayedRecord,
)

log = logging.getLogger(__name__)


Call = tuple[LoggedCall, Response]
Finished = Mapping[str, tuple[set[int], bool]]  # of each source: its finished blocks, and whether these are all


@dataclass(frozen=True, slots=True)
class FileRead:
    """A file read to its end, or why it was not.  `num_blocks` None: all were finished, and nothing was cut anew."""

    place: str
    source: str | None
    num_blocks: int | None = None
    error: ShadowSpecError | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """A block as it is written."""

    block: BackfilledBlock
    records: tuple[ReplayedRecord, ...] = field(repr=False)
    messages: Mapping[str, str]  # the first of each reason why a record was refused


@dataclass(frozen=True, slots=True)
class Failed:
    """A block that raised what nobody foresaw; its text may quote a prompt, so that the kind is all that is said."""

    place: BlockPlace
    kind: str


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What a backfill came to, with what earlier ones had finished."""

    configs: Mapping[str, tuple[tuple[FingerprintedConfig, ...], ...]]  # by endpoint, way of drafting and depth
    sums: Mapping[str, Sequence[AcceptanceSums]]  # by endpoint: the whole of it (""), then its slices
    files: tuple[FileRead, ...]
    unfinished_files: tuple[str, ...]  # not read, read and not done, or lost
    failures: Mapping[str, int]  # blocks by the kind of error that ended them
    funnel: Mapping[FunnelKey, int]
    messages: Mapping[str, str]
    num_blocks: int
    num_blocks_found: int  # finished by an earlier backfill
    num_records: int
    num_replayed: int
    num_near_ties: int
    num_new_rows: int


def backfill_files(
    config: Config, files: Sequence[str], asked: Asked, resources: Resources, actors: Actors
) -> Backfilled:
    """Replay the responses of files on a cluster that is connected, and keep what comes of it.

    1. What is asked for, by which weights; 2. what of it is done; 3. the rest, as it comes; 4. what it adds up to.

    Raises:
        ConfigError: no candidate can be replayed piece by piece.
        StoreError, ServiceUnavailableError: the database cannot be used.
    """
    secret = load_hash_secret(config)
    with Store.open(config.database_url) as store:
        # Step 1
        notes.print(f"loading models: {actors.number} actors, {resources.nodes} nodes", highlight=False)
        with notes.status("loading models"):
            configs = called(partial(_fingerprints, config, asked), actors)
        work = work_id(config, asked, secret, configs)
        # Step 2
        finished = store.finished_blocks(work)
        # Step 3
        run = _Run(store, work)
        read = partial(read_file, config, asked, secret, finished)
        build = partial(build_judge, config, asked, actors)
        with progress_bar() as bar:
            task = bar.add_task("replaying files", total=len(files), detail="")
            for found in judged(files, read, build, given_up, actors, readers=actors.number):
                run.take(found)
                bar.update(task, completed=len(run.files), detail=run.detail)
        # Step 4
        return _summary(store, work, configs, run, files, finished)


def work_id(
    config: Config, asked: Asked, secret: bytes, configs: Mapping[str, Sequence[Sequence[FingerprintedConfig]]]
) -> str:
    """What is asked for, as a digest: the same work of the same content need not be done again.

    Routing, slices and hashes are part of it, as are weights, device and precision, by the configs' fingerprints.
    """
    fingerprints = {name: [[own.fingerprint for own in each] for each in ways] for name, ways in configs.items()}
    # How much is measured, and under which load, is nothing to a replay.
    alike: dict[str, Any] = {
        "sample_rate": 1.0,
        "min_rate": 1.0,
        "timed_positions": 1,
        "max_new_tokens": None,
        "loads": (Load(1),),
    }
    rules = [replace(own.rule, **alike, requests_per_slot=1) for own in config.endpoints.values()]
    said = repr((WINDOW, asked, rules, sorted(fingerprints.items()), hashlib.sha256(secret).hexdigest()))
    return hashlib.sha256(said.encode()).hexdigest()


def chosen_parallel(config: Config, endpoint: str | None) -> dict[str, EndpointConfig]:
    """The endpoints with the candidates whose acceptance of a response depends on that response alone.

    Raises:
        ConfigError: one has none.
    """
    chosen: dict[str, EndpointConfig] = {}
    for name, own in chosen_endpoints(config, endpoint).items():
        alone = tuple(each for each in own.candidates if not each.remembers)
        if not alone:
            raise ConfigError(
                f"{config.path}: endpoints.{name}: its candidates draft from the outputs before, whose order blocks do "
                "not keep: replay them with `shadowspec replay`, or set suffix_memory_tokens to 0"
            )
        for each in own.candidates:
            if each.remembers:
                log.warning("left out: candidate %r of %s drafts from the outputs before", each.name, name)
        chosen[name] = replace(own, candidates=alone)
    return chosen


def read_file(
    config: Config, asked: Asked, secret: bytes, finished: Finished, place: str
) -> Iterator[Part[Call] | FileRead]:
    """The blocks of a file that are still to do, then what was read of it."""
    source = None
    try:
        raws = read_log(place)
        first = next(raws)
        source = first.key.source
        numbers, is_whole = finished.get(source, (set(), False))
        if is_whole:
            yield FileRead(place, source)
            return
        tokenizers = load_tokenizers(config)
        texts = {
            name: EndpointTexts(tokenizers[name], load_end_token_ids(own.target, tokenizers[name]))
            for name, own in chosen_parallel(config, asked.endpoint).items()
        }
        rules = [own.rule for own in config.endpoints.values()]
        reader = ResponseReader(rules, tokenizers, KeyedHash(secret))
        found = (_told(each) for each in logged_responses(chain([first], raws), reader, texts))
        count = 0
        for part in parts(source, found, WINDOW):
            count = part.place.number + 1
            if part.place.number not in numbers:
                yield part
        yield FileRead(place, source, count)
    except ShadowSpecError as error:
        yield FileRead(place, source, error=error)
    except Exception as error:  # its text may quote a prompt
        yield FileRead(place, source, error=InputError(f"{shown(place)}: reading it ended in {type(error).__name__}"))


def build_judge(config: Config, asked: Asked, actors: Actors) -> Judge:
    """Load the models of all endpoints, once in each actor."""
    import torch

    torch.set_num_threads(max(1, int(actors.cpus)))
    endpoints = _load(config, asked)

    def judge(row: Part[Call] | FileRead) -> Judged | Failed | FileRead:
        if isinstance(row, FileRead):
            return row
        try:
            return _judge(row, endpoints)
        except Exception as error:
            return Failed(row.place, type(error).__name__)
        finally:
            give_back()

    return judge


def given_up(row: Part[Call] | FileRead) -> Failed | FileRead:
    """What becomes of a block that ends every process that judges it."""
    return row if isinstance(row, FileRead) else Failed(row.place, "a process that died")


def _judge(part: Part[Call], endpoints: Mapping[str, EndpointReplay]) -> Judged:
    funnel, messages = Counter(part.funnel), dict(part.messages)
    records: list[ReplayedRecord] = []
    num_near_ties = 0
    if part.endpoint is not None:
        own = endpoints[part.endpoint]
        results = own.replayer.replay([response for _, response in part.calls])
        for (call, _), result in zip(part.calls, results, strict=True):
            if isinstance(result, RecordError):
                ended = Ended.refused(call, result)
                funnel[ended.end] += 1
                messages.setdefault(result.reason, str(result))
            else:
                records.append(replayed_record(call, own.fingerprints, result))
                num_near_ties += result.num_near_ties
    block = BackfilledBlock(
        place=part.place,
        is_last=part.is_last,
        num_records=part.num_records,
        num_replayed=len(records),
        num_near_ties=num_near_ties,
        funnel=funnel,
        last_event=max((record.event_time for record in records), default=None),
    )
    return Judged(block, tuple(records), messages)


def _load(config: Config, asked: Asked) -> dict[str, EndpointReplay]:
    tokenizers = load_tokenizers(config)
    models = new_models(config)
    return {
        name: load_endpoint(own, models, tokenizers[name], asked, is_stored=True)
        for name, own in chosen_parallel(config, asked.endpoint).items()
    }


def _fingerprints(config: Config, asked: Asked) -> dict[str, tuple[tuple[FingerprintedConfig, ...], ...]]:
    return {name: tuple(tuple(each) for each in own.fingerprints) for name, own in _load(config, asked).items()}


def _told(found: Call | Ended) -> tuple[str, Call] | Unused:
    if isinstance(found, Ended):
        return Unused(found.end, str(found.refusal) if found.refusal is not None else None)
    return found[0].prompt.endpoint, found


class _Run:
    """Writes what comes back, and counts it."""

    def __init__(self, store: Store, work: str) -> None:
        self._store, self._work = store, work
        self.files: list[FileRead] = []
        self.failures: Counter[str] = Counter()
        self.messages: dict[str, str] = {}
        self.num_blocks = self.num_replayed = self.num_new_rows = 0

    def take(self, found: Judged | Failed | FileRead) -> None:
        """One row of what comes back."""
        if isinstance(found, FileRead):
            self.files.append(found)
        elif isinstance(found, Failed):
            self.failures[found.kind] += 1
            log.warning("block %d of %s ended in %s", found.place.number, found.place.source[:12], found.kind)
        else:
            self.num_new_rows += self._store.save_backfilled(self._work, found.block, found.records)
            self.num_blocks += 1
            self.num_replayed += found.block.num_replayed
            for reason, message in found.messages.items():
                self.messages.setdefault(reason, message)

    @property
    def detail(self) -> str:
        return f"{self.num_blocks:,} blocks, {self.num_replayed:,} responses replayed"


def _summary(
    store: Store,
    work: str,
    configs: Mapping[str, tuple[tuple[FingerprintedConfig, ...], ...]],
    run: _Run,
    files: Sequence[str],
    before: Finished,
) -> Backfilled:
    sources = {own.source for own in run.files if own.source is not None}
    blocks = store.backfilled_blocks(work, sources)
    done: Counter[str] = Counter(block.place.source for block in blocks)
    whole = {
        own.place
        for own in run.files
        if isinstance(own.error, NoDataError)
        or (own.error is None and (own.num_blocks is None or done[own.source or ""] == own.num_blocks))
    }
    funnel: Counter[FunnelKey] = Counter()
    for block in blocks:
        funnel.update(block.funnel)
    fingerprints = {own.fingerprint for ways in configs.values() for each in ways for own in each}
    return Backfilled(
        configs=configs,
        sums=store.backfilled_sums(sources, fingerprints, list(configs)),
        files=tuple(sorted(run.files, key=lambda own: own.place)),
        unfinished_files=tuple(place for place in files if place not in whole),
        failures=run.failures,
        funnel=funnel,
        messages=run.messages,
        num_blocks=len(blocks),
        num_blocks_found=sum(len(before[source][0]) for source in sources if source in before),
        num_records=sum(block.num_records for block in blocks),
        num_replayed=sum(block.num_replayed for block in blocks),
        num_near_ties=sum(block.num_near_ties for block in blocks),
        num_new_rows=run.num_new_rows,
    )
