"""Where logs lie: this machine's folders, S3 and its like, web servers; found, and opened for reading.

Local paths, `s3://`, `gs://`, `hdfs://` and the like are pyarrow's file systems, with credentials as their libraries
find them (environment, profile, role).  An address is shown without the part that may be secret.

A file on a web server is read by fsspec: in parts where the server sends parts, so that no half-read answer waits while
records are replayed, otherwise as one answer, in its order.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from string import punctuation
from typing import Any, BinaryIO, Final
from urllib.parse import quote, urlsplit, urlunsplit

import aiohttp
import pyarrow
from fsspec.asyn import sync
from fsspec.implementations.http import HTTPFile, HTTPFileSystem, HTTPStreamFile
from pyarrow import fs

from shadowspec.errors import InputError, NoDataError
from shadowspec.tap.sources import CHUNK_BYTES

ENDINGS: Final = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", ".json", ".json.gz", ".parquet")
_WEB: Final = ("http", "https")
_FAILURES: Final = (OSError, ValueError, OverflowError, aiohttp.ClientError, pyarrow.ArrowException)
_SESSION: Final = {
    "headers": {"Accept-Encoding": "identity"},  # a part of a compressed answer is useless
    "timeout": aiohttp.ClientTimeout(sock_connect=60.0, sock_read=60.0),  # of silence; an answer may take hours
    "trust_env": True,  # its proxies
}
_SIZE: Final = re.compile(r"bytes .*/(\d+)")


def describe_place(place: str) -> str:
    """An address without user, password and query, which may be secrets."""
    scheme, separator, _ = place.partition("://")
    if not separator:
        return place
    try:
        parts = urlsplit(place)
        _ = parts.port  # a password with a slash in it looks like one
    except ValueError:
        return f"{scheme}://..."
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def find_files(places: Sequence[str]) -> list[str]:
    """The files that are meant, themselves or all logs below a folder; each once.

    Raises:
        InputError: there is nothing there, or it cannot be reached.
        NoDataError: a folder without logs.
    """
    files: dict[str, None] = {}
    for place in places:
        with explain_errors(place):
            for file in _below(place):
                files[file] = None
    return list(files)


def open_stream(place: str) -> BinaryIO:
    """A file's bytes, to be read in their order; `seek(0)` goes back to the beginning."""
    if _scheme(place) in _WEB:
        return io.BufferedReader(_RestartableStream(lambda: open_web(place)), CHUNK_BYTES)
    filesystem, path = _filesystem(place)
    return io.BufferedReader(
        _RestartableStream(lambda: filesystem.open_input_stream(path, compression=None)), CHUNK_BYTES
    )


def open_file(place: str) -> Any:
    """A file of which parts are read.

    Raises:
        InputError: it lies on a web server that sends no parts.
    """
    if _scheme(place) in _WEB:
        file = open_web(place)
        if not isinstance(file, FileInParts):
            file.close()
            raise InputError(
                f"{describe_place(place)}: Parquet is read in parts, and this web server sends no parts of files"
            )
        return file
    filesystem, path = _filesystem(place)
    return filesystem.open_input_file(path)


@contextmanager
def explain_errors(place: str) -> Iterator[None]:
    """Turn an address's errors into one that names it; the text of others' errors may hold a secret."""
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{describe_place(place)}: no such file") from error
    except _FAILURES as error:
        raise InputError(f"{describe_place(place)}: cannot be read ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientResponseError):
        return f"HTTP status {error.status}"
    text = error.strerror if isinstance(error, OSError) and not isinstance(error, aiohttp.ClientError) else None
    return text or type(error).__name__


def _scheme(place: str) -> str:
    scheme, separator, _ = place.partition("://")
    return scheme.lower() if separator else ""


def _filesystem(place: str) -> tuple[fs.FileSystem, str]:
    if _scheme(place):
        filesystem, path = fs.FileSystem.from_uri(place)
        return filesystem, path
    return fs.LocalFileSystem(), str(Path(place).absolute())


def _below(place: str) -> Iterator[str]:
    if _scheme(place) in _WEB:
        yield place  # a web server lists nothing
        return
    filesystem, path = _filesystem(place)
    info = filesystem.get_file_info(path)
    if info.type == fs.FileType.NotFound:
        raise InputError(f"{describe_place(place)}: no such file")
    if info.type != fs.FileType.Directory:
        yield place if _scheme(place) else path
        return
    entries = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    logs = sorted(entry.path for entry in entries if entry.type == fs.FileType.File and entry.path.endswith(ENDINGS))
    if not logs:
        raise NoDataError(f"{describe_place(place)}: holds no logs (files that end in {', '.join(ENDINGS)})")
    for log in logs:
        yield _beside(place, path, log) if _scheme(place) else log


def _beside(place: str, folder: str, file: str) -> str:
    """The address of a file below a folder's, with all that the folder's says of how to get there."""
    parts = urlsplit(place)
    below = file.removeprefix(folder.rstrip("/")).lstrip("/")
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{quote(below, safe='/=')}"))


class _RestartableStream(io.RawIOBase):
    """A forward-only stream, with restarts."""

    def __init__(self, open_it: Callable[[], Any]) -> None:
        self._open = open_it
        self._stream = open_it()
        self._is_at_start = True

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._stream.tell())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if offset or whence != io.SEEK_SET:
            raise io.UnsupportedOperation("only back to the beginning")
        if not self._is_at_start:
            self._stream.close()
            self._stream = self._open()
            self._is_at_start = True
        return 0

    def readinto(self, buffer: Any) -> int:
        self._is_at_start = False
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


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
        content_range = _SIZE.fullmatch(answer.headers.get("Content-Range", ""))
        if content_range and answer.status in (206, 416):  # the latter of an empty file
            return int(content_range[1])
        answer.raise_for_status()
        return None
