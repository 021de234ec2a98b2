"""A file on a web server.

It is read in parts where the server sends parts: no answer then waits, half read, while what was read is replayed.
Where it does not, it is read as one answer, in its order.
"""

from __future__ import annotations

import io
import logging
import re
from typing import Any, Final

import httpx

TIMEOUT_S: Final = 60.0  # of one answer's silence
_PLAIN: Final = {"Accept-Encoding": "identity"}  # a part of what was packed on the way is of no use
_SIZE: Final = re.compile(r"bytes .*/(\d+)")


def open_web(url: str) -> io.RawIOBase:
    """A file's bytes; `seekable()` tells whether parts of it can be read.

    Raises:
        httpx.HTTPError, httpx.InvalidURL: it cannot be had; their texts hold the whole address.
    """
    for name in ("httpx", "httpcore"):  # they log every request with its query
        logging.getLogger(name).setLevel(logging.WARNING)
    client = httpx.Client(follow_redirects=True, timeout=TIMEOUT_S, headers=_PLAIN)
    try:
        size = _size_in_parts(client, url)
        return _Whole(client, url) if size is None else _Parts(client, url, size)
    except BaseException:
        client.close()
        raise


def _size_in_parts(client: httpx.Client, url: str) -> int | None:
    """Bytes of the file; None: the server sends no parts of it."""
    with client.stream("GET", url, headers={"Range": "bytes=0-0"}) as answer:
        found = _SIZE.fullmatch(answer.headers.get("Content-Range", ""))
        if found and answer.status_code in (httpx.codes.PARTIAL_CONTENT, httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE):
            return int(found[1])  # the latter of an empty file
        answer.raise_for_status()
        return None


class _Parts(io.RawIOBase):
    """A file that is asked for in parts, each as long as what is to be filled."""

    def __init__(self, client: httpx.Client, url: str, size: int) -> None:
        self._client, self._url, self._size = client, url, size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        end = min(self._position + len(buffer), self._size)
        length = end - self._position
        if length <= 0:
            return 0
        with self._client.stream("GET", self._url, headers={"Range": f"bytes={self._position}-{end - 1}"}) as answer:
            answer.raise_for_status()
            if answer.status_code != httpx.codes.PARTIAL_CONTENT:
                raise OSError(0, "the server sends parts of it no more")
            data = answer.read()
        if len(data) != length:
            raise OSError(0, "the server sent another part of it than was asked for")
        buffer[:length] = data
        self._position = end
        return length

    def close(self) -> None:
        self._client.close()
        super().close()


class _Whole(io.RawIOBase):
    """A file that comes as one answer."""

    def __init__(self, client: httpx.Client, url: str) -> None:
        self._client = client
        self._answer = client.send(client.build_request("GET", url), stream=True)
        self._answer.raise_for_status()
        self._chunks = self._answer.iter_bytes()
        self._rest = b""
        self._position = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = chunk
        data, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._answer.close()
            self._client.close()
        super().close()
