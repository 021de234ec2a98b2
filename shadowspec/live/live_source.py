"""Where the counters of an endpoint's production engines are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from shadowspec.servers.engines import ENGINES
from shadowspec.text import suggestion
from shadowspec.types import END_TO_END
from shadowspec.types.settings import HttpUrl, PathText, Seconds, Text, Variable


def _known_engine(name: str) -> str:
    if name not in ENGINES:
        raise ValueError(f"must be one of {', '.join(map(repr, ENGINES))}{suggestion(name, ENGINES)}")
    return name


@dataclass(frozen=True, slots=True)
class LiveSource:
    """Where the counters of one endpoint's production engines are.

    `plain_urls` are those of the replicas without speculation while a rollout is partial: the control.  The key is
    never part of this value: it is read from `api_key_variable` when the pages are read.

    Raises:
        ValueError: two URLs name the same page, or the engine counts no times that a control could compare.
    """

    urls: Annotated[tuple[HttpUrl, ...], Field(alias="metrics_urls", min_length=1)]  # one per replica
    model: Text  # the name under which they serve it
    engine: Annotated[str, AfterValidator(_known_engine)] = next(iter(ENGINES))
    api_key_variable: Variable | None = None
    ca_file: PathText | None = None  # None: the system's authorities
    timeout_s: Seconds = 10.0
    plain_urls: Annotated[tuple[HttpUrl, ...], Field(alias="plain_metrics_urls")] = ()

    def __post_init__(self) -> None:
        if len({url.partition("://")[2] for url in self.all_urls}) != len(self.all_urls):
            keys = "metrics_urls and plain_metrics_urls" if self.plain_urls else "metrics_urls"
            raise ValueError(f"{keys}: the same URL is listed twice")
        if self.plain_urls and END_TO_END not in ENGINES[self.engine].metrics.latencies:
            raise ValueError(f"plain_metrics_urls: {self.engine} counts no times, so that pools cannot be compared")

    @property
    def all_urls(self) -> tuple[str, ...]:
        """The pages of both pools."""
        return (*self.urls, *self.plain_urls)

    @property
    def replicas(self) -> tuple[str, ...]:
        """Names of the speculative pool's replicas (the only pool where there is no other): URLs without the scheme."""
        return tuple(replica_name(url) for url in self.urls)

    @property
    def plain_replicas(self) -> tuple[str, ...]:
        """Names of the plain pool's replicas."""
        return tuple(replica_name(url) for url in self.plain_urls)

    @property
    def all_replicas(self) -> tuple[str, ...]:
        """Those of both pools."""
        return (*self.replicas, *self.plain_replicas)


def replica_name(url: str) -> str:
    """A replica as it is stored and named in messages."""
    parts = urlsplit(url)
    return f"{parts.netloc}{parts.path}"
