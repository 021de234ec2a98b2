"""Drafts of another vocabulary than their target's: which tokens are shared, and that nothing is lost by it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from kernels.benchmarks.rerun import Rerun
from shadowspec.engine import candidate as candidates
from shadowspec.engine.batch import Request
from shadowspec.engine.candidate import Models, fingerprint_candidate
from shadowspec.engine.decode import decode_batch
from shadowspec.engine.llama import DirectLlama
from shadowspec.engine.models import LoadedModel, check_pair, load_model, sharing_tokens
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.engine.replay.replayer import Drafting, Replayer
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.engine.replay.scoring import token_scores
from shadowspec.engine.shared_vocabulary import meanings, shared_vocabulary, translate_model
from shadowspec.engine.tokenizer import FolderTokenizer
from shadowspec.errors import ModelError
from shadowspec.types import RecordKey, SamplingParameters, SpeculationConfig, VerifyRule
from shadowspec.types.settings import EngineSettings
from tests.builders.decoded_prompts import decode_greedy
from tests.builders.verification import LEVEL, SAMPLING, draw, exact_distribution, p_value
from tests.small_models import disturbed, letter_tokenizer, save_model, tiny_llama

CPU = torch.device("cpu")
# The target's letters are a to j, the draft's d to o, so that d to j are shared, under other ids.
SIZE, DRAFT_SIZE, FIRST = 12, 14, "d"
SHARED = {0: 0, 1: 1} | {target: target - 3 for target in range(5, 12)}
RULES = (VerifyRule.REJECTION, VerifyRule.GREEDY_DRAFT, VerifyRule.EXACT_MATCH)


def folder_tokenizer(raw: Any, size: int | None = None) -> FolderTokenizer:
    return FolderTokenizer.of(raw, 256, size or len(raw.get_vocab()))


@pytest.fixture(scope="module")
def foreign() -> Any:
    """A draft that agrees with the target where it has the tokens, and has rows of its own for the others."""
    draft, like = tiny_llama(7, vocabulary=DRAFT_SIZE), disturbed(tiny_llama(1))
    weights = like.state_dict()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        clone = draft.state_dict()[name].clone()
        clone[list(SHARED.values())] = weights[name][list(SHARED)]
        weights[name] = clone
    draft.load_state_dict(weights)
    return draft


@pytest.fixture(scope="module")
def folders(target: Any, foreign: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("foreign")
    return (
        save_model(root / "target", target, letter_tokenizer()),
        save_model(root / "draft", foreign, letter_tokenizer(DRAFT_SIZE, FIRST)),
    )


@pytest.fixture(scope="module")
def pair(folders: tuple[Path, Path]) -> tuple[LoadedModel, LoadedModel]:
    """Both loaded, the draft with shared tokens."""
    target, draft = (load_model(str(folder), CPU, torch.float32) for folder in folders)
    return target, sharing_tokens(draft, target.tokenizer, target.path)


def exact_draft_probs(foreign: Any, tokens: list[int], temperature: float) -> torch.Tensor:
    """What the draft is to propose after these tokens of the target's, [SIZE], by a plain pass and the table above."""
    unknown = 1  # it names no unknown token, so its end of text
    with torch.inference_mode():
        read = torch.tensor([[SHARED.get(token, unknown) for token in tokens]])
        logits = foreign(input_ids=read, use_cache=False).logits[0, -1]
    shared = torch.softmax(logits[list(SHARED.values())] / temperature, -1)
    return torch.zeros(SIZE).index_copy_(0, torch.tensor(list(SHARED)), shared)


def test_letters_are_shared_by_what_they_are(pair: tuple[LoadedModel, LoadedModel]) -> None:
    target, draft = pair
    shared = shared_vocabulary(target.tokenizer, "t", letters(DRAFT_SIZE, FIRST), "d", CPU)
    assert dict(zip(shared.target_ids.tolist(), shared.draft_ids.tolist(), strict=True)) == SHARED
    assert shared.reading.tolist() == [0, 1, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8]
    logits = torch.arange(2.0 * DRAFT_SIZE).view(2, DRAFT_SIZE)
    spread = shared.spread(logits)
    assert spread.shape == (2, SIZE)
    for token in range(SIZE):
        expected = logits[:, SHARED[token]] if token in SHARED else torch.full((2,), float("-inf"))
        assert torch.equal(spread[:, token], expected)
    assert draft.num_shared_tokens == len(SHARED)


