"""Teacher-forced scores of responses: a model's probability of every token, given those before it.

Responses of like kind and length share a batch, of at most `TOKENS_PER_BATCH` padded tokens of prompt and response.
Logits are computed for as many positions at a time as fit into `LOGITS_PER_PASS`.  Memory therefore depends on neither
the number of responses nor, but for one position a row, on the vocabulary.

A `DirectLlama` reads prompts and responses in one pass, without a cache, and its head is then applied to the states
before the tokens of the responses.  A model that only returns logits reads the prompts into a cache, and then the
responses in groups of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.utils.rnn import pad_sequence

from shadowspec.engine.llama import DirectLlama
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.engine.runner import Runner
from shadowspec.engine.sampling import BatchSampling, greedy_tokens
from shadowspec.types import SamplingParameters

if TYPE_CHECKING:
    from shadowspec_kernels.dispatch import Kernels

TOKENS_PER_BATCH: Final = 16_384  # padded; the most that the key-value cache of a batch holds, except for one long row
# On a CPU more tokens at once give nothing: fewer of more equal length, whose states stay in its caches, take 3/4 of
# the time.
TOKENS_PER_THREAD: Final = 1_024
LOGITS_PER_PASS: Final = 2**25  # float32 entries, 128 MB; of sampled rows some three such tensors live at once
# On a CPU: few, so that the passes over their logits stay in cache, but the head's weights are read for each.
POSITIONS_PER_PASS: Final = 256


@dataclass(frozen=True, slots=True)
class TokenScores:
    """A model's scores of the tokens of one response under its sampling parameters; [tokens] each."""

    probs: npt.NDArray[np.float64] | None  # of the distribution that is sampled; None: not asked for
    is_best: npt.NDArray[np.bool_]  # the token is the arg-max after penalties, as a greedy draft proposes
    gaps: npt.NDArray[np.float64]  # from the highest logit down to the token's, after penalties


@dataclass(frozen=True, slots=True)
class Budget:
    """How much is in memory at a time."""

    tokens: int = TOKENS_PER_BATCH
    logits: int = LOGITS_PER_PASS

    @classmethod
    def of(cls, device: torch.device, vocabulary: int) -> Budget:
        """The fastest budget on a device."""
        if device.type != "cpu":
            return cls()
        return cls(
            tokens=min(TOKENS_PER_BATCH, TOKENS_PER_THREAD * torch.get_num_threads()),
            logits=min(LOGITS_PER_PASS, POSITIONS_PER_PASS * vocabulary),
        )


@torch.inference_mode()
def token_scores(
    model: Any,
    responses: Sequence[Response],
    end_token_ids: frozenset[int],
    *,
    with_probs: bool,
    budget: Budget | None = None,
    kernels: Kernels | None = None,
) -> list[TokenScores]:
    """Score every token of every response.

    With `kernels`, responses whose distribution is the softmax of the model's logits are scored directly from the
    hidden states, in float32 for any dtype of the logits, of models that return them.

    Args:
        model: transformers' or a `DirectLlama`.
        responses: with their requests, whose sampling parameters apply.
        end_token_ids: those that end the target's texts, which minimum length forbids.
        with_probs: compute the probabilities of sampled responses; those of greedy ones are never computed.
        budget: None: the fastest on the model's device.

    Returns:
        In the order of the responses.
    """
    is_direct, vocabulary = type(model) is DirectLlama, int(model.config.vocab_size)
    budget = budget or Budget.of(model.device, vocabulary)
    scores: dict[int, TokenScores] = {}
    for rows in pack(responses, budget.tokens, _whole if is_direct else _apart):
        batch = [responses[row] for row in rows]
        if is_direct:
            batch_scores = _direct_scores(model, batch, end_token_ids, with_probs, budget.logits, kernels)
        else:
            passes = _ForcedPasses(model, batch)
            batch_scores = _logit_scores(passes, batch, vocabulary, end_token_ids, with_probs, budget.logits)
        scores.update(zip(rows, batch_scores, strict=True))
    return [scores[row] for row in range(len(responses))]


@torch.inference_mode()
def response_logits(model: Any, responses: Sequence[Response]) -> torch.Tensor:
    """The model's logits before every token of every response, one after the other; [tokens, vocabulary].

    All of them at once: the caller limits their number in memory.
    """
    if type(model) is DirectLlama:
        return model.logits(_states(model, responses))
    passes = _ForcedPasses(model, responses)
    logits = passes.logits(0, passes.tokens.shape[1])
    return torch.cat([logits[row, : len(response.output)] for row, response in enumerate(responses)])


def _is_plain(sampling: SamplingParameters, vocabulary: int) -> bool:
    """Whether the model's logits at a temperature are all that these parameters look at."""
    return not (sampling.is_penalised or sampling.truncates(vocabulary) or sampling.min_tokens > 0)


