"""Greedy speculative output equals the greedy baseline and transformers' own generation; counters add up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from shadowspec import demo, metrics
from shadowspec.engine.batch import Batch, Request, Row
from shadowspec.engine.decode import Decoded, decode_batch
from shadowspec.engine.kv_cache import ColumnSpan
from shadowspec.engine.models import load_model
from shadowspec.engine.proposers import Proposal, Proposer
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.engine.proposers.ngram import NgramProposer, lookup
from shadowspec.engine.proposers.recent_outputs import RecentOutputs
from shadowspec.engine.proposers.suffix import SuffixOptions, SuffixProposer
from shadowspec.types import RecordKey, SamplingParameters, VerifyRule
from tests.builders.decoded_prompts import GREEDY, assert_equal_but_for_near_ties, decode_greedy, traffic_prompts
from tests.identities import check_identities


@dataclass(frozen=True)
class Bundled:
    """The bundled pair, 32 ragged prompts of the traffic, and the greedy continuation of each, twice."""

    target: Any
    draft: Any
    requests: list[Request]
    plain: list[Decoded]  # by the baseline arm
    reference: list[tuple[int, ...]]  # by transformers


@pytest.fixture(scope="module")
def bundled() -> Bundled:
    device = torch.device("cpu")
    target = load_model(str(demo.TARGET), device, torch.float32)
    draft = load_model(str(demo.DRAFT), device, torch.float32)
    assert target.forward_name == draft.forward_name == "compiled_llama"
    theirs = LlamaForCausalLM.from_pretrained(demo.TARGET, dtype=torch.float32, attn_implementation="sdpa").eval()
    requests = [Request(prompt, GREEDY, row) for row, prompt in enumerate(traffic_prompts(32))]
    assert len({len(request.prompt) for request in requests}) > 24, "the batch is ragged"
    plain = decode_greedy(target.model, requests, None, 0)
    return Bundled(target.model, draft.model, requests, plain, greedy_by_transformers(theirs, requests))


@torch.inference_mode()
def greedy_by_transformers(model: Any, requests: list[Request], rows: int = 8) -> list[tuple[int, ...]]:
    """The continuation of each prompt by transformers' own loop, so many left-padded prompts at a time."""
    order = sorted(range(len(requests)), key=lambda row: len(requests[row].prompt))
    found: dict[int, tuple[int, ...]] = {}
    for start in range(0, len(order), rows):
        group = order[start : start + rows]
        width = max(len(requests[row].prompt) for row in group)
        missing = [width - len(requests[row].prompt) for row in group]
        tokens = [[0] * pad + list(requests[row].prompt) for pad, row in zip(missing, group, strict=True)]
        outputs = model.generate(
            torch.tensor(tokens),
            attention_mask=torch.tensor([[0] * pad + [1] * (width - pad) for pad in missing]),
            max_new_tokens=GREEDY.max_tokens,
            do_sample=False,
            eos_token_id=None,
        )
        found.update(zip(group, map(tuple, outputs[:, width:].tolist()), strict=True))
    return [found[row] for row in range(len(requests))]


@pytest.mark.representative("draft_model-4", "ngram-3")
@pytest.mark.slow
@pytest.mark.parametrize("depth", range(1, 9))
@pytest.mark.parametrize("kind", ["draft_model", "adaptive", "ngram", "suffix"])
def test_greedy_output_equals_baseline_and_transformers(bundled: Bundled, kind: str, depth: int) -> None:
    # The drafts that came later take every third row, which are as ragged: a proposer is compared, not the loop again.
    rows = slice(None) if kind in ("draft_model", "ngram") else slice(None, None, 3)
    target, requests, plain = bundled.target, bundled.requests[rows], bundled.plain[rows]
    proposers: dict[str, Proposer] = {
        "draft_model": DraftModelProposer(bundled.draft, depth, is_sampling=False),
        "adaptive": DraftModelProposer(bundled.draft, depth, is_sampling=False, confidence_threshold=0.4),
        "ngram": NgramProposer(depth, 2, 4),
        "suffix": SuffixProposer(depth, SuffixOptions()),
    }
    proposer = proposers[kind]
    drafted = decode_greedy(target, requests, proposer, depth)
    for request, base, spec, reference in zip(requests, plain, drafted, bundled.reference[rows], strict=True):
        assert_equal_but_for_near_ties(target, request, spec.output, base.output)
        assert_equal_but_for_near_ties(target, request, spec.output, reference)
        check_identities(spec.counts)
    assert sum(spec.output == base.output for spec, base in zip(drafted, plain, strict=True)) >= 0.93 * len(plain)
    assert sum(spec.counts.num_accepted_tokens for spec in drafted) > 0


