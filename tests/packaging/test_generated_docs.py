"""The parts of the documentation that are made from code are what the code says now, and leave nothing out."""

from __future__ import annotations

import re
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest

from docs.generate import settings
from docs.generate.pages import DOCS, PARTS, current, with_parts
from shadowspec.config import config_template
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.reasons import REASONS
from shadowspec.rollout.rollout_policy import RolloutPolicy
from shadowspec.types import ReasonCode

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^- `([a-z_0-9]+)`.*:.*$", re.MULTILINE)


@pytest.mark.parametrize("page", PARTS)
def test_the_page_is_current(page: str) -> None:
    assert (DOCS / page).read_text(encoding="utf-8") == current(page), f"docs/{page} is out of date: run `make docs`"


def test_a_page_without_the_place_of_a_part_is_refused() -> None:
    with pytest.raises(ValueError, match="must have one part"):
        with_parts("# A page\n", {"a part": str})


def test_every_key_of_the_configuration_has_a_meaning() -> None:
    rows = [line for line in settings.configuration().splitlines() if ROW.match(line)]
    assert [line for line in rows if line.rstrip().endswith(":")] == []
    # All that the commented file shows, tables within tables aside.
    uncommented = re.sub(r"(?m)^# (?=\[{1,2}[a-z]|[a-z_]+ = )", "", config_template())
    shown = _keys(tomllib.loads(uncommented)) - {
        "concurrency",
        "share",
        "endpoint",
        "model",
        "path",
        "request",
        "structured",
        "tier",
        "time",
    }
    assert shown - {ROW.match(line)[1] for line in rows} == {"draft_tensor_parallel_size"} & shown


def test_every_key_of_the_policy_has_a_meaning() -> None:
    rows = [line for line in settings.policy().splitlines() if ROW.match(line)]
    assert [line for line in rows if line.rstrip().endswith(":")] == []
    known = {*asdict(GatePolicy(window_s=0.0)), *asdict(RolloutPolicy())} - {
        "serving_engine",
        "has_control",
        "is_upgrade",
    }
    assert {ROW.match(line)[1] for line in rows} == known


def test_every_reason_of_a_decision_says_what_to_do() -> None:
    page = (DOCS / "reading-a-hold.md").read_text(encoding="utf-8")
    assert all(REASONS[each].meaning and REASONS[each].step and f"- `{each}`" in page for each in ReasonCode)
    # The codes that the gate gives are members: a literal would be a reason that no page explains.
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "shadowspec/gate").rglob("*.py"))
    assert re.findall(r'(?:_hold\(|_Outcome\(\w+\.\w+, |reason_code=)"(\w+)"', sources) == []


def _keys(table: object) -> set[str]:
    """The keys of scalars and lists in all tables, but for names."""
    if isinstance(table, list):
        return set().union(*map(_keys, table)) if table else set()
    if not isinstance(table, dict):
        return set()
    inner = set().union(*map(_keys, table.values())) if table else set()
    return inner | {key for key, value in table.items() if not isinstance(value, dict | list) or _is_plain(value)}


def _is_plain(value: object) -> bool:
    return isinstance(value, list) and not any(isinstance(each, dict) for each in value)
