"""`shadowspec profile-device`: a whole grid of costs, where speculation pays on it, and refusals that say why."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from shadowspec import demo
from shadowspec.engine import Models
from shadowspec.engine.profiling import ProfileGrid, profile
from shadowspec.errors import InputError
from shadowspec.store import Store
from shadowspec.types import SpeculationConfig, VerifyRule
from shadowspec.types.settings import EngineSettings
from tests.builders.workspace import Workspace

NGRAM = """
[[endpoints.letters.candidates]]
name = "lookup"
proposer = "ngram"
num_speculative_tokens = 3
"""
SUFFIX = """
[[endpoints.letters.candidates]]
name = "suffixes"
proposer = "suffix"
num_speculative_tokens = 3
"""
MEDUSA = f"""
[[endpoints.letters.candidates]]
name = "medusa"
proposer = "medusa"
draft = "{demo.HEADS / "medusa"}"
num_speculative_tokens = 2
"""
SMALL = ("--loads", "1,3", "--k", "1,2", "--contexts", "8,16", "--rounds", "2")


@pytest.mark.all
@pytest.mark.parametrize(
    ("options", "regimes"), [((), [True, False]), (("--greedy",), [True]), (("--sampled",), [False])]
)
def test_every_point_of_the_grid_has_its_costs(
    workspace: Workspace, options: tuple[str, ...], regimes: list[bool]
) -> None:
    result = workspace.run("profile-device", *SMALL, *options, "--no-store", "--json", "--out", "costs.json")
    assert result.code == 0, result.err
    assert json.loads((workspace.folder / "costs.json").read_text(encoding="utf-8")) == result.document
    profiles = result.document["profiles"]
    assert [document["is_greedy"] for document in profiles] == regimes
    for document in profiles:
        assert (document["endpoints"], document["config"]) == (["letters"], "draft")
        places = {(each["concurrency"], each["num_speculative_tokens"], each["context"]) for each in document["points"]}
        assert places == {(b, k, c) for b in (1, 3) for k in (0, 1, 2) for c in (8, 16)}
        baseline = {}
        for each in document["points"]:
            place = (each["concurrency"], each["context"])
            assert each["step_ms"] == pytest.approx(each["draft_ms"] + each["verify_ms"] + each["other_ms"])
            assert each["prefill_ms"] > 0
            assert each["verify_ms"] > 0
            if each["num_speculative_tokens"] == 0:
                baseline[place] = each["step_ms"]
                assert each["break_even_length"] == 1.0
            else:
                assert each["draft_ms"] > 0
                assert each["break_even_length"] == pytest.approx(each["step_ms"] / baseline[place])
    assert not (workspace.folder / "shadow.db").exists()  # not asked for


def test_costs_are_kept_for_report_and_dashboard(workspace: Workspace) -> None:
    refused = workspace.run("profile-device", *SMALL, "--store")
    assert refused.code == 2  # before minutes are spent on it
    assert "shadowspec db upgrade" in refused.err
    without = workspace.run("profile-device", "--loads", "1", "--k", "1", "--contexts", "8", "--rounds", "1")
    assert without.code == 0
    assert "not stored: there is no database yet" in without.err
    assert not (workspace.folder / "shadow.db").exists()
    workspace.migrate()
    result = workspace.run("profile-device", *SMALL, "--json")
    assert result.code == 0, result.err
    with Store.open(f"sqlite:///{workspace.folder / 'shadow.db'}") as store:
        stored = {key.is_greedy: costs for key, costs in store.costs().items()}
    for item in result.document["profiles"]:
        costs = stored[item["is_greedy"]]
        assert [(each.place, each.step_ms) for each in costs.points] == [
            ((point["concurrency"], point["num_speculative_tokens"], point["context"]), pytest.approx(point["step_ms"]))
            for point in item["points"]
        ]
        assert (costs.key.engine, costs.key.device) == (item["engine"], item["device"])
        assert costs.profiled_at == datetime.fromisoformat(item["profiled_at"])


@pytest.mark.all
def test_the_table_says_from_where_on_speculation_pays(workspace: Workspace) -> None:
    result = workspace.run("profile-device", *SMALL, "--no-store")
    assert "draft for letters" in result.out
    assert "pays from" in result.out
    assert "K 2" in result.out


@pytest.mark.all
def test_every_way_of_drafting_has_a_surface_of_its_own(workspace: Workspace) -> None:
    config = workspace.folder / "shadowspec.toml"
    config.write_text(config.read_text(encoding="utf-8") + NGRAM + SUFFIX, encoding="utf-8")
    result = workspace.run("profile-device", *SMALL, "--greedy", "--no-store", "--json")
    assert result.code == 0, result.err
    entry = {each["config"]: each["points"] for each in result.document["profiles"]}
    assert set(entry) == {"draft", "lookup", "suffixes"}
    for points in entry.values():
        assert len(points) == 2 * 3 * 2
        assert all(each["draft_ms"] > 0 for each in points if each["num_speculative_tokens"])


@pytest.mark.all
def test_depths_that_heads_do_not_reach_are_left_out_and_told(
    workspace: Workspace, caplog: pytest.LogCaptureFixture
) -> None:
    text = (workspace.folder / "shadowspec.toml").read_text(encoding="utf-8")
    bundled = re.sub(r'target = ".*"', f'target = "{demo.TARGET}"', text.split("[[endpoints.letters.candidates]]")[0])
    (workspace.folder / "shadowspec.toml").write_text(bundled + MEDUSA, encoding="utf-8")
    loads = ("--loads", "1", "--contexts", "8", "--rounds", "1", "--greedy", "--no-store", "--json")
    most = load_most()
    result = workspace.run("profile-device", "--k", f"1,{most},{most + 1}", *loads)
    assert result.code == 0, result.err
    (profile_document,) = result.document["profiles"]
    assert {each["num_speculative_tokens"] for each in profile_document["points"]} == {0, 1, most}
    assert f"medusa drafts {most} tokens at most: greater depths are not profiled" in caplog.text
    beyond = workspace.run("profile-device", "--k", str(most + 1), *loads)
    assert beyond.code == 4
    assert "there is nothing to profile" in beyond.err


def load_most() -> int:
    """Of the bundled Medusa heads, one for each token."""
    config = json.loads((demo.HEADS / "medusa" / "config.json").read_text(encoding="utf-8"))
    return int(config["num_heads"])


def test_adaptive_depth_is_left_out_and_told(workspace: Workspace) -> None:
    """What a step of it costs depends on how sure the draft is."""
    workspace.replace_in_config(
        "num_speculative_tokens = 3", "num_speculative_tokens = 3\ndraft_confidence_threshold = 0.4"
    )
    result = workspace.run("profile-device", "--no-store", *SMALL)
    assert result.code == 4
    assert "there is nothing to profile" in result.err


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"draft_confidence_threshold": 0.4},
            "k3: the cost of its steps depends on the draft's confidence; not profiled",
        )
    ],
)
def test_a_step_that_depends_on_the_text_has_no_surface(
    tiny_pair: tuple[Path, Path], changes: dict[str, Any], says: str
) -> None:
    config = SpeculationConfig("k3", "t", str(tiny_pair[1]), "draft_model", 3, VerifyRule.GREEDY_DRAFT)
    target, (candidate,) = Models(EngineSettings("cpu")).candidates(
        str(tiny_pair[0]), [replace(config, **changes)], print, 1, {}
    )
    with pytest.raises(InputError, match=says):
        profile(target, candidate, ProfileGrid((1,), (2,), (8,)))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--loads", "0,1"), "--loads must be a list"),
        (("--contexts", "many"), "--contexts must be a list"),
        (("--k", "0..2"), "--k must be a range"),
        (("--contexts", "100000"), "leaves no room: at most"),
        (("--endpoint", "nobody"), "no endpoint 'nobody' is configured (configured: letters)"),
    ],
)
def test_what_cannot_be_profiled_is_refused(workspace: Workspace, arguments: tuple[str, ...], says: str) -> None:
    result = workspace.run("profile-device", "--no-store", *arguments)
    assert result.code == 2
    assert says in result.err
