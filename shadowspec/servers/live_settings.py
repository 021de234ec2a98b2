"""Where the counters of an endpoint's production engines are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class LiveSource:
    """Where the counters of one endpoint's production engines are.

    The key is never part of this value: it is read from `api_key_variable` when the pages are read.
    """

    engine: str  # of ENGINES
    urls: tuple[str, ...]  # of pages of metrics, one per replica
    model: str  # the name under which they serve it
    api_key_variable: str | None = None
    ca_file: Path | None = None  # None: the system's authorities
    timeout_s: float = 10.0

    @property
    def replicas(self) -> tuple[str, ...]:
        """The replicas' names: their URLs without the scheme."""
        return tuple(replica_name(url) for url in self.urls)


def replica_name(url: str) -> str:
    """A replica as it is stored and named in messages."""
    parts = urlsplit(url)
    return f"{parts.netloc}{parts.path}"
