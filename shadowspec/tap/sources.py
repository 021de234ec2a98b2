"""Files of mirrored traffic: JSON lines, gzip or not, and standard input.

A record's key is the sha256 of the whole uncompressed content and its 1-based line, so the same content gives the same
keys in any place and compression.  The content is therefore read twice: once for its digest (which also finds a broken
archive before measuring begins), once for its records.  A blank line is no record.

A file may also be one JSON document over several lines, as tools write it for people: an array's items are its records,
numbered from 1, any other document is one.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import re
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from shadowspec.errors import InputError, NoDataError, RecordError
from shadowspec.tap.documents import parse_document
from shadowspec.types import RecordKey

STANDARD_INPUT = "-"
DEFAULT_MAX_RECORD_BYTES = 16 * 1024 * 1024  # bytes; three times the longest prompt of a 1M-token context in English
CHUNK_BYTES = 1024 * 1024  # bytes read at a time; bounds memory for any gzip stream
MAX_DOCUMENT_BYTES = 64 * 1024 * 1024  # of a document over several lines, which is held and parsed as a whole
MAX_BLANK_LINES = 1_000_000  # of one source: a second of work; 30 kB of gzip can hold 30 million
GZIP_MAGIC = b"\x1f\x8b"
PARQUET_MAGIC = b"PAR1"
DOCUMENT_START = re.compile(rb"\s*[\[{]\s*(?:[\[{]\s*)?")  # a line that is no record, and begins a document
_AS_LINES = "write the items of its list as lines (jq -c '.[]', '.data[]', ...)"
_CHANGED = "changed while it was read; nothing after it was counted, run it again"


class RawRecord(NamedTuple):
    """One consumed message before it is parsed; a tuple, because every message is made one.

    `value` is None for a tombstone; `message_key` and `headers` (which may repeat) are the transport's.  `problem` is a
    reason code where the value is not to be read, and the record malformed: the value is then empty.
    """

    key: RecordKey
    value: bytes | None
    problem: str | None = None
    message_key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def __repr__(self) -> str:
        return f"RawRecord(key={self.key!r}, problem={self.problem!r})"


def read_records(path: str, *, max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES) -> Iterator[RawRecord]:
    """The records of one file, or of standard input for "-".

    Args:
        path: a file of JSON lines; gzip is recognised by its first bytes.
        max_record_bytes: a longer line is yielded without its value, as malformed ("too_large").

    Raises:
        InputError: the file is missing, unreadable, no file, broken gzip, or changed while it was read.
        NoDataError: the file holds no record.
    """
    if path == STANDARD_INPUT:
        with tempfile.TemporaryFile(prefix="shadowspec-") as spool:
            while chunk := sys.stdin.buffer.read(CHUNK_BYTES):
                spool.write(chunk)
            yield from read_stream(spool, "standard input", max_record_bytes)
        return
    with _open(path) as stream:
        yield from read_stream(stream, path, max_record_bytes)


def is_rereadable(path: str) -> bool:
    """Whether the same bytes can be read twice; those of standard input and pipes cannot."""
    return not (path == STANDARD_INPUT or Path(path).is_fifo() or Path(path).is_char_device())


def is_parquet(path: str) -> bool:
    """Whether a file begins as Parquet does; False of one that cannot be read, or only once."""
    if not is_rereadable(path) or not Path(path).is_file():
        return False
    with _open(path) as stream:
        return stream.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC


def require_file(path: str) -> None:
    """Check the beginning of a file before its records are read; a source that can be read only once is not touched.

    Raises:
        InputError: the file is missing, unreadable, or binary.
        NoDataError: it is empty.
    """
    if not is_rereadable(path):
        return
    with _open(path) as stream, _translated_errors(path):
        start = stream.read(CHUNK_BYTES)
    if not start:
        raise NoDataError(f"{path}: is empty; give a file of JSON lines")
    if start.startswith(PARQUET_MAGIC):
        raise InputError(f"{path}: is Parquet, which only `shadowspec backfill` reads; give JSON lines")
    is_text = start.startswith(GZIP_MAGIC) or any(line.startswith(b"{") for line in start.splitlines())
    if b"\0" in start and not is_text:
        raise InputError(f"{path}: is binary; give JSON lines, one record a line (docs/formats.md)")


def _open(path: str) -> BinaryIO:
    if Path(path).is_dir():
        raise InputError(f"{path}: is a folder; give a file of JSON lines")
    try:
        return Path(path).open("rb")
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; check the path") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        raise InputError(f"{path}: cannot be read ({reason})") from error


def read_stream(stream: BinaryIO, name: str, max_record_bytes: int) -> Iterator[RawRecord]:
    """Two passes over a stream that can begin again: digest, then records.

    Raises:
        InputError: broken gzip, or changed while it was read.
        NoDataError: it holds no record.
    """
    with _translated_errors(name):
        stream.seek(0)
        magic = stream.read(len(GZIP_MAGIC))
        is_gzip = magic == GZIP_MAGIC
        if magic and not is_gzip and name.endswith(".gz"):
            raise InputError(f"{name}: is not gzip, though its name says so; rename it, or compress it")
        digest = digest_of(_unpack(stream, is_gzip))
        records = _document_records(_unpack(stream, is_gzip), name, digest, max_record_bytes)
        content = _unpack(stream, is_gzip)
    if records is not None:
        yield from records
        return
    second_digest = hashlib.sha256()
    has_record = False
    line = num_blank = 0
    while True:
        with _translated_errors(name):
            value, is_too_large = _read_line(content, max_record_bytes, second_digest)
        if not value:
            break
        line += 1
        if not is_too_large and not value.strip():
            num_blank += 1
            if num_blank > MAX_BLANK_LINES:
                raise InputError(f"{name}: has more than {MAX_BLANK_LINES:,} blank lines; give one record a line")
            continue
        has_record = True
        key = RecordKey(source=digest, partition=0, offset=line)
        yield RawRecord(key, b"", "too_large") if is_too_large else RawRecord(key, value.rstrip(b"\r\n"))
    if second_digest.hexdigest() != digest:
        raise InputError(f"{name}: {_CHANGED}")
    if not has_record:
        raise NoDataError(f"{name}: is empty; give a file with at least one record")


def _document_records(content: BinaryIO, name: str, digest: str, max_record_bytes: int) -> list[RawRecord] | None:
    """The records of a document over several lines; None: the content is none, and its lines count.

    Raises:
        InputError: it is too large to be parsed as a whole, or changed while it was read.
        NoDataError: it is an empty array.
    """
    start = line = content.readline(CHUNK_BYTES)
    while line and not line.strip() and len(start) < CHUNK_BYTES:
        line = content.readline(CHUNK_BYTES)
        start += line
    if DOCUMENT_START.fullmatch(line) is None:
        return None
    text = start + content.read(MAX_DOCUMENT_BYTES + 1)
    if len(text) > MAX_DOCUMENT_BYTES:
        raise InputError(f"{name}: is one JSON document of more than {MAX_DOCUMENT_BYTES // 1024**2} MB; {_AS_LINES}")
    if hashlib.sha256(text).hexdigest() != digest:
        raise InputError(f"{name}: {_CHANGED}")
    try:
        document = parse_document(text)
    except RecordError:
        return None
    if document == []:
        raise NoDataError(f"{name}: is an empty list; give a file with at least one record")
    records = []
    for number, item in enumerate(document if isinstance(document, list) else [document], start=1):
        value = json.dumps(item, ensure_ascii=False, separators=(",", ":")).encode()
        key = RecordKey(source=digest, partition=0, offset=number)
        if len(value) <= max_record_bytes:
            records.append(RawRecord(key, value))
        elif isinstance(document, list):
            records.append(RawRecord(key, b"", "too_large"))
        else:
            raise InputError(f"{name}: is one JSON object of more than {max_record_bytes // 1024**2} MB; {_AS_LINES}")
    return records


def _unpack(stream: BinaryIO, is_gzip: bool) -> BinaryIO:
    stream.seek(0)
    return gzip.GzipFile(fileobj=stream, mode="rb") if is_gzip else stream  # type: ignore[return-value]


def digest_of(content: BinaryIO) -> str:
    """The sha256 of a content, read to its end."""
    digest = hashlib.sha256()
    while chunk := content.read(CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def _read_line(content: BinaryIO, max_record_bytes: int, digest: hashlib._Hash) -> tuple[bytes, bool]:
    """The next line with its end, and whether it exceeds the limit; the rest of such a line is skipped over."""
    value = content.readline(max_record_bytes + 1)
    digest.update(value)
    is_too_large = len(value.rstrip(b"\r\n")) > max_record_bytes
    rest = value
    while rest and not rest.endswith(b"\n"):
        rest = content.readline(CHUNK_BYTES)
        digest.update(rest)
        is_too_large = is_too_large or bool(rest.rstrip(b"\r\n"))
    return value, is_too_large


@contextlib.contextmanager
def _translated_errors(name: str) -> Iterator[None]:
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{name}: broken gzip ({error})") from error
    except OSError as error:
        raise InputError(f"{name}: cannot be read ({error.strerror or error})") from error
