"""ModelOpt's profile: its keys and types, its two identities, and nothing measured where nothing stands."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest

from shadowspec.errors import NoDataError
from shadowspec.rollout.export import modelopt
from shadowspec.rollout.export.load_schedule import endpoint_schedule
from shadowspec.servers.engines.export_parts import Export
from shadowspec.types import Decision, FingerprintedConfig, Rollout, SpeculationCounts, Stage, Verdict
from tests.rollout.export.worlds import NOW, PEERS, config, decision, judged

# 100 steps: 40 accepted nothing, 30 one token, none two, 30 three.
COUNTS = SpeculationCounts(
    num_drafts=100,
    num_draft_tokens=300,
    num_accepted_tokens=120,
    num_accepted_tokens_per_pos=(60, 30, 30),
    acceptance_histogram=(40, 30, 0, 30),
    num_output_tokens=230,
    num_prompt_tokens=1_000,
)
THREE = config(3, draft="/srv/models/org/draft")
JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def profile(decisions: list[Decision], counts: SpeculationCounts = COUNTS) -> dict[str, Any]:
    return dict(json.loads(rendered(decisions, counts).text))


def rendered(
    decisions: list[Decision], counts: SpeculationCounts = COUNTS, *, rollouts: Sequence[Rollout] = ()
) -> Export:
    configs = {
        d.fingerprint: FingerprintedConfig(
            d.config, "torch/2", "cpu", "float32", {"draft_weights": "ab", "target_weights": "cd"}, d.fingerprint
        )
        for d in decisions
    }
    by_slice = {d.fingerprint: {"prompt_class=code": counts, "prompt_class=chat": counts} for d in decisions}
    return modelopt.render(endpoint_schedule("chat", judged(decisions, rollouts=rollouts)), by_slice, configs)


def peer() -> dict[str, Any]:
    return dict(json.loads((PEERS / "modelopt.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("verdict", [Verdict.ENABLE, Verdict.HOLD])
def test_keys_and_types_are_those_of_the_schema(verdict: Verdict) -> None:
    found = profile([decision(verdict, of=THREE)])
    wanted = peer()["fields"]
    assert list(found) == list(wanted)
    for key, value in found.items():
        kind = "null" if value is None else JSON_TYPES[type(value)]
        assert kind in wanted[key], key
    if found["validation"] is not None:
        assert {name: list(check) for name, check in found["validation"].items()} == peer()["validation"]
        assert found["validation"]["mean_consistency"]["tolerance"] == peer()["tolerance"]


def test_only_a_draft_that_always_drafts_all_is_analytic() -> None:
    adaptive = dataclasses.replace(THREE, draft_confidence_threshold=0.4)
    suffix = dataclasses.replace(THREE, proposer="suffix", draft=None)
    models = [profile([decision(of=each)])["accept_length_model"] for each in (THREE, adaptive, suffix)]
    assert models == ["chain_analytic", "measured_per_k", "measured_per_k"]


def test_rates_of_a_known_histogram() -> None:
    found = profile([decision(of=THREE)])
    assert found["marginal_accept_rates"] == [0.6, 0.3, 0.3]
    assert found["conditional_accept_rates"] == [0.6, 0.5, 1.0]
    assert found["mean_accept_length"] == 2.2
    assert found["accept_length_by_k"] == {"3": 2.2}
    assert found["acceptance_length_histogram"] == {"1": 80, "2": 60, "4": 60}, "pooled over both slices"
    assert found["per_category"] == {
        "prompt_class=chat": {"mean_accept_length": 2.2},
        "prompt_class=code": {"mean_accept_length": 2.2},
    }
    assert found["measured"] is True
    assert found["accept_length_model"] == "chain_analytic"


def test_the_mean_is_one_plus_the_sum_of_marginals_and_they_never_rise() -> None:
    found = profile([decision(of=THREE)])
    histogram = {int(length): steps for length, steps in found["acceptance_length_histogram"].items()}
    per_step = sum(length * steps for length, steps in histogram.items()) / sum(histogram.values())
    assert 1 + sum(found["marginal_accept_rates"]) == pytest.approx(per_step) == found["mean_accept_length"]
    assert found["marginal_accept_rates"] == sorted(found["marginal_accept_rates"], reverse=True)
    assert found["validation"]["mean_consistency"]["passed"]
    assert found["validation"]["marginal_monotonicity"]["passed"]


@pytest.mark.parametrize("per_pos", [(60, 30, 10), (30, 60, 30)])
def test_counts_that_contradict_each_other_are_refused(per_pos: tuple[int, ...]) -> None:
    broken = SpeculationCounts(100, 300, 120, per_pos, (40, 30, 0, 30), 230, 1_000)
    with pytest.raises(NoDataError, match="contradict"):
        profile([decision(of=THREE)], broken)


@pytest.mark.parametrize(
    ("verdict", "code", "says"),
    [
        (Verdict.HOLD, "too_few_units", "HELD"),
        (Verdict.HOLD, "other_engine", "HELD"),
        (Verdict.DISABLE, "slowdown", "DISABLED"),
    ],
)
def test_what_was_measured_is_exported_whatever_the_verdict(verdict: Verdict, code: str, says: str) -> None:
    held = profile([decision(verdict, of=THREE, reason_code=code)])
    enabled = profile([decision(of=THREE)])
    assert held["measured"] is True
    assert held["marginal_accept_rates"] == [0.6, 0.3, 0.3]
    differing = {key for key in held if held[key] != enabled[key]}
    assert differing == {"measurement_conditions"}
    conditions = held["measurement_conditions"]
    assert (conditions["verdict"], conditions["num_steps"], conditions["decisions"]) == (says, 200, [1])
    missing = {"HELD": "not proven", "DISABLED": "proven harmful"}[says]
    assert (conditions["missing"], enabled["measurement_conditions"]["missing"]) == (missing, None)


def test_an_enable_that_is_not_rolled_out_says_what_it_lacks() -> None:
    decided = decision(of=THREE)
    shadow = Rollout("chat", 4, Stage.SHADOW, decided.fingerprint, NOW, NOW, "began", "")
    document = rendered([decided], rollouts=[shadow])
    conditions = json.loads(document.text)["measurement_conditions"]
    lacks = "not rolled out yet: its stage is shadow, which serves 0% of the traffic"
    assert (conditions["verdict"], conditions["missing"], conditions["decisions"]) == ("NOT_ROLLED_OUT", lacks, [1])
    assert document.remarks == (f"the profile enables nothing: chat is off: {lacks}",)


@pytest.mark.parametrize(
    ("verdict", "code"),
    [(Verdict.DISABLE, "parity_fault"), (Verdict.DISABLE, "parity_biased"), (Verdict.DISABLE, "override")],
)
def test_counts_of_outputs_that_are_not_the_targets_and_what_an_operator_stopped_are_not_measured(
    verdict: Verdict, code: str
) -> None:
    found = profile([decision(verdict, of=THREE, reason_code=code)])
    assert found["measured"] is False
    assert found["marginal_accept_rates"] == found["conditional_accept_rates"] == [0.0, 0.0, 0.0]
    assert found["mean_accept_length"] is None
    assert found["accept_length_by_k"] == {}
    assert found["validation"] is None


def test_no_folder_of_a_machine_is_published() -> None:
    found = profile([decision(of=THREE)])
    assert found["draft_checkpoint"] == {"id": "org/draft", "draft_weights": "ab"}
    assert found["target_model"] == {"id": "org/target", "target_weights": "cd"}
    assert "/srv" not in json.dumps(found)
    assert modelopt.checkpoint_id("C:\\models\\org\\draft\\") == "org/draft"
    assert modelopt.checkpoint_id("draft") == "draft"
    assert modelopt.checkpoint_id(None) is None


def test_it_says_which_decisions_it_rests_on() -> None:
    other = decision(of=config(2, draft="/srv/models/org/draft"), load=8, number=32)
    conditions = profile([decision(of=THREE, number=31), other])["measurement_conditions"]
    assert conditions["decisions"] == [31], "those of the depth that the profile is about"
    assert conditions["engine"] == "torch/2"
    assert conditions["num_steps"] == 200


def test_nothing_decided_is_no_profile() -> None:
    with pytest.raises(NoDataError):
        modelopt.render(endpoint_schedule("chat", []), {}, {})