def letters(size: int, first: str) -> FolderTokenizer:
    return folder_tokenizer(letter_tokenizer(size, first), size)


def byte_level(pieces: list[str], end: str | None = "<end>") -> FolderTokenizer:
    backend = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return folder_tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=end))


def sentencepiece(pieces: list[str]) -> FolderTokenizer:
    backend = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=[]))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return folder_tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="<end>"))


def test_tokens_of_two_kinds_are_the_same_where_their_bytes_are() -> None:
    target = byte_level(["<end>", "a", "\u0120a", "\u010a", "\u00c3\u00a9", "b", "\u00c3", "\u0120\u0120"])
    draft = sentencepiece(
        ["<unk>", "<0x0A>", "<0x62>", "<0xC3>", "\u2581a", "\u00e9", "b", "\u2581\u2581", "c", "<end>"]
    )
    shared = shared_vocabulary(target, "t", draft, "d", CPU)
    found = dict(zip(shared.target_ids.tolist(), shared.draft_ids.tolist(), strict=True))
    # <end> by name, " a", newline by its byte, e acute, b as itself and not as a byte, a lone byte, two spaces.
    assert found == {0: 9, 2: 4, 3: 1, 4: 5, 5: 6, 6: 3, 7: 7}
    assert shared.reading.tolist() == [9, 0, 4, 1, 5, 6, 3, 7]  # a is read as unknown
    back = shared_vocabulary(draft, "d", target, "t", CPU)
    assert dict(zip(back.draft_ids.tolist(), back.target_ids.tolist(), strict=True)) == found


def test_a_special_token_is_not_the_text_of_its_name() -> None:
    plain, special = byte_level(["<end>", "x", "<pad>"]), byte_level(["<end>", "x", "<pad>"])
    special.raw.add_special_tokens({"pad_token": "<pad>"})
    assert len(meanings(plain)) == len(meanings(special)) == 3
    shared = shared_vocabulary(plain, "t", special, "d", CPU)
    assert shared.target_ids.tolist() == [0, 1]


def test_rows_that_a_model_does_not_have_are_not_shared() -> None:
    target, draft = letters(12, "a"), letters(12, "a")
    shared = shared_vocabulary(replace(target, vocabulary_size=10), "t", replace(draft, vocabulary_size=9), "d", CPU)
    assert shared.target_ids.tolist() == list(range(9))
    assert len(shared.reading) == 10


