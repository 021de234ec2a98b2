"""Outputs of the loop are replayed beside their block; a draft whose logits are shifted by one position is found."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import torch
from msgspec import structs
from transformers import AutoModelForCausalLM

from kernels.benchmarks.shifted import Shifted
from shadowspec import demo
from shadowspec.engine import Candidate, Engine, LoadedModel, Models, arms
from shadowspec.engine.audit import Auditor
from shadowspec.engine.batch import Request
from shadowspec.engine.replay.replayer import Replayer
from shadowspec.gate.run.audit_difference import AuditState
from shadowspec.types import (
    Arm,
    AuditedRun,
    Block,
    ConstraintForm,
    ConstraintKind,
    LoggedResponse,
    OutputConstraint,
    RecordKey,
    SamplingParameters,
    ServedOutput,
    ShadowPrompt,
    SpeculationConfig,
    VerifyRule,
)
from shadowspec.types.settings import EngineSettings

pytestmark = pytest.mark.slow  # all of them together

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NUM_BLOCKS, BLOCK = 5, 8
ANY_JSON = OutputConstraint(ConstraintKind.JSON_OBJECT, ConstraintForm.JSON_OBJECT)


@pytest.fixture(scope="module")
def pair() -> tuple[LoadedModel, tuple[Candidate, ...]]:
    return Models(EngineSettings("cpu")).candidates(
        str(demo.TARGET),
        [
            SpeculationConfig("draft", "t", str(demo.DRAFT), "draft_model", 4, VerifyRule.REJECTION),
            SpeculationConfig("ngram", "t", None, "ngram", 3, VerifyRule.GREEDY_DRAFT),
        ],
        lambda _: None,
        1,
        {},
    )


@pytest.fixture(scope="module")
def shifted(pair: tuple[LoadedModel, tuple[Candidate, ...]]) -> tuple[Candidate, ...]:
    """The same candidates, by the same fingerprints, with the error in the draft."""
    _, (drafted, lookup) = pair
    assert drafted.draft is not None
    theirs = AutoModelForCausalLM.from_pretrained(demo.DRAFT, dtype=torch.float32, attn_implementation="sdpa").eval()
    return Candidate(drafted.config, replace(drafted.draft, model=Shifted(theirs))), lookup


def prompt(line: int, tokens: Sequence[int], sampling: SamplingParameters) -> ShadowPrompt:
    return ShadowPrompt(RecordKey("f" * 64, 0, line), "e", NOON, {}, tuple(tokens), sampling)


def blocks() -> list[Block]:
    """The first short prompts of the bundled traffic, one in four of them greedy."""
    found: list[ShadowPrompt] = []
    with gzip.open(demo.TRAFFIC, "rt", encoding="utf-8") as lines:
        for line in lines:
            try:
                response_body = json.loads(line)["response"]
                ids = response_body.get("prompt_token_ids") or response_body["choices"][0]["prompt_token_ids"]
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # bad on purpose
            if len(ids) < 200:
                temperature = 0.0 if len(found) % 4 == 0 else 0.8
                sampling = SamplingParameters(temperature=temperature, top_p=0.95, max_tokens=14)
                found.append(prompt(len(found), ids, sampling))
            if len(found) == NUM_BLOCKS * BLOCK:
                break
    groups = [tuple(found[start : start + BLOCK]) for start in range(0, len(found), BLOCK)]
    return [Block(f"b{place}", place, "e", "", BLOCK, group, (), Arm.BASELINE) for place, group in enumerate(groups)]


class Repeated(Auditor):
    """Has every audit made by another auditor too, of the same outputs."""

    def __init__(self, target: LoadedModel, candidates: Sequence[Candidate], other: Auditor) -> None:
        super().__init__(target, candidates, EngineSettings(audit_share=1.0))
        self.other = other
        self.found: list[AuditedRun] = []

    def audit(self, *given: Any) -> tuple[AuditedRun, ...]:
        self.found += self.other.audit(*given)
        return super().audit(*given)


@pytest.mark.all
def test_the_sound_engine_agrees_and_the_shifted_draft_alarms(
    pair: tuple[LoadedModel, tuple[Candidate, ...]], shifted: tuple[Candidate, ...]
) -> None:
    """The promise: shifted logits are caught within 300 requests, here in 40, and a sound engine raises no alarm."""
    target, candidates = pair
    auditor = Repeated(target, candidates, Auditor(target, shifted, EngineSettings(audit_share=1.0)))
    engine = Engine(target, candidates, EngineSettings(warmup_blocks=0), auditor=auditor)
    sound = [run for block in blocks() for run in engine.measure(block).audits]
    of_draft, of_lookup = (
        [run for run in sound if run.fingerprint == candidate.config.fingerprint] for candidate in candidates
    )
    state = AuditState(1).fold(of_draft, NOON)
    assert (state.num_units, state.num_refused, state.has_alarmed) == (NUM_BLOCKS * BLOCK, 0, False)
    assert state.num_accepted_tokens > 100
    assert len(of_lookup) == NUM_BLOCKS * BLOCK
    for run in of_lookup:  # what it proposes is certain, and so is what is accepted
        assert run.expected_accepted_tokens == pytest.approx(run.num_accepted_tokens)
    of_shifted = [run for run in auditor.found if run.fingerprint == candidates[0].config.fingerprint]
    assert [run.num_accepted_tokens for run in of_shifted] == [run.num_accepted_tokens for run in of_draft]
    assert AuditState(64).fold(of_shifted, NOON).has_alarmed


@pytest.mark.all
def test_drafts_within_the_limit_are_audited_as_they_are_counted(
    pair: tuple[LoadedModel, tuple[Candidate, ...]],
) -> None:
    """What a lookup or a greedy request accepts is certain: the difference is zero run by run."""
    target, candidates = pair
    within = [
        replace(
            each,
            config=replace(
                each.config,
                config=replace(each.config.config, drafts_within_limit=True, verify_rule=VerifyRule.GREEDY_DRAFT),
            ),
        )
        for each in candidates
    ]
    auditor = Repeated(target, within, Auditor(target, candidates, EngineSettings(audit_share=1.0)))
    engine = Engine(target, within, EngineSettings(warmup_blocks=0), auditor=auditor)
    audits = engine.measure(blocks()[0]).audits
    assert len(audits) == 2 * BLOCK
    counted = [run.num_accepted_tokens for run in audits]
    assert [run.expected_accepted_tokens for run in audits] == pytest.approx(counted)
    by_other_rule = [run for run in auditor.found if run.fingerprint == candidates[1].config.fingerprint]
    assert any(run.expected_accepted_tokens > run.num_accepted_tokens + 0.5 for run in by_other_rule)


def test_requests_are_drawn_by_their_keys_and_never_with_a_seed_of_their_own(
    pair: tuple[LoadedModel, tuple[Candidate, ...]],
) -> None:
    target, _ = pair
    sampled, greedy = SamplingParameters(temperature=0.8), SamplingParameters(temperature=0.0)
    some = Auditor(target, [], EngineSettings(audit_share=0.2, seed=3))
    drawn = [line for line in range(2_000) if some.draws(prompt(line, (1,), sampled))]
    assert 300 < len(drawn) < 500
    assert drawn == [line for line in range(2_000) if some.draws(prompt(line, (1, 2), greedy))]
    assert drawn != [
        line
        for line in range(2_000)
        if Auditor(target, [], EngineSettings(audit_share=0.2)).draws(prompt(line, (1,), sampled))
    ]
    every, none = (
        Auditor(target, [], EngineSettings(audit_share=1.0)),
        Auditor(target, [], EngineSettings(audit_share=0.0)),
    )
    assert not any(none.draws(prompt(line, (1,), sampled)) for line in range(100))
    assert all(every.draws(prompt(line, (1,), sampled)) for line in range(100))
    assert every.draws(prompt(1, (1,), structs.replace(greedy, seed=7)))
    assert not every.draws(prompt(1, (1,), structs.replace(sampled, seed=7)))


def test_an_engine_without_an_auditor_audits_nothing(pair: tuple[LoadedModel, tuple[Candidate, ...]]) -> None:
    target, candidates = pair
    engine = Engine(target, candidates[1:], EngineSettings(warmup_blocks=0))
    assert engine.measure(blocks()[0]).audits == ()


def test_what_did_not_fit_into_memory_is_not_audited(
    pair: tuple[LoadedModel, tuple[Candidate, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a run that failed, nor a block whose audit itself finds no memory; its runs stand."""
    target, candidates = pair
    engine = Engine(
        target,
        candidates[1:],
        EngineSettings(warmup_blocks=0),
        auditor=Auditor(target, candidates, EngineSettings(audit_share=1.0)),
    )
    block = structs.replace(blocks()[0], requests=blocks()[0].requests[:2])

    def starved(*_: Any) -> Any:
        raise torch.OutOfMemoryError("none left")

    with monkeypatch.context() as patch:
        patch.setattr(Replayer, "replay", starved)
        result = engine.measure(block)
    assert result.audits == ()
    assert all(run.failure is None for run in result.runs)

    honest = arms.decode_batch

    def failing(*given: Any, proposer: Any, **named: Any) -> Any:
        if proposer is not None:
            raise torch.OutOfMemoryError("none left")
        return honest(*given, proposer=proposer, **named)

    monkeypatch.setattr(arms, "decode_batch", failing)
    result = engine.measure(block)
    assert result.audits == ()
    assert all(run.failure == "out_of_memory" for run in result.runs)


