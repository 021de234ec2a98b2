"""Whether greedy answers of two servers are the same and how near a tie the target was, and how sampled ones score.

Asked of the baseline server, outside the timed arms.
"""

from __future__ import annotations

from shadowspec.outputs import first_divergence
from shadowspec.servers.client import Client, fresh_salt
from shadowspec.servers.faults import ServerError
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.scores import score
from shadowspec.servers.stream import Completion
from shadowspec.types import Parity, SamplingParameters, SamplingRegime


async def parity_of(
    client: Client,
    request: ServerRequest,
    base: Completion,
    spec: Completion,
    score_logprobs: int,
    max_model_len: int | None,
) -> Parity | None:
    """Where greedy answers part, how far from a tie, and whether the baseline alone parts from itself; others' scores.

    None where nothing is known, because a server returns no token ids.

    Args:
        client: of the baseline server.
        score_logprobs: of the likeliest tokens are asked for at each place of a sampled answer; 0: it is not scored.
        max_model_len: what the baseline server takes.
    """
    if base.token_ids is None or spec.token_ids is None:
        return None
    if request.sampling.regime is not SamplingRegime.GREEDY:
        own = await score(client, request, spec.token_ids, score_logprobs, max_model_len)
        if own is None:
            return Parity()
        plain = await score(client, request, base.token_ids, score_logprobs, max_model_len)
        return Parity(
            z_sum=own.total,
            z_tokens=own.tokens,
            baseline_z_sum=None if plain is None else plain.total,
            baseline_z_tokens=None if plain is None else plain.tokens,
            z_error=own.error,
        )
    position = first_divergence(base.token_ids, spec.token_ids)
    if position is None:
        return Parity()
    gap = await top_two_gap(client, request, base.token_ids[:position])
    try:
        alone = await client.complete(request, fresh_salt())
    except ServerError:
        return Parity(first_divergence=position, divergence_gap=gap)
    return Parity(position, gap, rerun_differs=alone.token_ids != base.token_ids)


async def top_two_gap(client: Client, request: ServerRequest, output: tuple[int, ...]) -> float | None:
    """The target's top-2 logit gap after `output`, as a difference of log probabilities; None if it is not told.

    Servers tell them before penalties and minimum length, so that with these the gap is not known.
    """
    own = request.sampling
    if own.is_penalised or len(output) < own.min_tokens:
        return None
    sampling = SamplingParameters(temperature=0.0, max_tokens=1, ignore_eos=True)
    asked = ServerRequest((*request.prompt_token_ids, *output), sampling, request.seed, num_logprobs=2)
    try:
        first = (await client.complete(asked, fresh_salt())).first_logprobs
    except ServerError:
        return None
    return first[0] - first[1] if len(first) > 1 else None
