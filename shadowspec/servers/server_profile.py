"""Profiling two servers: the cost of a step of either, from requests whose steps are counted.

Every run is a closed loop at constant concurrency, a queue of random prompts of one length, as blocks of an endpoint
with a queue are measured; its answers have different lengths, so that slots do not end together.  While a request is
decoded it takes part in S steps, and P other prompts are read in between them, so that over the requests of a run

    decode_ms = S * step_ms + P * stall_ms

by least squares, which separates the time of a step from the cost of others' prompts.  A step drafts K tokens whether
they are accepted or not, so that acceptance enters only through S: the costs hold for any acceptance, that of synthetic
rejection sampling too.  A third term, the accepted tokens, checks this: its coefficient is the time that an accepted
token adds to its step.

Arms take turns, round after round.  A round gives one figure of each, of which the median counts, so that a slow
moment affects only one round; the standard error is that of their mean.  The prefill is the time to the first token
with the request's wait for others' prompts: P * stall_ms, which does not grow with its steps.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Final

import numpy as np

from shadowspec import metrics
from shadowspec.errors import InputError, NoDataError
from shadowspec.servers.client import ServerClient, fresh_salt, open_client, run_async, trust
from shadowspec.servers.closed_loop import Outcome, run_arm
from shadowspec.servers.counter_pass import steps_counted
from shadowspec.servers.engines import ServerIdentity, engine_of
from shadowspec.servers.identity import fingerprint_server_config, identify
from shadowspec.servers.measure_servers import SEEDS
from shadowspec.servers.probing import counts_source, probe_both, remarks
from shadowspec.servers.request import ServerRequest
from shadowspec.servers.server_settings import ServerSettings
from shadowspec.servers.step_counts import COUNTERS, CountsSource, UncountableError
from shadowspec.servers.stream import Completion, ServerError
from shadowspec.types import BASELINE, Arm, FingerprintedConfig, SamplingParameters, SpeculationConfig, StepCost
from shadowspec.types.prompt_rules import UNNAMED, PromptRules

log = logging.getLogger(__name__)

REQUESTS_PER_SLOT: Final = 4  # of a run: enough that slots are refilled at different moments
OUTPUT_TOKENS: Final = (48, 80)  # of an answer, drawn
WARM_TOKENS: Final = 8
SAMPLED_TEMPERATURE: Final = 0.8


@dataclass(frozen=True, slots=True)
class ServerGrid:
    """Where costs are measured; the depth is the speculative server's."""

    loads: tuple[int, ...]
    contexts: tuple[int, ...]
    is_greedy: bool = True
    rounds: int = 3

    @property
    def places(self) -> list[tuple[int, int]]:
        """(load, context)."""
        return list(product(self.loads, self.contexts))

    @property
    def num_runs(self) -> int:
        return self.rounds * len(self.places) * len(Arm)


@dataclass(frozen=True, slots=True)
class StepFit:
    """The time of a step by a regression on counts: milliseconds with standard errors; None if it is unknown."""

    step_ms: float
    stall_ms: float  # for each other prompt read meanwhile; 0: there was none
    accepted_token_ms: float | None = None  # that an accepted token adds to its step
    accepted_token_error_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ProfiledPlace:
    """One load and context: both arms' costs, and the accepted tokens meanwhile."""

    baseline: StepCost
    speculative: StepCost
    mean_acceptance_length: float | None
    accepted_token_ms: float | None
    accepted_token_error_ms: float | None


@dataclass(frozen=True, slots=True)
class ServerProfile:
    """The costs of two servers; of greedy requests, how many answers were the same from both."""

    config: FingerprintedConfig
    places: tuple[ProfiledPlace, ...]
    num_compared: int
    num_same: int

    @property
    def points(self) -> tuple[StepCost, ...]:
        return tuple(cost for place in self.places for cost in (place.baseline, place.speculative))


