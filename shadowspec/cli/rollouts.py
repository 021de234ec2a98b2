"""Where rollouts stand, as a gate run shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from shadowspec.rollout.stages import RolloutStep


def rollout_document(step: RolloutStep) -> dict[str, Any]:
    """One endpoint at one load, as --json shows it."""
    own = step.rollout
    return {
        "endpoint": own.endpoint,
        "load": {"concurrency": own.concurrency},
        "stage": own.stage.value,
        "share": own.share,
        "fingerprint": own.fingerprint,
        "max_num_speculative_tokens": dict(own.depth_caps),
        "since": own.since.isoformat(),
        "reason_code": own.reason_code,
        "reason": own.reason,
        "alarms": list(own.alarms),
        "waits_for": step.waits_for,
    }


def rollout_table(steps: Sequence[RolloutStep]) -> Table:
    """Every endpoint and load: stage, depth, and what the next stage waits for."""
    table = Table(
        "endpoint", "load", "stage", "share", "depth at most", "since", "waits for", title="rollout", box=None
    )
    for step in steps:
        own = step.rollout
        depths = ", ".join(f"{name or 'any context'}: {cap}" for name, cap in sorted(own.depth_caps.items()))
        cells = (own.endpoint, str(own.concurrency), own.stage.value, f"{own.share:.0%}", depths)
        table.add_row(*map(escape, (*cells, f"{own.since:%Y-%m-%d %H:%M}", step.waits_for or "")))
    return table