@pytest.mark.representative("<lambda>0-4", "<lambda>1-4", "<lambda>2-4", "<lambda>3-4")
@pytest.mark.parametrize("depth", [1, 4, 7])
@pytest.mark.parametrize(
    "make",
    [
        lambda d, k: DraftModelProposer(d, k, is_sampling=True),
        lambda d, k: DraftModelProposer(d, k, is_sampling=True, confidence_threshold=0.28),
        lambda d, k: NgramProposer(k, 1, 3),
        lambda d, k: SuffixProposer(k, SuffixOptions()),
    ],
)
def test_greedy_on_random_weights(target: Any, draft: Any, depth: int, make: Callable[[Any, int], Proposer]) -> None:
    requests = [Request(tuple(range(2, 3 + row % 9)), GREEDY, row) for row in range(16)]
    plain = decode_greedy(target, requests, None, 0)
    drafted = decode_greedy(target, requests, make(draft, depth), depth)
    for request, base, spec in zip(requests, plain, drafted, strict=True):
        assert_equal_but_for_near_ties(target, request, spec.output, base.output)
        check_identities(spec.counts)


def test_a_draft_equal_to_the_target_is_always_accepted(target: Any) -> None:
    requests = [Request((0, 4, 2), GREEDY, 0), Request((0, 3, 9, 9, 2), GREEDY, 1)]
    for spec in decode_greedy(target, requests, DraftModelProposer(target, 3, is_sampling=False), 3):
        assert metrics.draft_acceptance_rate(spec.counts) == 1.0
        # 24 tokens: one from prefill, five whole steps of four, and a step cut after three.
        assert spec.counts.acceptance_histogram == (0, 0, 0, 6)
        assert spec.counts.num_cut_steps == 1


@pytest.mark.representative("rejection-0.3", "greedy_draft-0.0", "exact_match-0.3")
@pytest.mark.parametrize("threshold", [0.0, 0.3])
@pytest.mark.parametrize("rule", [VerifyRule.REJECTION, VerifyRule.GREEDY_DRAFT, VerifyRule.EXACT_MATCH])
def test_a_request_does_not_depend_on_its_neighbours(
    target: Any, draft: Any, rule: VerifyRule, threshold: float
) -> None:
    sampling = SamplingParameters(temperature=0.9, top_p=0.95, max_tokens=16, repetition_penalty=1.1)
    greedy = SamplingParameters(temperature=0.0, max_tokens=16, top_k=2, min_p=0.2)
    requests = [Request(tuple(range(2, 4 + row)), greedy if row == 2 else sampling, 100 + row) for row in range(6)]

    def outputs(chosen: list[Request]) -> list[tuple[tuple[int, ...], Any]]:
        proposer = DraftModelProposer(
            draft, 3, is_sampling=rule is VerifyRule.REJECTION, confidence_threshold=threshold
        )
        result = decode_batch(
            target, chosen, proposer=proposer, num_speculative_tokens=3, verify_rule=rule, end_token_ids=frozenset({1})
        )
        return [(decoded.output, decoded.counts) for decoded in result.decoded]

    together = outputs(requests)
    assert [outputs([request])[0] for request in requests] == together
    assert outputs(requests[::-1])[::-1] == together