def _apart(response: Response) -> tuple[int, int]:
    """Prompts and responses, each padded to the longest of a batch."""
    return len(response.request.prompt), len(response.output)


def _whole(response: Response) -> tuple[int, int]:
    """Both as one text; nothing else is padded."""
    return len(response.request.prompt) + len(response.output), 0


def pack(
    responses: Sequence[Response], tokens: int, parts: Callable[[Response], tuple[int, int]] = _apart
) -> Iterator[list[int]]:
    """Indices of responses to score together: greedy and sampled apart, those of like length together.

    Args:
        tokens: the most that a batch has, padded; a single response may have more.
        parts: lengths of the two parts of a response that are padded apart from each other.
    """

    def kind(index: int) -> tuple[bool, int, int]:
        response = responses[index]
        return response.request.sampling.temperature > 0.0, *parts(response)

    rows: list[int] = []
    is_sampled, longest_second = False, 0
    for index in sorted(range(len(responses)), key=kind):
        sampled, first, second = kind(index)
        widest = first + max(longest_second, second)  # first parts only grow
        if rows and (sampled != is_sampled or widest * (len(rows) + 1) > tokens):
            yield rows
            rows, longest_second = [], 0
        rows.append(index)
        is_sampled, longest_second = sampled, max(longest_second, second)
    if rows:
        yield rows


