"""Flags of runs: set where the outputs of both arms show what they say, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from shadowspec import demo
from shadowspec.engine import Engine, Models
from shadowspec.engine.batch import Request, Row
from shadowspec.engine.decode import Decoded
from shadowspec.engine.measure import Answers, up_to_stop
from shadowspec.engine.runner import Runner
from shadowspec.quality.contracts import is_sql
from shadowspec.quality.custom_scores import Scorer, is_json
from shadowspec.tap.sources import read_records
from shadowspec.types import (
    ArmTiming,
    Contract,
    Intervention,
    OutputContract,
    PairedScore,
    SamplingParameters,
    ShadowPrompt,
    SpeculationConfig,
    SpeculationCounts,
    Validity,
    VerifyRule,
)
from shadowspec.types.failures import EARLY_STEPS, MIN_EARLY_REJECTIONS, is_early_rejection
from shadowspec.types.settings import EngineSettings
from tests.builders.engine_blocks import block, prompt
from tests.identities import check_identities
from tests.small_models import letter_tokenizer, save_model, tiny_llama

TRAFFIC = Path(demo.__file__).parent / "traffic.jsonl.gz"
NOTHING = SpeculationCounts(0, 0, 0, (), (), 0, 0)


def binomial_tail(at_least: int, chance: float) -> float:
    from math import comb

    return sum(
        comb(EARLY_STEPS, n) * chance**n * (1 - chance) ** (EARLY_STEPS - n) for n in range(at_least, EARLY_STEPS + 1)
    )


@pytest.mark.parametrize(("acceptance", "share"), [(0.40, 0.018), (0.10, 0.79), (0.65, 2.3e-5)])
def test_the_chances_that_the_documentation_states(acceptance: float, share: float) -> None:
    assert binomial_tail(MIN_EARLY_REJECTIONS, 1 - acceptance) == pytest.approx(share, rel=0.03)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=40))
@example([(4, 1)] * EARLY_STEPS + [(4, 0)] * 20)
@example([(4, 0)] * EARLY_STEPS + [(4, 4)] * 20)
@example([(0, 0)] * 20 + [(4, 0)] * (EARLY_STEPS - 1))
def test_early_rejections_are_counted_over_the_first_steps_that_draft(steps: list[tuple[int, int]]) -> None:
    row = Row(Request((5,), SamplingParameters(max_tokens=1_000), 0), 4, frozenset(), None)
    row.emit([7])
    drafted = []
    for num_drafted, accepted in steps:
        kept = min(num_drafted, accepted)
        row.note_step(num_drafted, kept, row.emit([7] * (kept + 1)))
        drafted += [kept] if num_drafted else []
    first = drafted[:EARLY_STEPS]
    expected = None if len(first) < EARLY_STEPS else first.count(0) >= MIN_EARLY_REJECTIONS
    assert row.was_rejected_early() is expected


def test_the_limits_of_early_rejection() -> None:
    assert is_early_rejection(EARLY_STEPS - 1, EARLY_STEPS - 1) is None
    assert is_early_rejection(EARLY_STEPS, MIN_EARLY_REJECTIONS - 1) is False
    assert is_early_rejection(EARLY_STEPS, MIN_EARLY_REJECTIONS) is True


@pytest.fixture(scope="module")
def short_draft(tmp_path_factory: pytest.TempPathFactory, pair_folders: tuple[Path, Path]) -> Engine:
    """The tests' target (256 tokens of context) with a draft that ends at 40, beside n-grams."""
    model = tiny_llama(3)
    model.config.max_position_embeddings = 40
    folder = save_model(tmp_path_factory.mktemp("short"), model, letter_tokenizer())
    configs = [
        SpeculationConfig("draft", "t", str(folder), "draft_model", 3, VerifyRule.REJECTION),
        SpeculationConfig("ngram", "t", None, "ngram", 3, VerifyRule.GREEDY_DRAFT),
    ]
    said: list[str] = []
    target, candidates = Models(EngineSettings("cpu")).candidates(str(pair_folders[0]), configs, said.append, 1, {})
    assert any("its context of 40 tokens is shorter than the target's 256" in each for each in said)
    return Engine(target, candidates, EngineSettings(warmup_blocks=0))


