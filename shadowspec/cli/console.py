"""Output of every command: where results, files and logs go."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from shadowspec.app.progress_bar import OutputConsole
from shadowspec.errors import InputError
from shadowspec.text import write_whole
from shadowspec.types.codec import encode
from shadowspec.types.public_documents import PublicDocument

STANDARD_OUTPUT = "-"

WIDTH_OF_NO_TERMINAL = 120  # columns, where stdout is a file or a pipe

# stdout: what was asked for
results = OutputConsole(width=None if sys.stdout.isatty() else WIDTH_OF_NO_TERMINAL)


def is_verbose() -> bool:
    """Whether --verbose is set."""
    return logging.getLogger("shadowspec").isEnabledFor(logging.DEBUG)


def json_text(document: PublicDocument) -> str:
    """A document as text, on several lines; a figure that is not finite is null."""
    return msgspec.json.format(encode(document), indent=2).decode() + "\n"


def print_json(document: PublicDocument) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json_text(document))


@contextmanager
def despite_closed_output() -> Iterator[None]:
    """Print, and drop what nobody reads any more: for a command whose exit code is its result."""
    with suppress(BrokenPipeError):
        yield
    drop_unread_output()


def drop_unread_output() -> bool:
    """Flush both streams; one whose reader is gone writes to nowhere from now on.  Whether there is such a one."""
    is_closed = False
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            is_closed = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return is_closed


def require_folder_of(path: Path | None) -> None:
    """Raise InputError unless a file (None: no file is asked for) can be created there: before long work, not after."""
    if path is not None and str(path) != STANDARD_OUTPUT:
        if not path.parent.is_dir():
            raise InputError(f"{path}: there is no folder {path.parent}; create it, or give another path")
        if path.is_dir():
            raise InputError(f"{path}: is a folder; give the path of a file")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise InputError(f"{path}: cannot be written (Permission denied); give another path")


def write_file(path: Path, text: str, *, makes_folder: bool = False) -> None:
    """Write a result file.

    Raises:
        InputError: the folder does not exist, or the file cannot be written.
    """
    try:
        if makes_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        require_folder_of(path)
        write_whole(path, text)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); give another path") from error


def set_up_logging(verbose: bool) -> None:
    """Log to stderr: warnings of shadowspec, with --verbose all of its log; no progress bars of other libraries."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("shadowspec").setLevel(logging.DEBUG if verbose else logging.NOTSET)