def test_what_replay_cannot_know_is_not_audited(pair: tuple[LoadedModel, tuple[Candidate, ...]]) -> None:
    """What a candidate drafts from a memory, stops at by its confidence or cannot draft any more is in no output."""
    target, (draft, ngram) = pair
    remembering = replace(ngram.config.config, proposer="suffix", suffix_memory_tokens=100)
    candidates = [
        replace(ngram, config=replace(ngram.config, config=remembering, fingerprint="remembers")),
        replace(
            draft,
            config=replace(
                draft.config, config=replace(draft.config.config, draft_confidence_threshold=0.4), fingerprint="stops"
            ),
        ),
        replace(draft, config=replace(draft.config, fingerprint="ends"), context_limit=64),
        replace(
            ngram,
            config=replace(
                ngram.config, config=replace(remembering, suffix_memory_tokens=0), fingerprint="of the request alone"
            ),
        ),
    ]
    engine = Engine(
        target,
        candidates,
        EngineSettings(warmup_blocks=0),
        auditor=Auditor(target, candidates, EngineSettings(audit_share=1.0)),
    )
    audited = engine.measure(blocks()[0]).audits
    assert {each.fingerprint for each in audited} == {"of the request alone"}
    assert all(each.expected_accepted_tokens == pytest.approx(each.num_accepted_tokens) for each in audited)


