"""Rules, queries and dashboards of deploy/ read the metrics that the product serves."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from shadowspec.scheduler.verdict_metrics import FAMILIES
from shadowspec.worker.telemetry import Telemetry

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
METRIC = re.compile(r"\bshadowspec_[a-z_]+")
WORKER = {each.name: set(each.labels) for each in Telemetry().described}
SERVED = {f"shadowspec_{name}": set(labels) for name, (_, labels) in FAMILIES.items()} | WORKER


# Grafana's Prometheus plugin reads it; the schema names the annotation's general fields alone.
UNKNOWN_TO_SCHEMA = {"/annotations/list/0/titleFormat"}


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((PROMETHEUS / "grafana-dashboard.json").read_text(encoding="utf-8"))
    return found


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = dashboard()["panels"]
    return found


def leaves(document: object, path: str = "") -> dict[str, object]:
    """Values that are neither objects nor lists, by JSON pointer."""
    if isinstance(document, dict):
        found = {key: leaves(value, f"{path}/{key}") for key, value in document.items()}
    elif isinstance(document, list):
        found = {str(index): leaves(value, f"{path}/{index}") for index, value in enumerate(document)}
    else:
        return {path: document}
    return {pointer: value for each in found.values() for pointer, value in each.items()}


def queries() -> list[str]:
    """Every PromQL expression in deploy/ and docs/metrics.md."""
    rules = yaml.safe_load((PROMETHEUS / "shadowspec.rules.yaml").read_text(encoding="utf-8"))
    found = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    found += [target["expr"] for panel in panels() for target in panel["targets"]]
    for path in sorted((DEPLOY / "rollouts").glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            found += [document["spec"]["query"]] if "query" in document["spec"] else []
            for metric in document["spec"].get("metrics", ()):
                found += [metric["provider"]["prometheus"]["query"]] if "prometheus" in metric["provider"] else []
    return found


def test_rules_are_valid_and_fire_as_their_tests_say() -> None:
    for command in (("check", "rules", "shadowspec.rules.yaml"), ("test", "rules", "shadowspec.rules.test.yaml")):
        ran = subprocess.run(["promtool", *command], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_rule_is_tested() -> None:
    rules = yaml.safe_load((PROMETHEUS / "shadowspec.rules.yaml").read_text(encoding="utf-8"))
    tests = (PROMETHEUS / "shadowspec.rules.test.yaml").read_text(encoding="utf-8")
    names = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert {name for name in names if name not in tests} == set()


@pytest.mark.parametrize("query", queries())
def test_a_query_reads_metrics_and_labels_that_are_served(query: str) -> None:
    names = set(METRIC.findall(query))
    assert names
    assert names <= SERVED.keys()
    for name, selector in re.findall(r"(shadowspec_[a-z_]+)\{([^}]*(?:\}\}[^}]*)*)\}", query):
        assert set(re.findall(r"([a-z_]+)=~?\"", selector)) <= SERVED[name], name


def test_grafanas_schema_knows_every_field_of_the_dashboard() -> None:
    register_default_plugins()  # options of panels and queries
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard())))
    assert leaves(dashboard()).items() - leaves(read).items() == {
        item for item in leaves(dashboard()).items() if item[0] in UNKNOWN_TO_SCHEMA
    }


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_the_query_of_docs_is_that_of_the_controllers() -> None:
    """Flagger's and Argo's placeholders aside."""

    def plain(text: str) -> str:
        return re.sub(
            r"\s+",
            " ",
            re.sub(
                r"\{\{ ?(?:args|variables)\.(\w+) ?\}\}",
                lambda found: {"endpoint": "chat", "load": "4"}[found[1]],
                text,
            ),
        ).strip()

    page = (DEPLOY.parent / "docs" / "metrics.md").read_text(encoding="utf-8")
    wanted = plain("\n".join(re.findall(r"^(min\(shadowspec_check.*\n)", page, re.MULTILINE)))
    found = [plain(query) for query in queries() if query.startswith("min(shadowspec_check")]
    assert found == [wanted, wanted]
