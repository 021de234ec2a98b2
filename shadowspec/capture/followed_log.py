"""A growing log, line by line, over rotation, truncation and restarts.

A line is given once it has its end; the last line of a rotated file, whose writer is gone, also without.  A position
is the place behind the lines that were given: stored after they were sent, it makes a restart send some lines twice at
most, and lose none, as long as the rotated file lies beside the log, uncompressed.

A file is recognised by its inode and the digest of its beginning, so that one that was truncated and filled again, or
a new one with an old number, begins at its first byte.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from shadowspec.errors import InputError
from shadowspec.tap.sources import CHUNK_BYTES, DEFAULT_MAX_RECORD_BYTES

log = logging.getLogger(__name__)

HEAD_BYTES: Final = 1024  # of a file's beginning that its digest is of
POSITION_SUFFIX: Final = ".position"
OTHER_SUFFIXES: Final = (".gz", ".zst", ".bz2", ".xz", ".new", POSITION_SUFFIX)  # of files beside a log that are none
ROTATION_GRACE_S: Final = 5.0  # in which every process that writes the log has opened the new file


class LogPosition(msgspec.Struct, frozen=True):
    """A place in a file: `offset` bytes from its beginning, of which the first `head_bytes` have this SHA-256."""

    inode: int
    offset: int
    head_bytes: int
    head_sha256: str


def read_position(file: Path) -> LogPosition | None:
    """The stored position; None without a file.

    Raises:
        InputError: the file cannot be read, or holds something else.
    """
    try:
        return msgspec.json.decode(file.read_bytes(), type=LogPosition)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no position"
        raise InputError(f"{file}: cannot be read ({reason}); delete it to begin at the log's first line") from error


def write_position(file: Path, position: LogPosition) -> None:
    """Store a position; whoever reads the file finds the old or the new one.

    Raises:
        InputError: the file cannot be written.
    """
    beside = file.with_name(file.name + ".new")
    try:
        beside.write_bytes(msgspec.json.encode(position) + b"\n")
        beside.replace(file)
    except OSError as error:
        raise InputError(f"{file}: cannot be written ({error.strerror}); name another by --position") from error


class FollowedLog:
    """The lines of a log from a position on.  The log need not exist yet."""

    def __init__(
        self, path: Path, position: LogPosition | None = None, *, max_line_bytes: int = DEFAULT_MAX_RECORD_BYTES
    ) -> None:
        self.num_too_long = 0  # lines that were passed over
        self._path, self._max_line_bytes = path, max_line_bytes
        self._file: BinaryIO | None = None
        self._offset = 0  # behind the last line that was given
        self._rest = b""  # of a line without its end
        self._passed_bytes = 0  # of a line that is too long
        self._head = ""
        self._new_since: float | None = None  # when another file was first seen at the path
        if position is not None:
            self._resume(position)

    @property
    def position(self) -> LogPosition | None:
        """The place behind the lines that were given; None before the first file."""
        if self._file is None:
            return None
        size = min(HEAD_BYTES, self._offset)
        return LogPosition(os.fstat(self._file.fileno()).st_ino, self._offset, size, self._head)

    def lines(self) -> list[bytes]:
        """The next lines without their ends, of a chunk at most; empty where there are none for now.

        Raises:
            InputError: the log cannot be read.
        """
        try:
            if self._file is None:
                if not self._path.exists():
                    return []
                self._open(self._path, 0)
            assert self._file is not None
            self._begin_again_if_truncated(self._file)
            while chunk := self._file.read(CHUNK_BYTES):
                if lines := self._split(self._file, chunk):
                    return lines
            return self._finish() if self._is_finished(self._file) else []
        except OSError as error:
            raise InputError(f"{self._path}: cannot be read ({error.strerror})") from error

    def close(self) -> None:
        """Close the open file."""
        if self._file is not None:
            self._file.close()

    def _resume(self, position: LogPosition) -> None:
        """Continue in the log, or in the file that it was renamed or copied to."""
        fitting = [path for path in self._files() if _holds(path, position)]
        same = [path for path in fitting if path.stat().st_ino == position.inode]
        for path in same or (fitting if position.head_bytes else []):
            self._open(path, position.offset)
            return
        log.warning("%s: the file of the stored position is gone; begins at the first line", self._path)

    def _files(self) -> list[Path]:
        """The log and the files beside it that begin with its name, the oldest first."""
        beside = [path for path in self._path.parent.iterdir() if path.name.startswith(self._path.name)]
        files = [path for path in beside if path.is_file() and path.suffix not in OTHER_SUFFIXES]
        return sorted(files, key=lambda path: path.stat().st_mtime_ns)

    def _later(self, file: BinaryIO) -> list[Path]:
        """The files that were the log between this one and the one that is it now."""
        own = os.fstat(file.fileno())
        files = [(path, path.stat()) for path in self._files() if path != self._path]
        return [path for path, found in files if found.st_mtime_ns > own.st_mtime_ns and found.st_ino != own.st_ino]

    def _open(self, path: Path, offset: int) -> None:
        self._file = path.open("rb", buffering=0)
        self._file.seek(offset)
        self._offset, self._rest, self._passed_bytes, self._new_since = offset, b"", 0, None
        self._head = _digest(self._file, min(HEAD_BYTES, offset))

    def _begin_again_if_truncated(self, file: BinaryIO) -> None:
        size = min(HEAD_BYTES, self._offset)
        read = self._offset + self._passed_bytes + len(self._rest)
        if os.fstat(file.fileno()).st_size < read or _digest(file, size) != self._head:
            file.seek(0)
            self._offset, self._rest, self._passed_bytes = 0, b"", 0
            self._head = _digest(file, 0)

    def _split(self, file: BinaryIO, chunk: bytes) -> list[bytes]:
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        lines = []
        for line in whole:
            self._offset += self._passed_bytes + len(line) + 1
            if self._passed_bytes or len(line) > self._max_line_bytes:
                self._passed_bytes = 0
                self.num_too_long += 1
            elif line.strip():
                lines.append(line.removesuffix(b"\r"))
        if self._passed_bytes or len(self._rest) > self._max_line_bytes:
            self._passed_bytes += len(self._rest)
            self._rest = b""
        self._head = _digest(file, min(HEAD_BYTES, self._offset))
        return lines

    def _is_finished(self, file: BinaryIO) -> bool:
        """Whether another file is at the path, and nobody writes to this one any more."""
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        if there.st_ino == os.fstat(file.fileno()).st_ino:
            self._new_since = None
            return False
        self._new_since = self._new_since or time.monotonic()
        return time.monotonic() - self._new_since >= ROTATION_GRACE_S

    def _finish(self) -> list[bytes]:
        """Close the file; its last line where that has no end."""
        assert self._file is not None
        later = self._later(self._file)
        last = [self._rest] if self._rest.strip() else []
        self._file.close()
        self._file = None
        self._open(later[0] if later else self._path, 0)
        return last


def _holds(path: Path, position: LogPosition) -> bool:
    with path.open("rb") as file:
        return path.stat().st_size >= position.offset and _digest(file, position.head_bytes) == position.head_sha256


def _digest(file: BinaryIO, size: int) -> str:
    """Of the first bytes; the place in the file stays."""
    return hashlib.sha256(os.pread(file.fileno(), size, 0)).hexdigest()
