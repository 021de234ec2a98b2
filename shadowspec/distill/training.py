"""Training a draft on its target's distribution until it gets no better on sessions that it does not learn from.

It learns the target's distribution at every token of a logged response (forward KL).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from shadowspec.distill.examples import Example, times
from shadowspec.distill.training_settings import TOLERANCE, Settings
from shadowspec.engine.replay.response_tokens import Response
from shadowspec.engine.replay.scoring import pack, response_logits

# Of the way from the draft as it was to the trained one (weight interpolation, WiSE-FT: arXiv 2109.01903).
SHARES: Final = (0.8, 0.6, 0.4, 0.2)

Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Look:
    """The draft's figures on the validation sessions after this number of steps."""

    step: int
    epoch: float
    divergence: float  # nats per token, of the target to the draft
    # Mean over tokens of the chance that a drafted one is accepted, at the requests' temperatures; those of rare
    # slices count several times.
    overlap: float
    by_slice: Mapping[str, float] = field(repr=False)  # the same of each slice


@dataclass(frozen=True, slots=True)
class Blend:
    """Weights on the straight line from the draft as it was (0) to the best that was seen (1), looked at."""

    share: float
    look: Look

    def loss(self, first: Look) -> float:
        """The overlap that the slice lost which lost most; below 0 where all gained."""
        return max(before - self.look.by_slice[place] for place, before in first.by_slice.items())


@dataclass(frozen=True, slots=True)
class Course:
    """How training went; the draft is left as the best of the blends in which no slice lost more than TOLERANCE."""

    looks: tuple[Look, ...]
    best: int  # index of the look with the largest overlap; 0: as it began
    blends: tuple[Blend, ...]  # from the largest share to none
    blend: Blend  # the chosen weights
    num_steps: int
    num_tokens: int  # output tokens that were learnt from, each as often as it was
    stopped_early: bool


