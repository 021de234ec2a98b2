"""Models that compiled code runs on a CPU: the logits and tokens of transformers, and when it is used."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from shadowspec.engine import llama, llama_layer
from shadowspec.engine.batch import Request
from shadowspec.engine.candidate import fingerprint_candidate
from shadowspec.engine.decode import decode_batch
from shadowspec.engine.forward import FINAL, HiddenStates
from shadowspec.engine.llama import LEAST_COMPILED, DirectLlama, round_weights
from shadowspec.engine.models import load_model
from shadowspec.engine.proposers.draft_model import DraftModelProposer
from shadowspec.engine.runner import Runner
from shadowspec.errors import ModelError
from shadowspec.types import SamplingParameters, SpeculationConfig, VerifyRule
from shadowspec_kernels import llama_cpu
from tests.builders.llama_models import KINDS, model_of
from tests.engine import test_llama
from tests.small_models import disturbed, letter_tokenizer, save_model, tiny_llama


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled code runs models of any size."""
    monkeypatch.setattr(llama, "LEAST_COMPILED", 0)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "test",
    [
        test_llama.test_logits_are_those_of_transformers,
        test_llama.test_states_of_whole_texts_give_the_same_logits,
        test_llama.test_weights_are_taken_over_and_counted_once,
    ],
)
def test_what_holds_on_torch_holds_here(kind: str, test: Any) -> None:
    test(kind)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    "test", [test_llama.test_rejected_tokens_leave_no_trace, test_llama.test_kept_slots_go_on_as_before]
)
def test_the_cache_is_as_ragged(test: Any) -> None:
    test()


