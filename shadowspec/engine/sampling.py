"""From logits to the distribution that is sampled, in the order production (vLLM) applies its parameters:

minimum length, repetition penalty, frequency and presence penalty, temperature, min-p, top-k, top-p.

The repetition penalty looks at prompt and output, the other two only at the output.  A row at temperature 0
becomes the one-hot distribution of its arg-max, so that greedy and sampled rows share a batch.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from shadowspec.types import SamplingParameters

# Top-p needs the head of the sorted distribution only.  This many entries usually hold it; rows for which they
# do not are looked at again with HEAD_GROWTH times as many.
TOP_P_HEAD = 512
HEAD_GROWTH = 8


class BatchSampling:
    """The sampling parameters of the rows of a batch as tensors, with the token counts that penalties need."""

    def __init__(
        self,
        sampling: Sequence[SamplingParameters],
        prompts: Sequence[Sequence[int]],
        end_token_ids: Sequence[Sequence[int]],
        vocabulary: int,
        device: torch.device,
    ) -> None:
        def column(values: Sequence[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)[:, None]  # [rows, 1]

        self.is_greedy = torch.tensor([s.temperature == 0.0 for s in sampling], device=device)  # [rows]
        self.all_greedy = all(s.temperature == 0.0 for s in sampling)
        self.has_greedy = any(s.temperature == 0.0 for s in sampling)
        self.temperature = column([s.temperature or 1.0 for s in sampling])
        self.min_p = column([s.min_p for s in sampling])
        nucleus = [s.top_p if s.top_p < 1.0 and s.temperature > 0.0 else 0.0 for s in sampling]
        self.nucleus = torch.tensor(
            nucleus, dtype=torch.float32, device=device
        )  # [rows]: top-p, 0 where nothing is cut
        top_k = [s.top_k if 0 < s.top_k < vocabulary else vocabulary for s in sampling]
        self.top_k = torch.tensor(top_k, device=device)[:, None]
        self.repetition = column([s.repetition_penalty for s in sampling])
        self.presence = column([s.presence_penalty for s in sampling])
        self.frequency = column([s.frequency_penalty for s in sampling])
        sampled = [s for s in sampling if s.temperature > 0.0]
        self.has_min_p = any(s.min_p > 0.0 for s in sampled)
        self.has_top_k = any(0 < s.top_k < vocabulary for s in sampled)
        self.has_top_p = any(s.top_p < 1.0 for s in sampled)
        self.has_penalties = any(s.is_penalised for s in sampling)
        self.min_tokens = torch.tensor([s.min_tokens for s in sampling], device=device)  # [rows]
        self.has_min_tokens = any(s.min_tokens > 0 for s in sampling)
        rows = len(sampling)
        if self.has_min_tokens:
            self.ends = torch.zeros((rows, vocabulary), dtype=torch.bool, device=device)
            for row, ids in enumerate(end_token_ids):
                self.ends[row, list(ids)] = True
        if self.has_penalties:
            self.in_prompt = torch.zeros((rows, vocabulary), dtype=torch.bool, device=device)
            for row, prompt in enumerate(prompts):
                self.in_prompt[row, torch.tensor(list(prompt), device=device)] = True
            self.output_counts = torch.zeros((rows, vocabulary), dtype=torch.float32, device=device)

    def of(self, rows: torch.Tensor) -> BatchSampling:
        """The same for only these rows, int64 [rows], in a copy."""
        sampling = copy.copy(self)
        sampling.keep(rows)
        return sampling

    def temperature_alone(self) -> BatchSampling:
        """The same rows with only their temperature, in a copy: no minimum length, no penalties, no truncation."""
        sampling = copy.copy(self)
        sampling.has_min_tokens = sampling.has_penalties = False
        sampling.has_min_p = sampling.has_top_k = sampling.has_top_p = False
        return sampling

    def keep(self, slots: torch.Tensor) -> None:
        """Drop all rows but these, int64 [kept]."""
        for name, value in self._by_row():
            setattr(self, name, value[slots])

    def replace_rows(self, slots: torch.Tensor, others: BatchSampling) -> None:
        """Let the rows in these slots, int64 [others], be others of the same batch."""
        for name, value in self._by_row():
            value[slots] = getattr(others, name)

    def _by_row(self) -> list[tuple[str, torch.Tensor]]:
        return [(name, value) for name, value in vars(self).items() if isinstance(value, torch.Tensor)]

    def note_emitted(self, taken: Sequence[Sequence[int]]) -> None:
        """Count each row's emitted tokens for the penalties."""
        width = max((len(tokens) for tokens in taken), default=0)
        if not self.has_penalties or width == 0:
            return
        device = self.output_counts.device
        padded = to_device([[*tokens, *[0] * (width - len(tokens))] for tokens in taken], device)  # [rows, width]
        lengths = to_device([len(tokens) for tokens in taken], device)
        is_token = torch.arange(width, device=device) < lengths[:, None]
        self.output_counts.scatter_add_(1, padded, is_token.to(torch.float32))

    def processed_logits(
        self,
        logits: torch.Tensor,  # [rows, tokens, vocabulary]
        drafted: torch.Tensor,  # int64 [rows, >= tokens - 1]: tokens assumed emitted before positions 1, 2, ...
        emitted: torch.Tensor,  # int64 [rows]: output tokens already emitted
    ) -> torch.Tensor:
        """Logits after minimum length and penalties, before temperature; greedy decoding takes their arg-max.

        Column j is conditioned on the first j entries of `drafted`.
        """
        if not (self.has_penalties or self.has_min_tokens):
            return logits
        columns = [self._adjust(logits[:, column], drafted[:, :column], emitted) for column in range(logits.shape[1])]
        return torch.stack(columns, 1)

    def draft_logits(
        self,
        logits: torch.Tensor,  # [rows, vocabulary]: after `drafted` was assumed emitted
        drafted: torch.Tensor,  # int64 [rows, depth]
        emitted: torch.Tensor,  # int64 [rows]
    ) -> torch.Tensor:
        """`processed_logits` of the draft at depth `drafted.shape[1]`: parameters apply alike to both models."""
        if not (self.has_penalties or self.has_min_tokens):
            return logits
        return self._adjust(logits, drafted, emitted)

    def _adjust(self, logits: torch.Tensor, assumed: torch.Tensor, emitted: torch.Tensor) -> torch.Tensor:
        """One position's logits [rows, vocabulary] with `assumed` (int64 [rows, n]) taken as emitted."""
        adjusted = logits.to(torch.float32).clone()
        if self.has_min_tokens:
            is_short = (emitted + assumed.shape[1] < self.min_tokens)[:, None]
            adjusted.masked_fill_(is_short & self.ends, float("-inf"))
        if self.has_penalties:
            ones = torch.ones(assumed.shape, dtype=torch.float32, device=assumed.device)
            adjusted = self._penalise(adjusted, self.output_counts.scatter_add(1, assumed, ones))
        return adjusted

    def _penalise(self, logits: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Logits [rows, vocabulary] under the penalties of tokens that occur `counts` times, [rows, vocabulary]."""
        seen = self.in_prompt | (counts > 0)
        scaled = torch.where(logits > 0, logits / self.repetition, logits * self.repetition)
        logits = torch.where(seen, scaled, logits)
        return logits - self.frequency * counts - self.presence * (counts > 0)

    def probs(self, processed: torch.Tensor) -> torch.Tensor:
        """The distribution that is sampled, float32 [rows, tokens, vocabulary], from `processed_logits`."""
        result = torch.softmax(self._truncate(processed), -1)
        if self.has_top_p:
            edges, masses = self._heads(result)
            result.masked_fill_(result < edges[..., None], 0.0).div_(masses[..., None])
        if self.has_greedy:
            one_hot = torch.zeros_like(result).scatter_(-1, greedy_tokens(processed)[..., None], 1.0)
            result = torch.where(self.is_greedy[:, None, None], one_hot, result)
        return result

    def chosen_probs(self, processed: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """The probability of one token at each place, as `probs` has it but for rounding, in fewer passes.

        Args:
            processed: float [rows, tokens, vocabulary].
            chosen: int64 [rows, tokens].

        Returns:
            Float32 [rows, tokens].
        """
        result = torch.softmax(self._truncate(processed), -1)
        masked = result.gather(-1, chosen[..., None])[..., 0]
        if self.has_top_p:
            edges, masses = self._heads(result)
            masked = masked.masked_fill(masked < edges, 0.0) / masses
        if self.has_greedy:
            masked = torch.where(self.is_greedy[:, None], (greedy_tokens(processed) == chosen).to(masked.dtype), masked)
        return masked

    def _truncate(self, processed: torch.Tensor) -> torch.Tensor:
        """Logits by temperature, -inf where min-p or top-k cut, in new memory; float32 [rows, tokens, vocabulary]."""
        rows, tokens, _ = processed.shape
        logits = processed.to(torch.float32) / self.temperature[:, None]
        if self.has_min_p:
            highest = logits.amax(-1, keepdim=True)
            logits.masked_fill_(logits < highest + torch.log(self.min_p)[:, None], float("-inf"))
        if self.has_top_k:
            last = highest_first(logits).gather(-1, (self.top_k - 1)[:, None].expand(rows, tokens, 1))
            logits.masked_fill_(logits < last, float("-inf"))
        return logits

    def confidence(self, processed: torch.Tensor, probs: torch.Tensor | None = None) -> torch.Tensor:
        """The probability of the likeliest token, float32 [rows], from `processed_logits` of one position.

        Args:
            processed: float [rows, vocabulary].
            probs: the distribution that is sampled, where the caller has it, float32 [rows, vocabulary].

        Returns:
            In the distribution that is sampled; of a greedy row, which would be certain of itself there, in the
            softmax of its processed logits.
        """
        logits = processed.to(torch.float32)
        plain = torch.exp(logits.amax(-1) - logits.logsumexp(-1))
        if self.all_greedy:
            return plain
        if probs is None:
            probs = self.probs(processed[:, None])[:, 0]
        return torch.where(self.is_greedy, plain, probs.amax(-1))

    def _heads(self, probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The heads of sorted probabilities [rows, tokens, vocabulary] that top-p keeps.

        Returns:
            The least probability that is kept, and the mass of all that are; float32 [rows, tokens], 0 and 1 where
            nothing is cut.
        """
        rows, tokens, vocabulary = probs.shape
        flat, needed = probs.view(-1, vocabulary), self.nucleus.repeat_interleave(tokens)
        # On a GPU the first look is at everything: whether a shorter head is enough, only the device would know.
        edges, masses = kept_heads(flat, needed, vocabulary if probs.is_cuda else TOP_P_HEAD)
        is_whole = needed == 0.0
        edges, masses = edges.masked_fill(is_whole, 0.0), masses.masked_fill(is_whole, 1.0)
        return edges.view(rows, tokens), masses.view(rows, tokens)


def highest_first(values: torch.Tensor, count: int | None = None) -> torch.Tensor:
    """The highest `count` entries (None: all) of the last dimension of float32 [..., size], descending, [..., count].

    On a CPU numpy finds them, which sorts with vector instructions and takes a tenth of torch's time.
    """
    size = values.shape[-1]
    count = size if count is None else count
    if values.device.type != "cpu":
        return values.sort(-1, descending=True).values[..., :count]
    every = values.numpy()
    ascending = np.sort(every if count == size else np.partition(every, size - count, -1)[..., size - count :], -1)
    return torch.from_numpy(ascending).flip(-1)


def kept_heads(probs: torch.Tensor, needed: torch.Tensor, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The least probable entry of each row's smallest head with mass `needed`, and the mass of all that reach it.

    Args:
        probs: float32 [rows, vocabulary].
        needed: float32 [rows]; a row that needs nothing keeps its first entry.
        head: entries looked at first.

    Returns:
        Float32 [rows] each.
    """
    ordered = highest_first(probs, min(head, probs.shape[1]))
    reached = ordered.cumsum(-1)
    kept = (reached - ordered < needed[:, None]).sum(-1).clamp_(min=1)  # entries with too little mass ahead of them
    edges = ordered.gather(-1, (kept - 1)[:, None])
    masses = torch.where(ordered >= edges, ordered, 0.0).sum(-1)
    edges = edges[:, 0]
    # The last one looked at is kept: there may be more, of less or of the same probability.
    is_open = (reached[:, -1] < needed) | (ordered[:, -1] >= edges)
    if head < probs.shape[1] and bool(is_open.any()):
        edges[is_open], masses[is_open] = kept_heads(probs[is_open], needed[is_open], head * HEAD_GROWTH)
    return edges, masses


def greedy_tokens(processed: torch.Tensor) -> torch.Tensor:
    """The highest entry's index in float [..., vocabulary], int64 [...].

    Torch's max finds it three times faster than its argmax on a CPU.
    """
    return processed.max(-1).indices


def to_device(values: Any, device: torch.device) -> torch.Tensor:
    """Numbers, nested sequences of them or an array as a tensor on the device, without waiting for the device.

    A copy from ordinary memory makes the host wait for the stream; one from pinned memory is queued like other work.
    A step reads its outcome back once (`decode.py`), and nothing else in it may wait.
    """
    tensor = torch.as_tensor(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
