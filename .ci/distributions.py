"""Source distribution and wheel of a commit: the same bytes wherever and whenever they are built."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]


def commit_time_s(checkout: Path = CHECKOUT) -> int:
    """When the current commit was made, in seconds since 1970: the SOURCE_DATE_EPOCH of its release."""
    return int(_git(checkout, "log", "-1", "--format=%ct"))


def build(work: Path, to: Path, checkout: Path = CHECKOUT) -> tuple[Path, Path]:
    """Build the current commit in the folder `work`, and write the source distribution and the wheel to `to`.

    The wheel is built from the source distribution, so that a file that the latter lacks is noticed here.  Only files
    of the commit are packed: the build sees no checkout, where untracked files and an earlier build/ may be.
    """
    epoch_s = commit_time_s(checkout)
    source, made, unpacked = work / "source", work / "made", work / "unpacked"
    for folder in (source, made, unpacked, to):
        folder.mkdir(parents=True)
    _unpack(io.BytesIO(_git_bytes(checkout, "archive", "--format=tar", "HEAD")), source)
    _run_build("--sdist", source, made, epoch_s)
    (packed,) = made.glob("*.tar.gz")
    sdist = to / packed.name
    normalise(packed, sdist, epoch_s)
    _unpack(io.BytesIO(sdist.read_bytes()), unpacked)
    (inner,) = unpacked.iterdir()
    _run_build("--wheel", inner, to, epoch_s)
    (wheel,) = to.glob("*.whl")
    return sdist, wheel


def normalise(packed: Path, to: Path, epoch_s: int) -> None:
    """Write a .tar.gz again without what differs from build to build: times, owners, order, the umask's modes.

    setuptools stamps the files that it makes, and the archive itself, with the present time.
    """
    plain = io.BytesIO()
    with tarfile.open(packed) as old, tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda each: each.name):
            fresh = tarfile.TarInfo(member.name)
            fresh.type, fresh.linkname, fresh.size, fresh.mtime = member.type, member.linkname, member.size, epoch_s
            fresh.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(fresh, old.extractfile(member) if member.isfile() else None)
    with to.open("wb") as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=epoch_s) as packed_again:
        packed_again.write(plain.getvalue())


def sha256(path: Path) -> str:
    """The digest of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unpack(archive: io.BytesIO, folder: Path) -> None:
    with tarfile.open(fileobj=archive) as opened:
        for member in opened.getmembers():
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644  # wheels store the modes of files
        opened.extractall(folder, filter="data")


def _run_build(kind: str, source: Path, to: Path, epoch_s: int) -> None:
    # Without isolation: the build backend is the pinned one of this environment, and nothing is fetched.
    command = [sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", str(to), str(source)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["SOURCE_DATE_EPOCH"] = str(epoch_s)
    # The umask decides the modes of the files that setuptools makes, which wheels store.
    done = subprocess.run(command, env=environment, umask=0o022, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"building the {kind.removeprefix('--')} failed:\n{done.stdout}{done.stderr}")


def _git(checkout: Path, *arguments: str) -> str:
    return _git_bytes(checkout, *arguments).decode()


def _git_bytes(checkout: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(checkout), *arguments], stdout=subprocess.PIPE, check=True).stdout
