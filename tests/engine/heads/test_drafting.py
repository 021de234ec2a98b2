"""Heads in the loop: what they propose is what the published code would, and nothing of the output changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from transformers import LlamaForCausalLM

from shadowspec.engine.batch import Batch, Request
from shadowspec.engine.candidate import fingerprint_candidate
from shadowspec.engine.decode import Decoded, decode_batch
from shadowspec.engine.kv_cache import ColumnSpan
from shadowspec.engine.models import LoadedModel
from shadowspec.engine.proposers import Proposal, Proposer
from shadowspec.engine.replay.replayer import Drafting, Replayed, Replayer
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.types import DraftSampling, RecordKey, SamplingParameters, SpeculationConfig, VerifyRule
from tests.builders.head_candidates import GREEDY, KINDS, REQUESTS, candidate
from tests.builders.verification import DRAWS, LEVEL, PROMPT, SAMPLING, draw, exact_distribution, p_value
from tests.engine.heads.reference import AUXILIARY, Eagle3, Medusa, Speculator
from tests.identities import check_identities

pytestmark = pytest.mark.slow  # all of them together


def decode_greedy(
    model: Any, proposer: Proposer | None, depth: int, *, releases_slots: bool = False, num_slots: int | None = None
) -> list[Decoded]:
    result = decode_batch(
        model,
        REQUESTS,
        proposer=proposer,
        num_speculative_tokens=depth,
        verify_rule=VerifyRule.GREEDY,
        end_token_ids=frozenset({1}),
        num_slots=num_slots,
        releases_slots=releases_slots,
    )
    return list(result.decoded)


@dataclass(frozen=True)
class Seen:
    """One row's text and what was drafted behind it."""

    tokens: tuple[int, ...]
    drafted: list[int]


class Recorder:
    """A proposer that notes what it proposes for active rows."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        self.hidden = proposer.hidden
        self.seen: list[Seen] = []

    def begin(self, batch: Batch) -> None:
        self._proposer.begin(batch)

    def admit(self, batch: Batch, slots: Sequence[int]) -> None:
        self._proposer.admit(batch, slots)

    def propose(self, batch: Batch, span: ColumnSpan) -> Proposal:
        proposal = self._proposer.propose(batch, span)
        for row in range(batch.num_rows):
            if batch.is_active(row):
                self.seen.append(Seen(tuple(batch.history(row).tolist()), proposal.tokens[row].tolist()))
        return proposal

    def keep(self, slots: list[int]) -> None:
        self._proposer.keep(slots)

    def cache_bytes(self) -> int:
        return self._proposer.cache_bytes()


@torch.inference_mode()
def expected_draft(
    plain: LlamaForCausalLM, reference: Medusa | Speculator | Eagle3, tokens: tuple[int, ...], depth: int
) -> list[int]:
    """From the text alone: the target's plain pass over all but the last token, and the reference."""
    every = plain(input_ids=torch.tensor([tokens[:-1]]), use_cache=False, output_hidden_states=True).hidden_states
    if isinstance(reference, Eagle3):
        hidden = torch.cat([every[layer][0] for layer in AUXILIARY], -1)
        return reference.chain(torch.tensor(tokens[1:]), hidden, depth)[0]
    return reference.drafted(every[-1][0, -1], tokens[-1], depth)


