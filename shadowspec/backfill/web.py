"""A file on a web server, read by fsspec.

It is read in parts where the server sends parts, so that no half-read answer waits while records are replayed.
Otherwise it is read as one answer, in its order.
"""

from __future__ import annotations

import logging
import re
from string import punctuation
from typing import Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

import aiohttp
from fsspec.asyn import sync
from fsspec.implementations.http import HTTPFile, HTTPFileSystem, HTTPStreamFile

from shadowspec.tap.sources import CHUNK_BYTES

_SESSION: Final = {
    "headers": {"Accept-Encoding": "identity"},  # a part of a compressed answer is useless
    "timeout": aiohttp.ClientTimeout(sock_connect=60.0, sock_read=60.0),  # of silence; an answer may take hours
    "trust_env": True,  # its proxies
}
_SIZE: Final = re.compile(r"bytes .*/(\d+)")


class FileInParts(HTTPFile):  # type: ignore[misc]  # fsspec has no types
    """A file that is asked for in parts.  fsspec takes a part that is too short or missing for the file's end."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = super()._fetch_range(start, end)
        if len(data) != end - start:
            raise OSError(0, "the server sent another part of it than was asked for")
        return data


def open_web(url: str) -> FileInParts | HTTPStreamFile:
    """A file's bytes: a `FileInParts` where the server sends parts.

    Raises:
        aiohttp.ClientError, OSError, ValueError: it cannot be read; their texts hold the whole address.
    """
    logging.getLogger("fsspec").setLevel(logging.WARNING)  # it logs every request with its query
    parts = urlsplit(url)
    url = urlunsplit(parts._replace(path=quote(parts.path, punctuation), query=quote(parts.query, punctuation)))
    files = HTTPFileSystem(client_kwargs=_SESSION, encoded=True)  # it would quote signatures otherwise
    session = sync(files.loop, files.set_session)
    if size := sync(files.loop, _size_in_parts, session, files.encode_url(url)):
        return FileInParts(files, url, session=session, block_size=CHUNK_BYTES, size=size, loop=files.loop)
    return HTTPStreamFile(files, url, session=session, loop=files.loop)


async def _size_in_parts(session: aiohttp.ClientSession, url: Any) -> int | None:
    """Bytes of the file; None: the server sends no parts of it.  fsspec takes it for granted that it does."""
    async with session.get(url, headers={"Range": "bytes=0-0"}) as answer:
        found = _SIZE.fullmatch(answer.headers.get("Content-Range", ""))
        if found and answer.status in (206, 416):  # the latter of an empty file
            return int(found[1])
        answer.raise_for_status()
        return None
