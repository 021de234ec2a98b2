"""What the gate would have said of stored evidence under other thresholds: an answer, and no decision.

The evidence is a table of capitals against every threshold of a grid, so that another margin or floor is read off it
as exactly as the one in force (between two points of the grid the next one outward counts).  The level is the one
that the hypothesis has: trying thresholds spends none of it as long as nobody acts on the best of them, which is why
nothing here is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shadowspec.errors import NoDataError
from shadowspec.gate.evidence.hypothesis import HypothesisEvidence
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.state import decode_evidence
from shadowspec.gate.run.trial_levels import frozen_policy
from shadowspec.gate.verdict.decision import Hypothesis, decide
from shadowspec.types import Decision, FingerprintedConfig, StoredEvidence

MAX_MARGIN = 0.75  # of the slider: beyond it a log speedup clipped at ln 2 proves nothing
# Thresholds, which may change between looks; what defines an estimand (clips, caps, the tail margin) is fixed at entry.
TRIED = ("margin", "floor", "tail_share")


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One hypothesis under the policy in force, and under the one tried: both from the same stored evidence.

    `today` differs from `stands` where a verdict stands that today's figures alone would not give again, or where the
    policy has changed since.
    """

    stands: Decision
    today: Decision
    tried: Decision


def what_if(
    decision: Decision,
    evidence: Iterable[StoredEvidence],
    config: FingerprintedConfig,
    policy: GatePolicy,
    changed: Mapping[str, float],
) -> WhatIf:
    """The hypothesis of `decision` (its latest) judged again, with these of the keys TRIED `changed`.

    `evidence` is its slice's.  Everything else is as at that decision: its time, its run's level, its frozen
    parameters.

    Raises:
        NoDataError: nothing is folded of it, or its evidence began anew when the decision ended a run.
        ConfigError: a changed value is out of its range, or nothing could prove it.
        InputError: the evidence was written by another version.
    """
    stored = next(
        (
            each
            for each in evidence
            if (each.slice_key, each.concurrency, each.fingerprint)
            == (decision.slice_key, decision.concurrency, decision.fingerprint)
        ),
        None,
    )
    if stored is None:
        raise NoDataError(f"endpoint {decision.endpoint}: nothing is folded of this hypothesis yet")
    folded = decode_evidence(stored).evidence
    if folded.num_clusters < decision.num_clusters:
        raise NoDataError(f"endpoint {decision.endpoint}: this decision ended a run, and evidence began anew after it")
    assert changed.keys() <= set(TRIED), "only thresholds can be tried"
    own = frozen_policy(policy, decision)
    tried: dict[str, Any] = dict(changed)
    return WhatIf(
        stands=decision,
        today=_judge(decision, folded, config, own),
        tried=_judge(decision, folded, config, replace(own, **tried)),
    )


def _judge(decision: Decision, folded: HypothesisEvidence, config: FingerprintedConfig, policy: GatePolicy) -> Decision:
    # What is counted of the slice is not kept with the hypothesis: the decision has it.
    counted = decision.evidence
    evidence = replace(
        folded,
        num_closed_clusters=counted.num_closed_clusters,
        num_lost=counted.num_lost,
        num_late=counted.num_late,
        num_members=counted.num_members,
        num_left_out=counted.num_left_out,
    )
    return decide(
        Hypothesis(decision.endpoint, decision.slice_key, decision.concurrency, config),
        evidence,
        policy,
        trial=decision.run,
        has_entered=decision.run is not None,
        previous=None,
        now=decision.decided_at,
    )
