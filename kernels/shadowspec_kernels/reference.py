"""The specification of every kernel, in plain torch.

Slow on purpose: it materialises tensors that the kernels do not, and states each rule once.
"""

from __future__ import annotations

import torch

from shadowspec_kernels.operands import Scored
from shadowspec_kernels.step import Penalties, Step, Truncation, Verified

HIDDEN = float("-inf")


def verify(step: Step) -> Verified:
    """Accept a head of the drafted tokens and draw the token after it.

    | rule           | drafted token x is accepted when         | else emit                                   |
    |----------------|------------------------------------------|---------------------------------------------|
    | `rejection`    | u < target(x) / draft(x)                 | a sample of max(target - draft, 0)          |
    | `greedy_draft` | u < target(x)   (the draft is one-hot)   | a sample of target with x removed           |
    | `exact_match`  | x equals the target's sample             | that sample                                 |
    | `greedy`       | x = argmax target                        | argmax target                               |

    `draft_probs` decides between the first two: given or not.
    """
    processed = processed_logits(step)
    best = processed.max(-1).indices  # [rows, K + 1], the first of equals
    if step.rule == "greedy":
        return _match_greedy(step, best)
    target_probs = _target_probs(step, processed, best)
    if step.rule == "exact_match":
        return _match_greedy(step, draw(target_probs, step.target_uniform))

    rows = torch.arange(step.num_rows, device=step.logits.device)
    target_chosen = target_probs[:, :-1].gather(2, step.drafted[:, :, None]).squeeze(2)  # [rows, K]
    draft_chosen = torch.ones_like(target_chosen)
    if step.draft_probs is not None:
        draft_chosen = step.draft_probs.gather(2, step.drafted[:, :, None]).squeeze(2)
    accepted = _leading(step.accept_uniform * draft_chosen < target_chosen, step.num_drafted)
    next_probs = target_probs[rows, accepted]  # [rows, vocabulary]
    if step.depth:
        position = accepted.clamp(max=step.depth - 1)
        if step.draft_probs is None:
            residual = next_probs.scatter(1, step.drafted[rows, position][:, None], 0.0)
        else:
            residual = (next_probs - step.draft_probs[rows, position]).clamp(min=0.0)
        # Where target and draft agree to the last bit a rejection has probability 0 but may be drawn by rounding.
        is_residual = (accepted < step.num_drafted) & (residual.sum(1) > 0.0)
        next_probs = torch.where(is_residual[:, None], residual, next_probs)
    return Verified(accepted, draw(next_probs, step.target_uniform[rows, accepted]))


def processed_logits(step: Step) -> torch.Tensor:
    """Logits after minimum length and penalties, before temperature; float32 [rows, K + 1, vocabulary].

    Column j is conditioned on the first j drafted tokens having been emitted.
    """
    columns = []
    for column in range(step.depth + 1):
        logits = step.logits[:, column].to(torch.float32)
        if step.minimum_length is not None:
            is_short = step.minimum_length.emitted + column < step.minimum_length.min_tokens
            logits = logits.masked_fill(is_short[:, None] & step.minimum_length.ends, HIDDEN)
        if step.penalties is not None:
            logits = _penalise(logits, step.penalties, step.drafted[:, :column])
        columns.append(logits)
    return torch.stack(columns, 1)


def _penalise(logits: torch.Tensor, penalties: Penalties, assumed: torch.Tensor) -> torch.Tensor:
    """Logits [rows, vocabulary] with `assumed`, int64 [rows, n], counted as emitted."""
    counts = penalties.output_counts.scatter_add(1, assumed, torch.ones(assumed.shape, device=assumed.device))
    is_seen = penalties.in_prompt | (counts > 0)
    repetition = penalties.repetition[:, None]
    logits = torch.where(is_seen, torch.where(logits > 0, logits / repetition, logits * repetition), logits)
    return logits - penalties.frequency[:, None] * counts - penalties.presence[:, None] * (counts > 0)