@pytest.mark.representative("medusa-4-transformers-5", "mlp_speculator-3-direct-5", "eagle3-3-transformers-None")
@pytest.mark.parametrize(
    ("form", "num_slots"), [("direct", None), ("direct", 5), ("transformers", None), ("transformers", 5)]
)
@pytest.mark.parametrize("depth", [1, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_the_loop_drafts_what_the_published_code_would(
    kind: str,
    depth: int,
    form: str,
    num_slots: int | None,
    target: LoadedModel,
    plain: Any,
    references: Any,
    folders: dict[str, Path],
) -> None:
    model = target.model if form == "direct" else plain
    recorder = Recorder(candidate(kind, folders, target, depth, VerifyRule.GREEDY).proposer())
    base = decode_greedy(model, None, 0)
    drafted = decode_greedy(model, recorder, depth, num_slots=num_slots)
    assert [each.output for each in drafted] == [each.output for each in base]
    for each in drafted:
        check_identities(each.counts)
    accepted = {each.counts.num_accepted_tokens for each in drafted}
    assert len(accepted) > 1, "rows are to part, so that the draft's cache is ragged"
    assert len(recorder.seen) > 100
    for seen in recorder.seen[::7]:
        assert seen.drafted == expected_draft(plain, references[kind], seen.tokens, depth)


@pytest.mark.representative("medusa")
@pytest.mark.parametrize("kind", KINDS)
def test_releasing_and_refilling_slots_change_nothing(kind: str, target: LoadedModel, folders: dict[str, Path]) -> None:
    requests = [
        Request(
            request.prompt,
            SamplingParameters(
                temperature=0.0 if row % 3 else 0.9, max_tokens=2 + 4 * row, presence_penalty=0.1 * row, min_tokens=row
            ),
            row,
        )
        for row, request in enumerate(REQUESTS[:8])
    ]

    def outputs(num_slots: int | None, *, releases_slots: bool) -> list[tuple[tuple[int, ...], Any]]:
        result = decode_batch(
            target.model,
            requests,
            proposer=candidate(kind, folders, target, 3, VerifyRule.REJECTION).proposer(),
            num_speculative_tokens=3,
            verify_rule=VerifyRule.REJECTION,
            end_token_ids=frozenset({1}),
            num_slots=num_slots,
            releases_slots=releases_slots,
        )
        return [(decoded.output, decoded.counts) for decoded in result.decoded]

    whole = outputs(None, releases_slots=False)
    assert outputs(None, releases_slots=True) == whole
    assert outputs(3, releases_slots=False) == whole
    assert outputs(3, releases_slots=True) == whole


@pytest.mark.representative("eagle3-rejection")
@pytest.mark.parametrize("rule", [VerifyRule.REJECTION, VerifyRule.GREEDY_DRAFT, VerifyRule.EXACT_MATCH])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_follow_the_targets_distribution(
    kind: str, rule: VerifyRule, target: LoadedModel, plain: Any, folders: dict[str, Path]
) -> None:
    assert len(PROMPT) > 1
    drafting = candidate(kind, folders, target, 2, rule)
    outputs = draw(target.model, SAMPLING, rule, drafting.proposer)
    assert len(outputs) == DRAWS
    assert p_value(outputs, exact_distribution(plain, SAMPLING)) > LEVEL


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_does_not_depend_on_its_neighbours(kind: str, target: LoadedModel, folders: dict[str, Path]) -> None:
    sampling = SamplingParameters(temperature=0.9, top_p=0.95, max_tokens=16, repetition_penalty=1.1)
    requests = [Request(tuple(range(2, 4 + row)), sampling, 100 + row) for row in range(6)]
    drafting = candidate(kind, folders, target, 3, VerifyRule.REJECTION)

    def outputs(chosen: list[Request]) -> list[tuple[int, ...]]:
        result = decode_batch(
            target.model, chosen, proposer=drafting.proposer(), num_speculative_tokens=3,
            verify_rule=VerifyRule.REJECTION, end_token_ids=frozenset({1}),
        )  # fmt: skip
        return [decoded.output for decoded in result.decoded]

    together = outputs(requests)
    assert [outputs([request])[0] for request in requests] == together


def test_only_eagle_holds_a_cache(target: LoadedModel, folders: dict[str, Path]) -> None:
    for kind in KINDS:
        drafting = candidate(kind, folders, target, 2, VerifyRule.GREEDY)
        proposer = drafting.proposer()
        decode_greedy(target.model, proposer, 2)
        assert (proposer.cache_bytes() > 0) == (kind == "eagle3")
        assert drafting.draft is not None
        assert (drafting.draft.kv_bytes_per_token > 0) == (kind == "eagle3")


@pytest.mark.representative("eagle3")
@pytest.mark.parametrize("kind", KINDS)
def test_heads_by_temperature_alone_ignore_penalties_in_loop_and_replay(
    kind: str, target: LoadedModel, folders: dict[str, Path]
) -> None:
    plain = candidate(kind, folders, target, 3, VerifyRule.GREEDY_DRAFT)
    config = replace(plain.config.config, draft_sampling=DraftSampling.TEMPERATURE)
    by_temperature = replace(plain, config=fingerprint_candidate(config, target, plain.draft, 1, {}))
    assert by_temperature.config.fingerprint != plain.config.fingerprint
    sampling = structs.replace(GREEDY, frequency_penalty=0.9, min_tokens=6)
    wanted = [replace(request, sampling=sampling) for request in REQUESTS]
    result = decode_batch(
        target.model,
        wanted,
        proposer=by_temperature.proposer(),
        num_speculative_tokens=3,
        verify_rule=VerifyRule.GREEDY_DRAFT,
        end_token_ids=frozenset({1}),
    )
    drafted = [each.counts.num_accepted_tokens for each in result.decoded]
    responses = [
        Response(RecordKey("file", 0, row), request, each.output)
        for row, (request, each) in enumerate(zip(wanted, result.decoded, strict=True))
    ]

    def expected(each: SpeculationConfig) -> list[float]:
        replayer = Replayer([Drafting(each, plain.draft)], [3], end_token_ids=frozenset({1}), target=target)
        found = replayer.replay(responses)
        return [one.counts[0][0].num_accepted_tokens for one in found if isinstance(one, Replayed)]

    assert expected(config) == pytest.approx(drafted)
    assert expected(plain.config.config) != pytest.approx(drafted), "the two can be told apart"