@pytest.mark.parametrize("kind", ["none", "draft", "adaptive", "ngram", "suffix"])
def test_releasing_slots_changes_no_output(target: Any, draft: Any, kind: str) -> None:
    """Rows that end at very different times, with penalties, so that every per-slot tensor must follow."""
    requests = [
        Request(
            tuple(range(2, 4 + row)),
            SamplingParameters(
                temperature=0.0 if row % 3 == 0 else 0.9,
                max_tokens=2 + 4 * row,
                presence_penalty=0.1 * row,
                min_tokens=row,
                min_p=0.01 * row,
            ),
            row,
        )
        for row in range(8)
    ]

    def outputs(*, releases_slots: bool) -> list[tuple[tuple[int, ...], Any]]:
        proposers: dict[str, Proposer | None] = {
            "none": None,
            "draft": DraftModelProposer(draft, 3, is_sampling=True),
            "adaptive": DraftModelProposer(draft, 3, is_sampling=True, confidence_threshold=0.3),
            "ngram": NgramProposer(3, 1, 3),
            "suffix": SuffixProposer(3, SuffixOptions()),
        }
        result = decode_batch(
            target,
            requests,
            proposer=proposers[kind],
            num_speculative_tokens=3,
            verify_rule=VerifyRule.GREEDY_DRAFT if kind in ("ngram", "suffix") else VerifyRule.REJECTION,
            end_token_ids=frozenset({1}),
            releases_slots=releases_slots,
        )
        return [(decoded.output, decoded.counts) for decoded in result.decoded]

    assert outputs(releases_slots=True) == outputs(releases_slots=False)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_identities_hold_for_every_run(target: Any, draft: Any, data: st.DataObject) -> None:
    depth = data.draw(st.integers(1, 5))
    rule = data.draw(st.sampled_from(list(VerifyRule)))
    requests = [
        Request(
            tuple(data.draw(st.lists(st.integers(2, 11), min_size=1, max_size=12))),
            SamplingParameters(
                temperature=0.0 if rule is VerifyRule.GREEDY else data.draw(st.sampled_from([0.0, 0.4, 1.1])),
                max_tokens=data.draw(st.integers(1, 14)),
                min_tokens=data.draw(st.integers(0, 5)),
                stop_token_ids=tuple(data.draw(st.lists(st.integers(2, 11), max_size=2))),
                presence_penalty=data.draw(st.sampled_from([0.0, 0.5])),
            ),
            data.draw(st.integers(0, 2**63)),
        )
        for _ in range(data.draw(st.integers(1, 5)))
    ]
    threshold = data.draw(st.sampled_from([0.0, 0.25, 0.5]))
    proposers: dict[str, Proposer] = {
        "draft": DraftModelProposer(
            draft, depth, is_sampling=rule is VerifyRule.REJECTION, confidence_threshold=threshold
        ),
        "ngram": NgramProposer(depth, 1, 3),
        "suffix": SuffixProposer(depth, SuffixOptions()),
    }
    proposer = proposers[data.draw(st.sampled_from(sorted(proposers)))]
    result = decode_batch(
        target,
        requests,
        proposer=proposer,
        num_speculative_tokens=depth,
        verify_rule=rule,
        end_token_ids=frozenset({1}),
    )
    for request, decoded in zip(requests, result.decoded, strict=True):
        counts, sampling = decoded.counts, request.sampling
        check_identities(counts)
        assert counts.num_output_tokens == len(decoded.output) <= sampling.max_tokens
        ends = {1, *sampling.stop_token_ids}
        for position, token in enumerate(decoded.output[:-1], start=1):
            assert token not in ends or position < sampling.min_tokens
        assert (decoded.finish_reason == "stop") == (
            decoded.output[-1] in ends and len(decoded.output) >= sampling.min_tokens
        )
        length = metrics.mean_acceptance_length(counts)
        marginals = metrics.marginal_acceptance_rates(counts)
        if length is not None:
            assert length == pytest.approx(1 + sum(rate or 0.0 for rate in marginals))
        timing = decoded.timing
        assert timing.decode_ms == pytest.approx(timing.draft_ms + timing.verify_ms + timing.other_ms)


@given(drafted=st.integers(0, 5), accepted=st.integers(0, 5), room=st.integers(1, 8))
def test_a_step_is_cut_at_the_last_emitted_token(drafted: int, accepted: int, room: int) -> None:
    """Against the rule by brute force: nothing after the last emitted token counts."""
    accepted = min(accepted, drafted)
    row = Row(Request((2,), SamplingParameters(max_tokens=room), 0), 5, frozenset({1}), None)
    tokens = [3] * accepted + [4]
    emitted = row.emit(tokens)
    row.note_step(drafted, accepted, emitted)
    assert emitted == min(room, accepted + 1)
    is_last = row.finish_reason is not None
    counted = [position for position in range(drafted) if not is_last or position < emitted]
    assert row.num_draft_tokens == len(counted)
    assert row.num_cut_draft_tokens == drafted - len(counted)
    kept = sum(1 for position in range(accepted) if position < emitted)
    assert row.counts().num_accepted_tokens == kept
    assert row.num_cut_accepted_tokens == accepted - kept
    assert row.num_cut_steps == int(emitted <= accepted)
    assert row.num_plain_steps == int(drafted == 0)


def test_stop_strings_end_the_output_with_the_token_that_completes_them(target: Any) -> None:
    requests = [Request((0, 5, 3), GREEDY, 0)]
    free = decode_greedy(target, requests, None, 0)[0].output
    text = {token: chr(ord("a") + token) for token in range(12)}
    stop = text[free[3]] + text[free[4]]
    first = next(i for i in range(1, len(free)) if text[free[i - 1]] + text[free[i]] == stop)
    sampling = SamplingParameters(temperature=0.0, max_tokens=24, ignore_eos=True, stop=(stop,))
    result = decode_batch(
        target,
        [Request((0, 5, 3), sampling, 0)],
        proposer=DraftModelProposer(target, 4, is_sampling=False),
        num_speculative_tokens=4,
        verify_rule=VerifyRule.GREEDY,
        end_token_ids=frozenset({1}),
        detokenize=lambda ids: "".join(text[i] for i in ids),
    ).decoded[0]
    assert result.output == free[: first + 1]
    assert result.finish_reason == "stop"
    check_identities(result.counts)


