"""Reads an endpoint's production engines once, stores their counts, and runs the live guard."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from shadowspec.gate.policy import GatePolicy
from shadowspec.live.scrape import scrape_all
from shadowspec.live.watch import Taken, Watched, alarm_words, take_scrapes, watch
from shadowspec.scheduler.job_settings import LiveSettings
from shadowspec.store import Store
from shadowspec.types import FailedScrape

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LiveRun:
    """The result of one reading: each replica's scrape, and the guard's state after all of them so far."""

    endpoint: str
    settings: LiveSettings
    taken: tuple[Taken, ...]
    watched: Watched

    @property
    def failed(self) -> list[FailedScrape]:
        """The replicas without usable counters."""
        return [each.scraped for each in self.taken if isinstance(each.scraped, FailedScrape)]


def run_live(store: Store, endpoint: str, policy: GatePolicy, settings: LiveSettings) -> LiveRun:
    """Read, keep, look; a replica that fails keeps no other from being read.

    Raises:
        ConfigError: the key's variable is not set, or `ca_file` cannot be read.
        ServiceUnavailableError, StoreError: the database is gone or refuses.
    """
    taken = take_scrapes(store, endpoint, scrape_all(settings.source), settings.source.plain_replicas)
    for each in taken:
        if isinstance(each.scraped, FailedScrape):
            level = logging.WARNING if each.replica.num_failed == 1 else logging.DEBUG  # logged once per failure
            _log.log(level, "live evidence of endpoint %s: %s", endpoint, each.scraped.message)
    watched = watch(store, endpoint, settings.source.replicas, policy, settings.guard, datetime.now(UTC))
    if watched.ordered is not None:
        _log.warning("endpoint %s: override %d: %s", endpoint, watched.ordered, alarm_words(watched))
    return LiveRun(endpoint, settings, tuple(taken), watched)