def _direct_scores(
    model: DirectLlama,
    batch: Sequence[Response],
    end_token_ids: frozenset[int],
    with_probs: bool,
    logits_per_pass: int,
    kernels: Kernels | None,
) -> list[TokenScores]:
    """From the states before every token of every response."""
    states = _states(model, batch)
    vocabulary = int(model.config.vocab_size)
    fused: list[int] = []
    others: list[int] = []
    for row, response in enumerate(batch):
        is_fused = kernels is not None and _is_plain(response.request.sampling, vocabulary)
        (fused if is_fused else others).append(row)
    of_response = torch.split(states, [len(response.output) for response in batch])
    scores: dict[int, TokenScores] = {}
    if fused:
        assert kernels is not None, "only they fuse"
        responses = [batch[row] for row in fused]
        fused_scores = _fused_scores(
            torch.cat([of_response[row] for row in fused]), model, responses, with_probs, kernels
        )
        scores.update(zip(fused, fused_scores, strict=True))
    for rows in group_by_length([len(batch[row].output) for row in others], max(1, logits_per_pass // vocabulary)):
        block = [others[place] for place in rows]
        responses = [batch[row] for row in block]
        passes = _HeadPasses(model, [of_response[row] for row in block], responses)
        block_scores = _logit_scores(passes, responses, vocabulary, end_token_ids, with_probs, logits_per_pass)
        scores.update(zip(block, block_scores, strict=True))
    return [scores[row] for row in range(len(batch))]


def _states(model: DirectLlama, batch: Sequence[Response]) -> torch.Tensor:
    """Those before every token of every response, [tokens of all responses, hidden]."""
    texts = [[*response.request.prompt, *response.output[:-1]] for response in batch]
    width = max(map(len, texts))
    padded = torch.tensor([[*text, *[0] * (width - len(text))] for text in texts], device=model.device)
    ends = [row * width + len(text) for row, text in enumerate(texts)]
    places = [torch.arange(end - len(response.output), end) for response, end in zip(batch, ends, strict=True)]
    return model.final_states(padded, torch.cat(places).to(model.device))


def group_by_length(lengths: Sequence[int], positions: int) -> Iterator[list[int]]:
    """Indices grouped by similar length, so that the padded positions of a group stay within `positions`."""
    rows: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        if rows and lengths[row] * (len(rows) + 1) > positions:
            yield rows
            rows = []
        rows.append(row)
    if rows:
        yield rows


def _fused_scores(
    states: torch.Tensor, model: DirectLlama, batch: Sequence[Response], with_probs: bool, kernels: Kernels
) -> list[TokenScores]:
    """From states [tokens of all responses, hidden], under plain parameters: positions x vocabulary is never made."""
    lengths = [len(response.output) for response in batch]
    tokens = torch.tensor([token for response in batch for token in response.output], device=states.device)
    temperature = torch.tensor(
        [response.request.sampling.temperature or 1.0 for response in batch], device=states.device
    )
    scales = temperature.repeat_interleave(torch.tensor(lengths, device=states.device))
    scored = kernels.score(states, model.head_weight(), tokens, scales)
    bests = (scored.best_tokens == tokens).cpu().numpy()
    gaps = ((scored.best_log_probs - scored.log_probs) * scales).double().cpu().numpy()
    probs = scored.log_probs.double().exp().cpu().numpy()
    cuts = np.cumsum(lengths)[:-1]
    with_probs = with_probs and any(response.request.sampling.temperature for response in batch)
    every = zip(np.split(probs, cuts), np.split(bests, cuts), np.split(gaps, cuts), strict=True)
    return [TokenScores(values if with_probs else None, *others) for values, *others in every]


def _logit_scores(
    passes: _HeadPasses | _ForcedPasses,
    batch: Sequence[Response],
    vocabulary: int,
    end_token_ids: frozenset[int],
    with_probs: bool,
    logits_per_pass: int,
) -> list[TokenScores]:
    """From logits, computed for a group of the batch's columns at a time."""
    sampling = BatchSampling(
        [response.request.sampling for response in batch],
        [response.request.prompt for response in batch],
        [sorted(response.request.end_ids(end_token_ids)) for response in batch],
        vocabulary,
        passes.tokens.device,
    )
    columns = max(1, logits_per_pass // (len(batch) * vocabulary))
    with_probs = with_probs and not sampling.all_greedy
    probs, bests, gaps = [], [], []
    for start in range(0, passes.tokens.shape[1], columns):
        tokens = passes.tokens[:, start : start + columns]
        emitted = torch.full((len(batch),), start, device=tokens.device)
        processed = sampling.processed_logits(passes.logits(start, start + tokens.shape[1]), tokens, emitted)
        best = greedy_tokens(processed)
        bests.append(best == tokens)
        highest, chosen_logits = processed.gather(-1, torch.stack((best, tokens), -1)).double().unbind(-1)
        gaps.append(highest - chosen_logits)
        if with_probs:
            probs.append(sampling.chosen_probs(processed, tokens).double())
        sampling.note_emitted([response.output[start : start + columns] for response in batch])
    return _by_response(batch, bests, gaps, probs if with_probs else None)


def _padded_outputs(batch: Sequence[Response], device: torch.device) -> torch.Tensor:
    """Tokens of the responses, int64 [rows, longest]."""
    longest = max(len(response.output) for response in batch)
    return torch.tensor(
        [[*response.output, *[0] * (longest - len(response.output))] for response in batch], device=device
    )


class _HeadPasses:
    """A head over the states that come before the tokens of a batch of responses."""

    def __init__(self, model: DirectLlama, states: Sequence[torch.Tensor], batch: Sequence[Response]) -> None:
        """`states`: of each response, [tokens, hidden]."""
        self.tokens = _padded_outputs(batch, model.device)  # int64 [rows, longest]
        self._model, self._states = model, pad_sequence(list(states), batch_first=True)

    def logits(self, start: int, stop: int) -> torch.Tensor:
        """Before the tokens of these columns, [rows, columns, vocabulary]."""
        return self._model.logits(self._states[:, start:stop].flatten(0, 1)).view(len(self.tokens), stop - start, -1)


class _ForcedPasses:
    """A batch of responses forced through a model, some columns at a time and one after the other."""

    def __init__(self, model: Any, batch: Sequence[Response]) -> None:
        prompts = [response.request.prompt for response in batch]
        self.tokens = _padded_outputs(batch, model.device)  # int64 [rows, longest]
        lasts = torch.tensor([prompt[-1] for prompt in prompts], device=model.device)
        self._inputs = torch.cat((lasts[:, None], self.tokens[:, :-1]), 1)  # column i is followed by token i
        capacity = max(len(prompt) for prompt in prompts) + self.tokens.shape[1]
        self._runner = Runner(model, len(batch), capacity)
        # The last token of a prompt goes in with the response; where it is the only one its place is written twice.
        self._runner.prefill([prompt[:-1] or prompt for prompt in prompts])
        self._before = torch.tensor([len(prompt) - 1 for prompt in prompts], device=model.device)
        self._longest = max(len(prompt) for prompt in prompts) - 1

    def logits(self, start: int, stop: int) -> torch.Tensor:
        """Before the tokens of these columns, which come next, [rows, columns, vocabulary]."""
        given = self._inputs[:, start:stop]
        return self._runner.step(given, self._before + start, self._longest + start, keep=stop - start)


def _by_response(
    batch: Sequence[Response],
    bests: Sequence[torch.Tensor],
    gaps: Sequence[torch.Tensor],
    probs: Sequence[torch.Tensor] | None,
) -> list[TokenScores]:
    """Scores of each response, from those of all columns, [rows, columns] each."""
    every_best, every_gap = torch.cat(list(bests), 1).cpu().numpy(), torch.cat(list(gaps), 1).cpu().numpy()
    every_prob = torch.cat(list(probs), 1).cpu().numpy() if probs is not None else None
    return [
        TokenScores(
            every_prob[row, : len(response.output)] if every_prob is not None else None,
            every_best[row, : len(response.output)],
            every_gap[row, : len(response.output)],
        )
        for row, response in enumerate(batch)
    ]
