"""Make a release and publish nothing: `release.py [--tag TAG] [--require-audit] [--accept ID]... [--out FOLDER]`.

The release is of the current commit.  What it makes depends on the commit and on constraints.txt only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import audit
import distributions
import sbom

CHECKOUT = Path(__file__).resolve().parents[1]
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
DEMO_REQUESTS = 8
EXTRAS = "capture,classify,dashboard,engine,schedule,sql"  # what a user may run of it, the image's parts among them


class NotReadyError(Exception):
    """The checkout is not ready for a release; the message gives the cause, then the remedy."""


def check_clean(checkout: Path) -> None:
    """No file differs from the commit: what is released can be made again from it.

    Raises:
        NotReadyError: some do.
    """
    changed = _git(checkout, "status", "--porcelain").splitlines()
    if changed:
        raise NotReadyError(
            f"the working tree is not clean: {', '.join(line[3:] for line in changed[:5])}"
            f"{f' and {len(changed) - 5} more' if len(changed) > 5 else ''}; commit or remove these files"
        )


def check_version(checkout: Path, tag: str = "") -> str:
    """The version of pyproject.toml, which CHANGELOG's newest heading names.

    Where a tag is given, it names the version too, and the heading has a date.

    Raises:
        NotReadyError: they differ.
    """
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version: str = project["version"]
    heading = HEADING.search((checkout / "CHANGELOG.md").read_text(encoding="utf-8"))
    newest = heading[1] if heading else ""
    named, _, rest = newest.partition(" - ")
    if named.strip("[] ") != version:
        raise NotReadyError(
            f"pyproject.toml has version {version}, and the newest heading of CHANGELOG.md is '{newest}'; "
            f"rename the heading to '{version} - DATE', or set the version to the one that the heading names"
        )
    if tag and tag != f"v{version}":
        raise NotReadyError(f"the tag is {tag}, and pyproject.toml has version {version}; tag the commit v{version}")
    if tag and not re.fullmatch(r"\d{4}-\d\d-\d\d", rest):
        raise NotReadyError(
            f"the heading '{newest}' of CHANGELOG.md has no date; "
            f"write '{version} - YYYY-MM-DD', commit, and tag that commit"
        )
    return version


def build_twice(work: Path, to: Path) -> list[Path]:
    """Source distribution and wheel, after showing that a second build gives the same bytes.

    Raises:
        NotReadyError: it does not.
    """
    made = distributions.build(work / "first", to)
    again = distributions.build(work / "second", work / "again")
    for first, second in zip(made, again, strict=True):
        if distributions.sha256(first) != distributions.sha256(second):
            raise NotReadyError(
                f"two builds of {first.name} differ; compare {first} with {second} (diffoscope shows where)"
            )
    return list(made)


def install(wheel: Path, environment: Path) -> Path:
    """A new environment with the wheel, its extras and their pinned dependencies, nothing else; its interpreter."""
    _uv("venv", "--quiet", "--no-project", "--python", sys.executable, str(environment))
    python = environment / "bin" / "python"
    into = ("--quiet", "--python", str(python))
    _uv("pip", "install", *into, "--constraint", str(CHECKOUT / "constraints.txt"), f"{wheel}[{EXTRAS}]")
    _uv("pip", "check", *into)
    return python


def try_out(python: Path, version: str) -> None:
    """The installed command names its version, and measures some of the bundled traffic.

    Raises:
        NotReadyError: it does not.
    """
    command = str(python.parent / "shadowspec")
    with tempfile.TemporaryDirectory() as elsewhere:
        named = _run(command, "--version", cwd=elsewhere)
        if version not in named.split():
            raise NotReadyError(f"`shadowspec --version` of the wheel says '{named.strip()}', not {version}")
        demo = json.loads(_run(command, "demo", "--requests", str(DEMO_REQUESTS), "--json", cwd=elsewhere))
        if demo["requests_measured"] != DEMO_REQUESTS or not (Path(elsewhere) / demo["report"]).stat().st_size:
            raise NotReadyError(f"`shadowspec demo` of the wheel measured {demo['requests_measured']} requests")


def write_sums(folder: Path) -> Path:
    """SHA256SUMS of all files in the folder, as `sha256sum --check` reads it."""
    sums = folder / "SHA256SUMS"
    files = sorted(path for path in folder.iterdir() if path != sums)
    sums.write_text("".join(f"{distributions.sha256(path)}  {path.name}\n" for path in files), encoding="utf-8")
    return sums


def main(words: Sequence[str] | None = None) -> int:
    """Make the release; 1 where it cannot be made or a vulnerability is known, 2 where a required audit did not run."""
    arguments = _arguments(words)
    began = time.monotonic()
    try:
        check_clean(CHECKOUT)
        version = check_version(CHECKOUT, arguments.tag)
        out: Path = arguments.out or CHECKOUT / "dist" / f"shadowspec-{version}"
        if out.exists() and any(out.iterdir()):
            raise NotReadyError(f"{out} is not empty; remove it, or name another folder with --out")
        audited, parts = _make(version, out, arguments.accept)
    except NotReadyError as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    code = audited.exit_code(is_required=arguments.require_audit)
    print(f"\nmade in {time.monotonic() - began:.0f} s, in {out}:")
    for path in sorted(out.iterdir()):
        print(f"  {path.stat().st_size:>11,} bytes  {path.name}")
    print(f"  the list of parts has {parts} packages\n{audited.describe()}")
    if code:
        print("no release: do not publish it", file=sys.stderr)
        return code
    print(_how_to_publish(version, out))
    return 0


def _make(version: str, out: Path, accepted: Sequence[str]) -> tuple[audit.Audit, int]:
    epoch_s = distributions.commit_time_s()
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch_s)
    # In the checkout, on whose file system uv's links to its cache usually work.
    (CHECKOUT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CHECKOUT / "build", prefix="release-") as folder:
        work = Path(folder)
        with _step("building the source distribution and the wheel, twice"):
            _, wheel = build_twice(work, work / "made")
        with _step("installing the wheel into a new environment"):
            python = install(wheel, work / "environment")
        with _step(f"running `shadowspec --version` and `shadowspec demo --requests {DEMO_REQUESTS}` from it"):
            try_out(python, version)
        with _step("writing the list of its parts"):
            parts = sbom.of_environment(python, work / "made" / f"shadowspec-{version}.cdx.json")
        with _step("asking a vulnerability service about constraints.txt"):
            audited = audit.audit(CHECKOUT / "constraints.txt", accepted)
        document = {"commit": _git(CHECKOUT, "rev-parse", "HEAD").strip(), **audited.document()}
        (work / "made" / "audit.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
        write_sums(work / "made")
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.exists():
            out.rmdir()
        shutil.move(work / "made", out)
    return audited, parts


def _how_to_publish(version: str, out: Path) -> str:
    try:
        check_version(CHECKOUT, f"v{version}")
        first = ""
    except NotReadyError as error:
        first = f"Before you publish: {error}.\n"
    return f"""\