def _target_probs(step: Step, processed: torch.Tensor, best: torch.Tensor) -> torch.Tensor:
    """The distribution that is sampled, float32 [rows, K + 1, vocabulary]; one-hot at temperature 0."""
    is_greedy = step.temperature == 0.0
    logits = processed / torch.where(is_greedy, 1.0, step.temperature)[:, None, None]
    probs = torch.softmax(logits, -1) if step.truncation is None else _truncate(logits, step.truncation)
    one_hot = torch.zeros_like(probs).scatter(-1, best[..., None], 1.0)
    return torch.where(is_greedy[:, None, None], one_hot, probs)


def _truncate(logits: torch.Tensor, truncation: Truncation) -> torch.Tensor:
    """Softmax of [rows, tokens, vocabulary] after min-p, top-k and top-p; ties at an edge stay."""
    vocabulary = logits.shape[-1]
    least = logits.amax(-1, keepdim=True) + truncation.min_p.log()[:, None, None]
    logits = logits.masked_fill(logits < least, HIDDEN)
    last = truncation.top_k.clamp(max=vocabulary)[:, None, None].expand(*logits.shape[:2], 1) - 1
    logits = logits.masked_fill(logits < logits.sort(-1, descending=True).values.gather(-1, last), HIDDEN)
    probs = torch.softmax(logits, -1)
    ordered = probs.sort(-1, descending=True).values
    ahead = ordered.cumsum(-1) - ordered
    kept = (ahead < truncation.top_p[:, None, None]).sum(-1, keepdim=True).clamp(min=1)
    edge = ordered.gather(-1, kept - 1)
    is_cut = (probs < edge) & (truncation.top_p < 1.0)[:, None, None]
    probs = probs.masked_fill(is_cut, 0.0)
    return probs / probs.sum(-1, keepdim=True)


def draw(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Tokens by the inverse distribution function: the first whose cumulated weight passes `uniform` of the total.

    Args:
        weights: non-negative, not necessarily normalised, float32 [..., vocabulary].
        uniform: in [0, 1), float32 [...].

    Returns:
        Int64 [...]; a token of weight 0 is never drawn.
    """
    cumulated = weights.cumsum(-1)
    total = cumulated[..., -1:]
    # The product may round up to the total itself; the largest float below it keeps the draw inside.
    threshold = torch.minimum(uniform[..., None] * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulated, threshold, right=True).squeeze(-1)


def _match_greedy(step: Step, tokens: torch.Tensor) -> Verified:
    """Accept while the draft equals the target's token, int64 [rows, K + 1]."""
    accepted = _leading(step.drafted == tokens[:, :-1], step.num_drafted)
    return Verified(accepted, tokens.gather(1, accepted[:, None]).squeeze(1))


def _leading(accepts: torch.Tensor, num_drafted: torch.Tensor) -> torch.Tensor:
    """Accepted tokens before the first rejection; bool [rows, K], int64 [rows] -> int64 [rows]."""
    is_proposed = torch.arange(accepts.shape[1], device=accepts.device) < num_drafted[:, None]
    return (accepts & is_proposed).to(torch.int64).cumprod(1).sum(1)


def score(
    hidden: torch.Tensor,  # [rows, size]: the last layer's states, after the final norm
    head: torch.Tensor,  # [vocabulary, size]
    tokens: torch.Tensor,  # int64 [rows]
    temperature: torch.Tensor,  # float32 [rows], above 0
) -> Scored:
    """Log-probabilities of given tokens and of the arg-max; products and sums in float32."""
    logits = hidden.to(torch.float32) @ head.to(torch.float32).t()
    best = logits.max(-1).indices
    log_probs = torch.log_softmax(logits / temperature[:, None], -1)
    return Scored(log_probs.gather(1, tokens[:, None]).squeeze(1), best, log_probs.gather(1, best[:, None]).squeeze(1))


def append(
    cache: torch.Tensor,  # [slots, heads, columns, head_dim]
    states: torch.Tensor,  # [rows, tokens, heads, head_dim]
    slots: torch.Tensor,  # int64 [rows]
    columns: torch.Tensor,  # int64 [rows, tokens]; negative: padding, written nowhere
) -> None:
    """Write each state at its row's slot and its column, in place; the rest of the cache does not change."""
    row, token = (columns >= 0).nonzero(as_tuple=True)
    cache[slots[row], :, columns[row, token]] = states[row, token]