def test_lookup_prefers_the_longest_suffix_and_its_latest_occurrence() -> None:
    import numpy as np

    tokens = np.array([7, 1, 2, 3, 9, 2, 3, 5, 1, 2, 3])
    assert lookup(tokens, 1, 3, 2).tolist() == [9, 2]  # the three-token suffix wins over the later two-token one
    assert lookup(tokens, 1, 2, 2).tolist() == [5, 1]
    assert lookup(np.array([1, 2, 3]), 1, 3, 4).tolist() == []
    assert lookup(np.array([4, 4, 4]), 1, 2, 3).tolist() == [4]


class Recorded:
    """A proposer, and how many tokens it drafted for each row in each step."""

    def __init__(self, inner: Proposer) -> None:
        self._inner = inner
        self.drafted: list[list[int]] = []

    def propose(self, batch: Batch, span: ColumnSpan) -> Proposal:
        proposal = self._inner.propose(batch, span)
        assert proposal.tokens.shape[1] == max([0, *proposal.num_drafted.tolist()])
        self.drafted.append(proposal.num_drafted.tolist())
        return proposal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_a_draft_stops_before_the_first_token_that_it_is_not_sure_of(target: Any, draft: Any) -> None:
    """Greedy rows, each step against plain forward passes of the draft along what it drafts."""
    threshold, depth = 0.28, 4
    requests = [Request(tuple(range(2, 3 + row % 9)), GREEDY, row) for row in range(12)]
    proposer = Recorded(DraftModelProposer(draft, depth, is_sampling=False, confidence_threshold=threshold))
    outputs = decode_greedy(target, requests, proposer, depth)
    plain = decode_greedy(target, requests, None, 0)
    assert [each.output for each in outputs] == [each.output for each in plain]
    for row, (request, decoded) in enumerate(zip(requests, outputs, strict=True)):
        place = 1
        for step in proposer.drafted:
            if place >= len(decoded.output):
                break
            tokens = [*request.prompt, *decoded.output[:place]]
            confident = 0
            while confident < depth:
                with torch.inference_mode():
                    probs = torch.softmax(draft(input_ids=torch.tensor([tokens])).logits[0, -1], -1)
                if float(probs.max()) < threshold:
                    break
                tokens.append(int(probs.argmax()))
                confident += 1
            assert step[row] == confident
            drafted = tokens[len(request.prompt) + place :]
            accepted = 0
            while (
                accepted < confident
                and drafted[accepted] == (*decoded.output, -1)[min(place + accepted, len(decoded.output))]
            ):
                accepted += 1
            place += accepted + 1
    steps = [count for step in proposer.drafted for count in step]
    assert {0, 1, depth} <= set(steps), "some steps are plain, some have all they may, some stop between"
    assert sum(each.counts.num_plain_steps for each in outputs) > 0


def test_a_draft_that_is_never_sure_drafts_nothing(target: Any, draft: Any) -> None:
    proposer = DraftModelProposer(draft, 3, is_sampling=False, confidence_threshold=0.99)
    hot = SamplingParameters(temperature=50.0, max_tokens=9, ignore_eos=True)
    result = decode_batch(
        target, [Request((0, 4, 2), hot, 0)], proposer=proposer, num_speculative_tokens=3,
        verify_rule=VerifyRule.GREEDY_DRAFT, end_token_ids=frozenset({1}),
    ).decoded[0]  # fmt: skip
    assert (result.counts.num_drafts, result.counts.num_plain_steps) == (0, 8)
    check_identities(result.counts)


def test_recent_outputs_are_drafted_from(target: Any) -> None:
    """A request that has been answered before: its answer is drafted, at the request's own depth."""
    request = Request((0, 4, 2, 7), GREEDY, 0)
    plain = decode_greedy(target, [request], None, 0)[0]
    recent = RecentOutputs(24, 1_000)
    recent.add(RecordKey("f", 0, 1), plain.output)
    knowing, alone = (
        decode_greedy(target, [request], SuffixProposer(4, SuffixOptions(), index), 4)[0]
        for index in (recent.without(set()), None)
    )
    assert knowing.output == alone.output == plain.output
    assert knowing.counts.num_accepted_tokens > alone.counts.num_accepted_tokens