def test_what_cannot_be_shared_is_refused() -> None:
    backend = Tokenizer(models.WordPiece(vocab={"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    pieces = folder_tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]"))
    known, why = letters(12, "a"), r"draft d cannot draft for target t: .* neither byte-level nor SentencePiece's"
    for target, draft in ((known, pieces), (pieces, known)):
        with pytest.raises(ModelError, match=why):
            shared_vocabulary(target, "t", draft, "d", CPU)
    with pytest.raises(ModelError, match="share no token"):
        shared_vocabulary(byte_level(["a"], None), "t", byte_level(["b"]), "d", CPU)
    with pytest.raises(ModelError, match="neither an unknown token nor an end of text"):
        shared_vocabulary(byte_level(["a"]), "t", byte_level(["a"], None), "d", CPU)


@pytest.mark.parametrize("form", ["direct", "transformers"])
def test_the_drafts_distribution_is_its_own_over_shared_tokens(
    form: str, pair: tuple[LoadedModel, LoadedModel], foreign: Any
) -> None:
    """Whatever stands in the text, tokens that the draft does not know among them; both forms of a forward."""
    target, draft = pair
    shared = shared_vocabulary(target.tokenizer, "t", letters(DRAFT_SIZE, FIRST), "d", CPU)
    model = draft.model if form == "direct" else translate_model(foreign, shared)
    assert isinstance(model, DirectLlama) is (form == "direct")
    rng = torch.Generator().manual_seed(0)
    texts = [torch.randint(2, SIZE, (length,), generator=rng).tolist() for length in (9, 14, 11)]
    sampling = SamplingParameters(temperature=0.7, max_tokens=8, ignore_eos=True)
    responses = [
        Response(RecordKey("f", 0, row), Request(tuple(text[:5]), sampling, row), tuple(text[5:]))
        for row, text in enumerate(texts)
    ]
    for response, scores in zip(
        responses, token_scores(model, responses, frozenset({1}), with_probs=True), strict=True
    ):
        assert scores.probs is not None
        for place, token in enumerate(response.output):
            before = [*response.request.prompt, *response.output[:place]]
            expected = exact_draft_probs(foreign, before, 0.7)
            assert scores.probs[place] == pytest.approx(float(expected[token]), abs=1e-5)
            assert scores.is_best[place] == (int(expected.argmax()) == token)


@pytest.mark.representative("rejection")
@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_outputs_follow_the_targets_distribution(
    target: Any, pair: tuple[LoadedModel, LoadedModel], rule: VerifyRule
) -> None:
    proposed: set[int] = set()

    class Seen(DraftModelProposer):
        def propose(self, *given: Any) -> Any:
            proposal = super().propose(*given)
            proposed.update(proposal.tokens.unique().tolist())
            return proposal

    draft = pair[1].model
    outputs = draw(target, SAMPLING, rule, lambda: Seen(draft, 2, is_sampling=rule is VerifyRule.REJECTION))
    assert p_value(outputs, exact_distribution(target, SAMPLING)) > LEVEL
    assert proposed <= set(SHARED)
    assert len(proposed) > (4 if rule is VerifyRule.REJECTION else 1)


@pytest.mark.all
def test_probabilities_that_were_not_renormalised_would_be_seen(
    target: Any, pair: tuple[LoadedModel, LoadedModel], foreign: Any
) -> None:
    """Broken on purpose: the draft samples shared tokens but is verified by its probabilities over all of its own."""

    class Unrestricted(DraftModelProposer):
        def propose(self, *given: Any) -> Any:
            proposal = super().propose(*given)
            return replace(proposal, draft_probs=0.6 * proposal.draft_probs)

    draft = pair[1].model
    outputs = draw(target, SAMPLING, VerifyRule.REJECTION, lambda: Unrestricted(draft, 2, is_sampling=True))
    assert p_value(outputs, exact_distribution(target, SAMPLING)) < 1e-12


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_greedy_output_is_the_baselines_and_replay_counts_it(depth: int, pair: tuple[LoadedModel, LoadedModel]) -> None:
    target, draft = pair
    sampling = SamplingParameters(temperature=0.0, max_tokens=20, ignore_eos=True)
    rng = torch.Generator().manual_seed(3)
    prompts = [tuple(torch.randint(2, SIZE, (length,), generator=rng).tolist()) for length in (4, 9, 23, 6)]
    requests = [Request(prompt, sampling, row) for row, prompt in enumerate(prompts)]
    plain = decode_greedy(target.model, requests, None, 0)
    drafted = decode_greedy(target.model, requests, DraftModelProposer(draft.model, depth, is_sampling=False), depth)
    assert [each.output for each in drafted] == [each.output for each in plain]
    assert sum(each.counts.num_accepted_tokens for each in drafted) > 0
    config = SpeculationConfig("h", "t", "d", "heterogeneous_draft_model", depth, VerifyRule.REJECTION)
    replayer = Replayer([Drafting(config, draft)], [depth], end_token_ids=frozenset({1}), target=target)
    responses = [
        Response(RecordKey("f", 0, row), request, each.output)
        for row, (request, each) in enumerate(zip(requests, drafted, strict=True))
    ]
    for each, replayed in zip(drafted, replayer.replay(responses), strict=True):
        expected = replayed.counts[0][0]  # type: ignore[union-attr]
        assert expected.num_accepted_tokens == pytest.approx(each.counts.num_accepted_tokens)
        assert expected.num_drafts == pytest.approx(each.counts.num_drafts)


def test_penalties_go_by_the_targets_tokens(pair: tuple[LoadedModel, LoadedModel]) -> None:
    """What the draft cannot draft stays at minus infinity through all that moves logits."""
    target, draft = pair
    sampling = SamplingParameters(
        temperature=0.9, top_p=0.9, top_k=6, min_p=0.01, repetition_penalty=1.3, presence_penalty=0.4,
        frequency_penalty=0.2, min_tokens=3, max_tokens=12,
    )  # fmt: skip
    result = decode_batch(
        target.model,
        [Request((5, 6, 7), sampling, seed) for seed in range(8)],
        proposer=DraftModelProposer(draft.model, 3, is_sampling=True),
        num_speculative_tokens=3,
        verify_rule=VerifyRule.REJECTION,
        end_token_ids=frozenset({1}),
    )
    assert sum(each.counts.num_accepted_tokens for each in result.decoded) > 0


def test_its_recorded_passes_are_its_own(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of the draft whose weights it shares, which goes by other tokens."""
    config = SpeculationConfig("h", "t", str(folders[1]), "heterogeneous_draft_model", 3, VerifyRule.REJECTION)
    sampling = SamplingParameters(temperature=0.9, max_tokens=12)
    found = []
    for new_recorder in (None, Rerun):
        monkeypatch.setattr(candidates, "choose_recorder", lambda *_, new=new_recorder: new)
        ready = Models(EngineSettings("cpu", "float32"))
        target, (candidate,) = ready.candidates(str(folders[0]), [config], lambda _: None, 1, {})
        result = decode_batch(
            target.model,
            [Request((5, 6, 7, 2 + seed), sampling, seed) for seed in range(8)],
            proposer=candidate.proposer(),
            num_speculative_tokens=3,
            verify_rule=VerifyRule.REJECTION,
            end_token_ids=frozenset({1}),
            passes=target.passes,
        )
        found.append([(each.output, each.counts) for each in result.decoded])
    assert candidate.config.details["draft_passes"] == "rerun"
    assert found[0] == found[1]


def test_candidates_share_weights_warn_and_are_told_apart(folders: tuple[Path, Path]) -> None:
    ready, warnings = Models(EngineSettings("cpu", "float32")), list[str]()
    config = SpeculationConfig("h", "t", str(folders[1]), "heterogeneous_draft_model", 3, VerifyRule.REJECTION)
    target, (candidate,) = ready.candidates(str(folders[0]), [config], warnings.append, 1, {})
    assert any("has 9 of the 12 tokens of its target and drafts no others" in warning for warning in warnings)
    draft, alone = candidate.draft, ready.load(str(folders[1]))
    assert isinstance(draft, LoadedModel)
    assert draft.forward_name == "direct_llama"
    assert draft.num_parameters == alone.num_parameters
    assert draft.model.embedding is alone.model.embedding
    assert draft.weight_bytes == alone.weight_bytes + 8 * (2 * len(SHARED) + SIZE)
    assert draft is ready.draft(config, target)
    assert {"shared_tokens", "draft_tokenizer", "target_weights", "draft_weights"} <= set(candidate.config.details)
    assert candidate.config.details["shared_tokens"] == "9"
    same = replace(config, proposer="draft_model")
    assert fingerprint_candidate(same, target, alone, 1, {}).fingerprint != candidate.config.fingerprint
    with pytest.raises(ModelError, match="tokenizers differ"):
        ready.candidates(str(folders[0]), [same], warnings.append, 1, {})
    assert not [each for each in check_pair(target, draft) if "tokenizers" in each]


def test_models_of_equal_size_name_the_proposer_that_would_do(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    other = save_model(tmp_path, tiny_llama(2), letter_tokenizer(first="b"))
    config = SpeculationConfig("h", "t", str(other), "draft_model", 3, VerifyRule.REJECTION)
    with pytest.raises(ModelError, match="heterogeneous_draft_model, which drafts the tokens that both have"):
        Models(EngineSettings("cpu", "float32")).candidates(str(folders[0]), [config], lambda _: None, 1, {})