@dataclass(frozen=True, slots=True)
class ServedSteps:
    """One request's part in the steps of its run."""

    num_steps: int
    num_accepted: int
    num_prompts: int  # of others, taken in while it was decoded
    decode_ms: float
    prefill_ms: float


@dataclass(frozen=True, slots=True)
class _Reading:
    """How answers are read: where steps are counted, and whether both servers say how long a request waited."""

    source: CountsSource
    model: str
    reports_queue: bool


@dataclass(frozen=True, slots=True)
class ProfiledRun:
    """One closed loop at a load: its requests' steps, and their outputs (None: without token ids)."""

    requests: tuple[ServedSteps, ...]
    outputs: tuple[tuple[int, ...] | None, ...]


def profile_servers(
    settings: ServerSettings,
    config: SpeculationConfig,
    grid: ServerGrid,
    *,
    vocab_size: int,
    requests_per_slot: int,
    default_sampling: Mapping[str, float],
    max_turns: int = 1,
    prompt_rules: PromptRules = UNNAMED,
    on_run: Callable[[], None] = lambda: None,
) -> ServerProfile:
    """The costs at every place of the grid.

    Args:
        vocab_size: of the target; prompts are random tokens below it.
        requests_per_slot, default_sampling, max_turns, prompt_rules: the endpoint's, in the config's fingerprint.
        on_run: called after each of `grid.num_runs` runs.

    Raises:
        ServerError: a server gives no usable answer.
        ModelError: the servers do not fit the config; the message names what is missing.
        InputError: the config drafts to no fixed depth, or a context leaves no room for the output.
        NoDataError: the steps of a run cannot be counted.
        ConfigError: the key's variable is not set, or the file of certificates cannot be read.
    """
    if not config.drafts_in_every_step:
        raise InputError(
            f"{config.name}: how deep {config.proposer} drafts depends on the text, or is not known; not profiled"
        )
    baseline, speculative = probe_both(settings, config.name)
    source = counts_source(config, baseline, speculative)
    lengths = (baseline.identity.max_model_len, speculative.identity.max_model_len, settings.max_model_len)
    longest = min((length for length in lengths if length is not None), default=math.inf) - OUTPUT_TOKENS[1]
    if max(grid.contexts) > longest:
        raise InputError(f"a context of {max(grid.contexts)} tokens leaves no room: at most {longest:g} here")
    identities = {Arm.BASELINE: baseline.identity, Arm.SPECULATIVE: speculative.identity}
    for remark in remarks(baseline, speculative, config):
        log.warning("candidate %r: %s", config.name, remark)
    known = fingerprint_server_config(
        config, settings, identities, source, requests_per_slot, default_sampling, max_turns, prompt_rules
    )
    reading = _Reading(source, settings.model, baseline.reports_queue and speculative.reports_queue)
    return run_async(_profile(settings, known, identities, reading, grid, vocab_size, on_run))


