"""The evidence that an undecided hypothesis still needs: one estimate, for gate, plan, reports and dashboard."""

from __future__ import annotations

from dataclasses import dataclass

from shadowspec.gate.policy import GatePolicy
from shadowspec.gate.verdict.hold_reasons import figures, number, outlook, short_span, slowest_of
from shadowspec.metrics import ratio
from shadowspec.text import plural, span_text
from shadowspec.types import Decision


@dataclass(frozen=True, slots=True)
class StillNeeded:
    """`sessions` more measured sessions, and the `seconds` in which they come at the pace so far (None: unknown).

    `is_least`: testing only begins after them.
    """

    sessions: int
    seconds: float | None
    is_least: bool

    @property
    def text(self) -> str:
        """Such as `about 40 more sessions (5 minutes of this traffic)`."""
        time = "" if self.seconds is None else f" ({span_text(self.seconds)} of this traffic)"
        return f"{'at least' if self.is_least else 'about'} {plural(self.sessions, 'more session')}{time}"


def still_needed(decision: Decision) -> StillNeeded | None:
    """The estimate of a decision; None where it is decided, or where no number of sessions can be estimated."""
    if not decision.clusters_needed:
        return None
    seconds = ratio(decision.clusters_needed * decision.evidence.span_s, decision.num_clusters)
    return StillNeeded(decision.clusters_needed, seconds or None, decision.reason_code == "too_few_clusters")


def needed_for_promotion(decision: Decision, policy: GatePolicy) -> list[str]:
    """The evidence that a decision still needs for an ENABLE that may be promoted: span, open tests, failed tests."""
    required = [result for result in decision.tests if result.is_required]
    undecided = [result for result in required if result.outcome == "open"]
    wanted = [] if (too_short := short_span(decision.evidence, policy)) is None else [too_short]
    if undecided:
        needed = still_needed(decision)
        names = ", ".join(result.name for result in undecided)
        how = outlook(slowest_of(undecided)) if needed is None else needed.text
        wanted.append(f"{plural(len(undecided), 'open test')} ({names}): {how}")
    failed = [result for result in required if result.outcome == "fail"]
    if failed:
        found = ", ".join(f"{figures(result)}, limit {number(result.threshold)}" for result in failed)
        wanted.append(f"{plural(len(failed), 'failed test')} ({found})")
    return wanted
