"""From a configuration and places of logs to rows in the database, by way of a cluster.

The reading of files and the judging of their blocks run on the cluster; only this process writes, and holds the
database's address.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from shadowspec.app.backfill_judge import (
    FailedBlock,
    FileRead,
    Finished,
    Judged,
    build_judge,
    fail_block,
    fingerprints,
    read_file,
)
from shadowspec.app.progress_bar import notes, progress_bar
from shadowspec.app.replay_records import WINDOW
from shadowspec.app.replayers import Asked
from shadowspec.backfill.cluster import Actors, call_remotely, judge_rows
from shadowspec.backfill.connection import Resources
from shadowspec.config import Config, load_hash_secret
from shadowspec.errors import NoDataError
from shadowspec.store import Store
from shadowspec.tap.endpoints import Load
from shadowspec.tap.formats import MessageFormat
from shadowspec.text import plural
from shadowspec.types import AcceptanceSums, FingerprintedConfig, FunnelKey

log = logging.getLogger(__name__)


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
        who = f"{plural(actors.number, 'actor')}, {plural(resources.nodes, 'node')}"
        notes.print(f"loading models: {who}", highlight=False)
        with notes.status("loading models"):
            configs = call_remotely(partial(fingerprints, config, asked), actors)
        work = work_id(config, asked, secret, configs)
        # Step 2
        finished = store.finished_blocks(work)
        # Step 3
        run = _ReplayWriter(store, work)
        read = partial(read_file, config, asked, secret, finished)
        build = partial(build_judge, config, asked, actors)
        with progress_bar() as bar:
            task = bar.add_task("replaying files", total=len(files), detail="")
            for judged in judge_rows(files, read, build, fail_block, actors, readers=actors.number):
                run.take(judged)
                bar.update(task, completed=len(run.files), detail=run.detail)
        # Step 4
        return _summary(store, work, configs, run, files, finished)


def work_id(
    config: Config, asked: Asked, secret: bytes, configs: Mapping[str, Sequence[Sequence[FingerprintedConfig]]]
) -> str:
    """What is asked for, as a digest: the same work of the same content need not be done again.

    Routing, slices, hashes and a map are part of it; weights, device and precision are by the configs' fingerprints.
    """
    named = {
        name: [[fingerprinted.fingerprint for fingerprinted in group] for group in groups]
        for name, groups in configs.items()
    }
    # How much is measured, and under which load, is nothing to a replay.
    alike: dict[str, Any] = {
        "sample_rate": 1.0,
        "min_rate": 1.0,
        "timed_positions": 1,
        "max_new_tokens": None,
        "loads": (Load(1),),
    }
    rules = [replace(endpoint.rule, **alike, requests_per_slot=1) for endpoint in config.endpoints.values()]
    mapped = () if config.file_format is MessageFormat.AUTO else (str(config.file_format),)
    said = repr((WINDOW, asked, rules, sorted(named.items()), hashlib.sha256(secret).hexdigest(), *mapped))
    return hashlib.sha256(said.encode()).hexdigest()


class _ReplayWriter:
    """Writes what comes back, and counts it."""

    def __init__(self, store: Store, work: str) -> None:
        self._store, self._work = store, work
        self.files: list[FileRead] = []
        self.failures: Counter[str] = Counter()
        self.messages: dict[str, str] = {}
        self.num_blocks = self.num_replayed = self.num_new_rows = 0

    def take(self, judged: Judged | FailedBlock | FileRead) -> None:
        """One row of what comes back."""
        if isinstance(judged, FileRead):
            self.files.append(judged)
        elif isinstance(judged, FailedBlock):
            self.failures[judged.kind] += 1
            log.warning("block %d of %s ended in %s", judged.place.number, judged.place.source[:12], judged.kind)
        else:
            self.num_new_rows += self._store.save_backfilled(self._work, judged.block, judged.records)
            self.num_blocks += 1
            self.num_replayed += judged.block.num_replayed
            for reason, message in judged.messages.items():
                self.messages.setdefault(reason, message)

    @property
    def detail(self) -> str:
        return f"{self.num_blocks:,} blocks, {self.num_replayed:,} responses replayed"


def _summary(
    store: Store,
    work: str,
    configs: Mapping[str, tuple[tuple[FingerprintedConfig, ...], ...]],
    run: _ReplayWriter,
    files: Sequence[str],
    before: Finished,
) -> Backfilled:
    sources = {file.source for file in run.files if file.source is not None}
    blocks = store.backfilled_blocks(work, sources)
    done: Counter[str] = Counter(block.place.source for block in blocks)
    whole = {
        file.place
        for file in run.files
        if isinstance(file.error, NoDataError)
        or (file.error is None and (file.num_blocks is None or done[file.source or ""] == file.num_blocks))
    }
    funnel: Counter[FunnelKey] = Counter()
    for block in blocks:
        funnel.update(block.funnel)
    wanted = {config.fingerprint for groups in configs.values() for group in groups for config in group}
    return Backfilled(
        configs=configs,
        sums=store.backfilled_sums(sources, wanted, list(configs)),
        files=tuple(sorted(run.files, key=lambda file_read: file_read.place)),
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