@torch.inference_mode()
@pytest.mark.parametrize(("layers", "of_prompt"), [((0, 2), False), ((0, 2), True), ((FINAL,), False)])
def test_hidden_states_are_those_on_torch(
    layers: tuple[int, ...], of_prompt: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []
    for least in (LEAST_COMPILED, 0):
        monkeypatch.setattr(llama, "LEAST_COMPILED", least)
        direct = DirectLlama(KINDS["llama_grouped"]())
        assert direct.forward_name == ("direct_llama" if least else "compiled_llama")
        runner = Runner(direct, 2, 32, HiddenStates(layers, of_prompt=of_prompt))
        runner.prefill([[1, 2, 3, 4], [4, 5, 6, 7, 8]])
        of_prefill = runner.hidden_states
        runner.step(torch.tensor([[9, 8, 7], [6, 5, 4]]), torch.tensor([4, 5]), 5, 2)
        states.append((of_prefill, runner.hidden_states))
    for found, expected in zip(*states, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.all
@pytest.mark.slow
@torch.inference_mode()
def test_a_model_of_real_widths_decodes_as_transformers_does(tmp_path: Path) -> None:
    """SmolLM2-135M's sizes with few layers: the same greedy tokens, with speculation and without."""
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1_536,
        num_hidden_layers=2,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    plain = LlamaForCausalLM(config).eval()
    prompts = [torch.randint(0, 49_152, (length,)).tolist() for length in (3, 11, 20)]
    expected = [
        plain.generate(torch.tensor([p]), max_new_tokens=24, do_sample=False, eos_token_id=None)[0, len(p) :].tolist()
        for p in prompts
    ]
    target, draft = DirectLlama(plain), DirectLlama(disturbed(tiny_llama(1, vocabulary=49_152)))
    assert (target.forward_name, draft.forward_name) == ("compiled_llama", "compiled_llama")
    sampling = SamplingParameters(temperature=0.0, max_tokens=24, ignore_eos=True)
    requests = [Request(tuple(prompt), sampling, seed) for seed, prompt in enumerate(prompts)]
    for proposer in (
        None,
        DraftModelProposer(draft, 4, is_sampling=False),
        DraftModelProposer(target, 4, is_sampling=False),
    ):
        result = decode_batch(
            target,
            requests,
            proposer=proposer,
            num_speculative_tokens=4,
            verify_rule=VerifyRule.GREEDY,
            end_token_ids=frozenset(),
        )
        assert [list(decoded.output) for decoded in result.decoded] == expected


@pytest.mark.usefixtures("compiled")
@torch.inference_mode()
def test_a_verification_pass_gives_the_bits_of_plain_steps() -> None:
    """So that greedy outputs of both arms can differ by no rounding tie."""
    direct = DirectLlama(KINDS["qwen3_head_norms"]())
    tokens = torch.randint(0, 50, (3, 5), generator=torch.Generator().manual_seed(4))
    prompts, lengths = [[1, 2, 3], [4], [5, 6, 7, 8, 9]], torch.tensor([3, 1, 5])
    runner = Runner(direct, 3, 32)
    runner.prefill(prompts)
    verified = runner.step(tokens, lengths, 5, 5)
    for column in range(5):
        step = runner.step(tokens[:, column : column + 1], lengths + column, 5 + column, 1)
        assert torch.equal(step[:, 0], verified[:, column])


@pytest.mark.usefixtures("compiled")
@torch.inference_mode()
def test_a_prefill_gives_the_bits_of_plain_steps_whatever_prompts_are_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(llama_layer.Layer, "attend", None)  # nothing of it runs on torch
    direct = DirectLlama(KINDS["qwen3_head_norms"]())
    prompts = [[1, 2, 3, 9, 8, 7, 6], [4], [5, 6, 7, 8, 9, 1]]
    together = Runner(direct, 3, 32).prefill(prompts)
    for row, prompt in enumerate(prompts):
        alone = Runner(direct, 1, 32)
        logits = alone.prefill([prompt[:1]])
        for place, token in enumerate(prompt[1:], 1):
            logits = alone.step(torch.tensor([[token]]), torch.tensor([place]), place, 1)[:, 0]
        assert torch.equal(logits[0], together[row])


def test_weights_are_held_once(tmp_path: Path, compiled: None) -> None:
    folder = str(save_model(tmp_path, tiny_llama(1), letter_tokenizer()))
    loaded = load_model(folder, torch.device("cpu"), torch.float32)
    config = SpeculationConfig("a", "t", None, "ngram", 2, VerifyRule.GREEDY_DRAFT)
    assert fingerprint_candidate(config, loaded, None, 1, {}).details["target_forward"] == "compiled_llama"
    rotations = 8 * 256 * 8
    assert loaded.weight_bytes == 4 * loaded.num_parameters + rotations


def test_without_a_compiler_torch_runs_the_model_and_says_so(
    tmp_path: Path, compiled: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(llama_cpu, "_library_or_reason", lambda: "there is no C++ compiler")
    folder = str(save_model(tmp_path, tiny_llama(1), letter_tokenizer()))
    with caplog.at_level(logging.WARNING):
        loaded = load_model(folder, torch.device("cpu"), torch.float32)
    assert loaded.forward_name == "direct_llama"
    assert [record.message for record in caplog.records if record.name == "shadowspec.engine.llama"] == [
        f"a model with {loaded.num_parameters - 12 * 32 - 5 * 32} weights runs on torch: the compiled forward is not "
        "available: there is no C++ compiler"
    ]


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("dtype", "bytes_each"), [(torch.bfloat16, 2.0), (torch.int8, 1.0625)])
@torch.inference_mode()
def test_weights_in_fewer_bits_decode_as_transformers_does_with_their_values(
    tmp_path: Path, dtype: torch.dtype, bytes_each: float
) -> None:
    """Greedy, with speculation and without: transformers computes in float32 over the rounded weights."""
    model = tiny_llama(2)
    folder = str(save_model(tmp_path, model, letter_tokenizer()))
    round_weights(model, dtype)
    prompts = [[5, 9, 11], [7, 6, 8, 9, 2, 10]]
    expected = [
        model.generate(torch.tensor([p]), max_new_tokens=24, do_sample=False, eos_token_id=None)[0, len(p) :].tolist()
        for p in prompts
    ]
    loaded = load_model(folder, torch.device("cpu"), dtype)
    assert (loaded.forward_name, loaded.weights_dtype, loaded.model.dtype) == ("compiled_llama", dtype, torch.float32)
    assert loaded.num_parameters == sum(each.numel() for each in model.parameters())
    products = sum(each.numel() for each in llama._shapes(tiny_llama(2)))
    rest = loaded.num_parameters - products  # norms, and the embedding, which is not tied here
    assert loaded.weight_bytes == products * bytes_each + 4 * rest + 8 * 256 * 8
    sampling = SamplingParameters(temperature=0.0, max_tokens=24, ignore_eos=True)
    requests = [Request(tuple(prompt), sampling, seed) for seed, prompt in enumerate(prompts)]
    draft = load_model(folder, torch.device("cpu"), torch.float32).model  # of the weights before they were rounded
    for proposer in (None, DraftModelProposer(draft, 4, is_sampling=False)):
        result = decode_batch(
            loaded.model,
            requests,
            proposer=proposer,
            num_speculative_tokens=4,
            verify_rule=VerifyRule.GREEDY,
            end_token_ids=frozenset(),
        )
        assert [list(decoded.output) for decoded in result.decoded] == expected


@pytest.mark.usefixtures("compiled")
@torch.inference_mode()
def test_a_tied_embedding_is_read_in_its_format() -> None:
    model = model_of(LlamaForCausalLM, LlamaConfig, hidden_size=64, intermediate_size=96, tie_word_embeddings=True)
    round_weights(model, torch.int8)
    embedding = model.model.embed_tokens.weight.detach().clone()
    direct = DirectLlama(model, torch.int8)
    assert torch.equal(direct.embedding, embedding)
    assert torch.equal(direct.head_weight(), embedding)


@pytest.mark.usefixtures("compiled")
def test_the_format_of_the_weights_is_in_the_fingerprint(tmp_path: Path) -> None:
    folder = str(save_model(tmp_path, tiny_llama(1), letter_tokenizer()))
    config = SpeculationConfig("a", "t", None, "ngram", 2, VerifyRule.GREEDY_DRAFT)
    found = {}
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        loaded = load_model(folder, torch.device("cpu"), dtype)
        fingerprinted = fingerprint_candidate(config, loaded, None, 1, {})
        assert fingerprinted.dtype == "float32", "the arithmetic, which decides what a near-tie is"
        found[fingerprinted.fingerprint] = fingerprinted.details.get("target_weights_dtype")
    assert list(found.values()) == [None, "bfloat16", "int8"]


def test_int8_without_the_compiled_forward_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(save_model(tmp_path, tiny_llama(1), letter_tokenizer()))
    with pytest.raises(ModelError, match=r'dtype = "int8" needs the compiled forward.*weights to multiply, less than'):
        load_model(folder, torch.device("cpu"), torch.int8)
    monkeypatch.setattr(llama, "LEAST_COMPILED", 0)
    monkeypatch.setattr(llama_cpu, "_library_or_reason", lambda: "there is no C++ compiler")
    with pytest.raises(ModelError, match="there is no C\\+\\+ compiler"):
        load_model(folder, torch.device("cpu"), torch.int8)
    loaded = load_model(folder, torch.device("cpu"), torch.bfloat16)
    assert (loaded.forward_name, loaded.model.dtype) == ("direct_llama", torch.bfloat16), "bfloat16 has torch"


@pytest.mark.usefixtures("compiled")
def test_int8_needs_whole_groups(tmp_path: Path) -> None:
    model = model_of(LlamaForCausalLM, LlamaConfig, hidden_size=48)
    assert llama.why_not_compiled(model, torch.int8) == (
        "rows of 48 weights do not divide into groups of 32, which share a scale"
    )


@pytest.mark.usefixtures("compiled")
def test_other_numbers_stay_on_torch() -> None:
    assert DirectLlama(model_of(LlamaForCausalLM, LlamaConfig).to(torch.bfloat16)).forward_name == "direct_llama"
