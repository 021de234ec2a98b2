"""Where `shadowspec replay` keeps what it finds, if anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from shadowspec.app.console import notes
from shadowspec.config import Config
from shadowspec.engine.candidate import fingerprint_candidate
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.replay.replayer import Drafting, Replayed
from shadowspec.errors import UsageError
from shadowspec.store import Store, current
from shadowspec.tap.endpoints import EndpointRule
from shadowspec.tap.responses import LoggedCall
from shadowspec.types import FingerprintedConfig, ReplayedRecord

BATCH: Final = 200  # records written at a time: with 16 configs and depths some 3,000 rows


def fingerprints_of(
    target: LoadedModel, draftings: Sequence[Drafting], depths: Sequence[int], rule: EndpointRule
) -> list[list[FingerprintedConfig]]:
    """Of each way of drafting, for each depth: what the loop would be known by that ran it."""
    return [
        [
            fingerprint_candidate(
                replace(drafting.config, num_speculative_tokens=depth),
                target,
                drafting.draft,
                rule.requests_per_slot,
                rule.default_sampling,
            )
            for depth in depths
        ]
        for drafting in draftings
    ]


def replayed_record(
    call: LoggedCall, fingerprints: Sequence[Sequence[FingerprintedConfig]], result: Replayed
) -> ReplayedRecord:
    """A replayed response with the configs by which it is stored."""
    prompt = call.prompt
    pairs = [
        pair
        for configs, counts in zip(fingerprints, result.counts, strict=True)
        for pair in zip(configs, counts, strict=True)
    ]
    return ReplayedRecord(prompt.key, prompt.endpoint, call.slice_key, call.unit_key, prompt.event_time, tuple(pairs))


class ReplayWriter:
    """Writes replayed records some at a time; lives as long as its store is open."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[ReplayedRecord] = []
        self.num_records = self.num_new_rows = 0

    def add(self, replayed: ReplayedRecord) -> None:
        """Take a record, and write when there are enough."""
        self._waiting.append(replayed)
        if len(self._waiting) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        self.num_new_rows += self._store.save_replays(self._waiting)
        self.num_records += len(self._waiting)
        self._waiting = []


@contextmanager
def replay_writer(config: Config, wanted: bool | None, *, draft_only: bool) -> Iterator[ReplayWriter | None]:
    """What keeps replayed records; None where nothing is kept.

    Unless it is said (`wanted`), they are kept if there is a database, and the target is loaded: a config is known by
    its target's weights.  What waits at the end is written.

    Raises:
        UsageError: they are to be kept without the target.
        StoreError, ServiceUnavailableError: the database cannot be used; said by `wanted` or found.
    """
    if wanted and draft_only:
        raise UsageError("--store needs the target, because its weights name the stored rows: leave --draft-only out")
    if wanted is False or draft_only:
        yield None
        return
    if wanted is None and current(config.database_url) is None:
        notes.print("not stored: there is no database yet (`shadowspec db upgrade` makes it)", highlight=False)
        yield None
        return
    with Store.open(config.database_url) as store:
        writer = ReplayWriter(store)
        yield writer
        writer.flush()
    records, rows = writer.num_records, writer.num_new_rows
    notes.print(f"stored: {rows} new rows of expected counts, of {records} replayed responses", highlight=False)
