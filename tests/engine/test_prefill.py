"""Prefill: long prompts in chunks, and prefixes that prompts share."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from shadowspec.engine import runner as runner_module
from shadowspec.engine.batch import Request
from shadowspec.engine.candidate import Models, fingerprint_candidate
from shadowspec.engine.decode import decode_batch
from shadowspec.engine.llama import DirectLlama
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.engine.runner import Runner, shared_prefixes
from shadowspec.types import SamplingParameters, SpeculationConfig, VerifyRule
from shadowspec.types.settings import EngineSettings
from tests.builders.llama_models import CONTEXT, KINDS, VOCABULARY, model_of, plain_logits
from tests.small_models import letter_tokenizer, save_model, tiny_llama


@pytest.mark.parametrize("kind", ["llama", "llama_grouped", "qwen3_head_norms"])
@pytest.mark.parametrize("is_direct", [True, False])
@torch.inference_mode()
def test_long_prompts_are_prefilled_in_chunks(kind: str, is_direct: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ragged rows, then other ones in the slots of two of them; a chunk may hold nothing but padding of a row."""
    monkeypatch.setattr(runner_module, "CHUNK", 7)
    monkeypatch.setattr(runner_module, "MAX_PADDING_SHARE", 1.0)
    model = KINDS[kind]()
    texts = torch.randint(0, VOCABULARY, (5, 40), generator=torch.Generator().manual_seed(1)).tolist()
    expected = [plain_logits(model, text) for text in texts]
    runner = Runner(DirectLlama(copy.deepcopy(model)) if is_direct else model, 3, CONTEXT)
    for rows, slots, lengths in (([0, 1, 2], [0, 1, 2], [23, 2, 9]), ([4, 3], [2, 0], [15, 28])):
        found = runner.prefill([texts[row][:length] for row, length in zip(rows, lengths, strict=True)], slots)
        wanted = torch.stack([expected[row][length - 1] for row, length in zip(rows, lengths, strict=True)])
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
    # Slot 0 holds text 3 up to 28, slot 1 text 1 up to 2, slot 2 text 4 up to 15.
    places = [(3, 28), (1, 2), (4, 15)]
    tokens = torch.tensor([texts[row][length : length + 4] for row, length in places])
    step = runner.step(tokens, torch.tensor([length for _, length in places]), 28, 4)
    wanted = torch.stack([expected[row][length : length + 4] for row, length in places])
    torch.testing.assert_close(step, wanted, atol=1e-4, rtol=1e-4)


class _Largest(TorchDispatchMode):
    """Keeps the size of the largest tensor that an operation makes."""

    entries = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = operation(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else [made]:
            if isinstance(each, torch.Tensor) and not each._is_view():
                self.entries = max(self.entries, each.untyped_storage().nbytes() // each.element_size())
        return made


@torch.inference_mode()
def test_the_memory_of_a_prefill_grows_with_the_prompt_only_as_its_cache() -> None:
    """Beyond a chunk no tensor has an entry for each pair of tokens, or several for each token."""
    model = model_of(LlamaForCausalLM, LlamaConfig, max_position_embeddings=4_096)
    direct = DirectLlama(model)
    for length in (2_048, 4_000):
        runner = Runner(direct, 1, 4_096)
        runner.prefill([[1]])  # which allocates the cache
        with _Largest() as largest:
            runner.prefill([[1] * length])
        assert largest.entries <= max(length * 512, 2 * 4 * 16 * 4_097)  # mask, cache


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8).map(tuple), min_size=1, max_size=8))
def test_a_shared_prefix_is_one_of_a_prompt_that_shares_none(prompts: list[tuple[int, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runner_module, "LEAST_SHARED", 2)
        found = shared_prefixes(prompts)
    for row, (leader, length) in found.items():
        assert leader not in found
        assert 2 <= length < len(prompts[row])
        assert prompts[leader][:length] == prompts[row][:length]
    leaders = [row for row in range(len(prompts)) if row not in found]
    for place, row in enumerate(leaders):
        for other in leaders[:place]:
            common = next((i for i, (a, b) in enumerate(zip(prompts[other], prompts[row], strict=False)) if a != b), 9)
            assert min(common, len(prompts[other]), len(prompts[row]) - 1) < 2


@pytest.mark.parametrize("chunk", [512, 10])
@pytest.mark.parametrize("is_direct", [True, False])
@torch.inference_mode()
def test_a_shared_prefix_is_computed_once(is_direct: bool, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "CHUNK", chunk)
    monkeypatch.setattr(runner_module, "MAX_PADDING_SHARE", 0.0)  # no padding, so that tokens can be counted
    model = KINDS["llama_grouped"]()
    system, *texts = torch.randint(0, VOCABULARY, (4, 60), generator=torch.Generator().manual_seed(1)).tolist()
    prompts = [system[:40] + texts[0][:9], texts[1][:25], system[:40] + texts[2][:3], system[:35]]
    expected = torch.stack([plain_logits(model, prompt)[-1] for prompt in prompts])
    runner = Runner(DirectLlama(copy.deepcopy(model)) if is_direct else model, 5, CONTEXT, shares_prefixes=True)
    count, forward = [], runner._forward.forward
    monkeypatch.setattr(
        runner._forward, "forward", lambda tokens, *rest: count.append(tokens.numel()) or forward(tokens, *rest)
    )
    slots = [4, 0, 2, 1]
    torch.testing.assert_close(runner.prefill(prompts, slots), expected, atol=1e-4, rtol=1e-4)
    assert sum(count) == 49 + 25 + 3 + 1
    places = dict(zip(slots, prompts, strict=True))
    rows = [[*places.get(slot, [1]), *texts[0][9:12]] for slot in range(5)]
    runner.prefill([[1]], [3])
    lengths = torch.tensor([len(row) - 3 for row in rows])
    step = runner.step(torch.tensor([row[-3:] for row in rows]), lengths, 49, 3)
    torch.testing.assert_close(step, torch.stack([plain_logits(model, row)[-3:] for row in rows]), atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_both_arms_share_prefixes_and_answer_as_before() -> None:
    target, draft = (DirectLlama(tiny_llama(seed)) for seed in (1, 2))
    system = torch.randint(2, 12, (50,), generator=torch.Generator().manual_seed(3)).tolist()
    sampling = SamplingParameters(temperature=0.0, max_tokens=24, ignore_eos=True)
    requests = [Request((*system, row + 2, 3), sampling, row) for row in range(5)]
    outputs = []
    for shares in (False, True):
        for proposer in (None, DraftModelProposer(draft, 3, is_sampling=False, shares_prefixes=shares)):
            result = decode_batch(
                target,
                requests,
                proposer=proposer,
                num_speculative_tokens=3,
                verify_rule=VerifyRule.GREEDY,
                end_token_ids=frozenset(),
                num_slots=2,
                shares_prefixes=shares,
            )
            outputs.append([decoded.output for decoded in result.decoded])
    assert outputs[0] == outputs[1] == outputs[2] == outputs[3]


def test_sharing_prefixes_is_in_the_fingerprint(tmp_path: Path) -> None:
    folder = str(save_model(tmp_path, tiny_llama(1), letter_tokenizer()))
    config = SpeculationConfig("a", "t", None, "ngram", 2, VerifyRule.GREEDY_DRAFT)
    details = []
    for settings in (EngineSettings("cpu"), EngineSettings("cpu", share_prefixes=True)):
        target = Models(settings).load(folder)
        details.append(fingerprint_candidate(config, target, None, 1, {}).details)
    assert details[1] == {**details[0], "shared_prefixes": "within a block"}
