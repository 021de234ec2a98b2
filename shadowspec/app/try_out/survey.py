"""What a sample's requests amount to for one target: usable requests by session, their slices and lengths."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from shadowspec.app.try_out.sample import Sample
from shadowspec.config import SAMPLED_BY
from shadowspec.errors import NoDataError
from shadowspec.gate.evidence.entry import may_enter
from shadowspec.gate.policy import GatePolicy
from shadowspec.metrics import ratio
from shadowspec.tap.endpoints import DEFAULT_SLICE_BY, EndpointRule
from shadowspec.tap.hashing import KeyedHash
from shadowspec.tap.parameters import REMEDIES
from shadowspec.tap.reading import NoTokenizer, Reader, Reading, Tokenizer
from shadowspec.tap.routing import NO_HINTS
from shadowspec.text import percent, plain_text, plural
from shadowspec.types import OUTPUT_CONSTRAINT, FunnelCounter, format_slice_key

SLICE_SESSIONS: Final = 200  # timed sessions that make a slice worth judging: 50 blocks at a load of 4
ASSUMED_OUTPUT_TOKENS: Final = 128  # of a request whose answer was not logged
SHOWN_REASONS: Final = 3
# In the order of preference; the last has one value in this process, where no output is constrained.
SLICES: Final = (DEFAULT_SLICE_BY, ("prompt_class",), ("sampling_regime",))
NO_SLICES: Final = (OUTPUT_CONSTRAINT,)
NO_ENDPOINT: Final = "change an endpoint's `match`, then try it with `shadowspec doctor --traffic FILE`"
REASONS: Final[Mapping[str, str]] = {
    **REMEDIES,
    "no_endpoint": NO_ENDPOINT,
    "no_chat_template": "the target has no chat template: give an instruction-tuned model, or its chat_template.jinja",
    "longer_than_context": "the requests are longer than the target's context: give the model that served them",
    "token_not_in_vocabulary": "the records hold another tokenizer's ids: give the model that served them",
    "other_model": "the records' answers name another model: name all of its names with --model",
    FunnelCounter.DUPLICATE: "the records have the same ids and bodies: give every call another request_id",
    "failed_request": "the calls failed in production: record answered ones",
}


@dataclass(frozen=True, slots=True)
class UsableRequest:
    """A request that can be measured; `num_output_tokens` as logged, else assumed.

    `left_out` are the sampling parameters that it does not set; `is_chat`: it has messages.
    """

    labels: Mapping[str, str]
    num_output_tokens: int
    num_prompt_tokens: int = 1
    left_out: frozenset[str] = frozenset()
    is_chat: bool = False


@dataclass(frozen=True, slots=True)
class Slicing:
    """The labels that make slices, and how many of these have sessions enough to be judged."""

    slice_by: tuple[str, ...]
    num_slices: int

    @property
    def is_divided(self) -> bool:
        return self.num_slices > 1


@dataclass(frozen=True, slots=True)
class Survey:
    """The usable requests of a sample by session, and why the others are not; `scale` extends it to the file."""

    sessions: tuple[tuple[UsableRequest, ...], ...]
    refused: Counter[str]
    first: datetime
    last: datetime
    scale: float
    num_compared: int = 0  # prompts that the server counted
    num_other: int = 0  # of these, those that have another length here

    @property
    def mismatch(self) -> str:
        """The share of prompts that the server counts otherwise, as the end of a sentence; "" without one."""
        share = ratio(self.num_other, self.num_compared)
        return f"; the server counts another length of {percent(share)} of the prompts" if share else ""

    @property
    def requests(self) -> list[UsableRequest]:
        return [request for session in self.sessions for request in session]

    @property
    def mean_prompt_tokens(self) -> int:
        return round(statistics.mean(request.num_prompt_tokens for request in self.requests))

    @property
    def timed_positions(self) -> int:
        """From how many of a session's first requests the timed one is drawn: as many as its median has.

        More where too many requests would come after them for a verdict (`max_untimed_share`).
        """
        policy, lengths = GatePolicy(), [len(session) for session in self.sessions]
        positions = min(max(int(statistics.median(lengths)), 1), policy.timed_positions)
        while sum(max(length - positions, 0) for length in lengths) > policy.max_untimed_share * sum(lengths):
            positions += 1
        return positions

    def num_timed(self, timed_positions: int) -> float:
        """Requests of the whole file that are measured, as expected: one position of each session is drawn."""
        drawn = sum(min(len(session), timed_positions) for session in self.sessions) / timed_positions
        return drawn * self.scale

    def timed_per_block(self, rule: EndpointRule, concurrency: int) -> float:
        """Measured requests of a block, as expected: those that come within `block_max_wait` of its first.

        A block that is not full takes as long as a full one, because untimed copies fill it.
        """
        span, places = self.last - self.first, rule.places(concurrency)
        if not span:
            return places
        return min(places, 1.0 + self.num_timed(rule.timed_positions) / self.scale * (rule.block_max_wait / span))

    def slicing(self) -> Slicing:
        """The labels of which two values or more have SLICE_SESSIONS sessions each; else such as have one value."""
        counted = {slice_by: self._count(slice_by) for slice_by in SLICES}
        for slice_by, sessions in counted.items():
            if sum(number >= SLICE_SESSIONS for number in sessions.values()) > 1:
                total = sum(sessions.values())
                judged = sum(may_enter(number, number / total, GatePolicy()) for number in sessions.values())
                return Slicing(slice_by, judged)
        undivided = next((slice_by for slice_by, sessions in counted.items() if len(sessions) == 1), NO_SLICES)
        return Slicing(undivided, 1)

    def _count(self, slice_by: tuple[str, ...]) -> dict[str, float]:
        """Sessions of the whole file by the slice of their first request."""
        by_slice: dict[str, float] = defaultdict(float)
        for session in self.sessions:
            by_slice[format_slice_key(session[0].labels, slice_by)] += self.scale
        return by_slice


def survey_endpoints(
    sample: Sample, rules: Sequence[EndpointRule], tokenizers: Mapping[str, Tokenizer], secret: bytes
) -> tuple[dict[str, Survey], dict[str, Counter[str]]]:
    """Read the sample as the tap of these endpoints would.

    Returns:
        A survey of each endpoint that has usable requests, and why records were refused, by endpoint ("": before one
        was found).
    """
    reader = Reader(rules, tokenizers, KeyedHash(secret))
    sessions: dict[str, dict[str, list[UsableRequest]]] = defaultdict(lambda: defaultdict(list))
    refused: dict[str, Counter[str]] = defaultdict(Counter)
    times: dict[str, list[datetime]] = defaultdict(list)
    seen: set[tuple[str, str]] = set()
    compared: Counter[str] = Counter()
    differing: Counter[str] = Counter()
    for reading in reader.read((message, NO_HINTS) for message in sample.opened):
        if reading.error is not None:
            refused[reading.rule.name if reading.is_placed else ""][reading.error.reason] += 1
            continue
        assert reading.event_time is not None, "read to the end without a time"
        if (identity := reading.request_id_hash) is not None:
            if (reading.rule.name, identity) in seen:
                refused[reading.rule.name][FunnelCounter.DUPLICATE] += 1
                continue
            seen.add((reading.rule.name, identity))
        left_out = frozenset(name for name in SAMPLED_BY if reading.record.request.get(name) is None)
        is_chat = "messages" in reading.record.request
        length = len(reading.prompt_token_ids)
        request = UsableRequest(reading.labels, _num_output_tokens(reading), length, left_out, is_chat)
        sessions[reading.rule.name][reading.unit_key].append(request)
        times[reading.rule.name].append(reading.event_time)
        is_counted = not isinstance(tokenizers[reading.rule.name], NoTokenizer)
        if (served := reading.num_served_tokens) is not None and is_counted:
            compared[reading.rule.name] += 1
            differing[reading.rule.name] += served != len(reading.prompt_token_ids)
    surveys = {
        name: Survey(
            tuple(map(tuple, of_endpoint.values())),
            refused[name],
            min(times[name]),
            max(times[name]),
            sample.scale,
            compared[name],
            differing[name],
        )
        for name, of_endpoint in sessions.items()
    }
    return surveys, refused


def survey_sample(sample: Sample, rule: EndpointRule, tokenizer: Tokenizer, secret: bytes) -> Survey:
    """Read the sample as the endpoint's tap would.

    Raises:
        NoDataError: no request of it can be measured; the message says why, and what to do.
    """
    surveys, by_endpoint = survey_endpoints(sample, [rule], {rule.name: tokenizer}, secret)
    refused = by_endpoint[rule.name] + by_endpoint[""]
    if rule.name not in surveys:
        raise NoDataError(
            f"{sample.path}: no request of its first {plural(len(sample.opened), 'record')} can be measured: "
            f"{refusals(refused)}{remedy_for(refused)}"
        )
    return replace(surveys[rule.name], refused=refused)


def refusals(refused: Counter[str]) -> str:
    """The commonest reasons, with their numbers, and always that of duplicates."""
    common = [reason for reason, _ in refused.most_common(SHOWN_REASONS)]
    names = dict.fromkeys([*common, *({FunnelCounter.DUPLICATE} & refused.keys())])
    shown = [(name, refused[name]) for name in names]
    more = ", ..." if len(refused) > len(shown) else ""
    return ", ".join(f"{plain_text(reason)}: {number:,}" for reason, number in shown) + more


def remedy_for(refused: Counter[str]) -> str:
    """What to do about the commonest reason, as the end of a sentence."""
    remedy = REASONS.get(refused.most_common(1)[0][0]) if refused else None
    return f"; {remedy}" if remedy is not None else "; docs/formats.md lists the records that can be measured"


def _num_output_tokens(reading: Reading) -> int:
    logged = None if reading.logged is None else reading.logged.num_output_tokens
    return min(ASSUMED_OUTPUT_TOKENS if logged is None else max(logged, 1), reading.sampling.max_tokens)
