"""The made-up world: endpoints, slices, loads and configs, how they speculate, and what changes on which day.

Everything is drawn from the seed, so that two stores of one seed and size are equal.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from kernels.benchmarks.large_store import DATA_NOTE
from shadowspec.gate.policy import GatePolicy
from shadowspec.types import FingerprintedConfig, SpeculationConfig, VerifyRule, format_slice_key

SLICE_BY: Final = ("prompt_class", "sampling_regime", "tier")
SLICES_PER_ENDPOINT: Final = 10
MAX_HYPOTHESES: Final = 24  # the endpoint and ten slices, at two loads or with two configs
NAMES: Final = (
    *("assistant", "code-completion", "sql-agent", "summariser", "support-chat", "translate", "maths-tutor"),
    *("json-extract", "email-drafts", "search-answers", "agent-tools", "report-writer", "code-review", "test-writer"),
    *("changelog", "story", "voice", "batch-labels", "playground", "meeting-notes"),
)
# Probability that a drafted token is accepted given that those before it were, by prompt class: the middle of what
# is published for drafts a tenth of their target's size.
ACCEPTANCE: Final = {
    "code": 0.74,
    "structured": 0.72,
    "maths": 0.66,
    "summarisation": 0.62,
    "chat": 0.57,
    "translation": 0.50,
    "creative": 0.43,
}
GREEDY: Final = frozenset({"code", "structured", "maths"})
HOT_LOSS: Final = 0.07  # of acceptance, for requests that are not greedy
DRAFT_COST: Final = 0.07  # a draft's pass over a target's
LONGEST_GAP: Final = 1.6  # of a request, in units of its mean step
PREFILL_SHARE: Final = 0.12  # of a request's end-to-end time, which speculation leaves as it is
MEAN_PROMPT_TOKENS: Final = 420
MEAN_OUTPUT_TOKENS: Final = 150
SPREAD: Final = 0.16  # of log speedup between requests
VERIFY_COST: Final = {2: 0.10, 4: 0.18, 8: 0.34}  # what verifying adds to a target's pass, by load

DRIFT_DAY: Final = 0.5  # of the days, as the shares below
CHANGE_DAY: Final = 0.45
LATE_DAY: Final = 0.85


@dataclass(frozen=True, slots=True)
class SyntheticSlice:
    """One slice: `acceptance` as of `ACCEPTANCE`, `weight` its share of the endpoint's traffic (any scale)."""

    key: str
    is_greedy: bool
    acceptance: float
    weight: float
    drifts: bool = False
    has_faults: bool = False


@dataclass(frozen=True, slots=True)
class SyntheticEndpoint:
    """One endpoint.  `configs` holds what each config's name stands for, in time; the last from `CHANGE_DAY` on."""

    name: str
    target: str
    slices: tuple[SyntheticSlice, ...]
    loads: tuple[int, ...]
    configs: tuple[tuple[FingerprintedConfig, ...], ...]
    tokens_per_s: float  # of the baseline at load 1
    extra_memory_share: float = 0.12
    is_stale: bool = False  # its mirror stopped five days ago
    is_late: bool = False  # its mirror began at LATE_DAY
    is_undecided: bool = False  # the gate has never run on it
    sample_rate: float = 0.1

    @property
    def fingerprints(self) -> tuple[FingerprintedConfig, ...]:
        """Every config it was ever measured with."""
        return tuple(config for versions in self.configs for config in versions)

    def config_at(self, versions: Sequence[FingerprintedConfig], share: float) -> FingerprintedConfig:
        """What a name stands for at this share of the days."""
        return versions[-1] if share >= CHANGE_DAY else versions[0]


@dataclass(frozen=True, slots=True)
class World:
    """All of it."""

    endpoints: tuple[SyntheticEndpoint, ...]
    policy: GatePolicy = field(default_factory=lambda: GatePolicy(max_hypotheses=MAX_HYPOTHESES, window_s=0.0))

    @property
    def num_slices(self) -> int:
        return sum(len(endpoint.slices) for endpoint in self.endpoints)


def acceptance_at(synthetic: SyntheticSlice, versions: int, share: float) -> float:
    """Probability of acceptance per token at this share of the days; `versions` as the config's name had."""
    value = synthetic.acceptance
    if synthetic.drifts and share >= DRIFT_DAY:
        value -= 0.3 * min(1.0, (share - DRIFT_DAY) / 0.08)
    if versions > 1 and share >= CHANGE_DAY:
        value += 0.05  # the draft was trained on
    return min(max(value, 0.05), 0.95)


