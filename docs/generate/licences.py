"""The pinned packages with their licences, from the metadata of those that are installed.

A package that is not installed here keeps the row that the page has for the same version: the page can then be made
where only some of the extras are installed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "licences.md"
TOOLS = ("docs", "lint", "release", "test")  # extras for working on shadowspec: they reach no installation of it
# The environment whose markers hold: the page does not depend on where it is made.
_MARKERS = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": "3.11.0",
    "python_version": "3.11",
    "sys_platform": "linux",
}
_GROUP = re.compile(r"^- \*\*(.+?)\*\*, (.+?): (.+)\.$", re.MULTILINE)

# Permissive, or copyleft by file only (MPL), which asks nothing of a program that does not change the files.
ALLOWED = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD",  # said without the number of clauses
        "BSD-2-Clause",
        "BSD-3-Clause",
        "BSL-1.0",
        "CC0-1.0",
        "CNRI-Python",
        "ISC",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "MPL-2.0",
        "PSF-2.0",
        "Zlib",
    }
)
# Others, each only for the packages named, with the reason.
ALLOWED_FOR: Mapping[str, tuple[str, str]] = {
    "LGPL-2.1-or-later": ("crc32c", "imported unchanged as a separate package, which anyone may replace"),
    "LGPL-3.0-only": ("psycopg(-binary)?", "imported unchanged as a separate package, which anyone may replace"),
    "LicenseRef-NVIDIA-Proprietary": (
        "(nvidia|cuda)-.*",
        "the GPU libraries of torch, which an installer fetches; wheel and source distribution lack them",
    ),
}
# What is declared, as it is spelled where it is no SPDX expression.  Lower case.
_SPELLINGS = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache": "Apache-2.0",
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD",
    "bsd 2-clause license": "BSD-2-Clause",
    "bsd license": "BSD",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "nvidia proprietary software": "LicenseRef-NVIDIA-Proprietary",
    "psfl": "PSF-2.0",
    "python software foundation license": "PSF-2.0",
    "the mit license (mit)": "MIT",
}
# Declared in no form that the rules below read; each was read in the file named.
_READ_BY_HAND = {
    "atheris": "Apache-2.0",  # its LICENSE
    "axe-playwright-python": "MIT AND MPL-2.0",  # its LICENSE, and the head of axe.min.js
    "cuda-toolkit": "LicenseRef-NVIDIA-Proprietary",  # only names NVIDIA's packages, and has no files
    "fastokens": "Apache-2.0",  # its LICENSE
    "python-dateutil": "BSD-3-Clause",  # its LICENSE: this one covers all of it, Apache-2.0 only newer parts
}


@dataclass(frozen=True, slots=True)
class Row:
    """A pinned package: `needed_by` is "shadowspec", the extras that bring it, or "tools"."""

    name: str
    version: str
    licence: str
    needed_by: str


def licences() -> str:
    """The pinned packages, by licence and by what needs them."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows():
        groups.setdefault((row.licence, row.needed_by), []).append(f"{row.name}=={row.version}")
    lines = (f"- **{licence}**, {needed}: {', '.join(groups[licence, needed])}." for licence, needed in sorted(groups))
    return "\n".join(lines)


def allowed() -> str:
    """The allowed licences, and those allowed for some packages."""
    lines = [f"- `{licence}`, only for `{names}`: {why}." for licence, (names, why) in ALLOWED_FOR.items()]
    return "\n".join([f"- {', '.join(sorted(ALLOWED))}.", *lines])


def rows() -> list[Row]:
    """A row for each pin.

    Raises:
        ValueError: a package is neither installed at its version nor on the page at it, or declares no known licence.
    """
    written = _written()
    needed = _needed()
    made = []
    for name, version in pins().items():
        installed = _installed(name, version)
        old = written.get(name)
        if installed is not None:
            made.append(Row(name, version, licence_of(installed), needed.get(canonicalize_name(name), "tools")))
        elif old is not None and old.version == version:
            made.append(old)
        else:
            raise ValueError(
                f"{name} {version} is not installed, and docs/licences.md has no row for it; run `make licences`"
            )
    return made


