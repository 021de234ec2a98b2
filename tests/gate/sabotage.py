"""Copies of the product's modules with a fault put in, to show that a check sees it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

# By name: a module of the product, the check that it passes, and edits each of which must make the check fail.
Checks = Mapping[str, tuple[str, Callable[[Any], None], Sequence[tuple[str, str]]]]

_numbers = count()


def sabotaged(name: str, *edits: tuple[str, str]) -> ModuleType:
    """A copy of the module `name` in which each edit's first text, found exactly once, is replaced by its second."""
    original = importlib.import_module(name)
    source = Path(str(original.__file__)).read_text(encoding="utf-8")
    for old, new in edits:
        assert source.count(old) == 1, f"{name} has {source.count(old)} places that read {old!r}"
        source = source.replace(old, new)
    copy = ModuleType(f"{name}_sabotaged_{next(_numbers)}")
    copy.__dict__.update({"__file__": original.__file__, "__package__": original.__package__})
    sys.modules[copy.__name__] = copy  # where dataclasses look their annotations up
    exec(compile(source, f"{name} (sabotaged)", "exec"), copy.__dict__)
    return copy


def cases(checks: Checks) -> list[tuple[str, str, str]]:
    """Every edit, with the name of its check."""
    return [(name, old, new) for name, (_, _, edits) in checks.items() for old, new in edits]


def assert_passes(checks: Checks, name: str) -> None:
    """The product itself passes a check."""
    module, check, _ = checks[name]
    check(importlib.import_module(module))


def assert_caught(checks: Checks, name: str, edit: tuple[str, str], failures: tuple[type[BaseException], ...]) -> None:
    """A copy of the product with one edit does not pass the check."""
    module, check, _ = checks[name]
    broken = sabotaged(module, edit)
    with np.errstate(all="ignore"), pytest.raises(failures):
        check(broken)
