"""What the gate would have said of stored evidence under other thresholds: an answer, and no decision.

The evidence is a table of capitals against every threshold of a grid, so that another margin or floor is read off it
as exactly as the one in force (between two points of the grid the next one outward counts).  The level is the one
that the hypothesis has: trying thresholds spends none of it as long as nobody acts on the best of them, which is why
nothing here is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shadowspec.errors import NoDataError
from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.run.endpoint_look import look_again
from shadowspec.gate.run.state import decode_evidence
from shadowspec.gate.verdict.trial_levels import frozen_policy
from shadowspec.types import Decision, Evaluation, FingerprintedConfig, StoredEvidence

MAX_MARGIN = 0.75  # of the slider: beyond it a log speedup clipped at ln 2 proves nothing
# Thresholds, which may change between looks; what defines an estimand (clips, caps, the tail margin) is fixed at entry.
TRIED = ("margin", "floor", "tail_share")


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One hypothesis under the policy in force, and under the one tried: both from the same stored evidence.

    `today` differs from the decision where its verdict is current and today's figures by themselves would not
    give it again, or where the policy has changed since.
    """

    today: Decision
    tried: Decision


def what_if(
    decision: Decision,
    evidence: Iterable[StoredEvidence],
    config: FingerprintedConfig,
    policy: GatePolicy,
    changed: Mapping[str, float],
    evaluations: Sequence[Evaluation] = (),
) -> WhatIf:
    """The hypothesis of `decision` (its latest) judged again, with these of the keys TRIED `changed`.

    `evidence` is its slice's, `evaluations` are the endpoint's.  Everything else is as at that decision: its time, its
    run's level, its frozen parameters.

    Raises:
        NoDataError: nothing is folded of it, or its evidence restarted when the decision ended a run.
        ConfigError: a changed value is out of its range, or nothing could prove it.
        InputError: the evidence was written by another version.
    """
    stored = next(
        (
            kept
            for kept in evidence
            if (kept.slice_key, kept.concurrency, kept.fingerprint)
            == (decision.slice_key, decision.concurrency, decision.fingerprint)
        ),
        None,
    )
    if stored is None:
        raise NoDataError(f"endpoint {decision.endpoint}: nothing is folded of this hypothesis yet")
    folded = decode_evidence(stored).evidence
    if folded.num_clusters < decision.num_clusters:
        raise NoDataError(f"endpoint {decision.endpoint}: this decision ended a run, and evidence restarted after it")
    assert changed.keys() <= set(TRIED), "only thresholds can be tried"
    gate_policy = frozen_policy(policy, decision)
    tried: dict[str, Any] = dict(changed)
    before = [evaluation for evaluation in evaluations if evaluation.measured_at <= decision.decided_at]
    return WhatIf(
        today=look_again(decision, folded, config, gate_policy, before).decide(decision.decided_at),
        tried=look_again(decision, folded, config, replace(gate_policy, **tried), before).decide(decision.decided_at),
    )