def long_prompt(line: int, length: int, temperature: float = 0.0, max_tokens: int = 20) -> ShadowPrompt:
    sampling = SamplingParameters(temperature=temperature, max_tokens=max_tokens, ignore_eos=True)
    return replace(prompt(line), prompt_token_ids=(0, *(2 + i % 9 for i in range(length - 1))), sampling=sampling)


def test_a_request_beyond_the_draft_s_context_is_decoded_plainly_from_there_on(short_draft: Engine) -> None:
    lengths = [5, 20, 21, 36, 37, 60]  # with 20 tokens of output: the first two end within 40
    prompts = [long_prompt(line, length, temperature=0.9 * (line % 2)) for line, length in enumerate(lengths)]
    runs = short_draft.measure(block(prompts)).runs
    drafted, ngrams = runs[: len(prompts)], runs[len(prompts) :]
    for run, length in zip(drafted, lengths, strict=True):
        assert run.counts is not None
        check_identities(run.counts)
        assert run.counts.num_output_tokens == 20
        assert run.flags.is_beyond_draft_context is (length + 20 > 40)
        assert run.counts.num_plain_steps >= (length + 20 > 40)
        assert run.counts.num_plain_steps == 0 or length + 20 + 3 > 40
        # A step drafts where the tokens in the cache and K = 3 more fit into 40.
        assert (run.counts.num_drafts > 0) is (length + 3 <= 40)
        assert run.parity is not None
        assert run.parity.first_divergence is None
    assert all(run.flags.is_beyond_draft_context is False for run in ngrams), "n-grams have no context"


def test_a_draft_that_no_request_can_use_is_not_run(short_draft: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    honest = Runner.append

    def counted(self: Any, *values: Any, **named: Any) -> Any:
        passes.append(1)
        return honest(self, *values, **named)

    monkeypatch.setattr(Runner, "append", counted)
    (candidate, _) = short_draft.candidates
    engine = Engine(short_draft.target, [candidate], EngineSettings(warmup_blocks=0))
    (run,) = engine.measure(block([long_prompt(1, 60)])).runs
    assert run.counts is not None
    assert (run.counts.num_drafts, run.counts.num_plain_steps) == (0, 19)
    assert len(passes) == 2 * 19, "the target's steps of both arms alone"


def bundled(rule: VerifyRule = VerifyRule.REJECTION) -> Engine:
    config = SpeculationConfig("draft", "t", str(demo.DRAFT), "draft_model", 4, rule)
    target, candidates = Models(EngineSettings("cpu")).candidates(str(demo.TARGET), [config], lambda _: None, 1, {})
    return Engine(target, candidates, EngineSettings(warmup_blocks=0))


def sql_prompts(engine: Engine, number: int) -> list[ShadowPrompt]:
    """Greedy questions of the bundled traffic whose answers are to be SQL."""
    found: list[ShadowPrompt] = []
    for raw in read_records(str(TRAFFIC)):
        if b'"demo-sql"' not in (raw.value or b""):
            continue
        request = json.loads(raw.value or b"")["request"]
        if request["temperature"] == 0.0 and "messages" in request:
            ids = engine.target.tokenizer.render_chat(request["messages"], None)
            sampling = SamplingParameters(temperature=0.0, max_tokens=request["max_tokens"])
            found.append(replace(prompt(len(found)), prompt_token_ids=tuple(ids), sampling=sampling))
        if len(found) == number:
            return found
    raise AssertionError("the bundled traffic has fewer")


def test_sql_of_the_bundled_pair_in_both_arms() -> None:
    engine = bundled()
    asked = [replace(each, contract=OutputContract(Contract.SQL)) for each in sql_prompts(engine, 4)]
    cut = replace(asked[0], sampling=replace(asked[0].sampling, max_tokens=5))
    bare = replace(asked[1], contract=None, intervention=Intervention.FILTERED)
    texts: list[str] = []

    def seen(text: str) -> float:
        texts.append(text)
        return 1.0

    engine._scorers = {"e": Scorer({"score": seen})}
    *whole, unfinished, free = engine.measure(block([*asked, cut, bare])).runs
    baseline = texts[:6]
    assert {run.flags.baseline_validity for run in whole} >= {Validity.VALID}
    for run, text in zip(whole, baseline, strict=False):
        expected = Validity.VALID if is_sql(text) else Validity.INVALID
        expected = Validity.UNFINISHED if run.finish_reason == "length" else expected
        assert (run.flags.contract, run.flags.baseline_validity) == (Contract.SQL, expected)
        assert run.flags.speculative_validity is expected, "greedy: both arms say the same"
    assert unfinished.flags.baseline_validity is unfinished.flags.speculative_validity is Validity.UNFINISHED
    assert (free.flags.contract, free.flags.baseline_validity) == (None, None)
    assert (free.flags.intervention, whole[0].flags.intervention) == (Intervention.FILTERED, None)
    assert all(run.flags.is_beyond_draft_context is False for run in whole)


class Letters:
    """A tokenizer whose token 0 is special, and 9 as well, but a mark."""

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(96 + each) for each in token_ids if each not in (0, 9))

    def decode_marked(self, token_ids: Sequence[int]) -> str:
        return "".join({0: "<end>", 9: "[TOOL_CALLS]"}.get(each, chr(96 + each)) for each in token_ids)


