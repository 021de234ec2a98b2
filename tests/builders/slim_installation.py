"""Processes that see of this environment what `pip install shadowspec` brings, and nothing of any extra."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CHECKOUT = Path(__file__).resolve().parents[2]
# Python imports it at the start of every process, those that a process starts included.
HIDING = "import os, sys\nfor name in os.environ['HIDDEN_MODULES'].split():\n    sys.modules[name] = None\n"


def wanted_by(requirement: Requirement, extra: str = "") -> Iterator[tuple[str, str]]:
    """The packages that one needs, each with the extra of it that is asked for; none where it is not installed."""
    try:
        further = [Requirement(line) for line in requires(requirement.name) or ()]
    except PackageNotFoundError:
        return
    yield requirement.name, extra
    for each in further:
        if each.marker is None or each.marker.evaluate({"extra": extra}):
            for wanted in ("", *each.extras):
                yield each.name, wanted


@cache
def packages() -> frozenset[str]:
    """The packages of a slim installation."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    first = [Requirement(line) for line in project["dependencies"]]
    waiting = [(each.name, extra) for each in first for extra in ("", *each.extras)]
    known: set[tuple[str, str]] = set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) not in known:
            known.add((name, extra))
            waiting += wanted_by(Requirement(name), extra)
    return frozenset(canonicalize_name(name) for name, _ in known) | {"shadowspec"}


@cache
def hidden_modules() -> tuple[str, ...]:
    """The modules of this environment that a slim installation lacks."""
    of = packages_distributions()
    return tuple(
        sorted(
            module
            for module, names in of.items()
            if not packages() & set(map(canonicalize_name, names)) and not module.startswith("__editable__")
        )
    )


def run_slim(folder: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments in a folder."""
    hiding = folder / "hiding"
    hiding.mkdir(exist_ok=True)
    (hiding / "sitecustomize.py").write_text(HIDING, encoding="utf-8")
    path = os.pathsep.join(map(str, (hiding, CHECKOUT, CHECKOUT / "kernels")))
    environment = os.environ | {"PYTHONPATH": path, "HIDDEN_MODULES": " ".join(hidden_modules())}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
