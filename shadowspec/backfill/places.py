"""Where logs lie: this machine's folders, S3 and its like, web servers; found, and opened for reading.

Local paths, `s3://`, `gs://`, `hdfs://` and the like are pyarrow's file systems, with credentials as their libraries
find them (environment, profile, role).  An address is shown without the part that may be secret.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import quote, urlsplit, urlunsplit

import aiohttp
import pyarrow
from pyarrow import fs

from shadowspec.backfill.web import FileInParts, open_web
from shadowspec.errors import InputError, NoDataError
from shadowspec.tap.sources import CHUNK_BYTES

ENDINGS: Final = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", ".json", ".json.gz", ".parquet")
_WEB: Final = ("http", "https")
_FAILURES: Final = (OSError, ValueError, OverflowError, aiohttp.ClientError, pyarrow.ArrowException)


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
    found: dict[str, None] = {}
    for place in places:
        with explain_errors(place):
            for file in _below(place):
                found[file] = None
    return list(found)


def open_stream(place: str) -> BinaryIO:
    """A file's bytes, to be read in their order; `seek(0)` goes back to the beginning."""
    if _scheme(place) in _WEB:
        return io.BufferedReader(_Again(lambda: open_web(place)), CHUNK_BYTES)
    filesystem, path = _filesystem(place)
    return io.BufferedReader(_Again(lambda: filesystem.open_input_stream(path, compression=None)), CHUNK_BYTES)


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
    each = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    logs = sorted(item.path for item in each if item.type == fs.FileType.File and item.path.endswith(ENDINGS))
    if not logs:
        raise NoDataError(f"{describe_place(place)}: holds no logs (files that end in {', '.join(ENDINGS)})")
    for log in logs:
        yield _beside(place, path, log) if _scheme(place) else log


def _beside(place: str, folder: str, file: str) -> str:
    """The address of a file below a folder's, with all that the folder's says of how to get there."""
    parts = urlsplit(place)
    below = file.removeprefix(folder.rstrip("/")).lstrip("/")
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{quote(below, safe='/=')}"))


class _Again(io.RawIOBase):
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