async def _profile(
    settings: ServerSettings,
    config: FingerprintedConfig,
    identities: Mapping[Arm, ServerIdentity],
    reading: _Reading,
    grid: ServerGrid,
    vocab_size: int,
    on_run: Callable[[], None],
) -> ServerProfile:
    context = trust(settings.ca_file)
    servers = {Arm.BASELINE: settings.baseline, Arm.SPECULATIVE: settings.server_of(config.config.name)}
    runs: dict[tuple[int, int, Arm], list[ProfiledRun]] = {(*at, arm): [] for at in grid.places for arm in Arm}
    async with AsyncExitStack() as stack:
        clients: Mapping[Arm, ServerClient] = {
            arm: (
                await stack.enter_async_context(
                    open_client(server.label, server.url, settings, context, max(grid.loads))
                )
            ).speaking_to(engine_of(identities[arm].engine, identities[arm].version))
            for arm, server in servers.items()
        }
        for arm, client in clients.items():  # untimed: connections, allocation, choice of kernels
            await asyncio.gather(*(identify(client, settings.model) for _ in range(max(grid.loads))))
            for load, length in grid.places:
                warm = _requests(load, length, grid.is_greedy, vocab_size, 0, (WARM_TOKENS, WARM_TOKENS))
                _require_answers(await run_arm(clients[arm], warm, load, fresh_salt()))
        for number in range(grid.rounds):
            order = tuple(Arm) if number % 2 == 0 else tuple(Arm)[::-1]
            for (load, length), arm in product(grid.places, order):
                requests = _requests(load, length, grid.is_greedy, vocab_size, number, OUTPUT_TOKENS)
                width = config.config.num_speculative_tokens if arm is Arm.SPECULATIVE else BASELINE
                run = await _run(clients[arm], requests, load, width, reading)
                runs[load, length, arm].append(run)
                on_run()
    depth = config.config.num_speculative_tokens
    places = [_place(runs, at, depth) for at in grid.places]
    compared = [
        (base, spec)
        for at in grid.places
        for one, other in zip(runs[*at, Arm.BASELINE], runs[*at, Arm.SPECULATIVE], strict=True)
        for base, spec in zip(one.outputs, other.outputs, strict=True)
        if grid.is_greedy and base is not None and spec is not None
    ]
    return ServerProfile(config, tuple(places), len(compared), sum(base == spec for base, spec in compared))


async def _run(
    client: ServerClient, requests: Sequence[ServerRequest], load: int, width: int, reading: _Reading
) -> ProfiledRun:
    """One closed loop, with every request's steps, of which each drafts `width` tokens."""
    if width != BASELINE and reading.source == COUNTERS:
        outcomes, counted = await steps_counted(
            client, reading.model, len(requests), run_arm(client, requests, load, fresh_salt())
        )
        answers = _require_answers(outcomes)
        steps = [
            (len(answer.chunk_sizes) - 1, answer.num_output_tokens - len(answer.chunk_sizes)) for answer in answers
        ]
        if counted is None or counted.num_drafts != sum(number for number, _ in steps):
            raise NoDataError(
                f"{client.name}: its steps cannot be counted, as chunks came together or it served others too; "
                f"it {client.engine.uncounted}"
            )
    else:
        answers = _require_answers(await run_arm(client, requests, load, fresh_salt()))
        steps = [
            _steps(client, answer, len(request.prompt_token_ids), width)
            for answer, request in zip(answers, requests, strict=True)
        ]
    served = []
    for answer, (num_steps, num_accepted) in zip(answers, steps, strict=True):
        queued_ms = (answer.queue_ms or 0.0) if reading.reports_queue else 0.0  # a cost excludes the wait
        prefill_ms = max(0.0, 1e3 * (answer.first_token_s - answer.sent_s) - queued_ms)
        decode_ms = 1e3 * (answer.last_token_s - answer.first_token_s)
        others = sum(answer.first_token_s < other.sent_s < answer.last_token_s for other in answers)
        served.append(ServedSteps(num_steps, num_accepted, others, decode_ms, prefill_ms))
    return ProfiledRun(tuple(served), tuple(answer.token_ids for answer in answers))


def _steps(client: ServerClient, answer: Completion, num_prompt_tokens: int, width: int) -> tuple[int, int]:
    """Steps after the prefill, and the tokens accepted in them."""
    if width == BASELINE:
        return answer.num_output_tokens - 1, 0
    try:
        counts = client.engine.count(answer, num_prompt_tokens, width, drafts_always=True).counts
    except UncountableError as error:
        raise NoDataError(f"{client.name}: the steps of an answer cannot be counted: {error}") from error
    return counts.num_drafts + counts.num_plain_steps, counts.num_accepted_tokens


def _require_answers(outcomes: Sequence[Outcome]) -> list[Completion]:
    """The answers; a profile with a request that failed would be one of another load."""
    answers = []
    for outcome in outcomes:
        if isinstance(outcome, ServerError):
            raise outcome
        answers.append(outcome)
    return answers


