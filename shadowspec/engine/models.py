"""Loading models and refusing those that the engine cannot measure exactly.

Weights come from local safetensors only; code from a model repository is never run.  A model is usable when
it is a decoder with ordinary attention over its whole past, takes explicit position ids, and the forward that
measurements use agrees with transformers' plain one on a probe (checked on the weights themselves at load).
"""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from shadowspec.engine.llama import DirectLlama, round_weights, why_not_compiled, why_not_direct
from shadowspec.engine.ordinary import USUAL_SIZE_RATIOS
from shadowspec.engine.runner import Runner
from shadowspec.engine.shared_vocabulary import shared_vocabulary, translate_model
from shadowspec.engine.static_passes import StaticPasses
from shadowspec.engine.tokenizer import (
    LOADING_ERRORS,
    FolderTokenizer,
    check_tokenizers,
    load_config,
    load_tokenizer,
    unloadable,
)
from shadowspec.errors import ModelError

if TYPE_CHECKING:
    from shadowspec_kernels.dispatch import Kernels

SAMPLED_CHUNKS = 64  # pieces read of each weight file for its digest: enough to distinguish fine-tunes
CHUNK_BYTES = 65_536
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
        ModelError: the folder is missing or unreadable, or the model is of a kind that cannot be measured, or cannot
            be run with weights in int8.
    """
    refuse_unmeasurable(load_config(path), path)
    tokenizer = load_tokenizer(path)
    is_widened = device.type == "cpu" and dtype in (torch.bfloat16, torch.int8)
    model = load_weights(path, torch.float32 if is_widened else dtype)
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
        tokenizer_digest=tokenizer.digest(),
    )


def load_weights(path: str, dtype: torch.dtype, config: Any = None) -> Any:
    """A folder's model as transformers has it, only from safetensors; none of the folder's code is run.

    Args:
        config: transformers' config of a model with fewer layers than the folder's, whose other weights stay unread;
            None: the folder's.

    Raises:
        ModelError: the weights cannot be read.
    """
    try:
        return AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            attn_implementation="sdpa",
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
    except LOADING_ERRORS as error:
        raise unloadable(path, error) from error


def refuse_unmeasurable(config: Any, path: str) -> None:
    """Refuse architectures whose attention is not ordinary, each with its reason.

    Raises:
        ModelError: encoder-decoder, sliding-window, linear or hybrid attention, or soft-capped logits.
    """
    kind = getattr(config, "model_type", "this model")
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{path}: {kind} is an encoder-decoder; the engine runs decoder-only models")
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
    try:
        generation = GenerationConfig.from_pretrained(path, local_files_only=True)
    except LOADING_ERRORS:
        generation = None  # a folder need not have one
    return _end_token_ids(generation, load_config(path), tokenizer.raw)


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


def weights_digest(folder: Path) -> str:
    """sha256 over each safetensors file's size and evenly spaced pieces of its content; hex.

    Reading hundreds of gigabytes at each start would not distinguish two revisions better: a fine-tune changes nearly
    every piece.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}".encode())
        with path.open("rb") as file:
            for piece in range(SAMPLED_CHUNKS):
                file.seek(piece * max(0, size - CHUNK_BYTES) // max(1, SAMPLED_CHUNKS - 1))
                digest.update(file.read(CHUNK_BYTES))
    return digest.hexdigest()


def check_pair(target: LoadedModel, draft: LoadedModel) -> list[str]:
    """Whether `draft` can draft for `target`; warnings about allowed but unwise pairs.

    Raises:
        ModelError: as `check_tokenizers`, unless the draft drafts only shared tokens.
    """
    warnings = []
    if draft.num_shared_tokens is None:
        check_tokenizers(target.path, target.tokenizer, draft.path, draft.tokenizer)
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
    shared = shared_vocabulary(target, target_path, draft.tokenizer, draft.path, draft.model.device)
    return replace(draft, model=translate_model(draft.model, shared), num_shared_tokens=shared.num_shared)


def input_embedding(model: Any) -> torch.Tensor:
    """The embedding of a model's tokens, [vocabulary, hidden]."""
    embedding: torch.Tensor = (
        model.embedding if isinstance(model, DirectLlama) else model.get_input_embeddings().weight.data
    )
    return embedding
