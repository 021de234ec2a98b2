"""`plan`: what open questions still want, in words and as JSON, and nothing written."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from shadowspec.cli.plan import _needed
from shadowspec.config import load_config
from shadowspec.planning.plans import plan_stored
from shadowspec.store import Store
from tests.builders.workspace import NOON, Workspace, record, write_traffic


@pytest.fixture
def fed(workspace: Workspace) -> Workspace:
    """Nine requests of nine sessions, measured."""
    traffic = str(write_traffic(workspace.folder / "traffic.jsonl", [record(number) for number in range(9)]))
    workspace.migrate()
    assert workspace.run("run", traffic).code == 0
    return workspace


@pytest.fixture
def measured(fed: Workspace) -> Workspace:
    """The same, looked at once."""
    assert fed.run("gate").code == 0
    return fed


def test_a_plan_says_what_is_wanted_and_writes_nothing(measured: Workspace) -> None:
    with Store.open("sqlite:///shadow.db") as store:
        before = [(each.decision_id, each) for each in store.latest_decisions()]
    done = measured.run("plan", "--json", "--capacity", "0.5")
    assert done.code == 0, done.err
    (plan,) = done.document["plans"]
    assert done.document["schema_version"] == 1
    assert (plan["endpoint"], plan["capacity_per_s"], plan["sample_rate"]) == ("letters", 0.5, 1.0)
    assert 0.0 < plan["recommended_sample_rate"] <= 1.0
    assert [item["slice"] for item in plan["hypotheses"]] == [item["slice"] for item in plan["slices"]]
    assert {tuple(item["slice"]) for item in plan["slices"]} == {(), ("prompt_class", "sampling_regime")}
    for item in plan["hypotheses"]:
        assert item["verdict"] in {"HOLD", "DISABLE"}
        if item["is_open"]:
            assert {"speedup", "acceptance", "tail"} <= {test["name"] for test in item["tests"]}
            assert 0.0 <= item["enable_share"] + item["disable_share"] <= 1.0
            assert item["clusters_p90"] is None or item["clusters_median"] <= item["clusters_p90"]
    with Store.open("sqlite:///shadow.db") as store:
        assert [(each.decision_id, each) for each in store.latest_decisions()] == before
    assert plan["requests_per_s"] == pytest.approx(1.0)
    assert plan["session_cost"]["device_seconds"] > 0.0
    assert plan["session_cost"]["source"] in {"blocks", "arms"}
    whole = plan["slices"][0]
    assert whole["device_seconds_so_far"] == pytest.approx(plan["device_seconds_so_far"])
    assert whole["device_seconds_so_far"] > 0.0
    shown = measured.run("plan", "--endpoint", "letters", "--verbose")
    assert shown.code == 0
    assert "device time of letters:" in shown.out
    assert "shadow devices" not in shown.out
    assert "sample_rate of letters: 1 now" in shown.out
    assert "whole endpoint" in shown.out


def test_a_shadow_is_sized_for_a_time_and_a_traffic(measured: Workspace) -> None:
    asked = ("plan", "--endpoint", "letters", "--decide-within", "30d")
    sizing = measured.run(*asked, "--json").document["sizing"]
    assert sizing["decide_within_s"] == 30 * 86_400
    (sized,) = sizing["endpoints"]
    assert sized["requests_per_s"] == pytest.approx(1.0)
    more = measured.run(*asked, "--json", "--rate", "50").document["sizing"]["endpoints"][0]
    assert more["requests_per_s"] == 50.0
    assert {len(sized[way]["too_slow"]) > 0 for way in ("median", "p90") if sized[way]["sample_rate"] is None} <= {True}
    rates = [(sized[way]["sample_rate"], more[way]["sample_rate"]) for way in ("median", "p90")]
    for few, many in rates:
        if few is not None:
            assert many == pytest.approx(few / 50)
    shown = measured.run(*asked)
    assert shown.code == 0, shown.err
    assert "to decide within 30 days" in shown.out
    assert "shadow devices:" in shown.out


WINDOWS = ("window_s = 0.0  # units are blocks\n", "window_s = 3600.0\nmin_span_s = 86400.0\n")
NEW = """
[endpoints.digits]
target = "{target}"
served_models = ["d"]
match = {{ model = "d" }}
loads = [{{ concurrency = 2 }}, {{ concurrency = 4 }}]