def decoded(output: Sequence[int], reason: str) -> Decoded:
    return Decoded(tuple(output), reason, NOTHING, ArmTiming(0.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("output", "reason", "stop", "text"),
    [
        ((1, 2, 0), "stop", (), "ab"),
        ((1, 2, 7), "stop", (), "ab"),  # a stop token of the request's own
        ((1, 2, 7), "length", (), "ab"),
        ((1, 2, 3, 4), "stop", ("c",), "ab"),
        ((1, 2, 3, 4), "stop", ("d", "cd"), "ab"),
        ((3, 1, 3, 4), "stop", ("c",), "ca"),  # the first stood before min_tokens
        ((1, 3, 0), "stop", ("c",), "ac"),  # it ended by itself, before min_tokens the stop string did not count
        ((1, 3), "length", ("c",), "ac"),
        ((), "stop", ("c",), ""),
    ],
)
def test_a_text_is_what_its_caller_gets(output: tuple[int, ...], reason: str, stop: tuple[str, ...], text: str) -> None:
    sampling = SamplingParameters(stop=stop, stop_token_ids=(7,))
    answers = Answers(Letters(), frozenset({0}))  # type: ignore[arg-type]
    assert answers.text(Request((1,), sampling, 0), decoded(output, reason)) == text


def test_tool_calls_are_told_by_their_special_tokens() -> None:
    answers = Answers(Letters(), frozenset({0}))  # type: ignore[arg-type]
    request = Request((1,), SamplingParameters(), 0)
    output = decoded((9, 1, 2, 0), "stop")
    assert answers.text(request, output) == "ab"
    assert answers.text(request, output, is_marked=True) == "[TOOL_CALLS]ab"
    asked = replace(prompt(1), contract=OutputContract(Contract.TOOL_CALL, ({"function": {}},), is_required=False))
    (candidate,) = bundled().candidates
    flags = answers.flags(asked, request, candidate, decoded((1, 2, 0), "stop"), output)
    assert (flags.contract, flags.baseline_validity, flags.speculative_validity) == (
        Contract.TOOL_CALL,
        None,
        Validity.INVALID,
    )
    neither = answers.flags(asked, request, candidate, decoded((1, 0), "stop"), decoded((2, 0), "stop"))
    assert (neither.contract, neither.baseline_validity, neither.speculative_validity) == (None, None, None)


def test_a_stop_string_does_not_break_json() -> None:
    """It stands in the tokens, and not in what the caller gets; scores used to see it."""
    assert up_to_stop('{"a": 1}\n\nMore', ("\n\n",)) == '{"a": 1}'
    engine = bundled()
    ids = engine.target.tokenizer.encode("def add(first, second):")
    sampling = SamplingParameters(temperature=0.0, max_tokens=24, stop=("\n",), ignore_eos=True)
    asked = replace(prompt(1), prompt_token_ids=tuple(ids), sampling=sampling)
    texts: list[str] = []
    engine._scorers = {
        "e": Scorer({"score": lambda text: float(len(texts.append(text) or "")), "structured_validity": is_json})
    }
    (run,) = engine.measure(block([asked])).runs
    assert run.finish_reason == "stop"
    assert all("\n" not in text for text in texts)
    assert run.scores["structured_validity"] == PairedScore(is_json(texts[0]), is_json(texts[1]))
