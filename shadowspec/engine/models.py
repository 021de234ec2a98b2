"""Loading models and refusing those that the engine cannot measure exactly.

Weights come from local safetensors only; code from a model repository is never run.  A model is usable when
it is a decoder with ordinary attention over its whole past, takes explicit position ids, and the forward that
measurements use agrees with transformers' plain one on a probe (checked on the weights themselves at load).
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from shadowspec.engine.llama import DirectLlama, round_weights, why_not_compiled, why_not_direct
from shadowspec.engine.ordinary import USUAL_SIZE_RATIOS
from shadowspec.engine.runner import Runner
from shadowspec.engine.shared_vocabulary import SharedVocabulary, padded_vocabulary, shared_vocabulary, translate_model
from shadowspec.engine.static_passes import StaticPasses
from shadowspec.engine.tokenizer import FolderTokenizer, check_tokenizers, load_config, load_tokenizer, unloadable
from shadowspec.errors import ModelError
from shadowspec.model_folder import AGAIN, config_digest, require_weights, tokenizer_digest, weights_digest

if TYPE_CHECKING:
    from shadowspec_kernels.dispatch import Kernels

SHOWN_TENSORS = 3  # names in the message about a folder's weights
PROBE_TOLERANCE = {torch.float32: 2e-3, torch.float16: 0.1, torch.bfloat16: 0.5}  # logits; rounding only
PROBE_SHAPE = (2, 12)  # rows, tokens


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model on its device with its identity."""

    path: str
    model: Any  # a DirectLlama where one can run it, else transformers'
    tokenizer: FolderTokenizer
    end_token_ids: frozenset[int]
    weights_digest: str
    config_digest: str
    tokenizer_digest: str
    num_shared_tokens: int | None = None  # of a draft of another vocabulary than its target's, which drafts only these
    passes: StaticPasses | None = None  # its recorded passes; None: every step launches its operations
    kernels: Kernels | None = None  # for verifying its steps and appending to its cache; None: torch
    shares_prefixes: bool = False  # whether prompts that are prefilled together compute a shared prefix once

    @property
    def context_length(self) -> int:
        """Tokens."""
        return self.tokenizer.context_length

    @property
    def forward_name(self) -> str:
        """Whose forward pass runs the model: "compiled_llama", "direct_llama" or "transformers"."""
        return self.model.forward_name if isinstance(self.model, DirectLlama) else "transformers"

    @property
    def weights_dtype(self) -> torch.dtype:
        """Of the weights that steps multiply; compiled code may hold them in fewer bits than it computes in."""
        dtype: torch.dtype = self.model.weights_dtype if isinstance(self.model, DirectLlama) else self.model.dtype
        return dtype

    @property
    def num_parameters(self) -> int:
        return int(self.model.num_parameters())

    @property
    def weight_bytes(self) -> int:
        """Bytes that the model always holds: its weights, and its table of rotary angles."""
        held = (*self.model.parameters(), *self.model.buffers())
        return sum(tensor.numel() * tensor.element_size() for tensor in held)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one token of one request holds over all layers."""
        config = self.model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return int(2 * config.num_hidden_layers * heads * head_dim * self.model.dtype.itemsize)


def load_model(path: str, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """Load a model folder and probe it.

    Args:
        dtype: of weights and arithmetic.  On a CPU compiled code computes in float32 over bfloat16 or int8 weights.

    Raises:
        ModelError: the folder is missing or damaged, its weights are not those that its config names, or the model is
            of a kind that cannot be measured, or cannot be run with weights in int8.
    """
    config = load_config(path)
    refuse_unmeasurable(config, path)
    require_weights(f"model folder {path}", Path(path))
    tokenizer = load_tokenizer(path)
    is_widened = device.type == "cpu" and dtype in (torch.bfloat16, torch.int8)
    model = load_weights(
        path, torch.float32 if is_widened else dtype, is_tied=getattr(config, "tie_word_embeddings", False)
    )
    model = model.to(device).eval()
    if is_widened and (reason := why_not_direct(model) or why_not_compiled(model, dtype)) is not None:
        if dtype == torch.int8:
            raise ModelError(
                f'{path}: dtype = "int8" needs the compiled forward, which cannot run this model: {reason}; '
                'set dtype = "float32"'
            )
        model, is_widened = model.to(dtype), False
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise ModelError(f"{path}: {type(model).__name__} takes no position ids, so ragged rows cannot be run")
    end_token_ids = _end_token_ids(getattr(model, "generation_config", None), model.config, tokenizer.raw)
    return LoadedModel(
        path=path,
        model=runnable(model, path, dtype if is_widened else model.dtype),
        tokenizer=tokenizer,
        end_token_ids=end_token_ids,
        weights_digest=weights_digest(Path(path)),
        config_digest=config_digest(Path(path)),
        tokenizer_digest=tokenizer_digest(Path(path)),
    )


def load_weights(path: str, dtype: torch.dtype, *, is_tied: bool) -> Any:
    """A folder's model as transformers has it, only from safetensors; none of the folder's code is run.

    Args:
        is_tied: the config says that the output layer is the embedding.

    Raises:
        ModelError: the weights cannot be read, or are not those of the model that the config names.
    """
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype,
            attn_implementation="sdpa",
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # for the report: without it the error has no names
        )
    except Exception as error:  # a foreign file may make transformers raise anything
        raise unloadable(path, error) from error
    _require_whole(path, report)
    output = model.get_output_embeddings()
    # transformers keeps an output layer that differs; servers leave it out, as the config says.
    if is_tied and output is not None and not torch.equal(output.weight, model.get_input_embeddings().weight):
        raise ModelError(
            f"model folder {path}: config.json ties the output layer to the embedding (tie_word_embeddings), and the "
            f"weights hold another one; {AGAIN}, or correct config.json"
        )
    return model


def _require_whole(path: str, report: Mapping[str, Any]) -> None:
    """Refuse weights of another model than the config's: transformers fills gaps with random numbers.

    Its report leaves out what is no tensor of a model: tied weights, and names that its class lists as ignorable.

    Args:
        report: transformers' `output_loading_info`.

    Raises:
        ModelError: a tensor is missing, left over or of another shape; the message names it.
    """
    mismatched = {f"{name} as {list(held)} and not {list(wanted)}" for name, held, wanted in report["mismatched_keys"]}
    kinds = {"lack": report["missing_keys"], "have left over": report["unexpected_keys"], "have": mismatched}
    wrong = [f"{kind} {_some(names)}" for kind, names in kinds.items() if names]
    if wrong or report["error_msgs"]:
        what = "; ".join(wrong) or str(report["error_msgs"][0]).strip().split("\n")[0]
        raise ModelError(
            f"model folder {path}: its weights are not those of its config.json: they {what}; {AGAIN}, or correct "
            "config.json"
        )


def _some(names: Collection[str]) -> str:
    shown = ", ".join(sorted(names)[:SHOWN_TENSORS])
    return shown if len(names) <= SHOWN_TENSORS else f"{shown}, ... ({len(names)} in all)"


def refuse_unmeasurable(config: Any, path: str) -> None:
    """Refuse architectures whose attention is not ordinary, each with its reason.

    Raises:
        ModelError: vision-language, encoder-decoder, sliding-window, linear or hybrid attention, or soft-capped logits.
    """
    kind = getattr(config, "model_type", "this model")
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{path}: {kind} is an encoder-decoder; the engine runs decoder-only models")
    if parts := set(getattr(config, "sub_configs", ())) - {"text_config"}:
        inputs = "vision-language" if "vision_config" in parts else "multimodal"
        raise ModelError(
            f"{path}: {kind} is a {inputs} model, and the engine in this process runs text models. "
            'Measure it through servers (engine = "openai"), or give a folder with its text model'
        )
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    if layer_types != {"full_attention"}:
        other = ", ".join(sorted(layer_types - {"full_attention"}))
        raise ModelError(f"{path}: {kind} has {other} layers; a ragged cache needs full attention in every layer")
    is_sliding = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    if is_sliding:
        raise ModelError(f"{path}: {kind} attends through a sliding window; rejected tokens would leave its cache")
    if getattr(config, "attn_logit_softcapping", None):
        raise ModelError(f"{path}: {kind} caps attention logits, which the fused attention in use leaves out")
    if not getattr(config, "num_attention_heads", None):
        raise ModelError(f"{path}: {kind} has no attention heads (a linear-attention or state-space model)")


@torch.inference_mode()
def runnable(model: Any, path: str, weights_dtype: torch.dtype = torch.float32) -> Any:
    """The model in the form that measurements run, compared with its plain forward pass.

    That form is a `DirectLlama` (which uses the given model up) for the architectures it knows.  It is compared with
    the model with its weights rounded to `weights_dtype`.

    Raises:
        ModelError: the form gives other logits, so that measurements would not describe the model.
    """
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, int(model.config.vocab_size), PROBE_SHAPE, generator=generator).to(model.device)
    is_direct = why_not_direct(model) is None
    if is_direct and weights_dtype != model.dtype:
        round_weights(model, weights_dtype)
    plain = model(input_ids=tokens, use_cache=False).logits.float()
    if not bool(plain.isfinite().all()):
        raise ModelError(f"{path}: its logits are not finite: its weights are damaged, or overflow in {model.dtype}")
    form = DirectLlama(model, weights_dtype) if is_direct else model
    probe_cached_forward(form, tokens, plain, path)
    return form


@torch.inference_mode()
def probe_cached_forward(model: Any, tokens: torch.Tensor, plain: torch.Tensor, path: str) -> None:
    """Check on the weights that ragged cached passes give the logits of a plain forward pass.

    Args:
        model: transformers' or direct.
        tokens: int64 PROBE_SHAPE.
        plain: transformers' logits for them without a cache, float32 [*PROBE_SHAPE, vocabulary].
        path: the model's folder, for the message.

    Raises:
        ModelError: they differ by more than rounding, so that measurements would not describe the model.
    """
    device = model.device
    runner = Runner(model, slots=2, capacity=16)
    lengths = [5, 8]  # the rows differ in length, so that positions, padding and mask are all exercised
    first = runner.prefill([tokens[0, :5].tolist(), tokens[1, :8].tolist()]).float()
    step_tokens = torch.stack((tokens[0, 5:8], tokens[1, 8:11]))
    second = runner.step(step_tokens, torch.tensor(lengths, device=device), longest=8, keep=3).float()
    expected_first = torch.stack((plain[0, 4], plain[1, 7]))
    expected_second = torch.stack((plain[0, 5:8], plain[1, 8:11]))
    scale = max(1.0, float(plain.abs().max()))
    error = max(float((first - expected_first).abs().max()), float((second - expected_second).abs().max())) / scale
    if not error <= PROBE_TOLERANCE.get(model.dtype, 0.5):
        raise ModelError(
            f"{path}: {type(model).__name__} gives other logits with a ragged cache than without "
            f"(relative difference {error:.3g}); its attention or positions are not ordinary"
        )


def load_end_token_ids(path: str, tokenizer: FolderTokenizer) -> frozenset[int]:
    """The tokens that end a model folder's texts, without its weights.

    Raises:
        ModelError: its config cannot be read.
    """
    config = load_config(path)
    try:
        generation = GenerationConfig.from_pretrained(path, local_files_only=True)
    except OSError:
        generation = None  # a folder need not have one
    return _end_token_ids(generation, config.get_text_config(), tokenizer.raw)


def _end_token_ids(*sources: Any) -> frozenset[int]:
    """The end tokens of generation config, model config and tokenizer."""
    ids: set[int] = set()
    for source in sources:
        value = getattr(source, "eos_token_id", None)
        if isinstance(value, int):
            ids.add(value)
        elif isinstance(value, (list, tuple)):
            ids.update(int(token_id) for token_id in value)
    return frozenset(ids)


def check_pair(target: LoadedModel, draft: LoadedModel) -> list[str]:
    """Whether `draft` can draft for `target`; warnings about allowed but unwise pairs.

    Raises:
        ModelError: as `check_tokenizers`, unless the draft drafts only shared tokens.
    """
    warnings = []
    rows = target.tokenizer.vocabulary_size, draft.tokenizer.vocabulary_size
    if draft.num_shared_tokens is None:
        check_tokenizers(target.path, target.tokenizer, draft.path, draft.tokenizer)
    elif draft.tokenizer.raw.get_vocab() == target.tokenizer.raw.get_vocab():
        warnings.append(
            f"draft {draft.path} has its target's tokenizer and another padding of its vocabulary ({rows[1]} and "
            f"{rows[0]} rows): it drafts no token past {min(rows) - 1}. Some serving engines refuse such a pair"
        )
    else:
        warnings.append(
            f"draft {draft.path} has {draft.num_shared_tokens} of the {target.tokenizer.vocabulary_size} tokens of its "
            "target and drafts no others"
        )
    families = _family(target), _family(draft)
    if families[0] != families[1]:
        warnings.append(
            f"draft {draft.path} is a model of the family {families[1]}, and its target of {families[0]}: drafts of "
            "the target's family agree with it more often"
        )
    ratio = target.num_parameters / draft.num_parameters
    least, most = USUAL_SIZE_RATIOS
    if ratio < least:
        warnings.append(
            f"draft {draft.path} is only {ratio:.1f} times smaller than its target ({least:g} to {most:g} is usual). "
            "A step costs so much that little acceptance pays for it"
        )
    elif ratio > most:
        warnings.append(
            f"draft {draft.path} is {ratio:.1f} times smaller than its target ({least:g} to {most:g} is usual): a "
            "model so much smaller is rarely accepted"
        )
    if draft.context_length < target.context_length:
        warnings.append(
            f"draft {draft.path}: its context of {draft.context_length} tokens is shorter than the target's "
            f"{target.context_length}; requests are decoded plainly from there on, and flagged"
        )
    return warnings


def _family(loaded: LoadedModel) -> str:
    """The architecture's name in the model's configuration, such as "llama"."""
    return str(loaded.model.config.model_type)


def sharing_tokens(draft: LoadedModel, target: FolderTokenizer, target_path: str) -> LoadedModel:
    """A draft of another vocabulary, drafting for this target the tokens that both have; it shares its weights.

    Raises:
        ModelError: as `shared_vocabulary`.
    """
    return _sharing(draft, shared_vocabulary(target, target_path, draft.tokenizer, draft.path, draft.model.device))


def sharing_rows(draft: LoadedModel, target: FolderTokenizer, target_path: str) -> LoadedModel:
    """A draft of its target's tokenizer whose vocabulary is padded to another size, drafting the ids that both have.

    Raises:
        ModelError: as `check_tokenizers`.
    """
    check_tokenizers(target_path, target, draft.path, draft.tokenizer)
    return _sharing(draft, padded_vocabulary(target, draft.tokenizer, draft.model.device))


def _sharing(draft: LoadedModel, shared: SharedVocabulary) -> LoadedModel:
    return replace(draft, model=translate_model(draft.model, shared), num_shared_tokens=shared.num_shared)


def input_embedding(model: Any) -> torch.Tensor:
    """The embedding of a model's tokens, [vocabulary, hidden]."""
    embedding: torch.Tensor = (
        model.embedding if isinstance(model, DirectLlama) else model.get_input_embeddings().weight.data
    )
    return embedding