Nothing was published.
{first}To publish, tag the commit; .github/workflows/release.yml then makes the files again, and attests them:
  git tag --annotate v{version} --message v{version} {_git(CHECKOUT, "rev-parse", "--short", "HEAD").strip()}
  git push origin v{version}
To give the distributions to a package index as well:
  uv publish {out}/*.whl {out}/*.tar.gz"""


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make release", description="Make a release of this commit; publish nothing.")
    tag = os.environ.get("RELEASE_TAG", "")
    parser.add_argument("--tag", default=tag, help="the tag that is released (RELEASE_TAG); must be v and the version")
    parser.add_argument("--require-audit", action="store_true", help="fail unless every pinned package was audited")
    parser.add_argument("--accept", action="append", default=[], metavar="ID", help="a vulnerability to leave out")
    parser.add_argument("--out", type=Path, help="the folder to make (dist/shadowspec-VERSION)")
    return parser.parse_args(words)


@contextmanager
def _step(what: str) -> Iterator[None]:
    print(what, end=" ", flush=True)
    began = time.monotonic()
    yield
    print(f"({time.monotonic() - began:.0f} s)", flush=True)


def _git(checkout: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(checkout), *arguments], stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def _uv(*arguments: str) -> None:
    _run(str(CHECKOUT / ".ci" / "uv"), sys.prefix, *arguments, cwd=str(CHECKOUT))


def _run(*command: str, cwd: str) -> str:
    # PYTHONPATH would bring the checkout back in.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotReadyError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
