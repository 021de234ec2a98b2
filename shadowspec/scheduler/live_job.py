"""Reads an endpoint's production engines once, keeps what they counted, and lets the live guard look."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from shadowspec.live.metric_names import LiveSource
from shadowspec.live.scrape import scrape_all
from shadowspec.live.watch import Taken, Watched, alarm_words, take_scrapes, watch
from shadowspec.store import Store
from shadowspec.types import FailedScrape
from shadowspec.types.live_windows import GuardPolicy

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LiveJob:
    """An endpoint whose production is read every `interval_s` seconds."""

    endpoint: str
    source: LiveSource
    guard: GuardPolicy
    interval_s: float


@dataclass(frozen=True, slots=True)
class LiveRun:
    """What one reading came to: each replica's scrape, and what the guard makes of all of them so far."""

    job: LiveJob
    taken: tuple[Taken, ...]
    watched: Watched

    @property
    def failed(self) -> list[FailedScrape]:
        """The replicas that said nothing usable."""
        return [each.scraped for each in self.taken if isinstance(each.scraped, FailedScrape)]


def run_live(store: Store, job: LiveJob) -> LiveRun:
    """Read, keep, look; a replica that fails keeps no other from being read.

    Raises:
        ConfigError: the key's variable is not set, or `ca_file` cannot be read.
        ServiceUnavailableError, StoreError: the database is gone or refuses.
    """
    taken = take_scrapes(store, job.endpoint, scrape_all(job.source))
    for each in taken:
        if isinstance(each.scraped, FailedScrape):
            level = logging.WARNING if each.replica.num_failed == 1 else logging.DEBUG  # told once, until it is mended
            _log.log(level, "live evidence of endpoint %s: %s", job.endpoint, each.scraped.message)
    watched = watch(store, job.endpoint, job.source.replicas, job.guard, datetime.now(UTC))
    if watched.ordered is not None:
        _log.warning("endpoint %s: override %d: %s", job.endpoint, watched.ordered, alarm_words(watched))
    return LiveRun(job, tuple(taken), watched)
