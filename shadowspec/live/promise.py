"""The shadow's promise, and why a replica tells the live guard nothing about it; `check` reads both without numpy."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from shadowspec.types import LiveCounts
from shadowspec.types.live_windows import FIRST_POSITION
from shadowspec.types.settings import GuardPolicy

UNWATCHED: Final = "the promise of this ENABLE is not watched"


@dataclass(frozen=True, slots=True)
class Promise:
    """The shadow's promise at ENABLE: an acceptance of at least `rate`, from `since` on.

    Of several current ENABLEs it is the lowest, since the latest: it is unknown which of them production serves.
    """

    rate: float
    since: datetime
    config_names: tuple[str, ...]
    depths: frozenset[int]  # numbers of speculative tokens that were enabled
    has_empty_drafts: bool = False  # every step has a draft, and the engine also counts those that a grammar emptied


def unwatched_because(counts: LiveCounts, policy: GuardPolicy, promise: Promise | None = None) -> str | None:
    """Why a replica with these counters tells the guard nothing, as a clause; None where it tells its acceptance."""
    if counts.num_drafts is None and counts.num_draft_tokens is None and counts.num_accepted_tokens is None:
        return "its page counts no drafts: it does not speculate, or not in a version that counts them"
    accepted, follows = counts.num_accepted_tokens, counts.accepted_tokens is not None
    if policy.metric == FIRST_POSITION:
        is_counted = bool(counts.num_accepted_tokens_per_pos) or accepted is not None or follows
    else:
        is_counted = accepted is not None and counts.num_draft_tokens is not None
    if counts.num_drafts is None or not is_counted:
        return f"its page lacks counters that {policy.metric} needs, or they do not add up"
    positions = len(counts.num_accepted_tokens_per_pos)
    if promise is not None and policy.metric != FIRST_POSITION and positions and positions not in promise.depths:
        return f"it drafts {positions} tokens in a step, and {', '.join(map(str, sorted(promise.depths)))} is enabled"
    return None
