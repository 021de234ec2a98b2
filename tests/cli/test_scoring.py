"""Outputs are scored where they are made: figures reach the gate, texts reach nothing."""

from __future__ import annotations

import importlib
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from shadowspec import demo
from shadowspec.engine import Engine, Models
from shadowspec.errors import ConfigError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.gate_run import run_endpoint_gate
from shadowspec.quality.custom_scores import Scorer, is_json, load_scorer
from shadowspec.store import Store
from shadowspec.tap.admission import Admission
from shadowspec.tap.blocks import BlockFormer
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.joining import DEFAULT_WINDOW, Joiner
from shadowspec.types import (
    Contract,
    OutputContract,
    PairedScore,
    PartitionId,
    RunFlags,
    SamplingParameters,
    SpeculationConfig,
    TestResult,
    Validity,
    VerifyRule,
)
from shadowspec.types.settings import EngineSettings
from shadowspec.worker.files import FileRun, InProcess
from shadowspec.worker.pipeline import Pipeline
from tests.builders.worker_pipeline import CONFIG, RULES, SECRET, TOKENIZERS, raw_records
from tests.builders.workspace import Workspace, record, write_traffic
from tests.fakes import FakeEngine, FakeEngineFactory
from tests.worker.blocks import block, prompt

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(values, st.sampled_from(["", " ", "\n\t"]))
def test_what_is_written_as_json_is_valid_and_its_beginning_is_not(value: object, around: str) -> None:
    text = json.dumps(value)
    assert is_json(f"{around}{text}{around}") == 1.0
    if isinstance(value, str | list | dict):
        assert is_json(text[:-1]) == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "NaN",
        "[Infinity]",
        "-Infinity",
        "{'a': 1}",
        "{} {}",
        "```json\n{}\n```",
        "Sure: {}",
        "[" * 100_000,
        "01",
    ],
)
def test_what_is_no_json(text: str) -> None:
    assert is_json(text) == 0.0


def test_a_number_of_any_length_is_json() -> None:
    assert is_json("1" * 10_000) == 1.0