def acceptance_length(acceptance: float, depth: int) -> float:
    """Mean tokens of a step of `depth` drafted ones (Leviathan et al., 2211.17192)."""
    return (1.0 - acceptance ** (depth + 1)) / (1.0 - acceptance)


def log_speedup(acceptance: float, depth: int, load: int) -> float:
    """Mean log of baseline over speculative end-to-end time."""
    decode = acceptance_length(acceptance, depth) / (depth * DRAFT_COST + 1.0 + VERIFY_COST[load] * depth / 3)
    return -math.log(PREFILL_SHARE + (1.0 - PREFILL_SHARE) / decode)


def make_world(num_slices: int, seed: int) -> World:
    """A world of so many slices, ten to an endpoint."""
    draw = np.random.default_rng(seed)
    sizes = [SLICES_PER_ENDPOINT] * (num_slices // SLICES_PER_ENDPOINT)
    if num_slices % SLICES_PER_ENDPOINT:
        sizes.append(num_slices % SLICES_PER_ENDPOINT)
    return World(tuple(_endpoint(place, size, draw) for place, size in enumerate(sizes)))


def _endpoint(place: int, num_slices: int, draw: np.random.Generator) -> SyntheticEndpoint:
    turn, number = place % len(NAMES), place // len(NAMES)
    name = NAMES[turn] + (f"-{number + 1}" if number else "")
    large = place % 2 == 1
    target = "synthetic/target-70b" if large else "synthetic/target-8b"
    draft = "synthetic/draft-1b" if large else "synthetic/draft-0.5b"
    has_change = turn in (4, 12)
    candidates = [_versions("draft-k3", target, draft, 3, 1 + has_change)]
    if turn % 5 == 1:
        candidates.append(_versions("draft-k5", target, draft, 5, 1 + has_change))
    return SyntheticEndpoint(
        name=name,
        target=target,
        slices=_slices(turn, num_slices, draw),
        loads=(2, 8) if turn % 5 == 0 else (4,),
        configs=tuple(candidates),
        tokens_per_s=35.0 if large else 110.0,
        extra_memory_share=0.31 if turn == 11 else 0.12,
        is_stale=turn == 16,
        is_late=turn == 15,
        is_undecided=turn == 18,
        sample_rate=(1.0, 0.5, 0.1)[turn % 3],
    )


def _slices(turn: int, number: int, draw: np.random.Generator) -> tuple[SyntheticSlice, ...]:
    classes = list(ACCEPTANCE)
    slices = []
    for place in range(number):
        prompt_class = classes[(turn + place // 2) % len(classes)]
        is_greedy, tier = prompt_class in GREEDY, ("pro", "free")[place % 2]
        regime = "greedy" if is_greedy else ("low", "high")[(place // 2) % 2]
        labels = {"prompt_class": prompt_class, "sampling_regime": regime, "tier": tier}
        loss = 0.0 if is_greedy else HOT_LOSS
        slices.append(
            SyntheticSlice(
                key=format_slice_key(labels, SLICE_BY),
                is_greedy=is_greedy,
                acceptance=float(np.clip(ACCEPTANCE[prompt_class] - loss + draw.normal(0.0, 0.05), 0.1, 0.9)),
                weight=float(draw.lognormal(0.0, 0.8)),
                drifts=turn in (2, 9) and place < 4,
                has_faults=turn == 7 and place == 0 and is_greedy,
            )
        )
    return tuple(slices)


def _versions(name: str, target: str, draft: str, depth: int, number: int) -> tuple[FingerprintedConfig, ...]:
    config = SpeculationConfig(name, target, draft, "draft_model", depth, VerifyRule.REJECTION)
    return tuple(_fingerprinted(config, revision) for revision in range(1, number + 1))


def _fingerprinted(config: SpeculationConfig, revision: int) -> FingerprintedConfig:
    draft_revision = f"r{revision}"
    named = f"{config} {draft_revision}"
    return FingerprintedConfig(
        config=config,
        engine="synthetic-engine/1",
        device="synthetic",
        dtype="bfloat16",
        details={"data_note": DATA_NOTE, "draft_revision": draft_revision},
        fingerprint=hashlib.sha256(named.encode()).hexdigest(),
    )
