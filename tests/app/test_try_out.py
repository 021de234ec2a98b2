"""What a trial infers from a recording, before any model is loaded."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from shadowspec.app.rehearsals import MeasuringProgress, Rehearsals
from shadowspec.app.try_out import sample as sampling
from shadowspec.app.try_out.configuration import NUM_TOKENS, TrialInputs, config_text
from shadowspec.app.try_out.sample import read_sample, served_models
from shadowspec.app.try_out.survey import NO_SLICES, SLICE_SESSIONS, Slicing, Survey, UsableRequest
from shadowspec.cli.measuring_view import progress_lines
from shadowspec.config import load_config
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.figure_texts import title_of_test
from shadowspec.gate.verdict.hold_reasons import needed_for_promotion
from shadowspec.gate.verdict.required_tests import min_clusters
from shadowspec.tap.endpoints import DEFAULT_SLICE_BY, EndpointRule
from shadowspec.text import plural
from shadowspec.worker.files import Progress
from tests.builders.hypothesis_evidence import draw_runs, evidence_of, look
from tests.gate.worlds import START
from tests.tap.formats.samples import kong_entry, structured

INPUTS = TrialInputs(Path("/m/target"), None, Path("/t.jsonl"), "0" * 64, ("org/my model.v2",), "vllm 0.32", 8)


def survey(sizes: list[int], classes: list[str], scale: float = 1.0) -> Survey:
    """Sessions of so many requests, each of its class."""
    sessions = (
        tuple(UsableRequest({"prompt_class": name, "sampling_regime": "high"}, 10) for _ in range(size))
        for size, name in zip(sizes, classes, strict=True)
    )
    return Survey(tuple(sessions), Counter(), START, START + timedelta(hours=1), scale)


def test_every_format_of_run_is_sampled(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    halves = [structured(kind, data) for kind, data in (("request", {"model": "a", "prompt": "x"}), ("response", {}))]
    lines = [json.dumps(kong_entry()).encode(), *(value for value, _ in halves)]
    path.write_bytes(b"\n".join(lines))
    found = read_sample(str(path))
    assert (found.num_lines, len(found.opened)) == (3, 2), "two halves are one record"
    assert {each.record.model for each in found.opened if each.record is not None} == {"model-a", "a"}
    assert served_models(found, ["a"]).names == ("a",)


def test_a_long_file_is_sampled_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "SAMPLED_LINES", 10)
    path = tmp_path / "long.jsonl"
    path.write_text(f"{json.dumps(kong_entry())}\n" * 25)
    found = read_sample(str(path))
    assert (found.num_lines, found.num_sampled, len(found.opened), found.scale) == (25, 10, 10, 2.5)


@pytest.mark.parametrize(
    ("sizes", "positions", "num_timed"),
    [
        ([1, 1, 1, 2], 1, 4.0),
        ([1, 1, 1, 5], 3, 2.0),
        ([2, 2, 1], 2, 2.5),
        ([5, 5], 4, 2.0),
        ([9, 9], 7, 2.0),
        ([3], 3, 1.0),
    ],
)
def test_the_timed_position_is_drawn_from_as_many_as_the_median_session_has_or_most_requests_need(
    sizes: list[int], positions: int, num_timed: float
) -> None:
    found = survey(sizes, ["chat"] * len(sizes))
    assert found.timed_positions == positions
    assert found.num_timed(positions) == num_timed


@pytest.mark.parametrize(
    ("num_sessions", "places", "expected"),
    [(13, 4, 3.166), (100, 4, 4.0), (1, 4, 1.166), (13, 2, 2.0)],  # in an hour, of which a block waits ten minutes
)
def test_a_block_has_the_requests_that_come_while_it_waits(num_sessions: int, places: int, expected: float) -> None:
    parts = GatePolicy(window_s=0.0, block_max_wait_s=600.0, timed_positions=1).rule_parts()
    rule = EndpointRule("e", ("m",), **parts)
    found = survey([1] * num_sessions, ["chat"] * num_sessions)
    assert found.timed_per_block(rule, places) == pytest.approx(expected, abs=1e-3)
    longer = replace(found, scale=3.0)
    assert longer.timed_per_block(rule, places) == pytest.approx(expected, abs=1e-3), "the sample has its own span"
    assert replace(found, last=found.first).timed_per_block(rule, places) == places


def test_labels_make_slices_where_two_values_have_sessions_enough() -> None:
    many = SLICE_SESSIONS
    assert survey([1] * 3, ["chat"] * 3).slicing() == Slicing(DEFAULT_SLICE_BY, 1)
    assert survey([1] * 2 * many, ["chat", "code"] * many).slicing() == Slicing(DEFAULT_SLICE_BY, 2)
    rare = survey([1] * (many + 1), ["chat"] * many + ["code"])
    assert rare.slicing() == Slicing(("sampling_regime",), 1), "one slice and a rest"
    few = survey([1] * (2 * many - 2), ["chat", "code"] * (many - 1))
    assert few.slicing() == Slicing(("sampling_regime",), 1), "the label that has one value divides nothing"
    assert replace(few, scale=2.0).slicing().is_divided, "the sample is a part of the file"
    mixed = [UsableRequest({"prompt_class": name, "sampling_regime": regime}, 1) for name in "ab" for regime in "cd"]
    assert replace(few, sessions=tuple((each,) for each in mixed)).slicing() == Slicing(NO_SLICES, 1)


@pytest.mark.parametrize(("slicing", "num_hypotheses"), [(Slicing(NO_SLICES, 1), 2), (Slicing(DEFAULT_SLICE_BY, 3), 8)])
def test_the_configuration_parses_and_shares_the_level_among_what_is_measured(
    tmp_path: Path, slicing: Slicing, num_hypotheses: int
) -> None:
    path = tmp_path / "shadowspec.toml"
    path.write_text(config_text(INPUTS, tmp_path, slicing, 2, 64), encoding="utf-8")
    config = load_config(path, environment={})
    (name,) = config.endpoints
    endpoint = config.endpoints[name]
    assert (name, endpoint.rule.served_models) == ("my-model.v2", ("org/my model.v2",))
    assert endpoint.policy == replace(
        GatePolicy(),
        recording_only=True,
        max_hypotheses=num_hypotheses,
        timed_positions=2,
        serving_engine="vllm 0.32",
    )
    assert (endpoint.rule.max_new_tokens, endpoint.rule.slice_by) == (64, slicing.slice_by)
    assert [each.concurrency for each in endpoint.rule.loads] == [8]
    assert [each.num_speculative_tokens for each in endpoint.candidates] == [NUM_TOKENS["ngram"], NUM_TOKENS["suffix"]]
    assert endpoint.rule.match.matches(endpoint=None, model=None, path=None)


def test_no_end_is_estimated_before_the_first_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rehearsals, "_rehearse", lambda self: [])
    shown: list[MeasuringProgress] = []
    unused: Any = None  # by the rehearsal that is left out
    rehearsals = Rehearsals(unused, unused, 130, shown.append, eta=lambda done, seconds: 11.0)
    for num_blocks in (0, 1):
        rehearsals.take_progress(Progress(50, num_blocks, 0, 4 * num_blocks))
    (before,), (after,) = map(progress_lines, shown)
    assert before.startswith("50/130 records, 0 blocks, 0 requests, ")
    assert "about" not in before
    assert after.endswith(", about 11 seconds to the end of the recording")


def test_what_production_would_still_want_is_what_the_decision_lacks() -> None:
    policy = GatePolicy(window_s=0.0, max_hypotheses=2, recording_only=True)
    enabled = look(evidence_of(draw_runs(400)), policy)
    span = "traffic on 7 days (1 so far)"
    assert needed_for_promotion(enabled, policy) == [span]
    held = look(evidence_of(draw_runs(24)), policy)
    names = [title_of_test(test.name) for test in held.tests if test.is_required and test.outcome == "open"]
    assert len(names) > 1
    assert needed_for_promotion(held, policy) == [
        span,
        f"{plural(len(names), 'open test')} ({', '.join(names)}): "
        f"about {held.clusters_needed} more sessions (2.7 minutes of this traffic)",
    ]
    waiting = look(evidence_of(draw_runs(4)), policy, has_entered=False)
    assert (
        needed_for_promotion(waiting, policy)[1]
        .split("): ")[1]
        .startswith(f"at least {waiting.clusters_needed} more sessions (")
    )


def test_the_smallest_number_of_sessions_counts_every_request_of_a_block() -> None:
    policy = GatePolicy(window_s=0.0, max_hypotheses=2, recording_only=True)
    required = [test for test in look(evidence_of(draw_runs(24)), policy).tests if test.is_required]
    blocks = max(test.min_units for test in required if test.unit == "block")
    level = next(test.alpha for test in required if test.name == "speedup")
    assert min_clusters(policy, level, 100) == 100 * blocks
    assert min_clusters(replace(policy, entry_clusters=10**6), level, 1) == 10**6
