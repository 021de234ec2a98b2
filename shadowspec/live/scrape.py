"""Reads the counters of production engines, only from the configured pages.

Redirects are refused, proxies of the environment are not used, certificates are verified, and an oversized page is not
read to its end.  A failing replica does not stop the reading of others.  A server's text never enters a message.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

import httpx

from shadowspec.live.live_source import LiveSource, replica_name
from shadowspec.servers.client import bearer, run_async, status_hint, trust
from shadowspec.servers.engines import ENGINES
from shadowspec.servers.metrics_page import (
    CUT_OFF,
    EOF,
    MetricNames,
    MetricsPage,
    PageError,
    has_end_mark,
    is_whole,
    parse,
)
from shadowspec.servers.stream import ServerError
from shadowspec.types import FailedScrape, LiveScrape

log = logging.getLogger(__name__)

MAX_PAGE_BYTES: Final = 16 * 2**20  # a page with every histogram has some 100 kB for each model


def scrape_all(source: LiveSource, environment: Mapping[str, str] | None = None) -> list[LiveScrape | FailedScrape]:
    """Every replica's counters, or why it has none; in the order of the URLs.

    Raises:
        ConfigError: the key's variable is not set, or `ca_file` cannot be read.
    """
    headers = {"Accept-Encoding": "identity", **bearer(source.api_key_variable, environment)}
    return run_async(_scrape_all(source, headers, trust(source.ca_file)))


async def _scrape_all(
    source: LiveSource, headers: Mapping[str, str], context: ssl.SSLContext
) -> list[LiveScrape | FailedScrape]:
    for name in ("httpx", "httpcore"):  # they log every request, and where a redirect points with its query
        logging.getLogger(name).setLevel(logging.WARNING)
    async with httpx.AsyncClient(
        headers=dict(headers), verify=context, trust_env=False, follow_redirects=False, timeout=source.timeout_s
    ) as http:
        return list(await asyncio.gather(*(_scrape(http, source, url) for url in source.all_urls)))


async def _scrape(http: httpx.AsyncClient, source: LiveSource, url: str) -> LiveScrape | FailedScrape:
    replica, names = replica_name(url), ENGINES[source.engine].metrics
    try:
        text, whole = await _text(http, url, source.timeout_s, names)
        scraped_at = datetime.now(UTC)
        page = _page(text, source, replica, whole=whole)
    except ServerError as error:
        return FailedScrape(replica, datetime.now(UTC), error.code, str(error))
    for gauge in sorted(page.impossible):
        log.warning("%s: %s%s has an impossible value: this reading is without it", replica, names.prefix, gauge)
    series = f"{source.engine} {source.model}, {page.series}"
    return LiveScrape(
        replica=replica,
        series=series,
        scraped_at=scraped_at,
        started_at=page.started_at,
        counts=page.counts,
        num_digits=names.num_digits,
        num_running=page.num_running,
        samples=page.samples,
        has_end_mark=has_end_mark(text),
        num_waiting=page.num_waiting,
        kv_use=page.kv_use,
    )


async def _text(http: httpx.AsyncClient, url: str, timeout_s: float, names: MetricNames) -> tuple[str, bool]:
    """The page at a URL, and whether nothing in it shows that it was cut off.

    Raises:
        ServerError: no page, no text, or no way to tell a part from the whole.
    """
    replica, read = replica_name(url), bytearray()
    try:
        async with asyncio.timeout(timeout_s), http.stream("GET", url) as response:
            _check(replica, response)
            async for chunk in response.aiter_raw():
                read += chunk
                if len(read) > MAX_PAGE_BYTES:
                    raise ServerError(replica, "too_large", f"the page has more than {MAX_PAGE_BYTES >> 20} MiB")
    except TimeoutError as error:
        raise ServerError(replica, "timeout", f"no whole page within {timeout_s:g} s") from error
    except httpx.RemoteProtocolError as error:
        code, words = (CUT_OFF, "the answer ended within the page") if read else ("unreachable", "it gave no answer")
        raise ServerError(replica, code, words) from error
    except httpx.HTTPError as error:
        raise ServerError(replica, "unreachable", f"it cannot be reached ({type(error).__name__})") from error
    try:
        text = read.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ServerError(replica, "garbage", "the page is not text") from error
    headers = response.headers
    has_length = "content-length" in headers or "chunked" in headers.get("transfer-encoding", "").lower()
    if not has_end_mark(text) and not has_length:
        raise ServerError(
            replica,
            CUT_OFF,
            "the answer gives neither the length of the page nor its end, and a part of it looks whole. "
            "Let the server or its proxy send Content-Length",
        )
    is_openmetrics = "openmetrics" in headers.get("content-type", "").lower()
    return text, is_whole(text, names, is_openmetrics=is_openmetrics)


def _check(replica: str, response: httpx.Response) -> None:
    if response.is_redirect:
        host = urlsplit(response.headers.get("location", "")).hostname or "no host"
        raise ServerError(
            replica, "redirected", f"it points to {host}; redirects are not followed: name the page itself"
        )
    if not response.is_success:
        status = response.status_code
        raise ServerError(replica, f"http_{status}", f"it answered with HTTP {status}{status_hint(status)}")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise ServerError(replica, "garbage", "the page is compressed against the request")


def _page(text: str, source: LiveSource, replica: str, *, whole: bool) -> MetricsPage:
    engine = ENGINES[source.engine]
    try:
        page = parse(text, engine.metrics, source.model)
    except PageError as error:
        raise ServerError(replica, error.code, str(error) if whole else f"{error}, or was cut off") from error
    if not whole:
        words = f"the page ends within a line, or without the {EOF} of OpenMetrics: it was cut off"
        raise ServerError(replica, CUT_OFF, words)
    if not page.is_known:
        prefix = engine.metrics.prefix
        raise ServerError(
            replica, "other_engine", f"the page has no metric of {engine.title} (none begins with {prefix})"
        )
    if not page.has_model:
        raise ServerError(
            replica,
            "other_model",
            f"the page has no metric of the model {source.model}; set `model` in [endpoints.NAME.live] to the first "
            "name under which the server serves it",
        )
    if page.counts.num_output_tokens is None and page.counts.num_drafts is None:
        raise ServerError(replica, "no_counters", f"the page has none of the counters of {engine.title} that are read")
    return page


def failures(scrapes: Sequence[LiveScrape | FailedScrape]) -> list[FailedScrape]:
    """Those that failed."""
    return [scrape for scrape in scrapes if isinstance(scrape, FailedScrape)]