[[endpoints.digits.candidates]]
name = "draft"
proposer = "draft_model"
draft = "{target}"
num_speculative_tokens = 3
"""


def test_the_fleet_is_one_line_each_and_says_what_it_assumes(workspace: Workspace) -> None:
    """Hourly blocks of one endpoint over twelve hours, and an endpoint of which nothing has come."""
    workspace.replace_in_config("min_span_s = 0.0\n", "")
    workspace.replace_in_config(*WINDOWS)
    config = workspace.folder / "shadowspec.toml"
    text = config.read_text()
    target = load_config(config, environment={}).endpoints["letters"].target
    config.write_text(text + NEW.format(target=target))
    hourly = [
        record(number) | {"timestamp": (NOON + timedelta(hours=number // 2, minutes=number % 2)).isoformat()}
        for number in range(24)
    ]
    workspace.migrate()
    traffic = str(write_traffic(workspace.folder / "traffic.jsonl", hourly))
    assert workspace.run("run", traffic).code == 0
    unlooked = workspace.run("plan", "--fleet", "--json")
    assert unlooked.code == 0, unlooked.err
    letters, digits = unlooked.document["endpoints"]
    assert letters["blocks_per_hour"] == pytest.approx(1.0, abs=0.05)
    assert letters["device_seconds_per_block"] > 0.0
    assert letters["device_hours_per_week"] == pytest.approx(
        168 * letters["blocks_per_hour"] * letters["device_seconds_per_block"] / 3_600
    )
    assert [letters[name] for name in ("is_rate_assumed", "is_time_assumed", "is_planned", "waits")] == [False] * 4
    assert (digits["blocks_per_hour"], digits["is_rate_assumed"], digits["is_time_assumed"]) == (2.0, True, True)
    assert digits["device_seconds_per_block"] == pytest.approx(letters["device_seconds_per_block"])
    (group,) = unlooked.document["groups"]
    assert (group["measured_by"], group["is_served"], group["endpoints"]) == ("device", False, ["letters", "digits"])
    assert (group["num_engines"], group["engines_needed"]) == (1, 1)
    assert workspace.run("gate").code == 0
    shown = workspace.run("plan", "--fleet", "--decide-within", "30d", "--verbose")
    assert shown.code == 0, shown.err
    lines = shown.out.splitlines()
    assert [sum(line.strip().startswith(name) for line in lines) for name in ("letters", "digits")] == [1, 1]
    assert next(line for line in lines if "digits" in line).count("*") == 3
    assert "verdicts within 30 days need 1 device" in shown.out
    assert "* assumed: the policy's budget" in shown.out
    planned, _ = workspace.run("plan", "--fleet", "--json").document["endpoints"]
    assert planned["is_planned"]
    whole = workspace.run("plan", "--json").document["plans"][0]["slices"][0]
    assert planned["seconds_p90"] == whole["seconds_p90"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 4, "nothing has been measured yet"),
        (("--endpoint", "unknown"), 2, "no endpoint 'unknown' is configured (configured: letters)"),
        (("--capacity", "0"), 2, "--capacity must be above 0"),
        (("--capacity", "-1"), 2, "--capacity"),
        (("--decide-within", "soon"), 2, "invalid duration 'soon'"),
        (("--fleet",), 4, "nothing has been measured yet"),
        (("--fleet", "--endpoint", "letters"), 2, "--fleet plans all endpoints"),
        (("--rate", "5"), 2, "--rate must be above 0 and needs --endpoint"),
        (("--rate", "0", "--endpoint", "letters", "--decide-within", "1d"), 2, "--rate must be above 0"),
    ],
)
def test_what_cannot_be_planned(workspace: Workspace, arguments: tuple[str, ...], code: int, says: str) -> None:
    workspace.migrate()
    done = workspace.run("plan", *arguments)
    assert done.code == code
    assert says in done.err
    assert Path("shadow.db").exists()


def test_an_estimate_agrees_with_the_simulated_outcomes(measured: Workspace) -> None:
    policy = load_config(measured.folder / "shadowspec.toml", environment={}).endpoints["letters"].policy
    with Store.open("sqlite:///shadow.db") as store:
        plan = plan_stored(store, "letters", policy, sample_rate=1.0, capacity_per_s=None).hypotheses[0]
    plan = replace(plan, is_open=True, needed=None, note="", tests=())
    assert _needed(replace(plan, enable_share=0.0, disable_share=1.0)) == "ENABLE is not expected"
    assert _needed(replace(plan, enable_share=0.5, disable_share=0.5)) == "no estimate yet"


def test_a_dry_run_decides_and_keeps_nothing(fed: Workspace) -> None:
    first = fed.run("gate", "--dry-run", "--json")
    assert first.code == 0, first.err
    (loads,) = first.document["loads"]
    assert (loads["endpoint"], loads["demand"]) == ("letters", None)
    assert first.document["dry_run"] is True
    assert "too_few_clusters" not in {item["reason_code"] for item in first.document["decisions"]}
    fed.replace_in_config("entry_clusters = 2", "entry_clusters = 5000")
    tried = fed.run("gate", "--dry-run", "--json").document
    assert {item["reason_code"] for item in tried["decisions"]} == {"too_few_clusters"}
    shown = fed.run("gate", "--dry-run", "--verbose")
    assert "loads of letters: " in shown.out
    assert "Production's load is not measured: set metrics_urls in endpoints.letters.live" in shown.out
    assert "dry run: nothing was stored" in shown.err
    with Store.open("sqlite:///shadow.db") as store:
        assert store.latest_decisions() == store.rollout_history("letters") == []
        assert store.folded_evidence("letters").progress is None


def test_a_gate_run_shows_where_the_rollout_stands(measured: Workspace) -> None:
    (rollout,) = measured.run("gate", "--json").document["rollouts"]
    assert (rollout["endpoint"], rollout["stage"], rollout["share"]) == ("letters", "shadow", 0.0)
    assert rollout["waits_for"] == "a current ENABLE"
    with Store.open("sqlite:///shadow.db") as store:
        assert [rollout.reason_code for rollout in store.rollout_history("letters")] == ["began"]
    assert "a current ENABLE" in measured.run("gate", "--verbose").out