def test_served_outputs_are_audited_within_what_their_counts_leave_open(
    pair: tuple[LoadedModel, tuple[Candidate, ...]],
) -> None:
    """Each run's tolerance has the tokens that its server may have miscounted; some outputs cannot be judged."""
    target, candidates = pair
    block = blocks()[0]
    requests = [Request(each.prompt_token_ids, each.sampling, seed=3) for each in block.requests]
    decoded = arms.decode_batch(target.model, requests, end_token_ids=target.end_token_ids).decoded
    whole, unsure, endless, restricted, *_ = block.requests
    served = {
        each.key: ServedOutput(LoggedResponse(token_ids=found.output, finish_reason=found.finish_reason), 0, uncertain)
        for each, found, uncertain in zip(block.requests, decoded, (0, 3, 0, 0), strict=False)
    }
    served[endless.key] = ServedOutput(LoggedResponse(token_ids=decoded[2].output[:-1], finish_reason="?"), 0)
    auditor = Auditor(target, candidates, EngineSettings(audit_share=1.0), tolerance=0.02)
    prompts = [whole, unsure, endless, structs.replace(restricted, constraint=ANY_JSON)]
    runs = auditor.audit_served(candidates[1].config.fingerprint, prompts, served)
    assert [run.key for run in runs] == [whole.key, unsure.key]
    assert [run.tolerance for run in runs] == pytest.approx([0.02, 0.02 + 3 / (runs[1].num_output_tokens - 1)])