def _requests(
    load: int, context: int, is_greedy: bool, vocab_size: int, seed: int, lengths: tuple[int, int]
) -> list[ServerRequest]:
    """Prompts of random tokens, the same for both arms, each with an answer of another length."""
    draw = random.Random(f"{seed} {load} {context}")  # noqa: S311 - tokens that mean nothing
    return [
        ServerRequest(
            tuple(draw.randrange(vocab_size) for _ in range(context)),
            SamplingParameters(
                temperature=0.0 if is_greedy else SAMPLED_TEMPERATURE,
                max_tokens=draw.randint(*lengths),
                ignore_eos=True,
            ),
            draw.randrange(SEEDS),
        )
        for _ in range(load * REQUESTS_PER_SLOT)
    ]


def _place(
    runs: Mapping[tuple[int, int, Arm], Sequence[ProfiledRun]], at: tuple[int, int], depth: int
) -> ProfiledPlace:
    base, spec = (runs[*at, arm] for arm in Arm)
    every = [request for run in spec for request in run.requests]
    whole = fit(every)
    steps, accepted = sum(request.num_steps for request in every), sum(request.num_accepted for request in every)
    return ProfiledPlace(
        _cost(base, at, BASELINE),
        _cost(spec, at, depth),
        metrics.ratio(steps + accepted, steps),
        whole.accepted_token_ms,
        whole.accepted_token_error_ms,
    )


def _cost(runs: Sequence[ProfiledRun], at: tuple[int, int], depth: int) -> StepCost:
    """The medians over rounds, with standard errors; no server reports the drafting part of a step."""
    fits = [fit(run.requests) for run in runs]
    waits = [
        float(np.mean([request.prefill_ms + request.num_prompts * fitted.stall_ms for request in run.requests]))
        for run, fitted in zip(runs, fits, strict=True)
    ]
    steps = [fitted.step_ms for fitted in fits]
    return StepCost(
        concurrency=at[0],
        num_speculative_tokens=depth,
        context=at[1],
        prefill_ms=median(waits),
        draft_ms=0.0,
        verify_ms=0.0,
        other_ms=median(steps),
        step_error_ms=_standard_error(steps),
        prefill_error_ms=_standard_error(waits),
    )


def _standard_error(values: Sequence[float]) -> float | None:
    """Of the mean; None of a single value."""
    return None if len(values) < 2 else float(np.std(values, ddof=1) / math.sqrt(len(values)))


def fit(requests: Sequence[ServedSteps]) -> StepFit:
    """The regression over requests of one place.

    A stall below 0 is noise: others' prompts are then left out.
    """
    decode = np.array([request.decode_ms for request in requests])
    steps, prompts, accepted = (
        np.array([getattr(request, name) for request in requests], dtype=float)
        for name in ("num_steps", "num_prompts", "num_accepted")
    )
    columns = [steps, prompts] if prompts.any() else [steps]
    costs = _least_squares(columns, decode)[0]
    if len(costs) > 1 and costs[1] < 0.0:
        columns = [steps]
        costs = _least_squares(columns, decode)[0]
    values, error = _least_squares([*columns, accepted], decode) if accepted.any() else (None, None)
    return StepFit(
        step_ms=float(costs[0]),
        stall_ms=float(costs[1]) if len(costs) > 1 else 0.0,
        accepted_token_ms=None if values is None or error is None else float(values[-1]),
        accepted_token_error_ms=None if error is None else float(error[-1]),
    )


def _least_squares(columns: Sequence[np.ndarray], wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Coefficients without an intercept, and their standard errors; None where there are too few rows, or no rank."""
    design = np.stack(columns, axis=1)  # [requests, columns]
    coefficients, _, rank, _ = np.linalg.lstsq(design, wanted, rcond=None)
    spare = len(wanted) - len(columns)
    if spare < 1 or rank < len(columns):
        return coefficients, None
    residual = wanted - design @ coefficients
    spread = float(residual @ residual) / spare
    return coefficients, np.sqrt(spread * np.diag(np.linalg.inv(design.T @ design)))