class Trainer:
    """Trains one draft against one target."""

    def __init__(self, target: Any, draft: nn.Module, settings: Settings) -> None:
        """
        Args:
            target: the engine's target; it is not changed.
            draft: a transformers model in float32 on the target's device; it is trained in place.
        """
        self._target, self._draft, self._settings = target, draft, settings
        self._tokens_per_pass = max(1, settings.logits_per_pass // int(target.config.vocab_size))

    def train(
        self, training: Sequence[Response], validation: Sequence[Example], on_progress: Callable[[int, int, Look], None]
    ) -> Course:
        """
        Args:
            on_progress: called after every step with the steps done and to do, and the last look.
        """
        settings = self._settings
        # All drawn beforehand, because how many steps an epoch has depends on the order of its batches.
        steps = [
            batches
            for epoch in range(settings.epochs)
            for batches in self._steps(training, np.random.default_rng((settings.seed, epoch)))
        ]
        total = len(steps)
        looks_at = _looks(total, settings.epochs * settings.looks_per_epoch)
        optimizer = torch.optim.AdamW(self._draft.parameters(), lr=settings.learning_rate, weight_decay=0.0)
        looks = [self._look(validation, 0, 0.0)]
        start = deepcopy(self._draft.state_dict())
        best, kept = 0, start
        step = num_tokens = 0
        for step, batches in enumerate(steps, start=1):
            _set_rate(optimizer, settings.learning_rate * rate_factor(step - 1, total, settings.warmup_share))
            num_tokens += self._learn(batches, optimizer)
            if step in looks_at:
                looks.append(self._look(validation, step, settings.epochs * step / total))
                if looks[-1].overlap > looks[best].overlap:
                    best, kept = len(looks) - 1, deepcopy(self._draft.state_dict())
            on_progress(step, total, looks[-1])
            if len(looks) - 1 - best >= settings.patience:
                break
        blends = [Blend(0.0, looks[0])]
        if best:
            tried = [Blend(share, self._try_blend(start, kept, share, validation, looks[best])) for share in SHARES]
            blends = [Blend(1.0, looks[best]), *tried, *blends]
        blend = max(
            (blend for blend in blends if blend.loss(looks[0]) <= TOLERANCE), key=lambda blend: blend.look.overlap
        )
        self._draft.load_state_dict(interpolate(start, kept, blend.share))
        self._draft.eval()
        return Course(tuple(looks), best, tuple(blends), blend, step, num_tokens, step < total)

    def _try_blend(self, start: Weights, end: Weights, share: float, validation: Sequence[Example], best: Look) -> Look:
        self._draft.load_state_dict(interpolate(start, end, share))
        return self._look(validation, best.step, best.epoch)

    def _steps(self, responses: Sequence[Response], rng: np.random.Generator) -> Iterator[list[list[Response]]]:
        """The batches of every step of an epoch: responses of like length together, batches in drawn order."""
        batches = [[responses[row] for row in rows] for rows in pack(responses, self._tokens_per_pass)]
        waiting: list[list[Response]] = []
        num_tokens = 0
        for index in rng.permutation(len(batches)):
            waiting.append(batches[index])
            num_tokens += sum(len(response.output) for response in batches[index])
            if num_tokens >= self._settings.tokens_per_step:
                yield waiting
                waiting, num_tokens = [], 0
        if waiting:
            yield waiting

    def _learn(self, batches: Sequence[Sequence[Response]], optimizer: torch.optim.Optimizer) -> int:
        """One step; returns the tokens learnt from."""
        self._draft.train()
        num_tokens = sum(len(response.output) for batch in batches for response in batch)
        for batch in batches:
            wanted = target_logits(self._target, batch)
            torch.autograd.backward(divergence(wanted, draft_logits(self._draft, batch)) / num_tokens)
        nn.utils.clip_grad_norm_(self._draft.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return num_tokens

    @torch.no_grad()
    def _look(self, examples: Sequence[Example], step: int, epoch: float) -> Look:
        self._draft.eval()
        responses = [example.response for example in examples]
        weights = times(examples)
        total = 0.0
        accepted: dict[str, float] = defaultdict(float)
        tokens: Counter[str] = Counter()
        for rows in pack(responses, self._tokens_per_pass):
            batch = [responses[row] for row in rows]
            logits = target_logits(self._target, batch), draft_logits(self._draft, batch)
            total += float(divergence(*logits))
            found = torch.split(overlaps(*logits, batch), [len(response.output) for response in batch])
            for row, item in zip(rows, found, strict=True):
                accepted[examples[row].place] += float(item.sum())
                tokens[examples[row].place] += len(item)
        return Look(
            step,
            epoch,
            total / tokens.total(),
            sum(weights[place] * value for place, value in accepted.items())
            / sum(weights[place] * token for place, token in tokens.items()),
            {place: accepted[place] / token for place, token in sorted(tokens.items())},
        )


def interpolate(start: Weights, end: Weights, share: float) -> dict[str, torch.Tensor]:
    """Weights that share of the way from start to end."""
    return {name: item.lerp(end[name], share) if item.is_floating_point() else item for name, item in start.items()}


def rate_factor(step: int, total: int, warmup_share: float) -> float:
    """The learning rate's share of its highest: a straight rise, then half a cosine down to a tenth."""
    warm = max(1, round(total * warmup_share))
    if step < warm:
        return (step + 1) / warm
    return 0.55 + 0.45 * math.cos(math.pi * (step - warm) / max(1, total - warm))


def _looks(total: int, number: int) -> set[int]:
    """The steps after which the validation sessions are looked at; the last is one."""
    every = max(1, total // number)
    return {*range(every, total + 1, every), total}


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def target_logits(target: Any, responses: Sequence[Response]) -> torch.Tensor:
    """The target's logits at each token of each response; float32 [tokens, vocabulary]."""
    return response_logits(target, responses).float().clone()  # a clone can be learnt from


def draft_logits(draft: Any, responses: Sequence[Response]) -> torch.Tensor:
    """The same of a draft in training, a transformers model; float32 [tokens, vocabulary], with its gradient.

    Rows are padded at their end, where a causal model's earlier places do not see it.  The head, most of a small
    model's work, is left out before the first place that any row needs.
    """
    sequences = [(*response.request.prompt, *response.output[:-1]) for response in responses]
    longest = max(len(sequence) for sequence in sequences)
    padded = [[*sequence, *[0] * (longest - len(sequence))] for sequence in sequences]
    tokens = torch.tensor(padded, device=draft.device)  # int64 [rows, longest]
    starts = torch.tensor([len(response.request.prompt) - 1 for response in responses], device=tokens.device)
    first = int(starts.min())
    logits = draft(input_ids=tokens, use_cache=False, logits_to_keep=longest - first).logits
    rows, columns = output_places([len(response.output) for response in responses], logits.device)
    # [rows, longest - first, vocabulary]; the place `first` is its column 0
    row_logits: torch.Tensor = logits[rows, starts[rows] - first + columns].float()
    return row_logits


def output_places(lengths: Sequence[int], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and place of every token of responses of these lengths, one after the other; int64 [tokens] each."""
    counts = torch.tensor(lengths, device=device)
    rows = torch.repeat_interleave(torch.arange(len(lengths), device=device), counts)
    columns = torch.cat([torch.arange(length, device=device) for length in lengths])
    return rows, columns


def divergence(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """Forward KL in nats, of the target to the draft, summed over tokens; float32 [], with the draft's gradient.

    Args:
        target: logits, float32 [tokens, vocabulary]; no gradient goes there.
        draft: the draft's for the same tokens, of the same or a larger (padded) vocabulary.
    """
    wanted, draft_log_probs = (functional.log_softmax(logits, -1) for logits in _same_words(target, draft))
    return functional.kl_div(draft_log_probs, wanted, reduction="sum", log_target=True)


@torch.no_grad()
def overlaps(target: torch.Tensor, draft: torch.Tensor, responses: Sequence[Response]) -> torch.Tensor:
    """The chance that a token drawn by the draft is accepted, at each token of each response; float32 [tokens].

    That is the sum of min(target, draft), both at the request's temperature: where that is 0, whether their likeliest
    tokens are equal.  Its other sampling parameters are ignored.

    Args:
        target: logits at the tokens of the responses, one after the other; float32 [tokens, vocabulary].
        draft: as in `divergence`.
    """
    rows, _ = output_places([len(response.output) for response in responses], target.device)
    tensor = torch.tensor([response.request.sampling.temperature for response in responses], device=target.device)
    temperatures = tensor[rows, None]  # [tokens, 1]
    is_greedy = temperatures == 0.0
    target, draft = _same_words(target, draft)
    scales = torch.where(is_greedy, 1.0, temperatures)
    common = torch.minimum((target / scales).softmax(-1), (draft / scales).softmax(-1)).sum(-1)
    return torch.where(is_greedy[:, 0], (target.argmax(-1) == draft.argmax(-1)).float(), common)


def _same_words(target: torch.Tensor, draft: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Without the rows that pad an embedding, which are no tokens."""
    words = min(target.shape[-1], draft.shape[-1])
    return target[:, :words], draft[:, :words]