def pins() -> dict[str, str]:
    """The versions of constraints.txt by package, as it writes them."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==", 1) for line in lines if line and not line.startswith("#"))


def licence_of(installed: Distribution) -> str:
    """The declared licence as an SPDX expression: the metadata's expression, its free text, or its classifiers.

    Raises:
        ValueError: it declares none that is known here.
    """
    name = canonicalize_name(installed.metadata["Name"])
    if name in _READ_BY_HAND:
        return _READ_BY_HAND[name]
    for declared in _declared(installed):
        try:
            return str(canonicalize_license_expression(_SPELLINGS.get(declared.lower(), declared)))
        except InvalidLicenseExpression:
            if _SPELLINGS.get(declared.lower()) == "BSD":  # a family, and no SPDX identifier
                return "BSD"
    raise ValueError(
        f"{name} declares no known licence ({', '.join(_declared(installed)) or 'nothing'}); "
        "add its spelling to docs/generate/licences.py, or read its licence and add that"
    )


def _declared(installed: Distribution) -> Iterator[str]:
    metadata = installed.metadata
    for key in ("License-Expression", "License"):
        for text in metadata.get_all(key, []):
            # Some hold the whole text, which begins with the licence's title.
            if first_line := text.strip().split("\n")[0].strip():
                yield first_line
    for classifier in metadata.get_all("Classifier", []):
        if classifier.startswith("License :: "):
            yield classifier.rsplit(" :: ", 1)[1]


def _needed() -> dict[str, str]:
    """By package: "shadowspec", or the extras for users that bring it.  Extras with unpinned packages are left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned: dict[str, str] = {canonicalize_name(name): version for name, version in pins().items()}
    needed = dict.fromkeys(_closure(project["dependencies"], pinned), "shadowspec")
    found: dict[str, list[str]] = {}
    extras = project["optional-dependencies"]
    for extra in sorted(extras):
        requirements = list(_without_itself(extras, extra))
        names = {canonicalize_name(Requirement(each).name) for each in requirements}
        if extra in TOOLS or not names <= pinned.keys():
            continue
        for name in _closure(requirements, pinned) - needed.keys():
            found.setdefault(name, []).append(extra)
    return needed | {name: ", ".join(extras) for name, extras in found.items()}


def _without_itself(extras: Mapping[str, Iterable[str]], extra: str) -> Iterator[str]:
    """The requirements of an extra, with those of the extras that it names in their place."""
    for each in extras[extra]:
        requirement = Requirement(each)
        if requirement.name != "shadowspec":
            yield each
        for other in requirement.extras if requirement.name == "shadowspec" else ():
            yield from _without_itself(extras, other)


def _closure(requirements: Iterable[str], pinned: Mapping[str, str]) -> set[str]:
    """The pinned packages that these requirements bring, by their metadata."""
    waiting = [Requirement(each) for each in requirements]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        installed = _installed(name, pinned[name]) if name in pinned else None
        for extra in ("", *requirement.extras):
            if name not in pinned or (name, extra) in seen:
                continue
            seen.add((name, extra))
            for text in (installed.requires or ()) if installed else ():
                inner = Requirement(text)
                if inner.marker is None or inner.marker.evaluate(_MARKERS | {"extra": extra}):
                    waiting.append(inner)
    return {name for name, _ in seen}


def _installed(name: str, version: str) -> Distribution | None:
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    return found if found.version == version else None


def _written() -> dict[str, Row]:
    """The rows of the page, by package."""
    packages: dict[str, Row] = {}
    for licence, needed, listed in _GROUP.findall(PAGE.read_text(encoding="utf-8")):
        for package in listed.split(", "):
            name, version = package.split("==")
            packages[name] = Row(name, version, licence, needed)
    return packages
