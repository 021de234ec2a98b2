"""Steps to verify, drawn from a seed."""

from __future__ import annotations

from dataclasses import fields, replace

import torch

from shadowspec_kernels.step import MinimumLength, Penalties, Rule, Step, Truncation


def a_step(
    rule: Rule,
    seed: int,
    *,
    rows: int = 3,
    depth: int = 2,
    vocabulary: int = 37,
    has_draft_probs: bool = False,
    dtype: torch.dtype = torch.float32,
    spread: float = 3.0,
    masked_share: float = 0.0,
) -> Step:
    """A step whose drafts are good enough to be accepted about half the time; row 0 of several is greedy."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator)

    def below(limit: int, *shape: int) -> torch.Tensor:
        return torch.randint(limit, shape, generator=generator)

    logits = spread * torch.randn((rows, depth + 1, vocabulary), generator=generator)
    is_masked = uniform(rows, depth + 1, vocabulary) < masked_share
    is_masked.scatter_(2, below(vocabulary, rows, depth + 1, 1), False)  # one is left
    logits = logits.masked_fill(is_masked, float("-inf")).to(dtype)
    noise = torch.randn((rows, depth, vocabulary), generator=generator)
    draft_probs = torch.softmax(logits[:, :-1].to(torch.float32).nan_to_num(neginf=-20.0) + noise, -1)
    temperature = uniform(rows) + 0.2
    if rows > 1:
        temperature[0] = 0.0
    return Step(
        rule,
        logits,
        torch.where(uniform(rows, depth) < 0.6, draft_probs.argmax(-1), below(vocabulary, rows, depth)),
        below(depth + 1, rows) if seed % 2 else torch.full((rows,), depth),
        draft_probs if has_draft_probs else None,
        uniform(rows, depth),
        uniform(rows, depth + 1),
        temperature,
    )


def with_penalties(step: Step, seed: int) -> Step:
    """The step with all three penalties, some of them rewards."""
    generator = torch.Generator().manual_seed(seed)
    rows, shape = step.num_rows, (step.num_rows, step.vocabulary)
    draws = torch.rand((3, rows), generator=generator)
    in_prompt = torch.rand(shape, generator=generator) < 0.4
    counts = torch.randint(-4, 3, shape, generator=generator).clamp(min=0).to(torch.float32)
    return replace(step, penalties=Penalties(0.5 + draws[0], 2 * draws[1] - 1, 2 * draws[2] - 1, in_prompt, counts))


def with_minimum_length(step: Step, seed: int) -> Step:
    """The step of rows some of which may not end yet, or not at its first position."""
    generator = torch.Generator().manual_seed(seed)
    rows = step.num_rows
    ends = torch.rand((rows, step.vocabulary), generator=generator) < 0.5
    ends[:, 0] = False
    logits = step.logits.clone()
    logits[:, :, 0] = 0.0  # a token that may always be had
    counts = torch.randint(4, (2, rows), generator=generator)
    return replace(step, logits=logits, minimum_length=MinimumLength(counts[0], counts[1], ends))


def with_truncation(step: Step, slots: tuple[int, ...]) -> Step:
    """The step with top-k, top-p and min-p of these rows."""
    rows = step.num_rows
    is_cut = torch.zeros(rows, dtype=torch.bool)
    is_cut[list(slots)] = True
    min_p, top_p = torch.where(is_cut, 0.02, 0.0), torch.where(is_cut, 0.8, 1.0)
    top_k = torch.where(is_cut, min(5, step.vocabulary), step.vocabulary)
    return replace(step, truncation=Truncation(min_p, top_k, top_p, slots))


def moved(step: Step, device: torch.device) -> Step:
    """The step on the device."""

    def on_device(value: object) -> object:
        if isinstance(value, torch.Tensor):
            return value.to(device)
        if isinstance(value, Penalties | MinimumLength | Truncation):
            return replace(value, **{f.name: on_device(getattr(value, f.name)) for f in fields(value)})
        return value

    return replace(step, **{field.name: on_device(getattr(step, field.name)) for field in fields(step)})