def refuses(text: str) -> float:
    raise ValueError(f"cannot score {text}")


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (refuses, "ValueError"),
        (lambda text: float(text), "ValueError"),
        (lambda _: None, "TypeError"),
        (lambda _: math.nan, "does not lie from 0 to 1"),
        (lambda _: 1.01, "does not lie from 0 to 1"),
        (lambda _: -1, "does not lie from 0 to 1"),
    ],
)
def test_what_cannot_be_scored_is_missing_and_its_text_is_in_no_log(
    function: object, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    scorer = Scorer({"score": function, "structured_validity": is_json})  # type: ignore[dict-item]
    secret = "a secret text"
    with caplog.at_level(logging.DEBUG):
        (pair,) = scorer.score_pairs([secret], ["{}"])
    assert pair["score"] == PairedScore(None, None)
    assert pair["structured_validity"] == PairedScore(0.0, 1.0)
    assert len(caplog.messages) == 2
    assert all(message.startswith("score of 1 of 1 outputs is missing") for message in caplog.messages)
    assert any(why in message for message in caplog.messages)
    assert secret not in caplog.text


def test_only_what_fails_is_missing() -> None:
    scorer = Scorer({"score": lambda text: {"good": 1, "bad": False}[text]})
    assert scorer.score_pairs(["good", "bad", "odd"], ["bad", "good", "good"]) == [
        {"score": PairedScore(1.0, 0.0)},
        {"score": PairedScore(0.0, 1.0)},
        {"score": PairedScore(None, 1.0)},
    ]
    assert Scorer().score_pairs(["a"], ["b"]) == [{}]


def test_functions_are_loaded_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_package").mkdir()
    (tmp_path / "own_package" / "quality.py").write_text("def of(text):\n    return len(text) / 10\n\nnothing = 3\n")
    (tmp_path / "odd.py").write_text(
        "def two(text, rubric):\n    return 1\n\ndef no_output(*, prompt):\n    return 1\n"
    )
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('at import')\n")
    monkeypatch.syspath_prepend(tmp_path)
    scorer = load_scorer(["json_valid", "own_package.quality:of"])
    assert scorer.score_pairs(["{}"], ["[1]x"]) == [
        {"structured_validity": PairedScore(1.0, 0.0), "score": PairedScore(0.2, 0.4)}
    ]
    for name, says in (
        ("own_package.quality:off", "own_package.quality has no off"),
        ("own_package.quality:nothing", "this is not a function"),
        ("odd:two", "missing a required argument: 'rubric'"),
        ("odd:no_output", "by name any of prompt, reference, other_output"),
        ("no_such_package:of", "no_such_package cannot be imported"),
        ("broken_module:of", "importing broken_module failed: RuntimeError: at import"),
    ):
        with pytest.raises(ConfigError, match=says):
            load_scorer([name])


def whole_request(output: str, *, prompt: str, reference: str | None, other_output: str) -> float:
    assert (prompt, reference) == ("(1, 2)", "production's")
    return 0.25 + (0.5 if output == reference else 0.0) + (0.25 if output == other_output else 0.0)


def test_a_function_sees_prompt_reference_and_both_outputs() -> None:
    """And not which arm an output is of: equal outputs have equal figures."""
    asked = structs.replace(prompt(1, 1, 2, length=0), reference="production's")
    scorer = Scorer({"score": whole_request}, decode=str)
    assert scorer.takes_prompt
    assert scorer.score_pairs(["production's", "same"], ["another", "same"], [asked, asked]) == [
        {"score": PairedScore(0.75, 0.25)},
        {"score": PairedScore(0.5, 0.5)},
    ]
    assert "production's" not in repr(asked)


def plain(prompt: str) -> float:
    return len(prompt) / 10


def with_option(text: str, strict: bool = True) -> float:
    return float(strict)


def with_reference(text: str, reference: str | None = "unset") -> float:
    return float(reference is None)


def with_everything(text: str, **named: str | None) -> float:
    return float(sorted(named) == ["other_output", "prompt", "reference"])


@pytest.mark.parametrize(
    ("function", "takes_prompt", "figure"),
    [
        (plain, False, 0.6),  # its only argument is the output, whatever its name
        (with_option, False, 1.0),
        (with_reference, False, 1.0),
        (with_everything, True, 1.0),
    ],
)
def test_a_function_is_given_what_it_names_and_no_more(function: object, takes_prompt: bool, figure: float) -> None:
    scorer = Scorer({"score": function}, decode=str)  # type: ignore[dict-item]
    assert scorer.takes_prompt is takes_prompt
    asked = prompt(1, 1, 2, length=0)
    assert scorer.score_pairs(["output"], ["output"], [asked]) == [{"score": PairedScore(figure, figure)}]


def quotes_all(output: str, prompt: str, reference: str, other_output: str) -> float:
    raise ValueError(f"{output} {prompt} {reference} {other_output}")


def exits(output: str, prompt: str) -> float:
    raise SystemExit(f"{output} {prompt}")


@pytest.mark.parametrize("function", [quotes_all, exits])
def test_a_function_that_raises_quotes_no_prompt(
    function: object, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    scorer = Scorer({"score": function}, decode=lambda _: "a secret prompt")  # type: ignore[dict-item]
    asked = structs.replace(prompt(1, 1, 2, length=0), reference="a secret reference")
    with caplog.at_level(logging.DEBUG):
        assert scorer.score_pairs(["a secret output"], ["another"], [asked]) == [{"score": PairedScore(None, None)}]
    written = caplog.text + "".join(capsys.readouterr())
    assert written.count("score of 1 of 1 outputs is missing") == 2
    assert "secret" not in written


VALID, INVALID, CUT = Validity.VALID, Validity.INVALID, Validity.UNFINISHED


@pytest.mark.parametrize(
    ("flags", "figure"),
    [
        (RunFlags(), None),
        (RunFlags(False, False, Contract.SQL, VALID, VALID), PairedScore(1.0, 1.0)),
        (RunFlags(False, False, Contract.SQL, VALID, INVALID), PairedScore(1.0, 0.0)),
        (RunFlags(False, False, Contract.SQL, VALID, CUT), PairedScore(1.0, 0.0)),
        (RunFlags(False, False, Contract.SQL, CUT, CUT), PairedScore(0.0, 0.0)),
        (RunFlags(False, False, Contract.TOOL_CALL, VALID, None), PairedScore(1.0, 0.0)),
        (RunFlags(False, False, Contract.TOOL_CALL, None, INVALID), PairedScore(0.0, 0.0)),
    ],
)
def test_a_contract_is_a_figure_where_it_is_asked_for(flags: RunFlags, figure: PairedScore | None) -> None:
    scorer = load_scorer(["contract_valid"])
    assert scorer.of_flags(flags) == {"structured_validity": figure}
    assert scorer.score_pairs(["a"], ["b"]) == [{}]
    assert load_scorer(["json_valid"]).of_flags(flags) == {}


def measured(store: Store, engine: FakeEngine, contract: OutputContract | None = None) -> None:
    lines = [
        raw._replace(key=raw.key._replace(partition=0, offset=line, timestamp_ms=0))
        for line, raw in enumerate(raw_records(900, 5, 1)[PartitionId("topic", 0)], 1)
    ]
    store.save_fingerprints([CONFIG])
    rules = [replace(rule, contracts={} if contract is None else {"": contract}) for rule in RULES]
    made = Pipeline(Admission(rules, TOKENIZERS, KeyedHash(SECRET)), BlockFormer(rules), joiner=Joiner(DEFAULT_WINDOW))
    FileRun(made, InProcess(dict.fromkeys(TOKENIZERS, engine)), store).run(lines)


def results_of(store: Store, margin: float) -> dict[str, TestResult]:
    policy = GatePolicy(
        window_s=0.0, max_hypotheses=1, min_span_s=0.0, entry_clusters=2, validity_margin=margin, score_margin=0.5
    )
    decisions = run_endpoint_gate(store, "chat", policy, input_ended=True).decisions
    return {test.name: test for decision in decisions if not decision.slice_key for test in decision.tests}


@pytest.mark.representative("sqlite-0.0-0.5-pass-0.0", "sqlite-1.0-0.05-fail--1.0")
@pytest.mark.parametrize(
    ("cut_rate", "margin", "outcome", "estimate"), [(0.0, 0.5, "pass", 0.0), (1.0, 0.05, "fail", -1.0)]
)
def test_from_the_engine_through_the_store_to_the_gate(
    store: Store, cut_rate: float, margin: float, outcome: str, estimate: float
) -> None:
    scorer = load_scorer(["json_valid"])
    measured(store, FakeEngine((CONFIG,), scorers={"chat": scorer}, cut_rate=cut_rate))
    runs = store.runs("chat")
    assert len(runs) > 20
    assert {run.scores["structured_validity"] for run in runs} == {PairedScore(1.0, 1.0 - cut_rate)}
    assert all(not run.scores for run in store.runs("code")), "an endpoint without scores has none"
    tests = results_of(store, margin)
    validity, score = tests["structured_validity"], tests["score"]
    assert (validity.outcome, validity.estimate, validity.betting.num_missing) == (outcome, estimate, 0)
    assert (score.outcome, score.betting.num_missing) == ("open", len(runs)), "what nobody scored is missing"


@pytest.mark.representative("sqlite")
def test_a_contract_that_the_speculative_arm_breaks_fails_the_guardrail(store: Store) -> None:
    engine = FakeEngine((CONFIG,), scorers={"chat": load_scorer(["contract_valid"])}, cut_rate=1.0)
    measured(store, engine, OutputContract(Contract.JSON))
    runs = store.runs("chat")
    assert {run.flags.contract for run in runs} == {Contract.JSON}
    ended = [run for run in runs if run.finish_reason == "stop"]
    assert len(ended) > 20
    assert {run.scores["structured_validity"] for run in ended} == {PairedScore(1.0, 0.0)}
    assert results_of(store, 0.05)["structured_validity"].outcome == "fail"


def test_the_real_pair_scores_both_arms_outputs() -> None:
    """Greedy, so that both arms say the same; sampled, so that they do not."""
    config = SpeculationConfig("draft", "t", str(demo.DRAFT), "draft_model", 2, VerifyRule.REJECTION)
    target, candidates = Models(EngineSettings("cpu")).candidates(str(demo.TARGET), [config], lambda _: None, 1, {})
    seen: list[str] = []

    def share_of_spaces(text: str) -> float:
        seen.append(text)
        return text.count(" ") / (1 + len(text))

    asked = [
        structs.replace(
            prompt(place, *target.tokenizer.encode("def add(first, second):"), length=0),
            sampling=SamplingParameters(temperature=1.2 * place, max_tokens=12, ignore_eos=True),
        )
        for place in (0, 1)
    ]
    scorers: Mapping[str, Scorer] = {"chat": Scorer({"score": share_of_spaces, "structured_validity": is_json})}
    engine = Engine(target, candidates, EngineSettings(warmup_blocks=0), scorers=scorers)
    greedy, sampled = engine.measure(block(*asked)).runs
    assert len(seen) == 4
    assert seen[0] == seen[2]
    assert seen[1] != seen[3]
    for run, base, spec in ((greedy, *seen[::2]), (sampled, *seen[1::2])):
        assert run.scores["score"] == PairedScore(
            *(pytest.approx(text.count(" ") / (1 + len(text))) for text in (base, spec))
        )
        assert run.scores["structured_validity"] == PairedScore(is_json(base), is_json(spec))
    assert engine.measure(block(structs.replace(asked[0], endpoint="code"))).runs[0].scores == {}


def test_a_configured_function_scores_what_run_measures(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    (workspace.folder / "letters_of_ours.py").write_text("def share_of_a(text):\n    return text.count('a') / 6\n")
    monkeypatch.syspath_prepend(workspace.folder)
    workspace.replace_in_config("loads =", 'scores = ["json_valid", "letters_of_ours:share_of_a"]\nloads =')
    traffic = str(write_traffic(workspace.folder / "traffic.jsonl", [record(number) for number in range(6)]))
    workspace.migrate()
    assert workspace.run("run", traffic).code == 0
    with Store.open("sqlite:///shadow.db") as store:
        runs = store.runs("letters")
    assert len(runs) == 6
    for run in runs:
        assert run.scores.keys() == {"structured_validity", "score"}
        assert run.scores["structured_validity"] == PairedScore(0.0, 0.0)
        pair = run.scores["score"]
        assert pair is not None
        assert pair.baseline == pair.speculative, "greedy"
    database = (workspace.folder / "shadow.db").read_bytes()
    assert b"share_of_a" not in database
    workspace.replace_in_config("share_of_a", "share_of_b")
    wrong = workspace.run("run", traffic)
    assert wrong.code == 2
    assert "endpoints.letters.scores: letters_of_ours:share_of_b: letters_of_ours has no share_of_b" in wrong.err


def test_a_configured_function_sees_the_logged_answer_and_leaves_no_text(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It raises with all that it sees, for every second request."""
    (workspace.folder / "judge_of_ours.py").write_text(
        "seen = []\n"
        "def judge(output, prompt, reference):\n"
        "    seen.append((prompt, reference))\n"
        "    if len(seen) % 2:\n"
        "        raise RuntimeError(f'{prompt} {reference} {output}')\n"
        "    return 1.0\n"
    )
    monkeypatch.syspath_prepend(workspace.folder)
    workspace.replace_in_config("loads =", 'scores = ["judge_of_ours:judge"]\nloads =')
    records = [
        record(number, prompt="hgfedcba" + "abcdefgh"[number:])
        | {"response": {"choices": [{"index": 0, "text": f"answer-{number}-of-production", "finish_reason": "stop"}]}}
        for number in range(6)
    ]
    traffic = str(write_traffic(workspace.folder / "traffic.jsonl", records))
    workspace.migrate()
    with caplog.at_level(logging.DEBUG, logger="shadowspec"):
        done = workspace.run("run", traffic)
    assert done.code == 0, done.err
    seen = importlib.import_module("judge_of_ours").seen
    assert len(seen) == 12
    assert {reference for _, reference in seen} == {f"answer-{number}-of-production" for number in range(6)}
    prompts = {each for each, _ in seen}
    assert all(len(each) >= 8 for each in prompts)
    with Store.open("sqlite:///shadow.db") as store:
        assert len(store.runs("letters")) == 6
    everything = done.out + done.err + caplog.text
    assert "is missing: RuntimeError" in everything
    content = b"".join(each.read_bytes() for each in workspace.folder.glob("shadow.db*")) + everything.encode()
    for text in (b"of-production", *(each.encode() for each in prompts)):
        assert text not in content


@pytest.mark.parametrize(
    ("scores", "says"),
    [
        ('["json"]', "endpoints.letters.scores"),
        ('["a.b"]', "endpoints.letters.scores"),
        ('["a:b", "a:c"]', "give at most one function"),
        ('["json_valid", "json_valid"]', "scores: the same value is listed twice"),
        ('["os:system(1)"]', "endpoints.letters.scores"),
        ('["json_valid", "contract_valid"]', "json_valid and contract_valid"),
    ],
)
def test_what_cannot_be_configured(workspace: Workspace, scores: str, says: str) -> None:
    workspace.replace_in_config("loads =", f"scores = {scores}\nloads =")
    done = workspace.run("check", "--endpoint", "letters")
    assert (done.code, says in done.err) == (2, True)


def test_the_fake_in_a_process_of_its_own_takes_scorers_along() -> None:
    assert FakeEngineFactory(("chat",))()["chat"].scorers == {}
