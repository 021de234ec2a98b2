"""Findings on an operator's orders, which hold also where nothing was decided or measured yet.

A decision under an override carries its verdict already.  Slices that an order covers without a decision (too new, or
not seen yet) get a finding from the order itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from shadowspec.gate.verdict.effective_decisions import has_labels, may_meet
from shadowspec.gate.verdict.slice_rules import bears_on_endpoint
from shadowspec.rollout.check.answer import Finding, Question, Role
from shadowspec.rollout.check.outcome import Outcome
from shadowspec.text import plain_text
from shadowspec.types import Override, Verdict


def order_findings(
    question: Question,
    orders: Sequence[Override],
    decided: Sequence[Finding],
    weights: Mapping[str, float],
    shares: Mapping[int, float],
) -> list[Finding]:
    """One finding for each order that bears on the question, but for those that the findings on decisions show whole.

    `weights` are the slices' traffic (nothing: unknown), `shares` the loads'.  Orders that together cover enough of the
    traffic to bear on the endpoint block, HOLD ones counted with the DISABLE ones, for both keep speculation off; so
    does one whose traffic is not known, because no slice with its labels was seen.  On slices that are asked for by
    name each blocks.
    """
    overrides = [
        order
        for order in orders
        if order.endpoint == question.endpoint
        and may_meet(order, question.slice_labels)
        and (order.concurrency is None or order.concurrency in shares)
    ]
    seen = {*weights, *(finding.slice_key for finding in decided if finding.slice_key)}
    blocking = {
        verdict
        for verdict in (Verdict.DISABLE, Verdict.HOLD)
        if bears_on_endpoint(
            _share([order for order in overrides if order.verdict in (Verdict.DISABLE, verdict)], seen, weights, shares)
        )
    }
    findings = []
    for order in overrides:
        if _is_shown(order, question, decided, shares):
            continue
        share = _share([order], seen, weights, shares) if _is_known(order, seen, weights) else None
        is_blocking = bool(question.slice_labels) or share is None or order.verdict in blocking
        load = "" if order.concurrency is None else f" at load {order.concurrency}"
        findings.append(
            Finding(
                slice_key=order.slice_key,
                role=Role.ORDERED if is_blocking else Role.SHOWN,
                outcome=Outcome(order.verdict.value),
                reason=plain_text(f"override {order.override_id} by {order.author}{load}: {order.reason}"),
                traffic_share=share,
                speedup=None,
                since=order.created_at,
                age=None,
                loads=(),
                override_id=order.override_id,
            )
        )
    return findings


def _share(
    orders: Sequence[Override], seen: Collection[str], weights: Mapping[str, float], shares: Mapping[int, float]
) -> float:
    """Share of the traffic that any of the orders covers."""
    total = sum(weights.get(key, 0.0) for key in seen)
    if not total:
        return 0.0
    covered = 0.0
    for key in seen:
        loads = {order.concurrency for order in orders if has_labels(key, order)}
        part = sum(share for load, share in shares.items() if not loads.isdisjoint((None, load)))
        covered += weights.get(key, 0.0) * part
    return covered / total


def _is_known(order: Override, seen: Collection[str], weights: Mapping[str, float]) -> bool:
    return any(weights.values()) and any(has_labels(key, order) for key in seen)


def _is_shown(order: Override, question: Question, decided: Sequence[Finding], shares: Mapping[int, float]) -> bool:
    """Whether the order covers all that was asked about, and was laid over a decision at every load that it covers."""
    if not order.slice_labels.items() <= question.slice_labels.items():
        return False
    return all(
        load.decision is not None
        for finding in decided
        if question.slice_labels or not finding.slice_key
        for load in finding.loads
        if order.concurrency in (None, load.concurrency)
    )
