"""The alert rules, from the file that Prometheus reads."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from docs.generate.markdown import code, listing

RULES = Path(__file__).parents[2] / "deploy/prometheus/shadowspec.rules.yaml"
_LABELS = re.compile(r"^.*\}\}: | \(\{\{.*\}\}\)")  # what a summary says of its place


def alerts() -> str:
    """Every alert with its severity, its meaning and what to do."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    return listing(
        (code(rule["alert"]), rule["labels"]["severity"], f"{_said(rule)}. **{rule['annotations']['description']}**")
        for rule in rules
    )


def _said(rule: dict[str, dict[str, str]]) -> str:
    said = _LABELS.sub("", rule["annotations"]["summary"])
    return said[0].upper() + said[1:]
