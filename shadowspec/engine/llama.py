"""The Llama family run straight on a transformers model's weights, without its modules.

A small model's step through transformers costs several times its arithmetic: wrappers, output classes, a dozen
operations a norm, the rotary angles of every pass.  `DirectLlama` runs the same layers over fused weights with
as few operations as torch has for them, and appends to a `RaggedCache` in place.  `why_not_direct` says which
models it can run; the others go through their own forward.  Its logits are held against transformers' on the
weights at each load (`models.load_model`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from transformers import LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM

from shadowspec.engine.forward import FINAL, side_by_side
from shadowspec.engine.kv_cache import RaggedCache, RaggedLayer
from shadowspec.engine.llama_layer import Matrix, Norm, adopt_layer, projections, rotation_table, select_rotations
from shadowspec.engine.ordinary import LEAST_COMPILED
from shadowspec_kernels.errors import OperandError, UnavailableError
from shadowspec_kernels.llama_weights import (
    CachedPass,
    LayerWeights,
    LlamaWeights,
    num_inputs,
    pack,
    packed_width,
    widen,
)

if TYPE_CHECKING:
    from shadowspec_kernels.llama_cpu import CompiledLlama

log = logging.getLogger(__name__)

FAMILY = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)
LONG_PROMPT = 1_024  # tokens, above which torch's attention over a prompt is worth all threads
# Angles that depend only on the position; the others ("dynamic", "longrope") change with the longest row.
STATIC_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def why_not_direct(model: Any) -> str | None:
    """Why `DirectLlama` cannot run this transformers model, or None if it can.

    Exact types only: a subclass, an adapter or a quantised layer may compute something else.
    """
    if type(model) not in FAMILY:
        return f"{type(model).__name__} is not of the Llama family"
    if any("forward" in vars(module) for module in model.modules()):
        return "a forward of its modules has been replaced"
    config = model.config
    rope_type = (config.rope_parameters or {}).get("rope_type")
    if rope_type not in STATIC_ROPE_TYPES:
        return f"rotary angles of type {rope_type!r} change with the length of the batch"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act!r}"
    plain = [model.lm_head]
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        plain += [attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj]
        if any(type(module) is not torch.nn.Linear for module in projections(attention)):
            return "it has layers other than plain linear ones"
    if any(type(module) is not torch.nn.Linear for module in plain):
        return "it has layers other than plain linear ones"
    if any(module.bias is not None for module in plain):
        return "it has biases elsewhere than on queries, keys and values"
    return None


def why_not_compiled(model: Any, weights_dtype: torch.dtype) -> str | None:
    """Why compiled code cannot run a model that `DirectLlama` can, over weights in a format; None: it can."""
    from shadowspec_kernels.llama_cpu import library

    shapes = _shapes(model)
    entries = sum(shape.numel() for shape in shapes)
    if model.device.type != "cpu" or model.dtype != torch.float32:
        return f"it is a {str(model.dtype).removeprefix('torch.')} model on {model.device}"
    if entries < LEAST_COMPILED:
        return f"it has {entries:,} weights to multiply, less than {LEAST_COMPILED:,}"
    try:
        for _, inputs in shapes:
            packed_width(inputs, weights_dtype)
        library()
    except OperandError as error:
        return str(error)
    except UnavailableError as error:
        log.warning("a model with %d weights runs on torch: the compiled forward is not available: %s", entries, error)
        return f"the compiled forward is not available: {error}"
    return None


def _shapes(model: Any) -> list[torch.Size]:
    """Of the weights that a step multiplies, [outputs, inputs]."""
    return [module.weight.shape for module in model.modules() if type(module) is torch.nn.Linear]


def round_weights(model: Any, weights_dtype: torch.dtype) -> None:
    """Round the weights that a step multiplies to the values of a format, in place; a tied embedding is one of them."""
    if weights_dtype != torch.float32:
        for module in model.modules():
            if type(module) is torch.nn.Linear:
                module.weight.data.copy_(widen(pack(module.weight.data, weights_dtype)))


class DirectLlama:
    """The forward pass of a model for which `why_not_direct` is None.

    The weights are taken over layer by layer, so that memory never holds them twice; the given model is unusable
    afterwards.
    Where it can, compiled code runs it over weights in `weights_dtype`, each widened to float32 as it is multiplied.
    """

    def __init__(self, model: Any, weights_dtype: torch.dtype = torch.float32) -> None:
        config, body = model.config, model.model
        self.config = config
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        memory = None
        if why_not_compiled(model, weights_dtype) is None:
            from shadowspec_kernels.llama_cpu import WeightMemory

            memory = WeightMemory(_shapes(model), weights_dtype)
        self.weights_dtype = self.dtype if memory is None else weights_dtype
        head_dim = int(body.layers[0].self_attn.head_dim)
        self._rotations = rotation_table(body.rotary_emb, int(config.max_position_embeddings), model.device)
        self._embedding = body.embed_tokens.weight.data  # [vocabulary, hidden]; in `weights_dtype` where it is tied
        head = model.lm_head.weight.data  # [vocabulary, hidden]; the same tensor where the two are tied
        self._is_tied = head.data_ptr() == self._embedding.data_ptr()
        if memory is None:
            # As it lies on a GPU, where kernels read its rows.
            self._head = Matrix.of(head, is_held=self._is_tied or head.device.type != "cpu")
        else:
            self._head = Matrix.compiled(memory.hold(head))
            if self._is_tied:
                self._embedding = self._head.weight()
            model.lm_head.weight = None
            if self._is_tied:
                body.embed_tokens.weight = None
        self._norm = Norm.of(body.norm, body.norm.weight.data)
        self._layers = tuple(adopt_layer(layer, head_dim, memory) for layer in body.layers)
        self._compiled = None if memory is None else self._compile()
        if memory is not None:
            memory.give_back()

    @property
    def forward_name(self) -> str:
        """The implementation of its steps: "compiled_llama", or "direct_llama" on torch."""
        return "direct_llama" if self._compiled is None else "compiled_llama"

    def _compile(self) -> CompiledLlama:
        from shadowspec_kernels.llama_cpu import CompiledLlama

        layers = tuple(
            LayerWeights(
                layer.attention_norm.weight,
                layer.qkv.weight(),
                layer.qkv_bias,
                layer.query_norm.weight if layer.query_norm is not None else None,
                layer.key_norm.weight if layer.key_norm is not None else None,
                layer.output.weight(),
                layer.mlp_norm.weight,
                layer.gate_up.weight(),
                layer.down.weight(),
            )
            for layer in self._layers
        )
        first = self._layers[0]
        return CompiledLlama(
            LlamaWeights(
                layers,
                self._norm.weight,
                self._head.weight(),
                heads=first.heads,
                kv_heads=first.kv_heads,
                head_dim=first.head_dim,
                eps=self._norm.eps,
            )
        )

    def parameters(self) -> Iterator[torch.Tensor]:
        """All weights, each once."""
        yield self._embedding
        if not self._is_tied:
            yield self._head.weight()
        yield self._norm.weight
        for layer in self._layers:
            yield from layer.tensors()

    def buffers(self) -> Iterator[torch.Tensor]:
        """Tensors held beside the weights."""
        yield self._rotations
        if self._head.packed is not None and self._is_tied:
            yield self._head.packed
        elif not self._is_tied:
            yield from self._head.copies()
        for layer in self._layers:
            yield from layer.copies()

    @property
    def kv_shape(self) -> tuple[int, int]:
        """Number of heads with keys and values, and their dimension."""
        return self._layers[0].kv_heads, self._layers[0].head_dim

    def final_states(self, tokens: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """The final states after these tokens of whole texts, as the head reads them; leaves no state.

        Args:
            tokens: int64 [rows, tokens], from the first of each text on and padded at the end.
            wanted: int64 [places]: row * tokens + column.

        Returns:
            [places, hidden].
        """
        rows, count = tokens.shape
        columns = torch.arange(count, device=tokens.device).clamp_(max=self._rotations.shape[0] - 1)
        angles = self.angles(columns.expand(rows, count))
        hidden = self._embed(tokens.reshape(-1))  # [rows * tokens, hidden]
        last = len(self._layers) - 1
        for index, layer in enumerate(self._layers):
            attended = layer.attend(None, layer.attention_norm(hidden), angles, None, count)
            if index == last:  # after the last layer's keys and values only the wanted places matter
                hidden, attended = hidden[wanted], attended[wanted]
            layer.add_to(hidden, attended)
        return self._norm(hidden)

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """The head's logits of final states [places, hidden]; [places, vocabulary]."""
        return self._head(states)

    def head_weight(self) -> torch.Tensor:
        """The head, [vocabulary, hidden], its rows contiguous."""
        plain, packed, rows = self._head.plain, self._head.packed, self._head.rows
        if rows is not None:
            return widen(rows)
        if plain is not None:
            return plain.t().contiguous()
        assert packed is not None, "a weight has one form at least"
        return packed.to_dense()

    def num_parameters(self) -> int:
        return sum(
            tensor.shape[0] * num_inputs(tensor) if tensor.dtype == torch.int8 else tensor.numel()
            for tensor in self.parameters()
        )

    @property
    def embedding(self) -> torch.Tensor:
        """The embedding of the tokens, [vocabulary, hidden]; a copy where it is held in another dtype."""
        return self._embed(torch.arange(self._embedding.shape[0])) if self._is_widened else self._embedding

    @property
    def _is_widened(self) -> bool:
        return bool(self._embedding.dtype != self.dtype)

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """int64 [tokens] -> [tokens, hidden]."""
        chosen = self._embedding.index_select(0, tokens)
        return widen(chosen) if self._is_widened else chosen

    def angles(self, positions: torch.Tensor) -> torch.Tensor:
        """The rotations at positions (int64 [rows, count]), complex64 [rows, count, 1, head_dim / 2]."""
        return select_rotations(self._rotations, positions)

    def forward(
        self,
        tokens: torch.Tensor,  # int64 [rows, tokens]
        angles: torch.Tensor,  # complex64 [rows, tokens, 1, head_dim / 2]
        mask: torch.Tensor,  # float [rows, 1, tokens, read], added to the attention's scores
        cache: RaggedCache,
        keep: int,
        hidden_layers: tuple[int, ...] = (),
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Append the tokens to the cache; see `runner.Forward`."""
        rows, count = tokens.shape
        hidden = self._embed(tokens.reshape(-1))  # [rows * tokens, hidden]
        if self._compiled is not None and all(type(layer) is RaggedLayer for layer in cache.layers):
            first, embedded = cache.layers[0], hidden.view(rows, count, -1)
            if not first.is_initialized:
                cache.allocate(*self.kv_shape, self.dtype)
            if first.read_width == 0 and keep == 1:
                return self._prefill_compiled(self._compiled, embedded, angles, cache, hidden_layers)
            if first.read_width > 0 and first.read_rows is None:
                return self._step_compiled(self._compiled, embedded, angles, cache, keep, hidden_layers)
        states: list[torch.Tensor] = []
        last = len(self._layers) - 1
        for index, (layer, store) in enumerate(zip(self._layers, cache.layers, strict=True)):
            if index in hidden_layers:
                states.append(hidden.view(rows, count, -1).clone())  # layers add to it in place
            width = keep if index == last else count
            attended = layer.attend(store, layer.attention_norm(hidden), angles, mask, width)
            if width < count:  # past the last layer's keys and values only the kept columns matter
                hidden = hidden.view(rows, count, -1)[:, -width:].reshape(rows * width, -1)
            layer.add_to(hidden, attended)
        normed = self._norm(hidden)
        if FINAL in hidden_layers:
            states.append(normed.view(rows, keep, -1))
        return self._head(normed).view(rows, keep, -1), side_by_side(states)

    def _step_compiled(
        self,
        compiled: CompiledLlama,
        hidden: torch.Tensor,  # [rows, tokens, hidden]
        angles: torch.Tensor,
        cache: RaggedCache,
        keep: int,
        hidden_layers: tuple[int, ...],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A step, whose tokens see all columns up to their places, as its mask says."""
        first, caches = cache.layers[0], [layer.states for layer in cache.layers]
        return _run(compiled, hidden, first.place[1], angles, caches, first.read_width, keep, hidden_layers)

    def _prefill_compiled(
        self,
        compiled: CompiledLlama,
        hidden: torch.Tensor,  # [rows, tokens, hidden], padded on the left
        angles: torch.Tensor,
        cache: RaggedCache,
        hidden_layers: tuple[int, ...],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """A prefill from the first column on, row by row: padding costs nothing then.  It keeps one column of each."""
        slots, columns = cache.layers[0].place
        logits, states = [], []
        for row, (slot, last) in enumerate(zip(slots[:, 0].tolist(), columns[:, -1].tolist(), strict=True)):
            here, text = slice(row, row + 1), slice(hidden.shape[1] - last - 1, None)
            caches = [layer.states[slot : slot + 1] for layer in cache.layers]
            given = hidden[here, text], columns[here, text], angles[here, text]
            of_row, row_states = _run(compiled, *given, caches, last + 1, 1, hidden_layers)
            logits.append(of_row)
            if row_states is not None:
                padding = 0 if FINAL in hidden_layers else text.start
                states.append(torch.nn.functional.pad(row_states, (0, 0, padding, 0)))
        return torch.cat(logits), torch.cat(states) if states else None


def _run(
    compiled: CompiledLlama,
    hidden: torch.Tensor,  # [rows, tokens, hidden]
    columns: torch.Tensor,
    angles: torch.Tensor,
    caches: Sequence[torch.Tensor],
    width: int,
    keep: int,
    hidden_layers: tuple[int, ...],
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A compiled pass; logits, and the hidden states of these layers side by side."""
    with_final = FINAL in hidden_layers
    layers = () if with_final else hidden_layers
    outputs = compiled.run(CachedPass(hidden, columns, angles, caches, width, keep, layers, with_final))
    states = outputs.inputs if outputs.final_states is None else (outputs.final_states,)
    return outputs.logits, side_by_side(states)


def torch_threads(target: Any, longest_prompt: int) -> AbstractContextManager[None]:
    """How many threads torch works on while a target decodes: one where compiled code does all large operations."""
    is_compiled = isinstance(target, DirectLlama) and target.forward_name == "compiled_llama"
    if not is_compiled or longest_prompt > LONG_PROMPT:
        return nullcontext()
    from shadowspec_kernels.llama_cpu import torch_on_one_thread

    return torch_on_one_thread()
