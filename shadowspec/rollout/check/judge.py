"""Which decisions a question is about, and the answer that they give.

An operator's orders bear on it even where nothing was decided or measured yet.  A decision under an override carries
its verdict already.  Slices that an order covers without a decision (too new, or not seen yet) get a finding from the
order itself.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from operator import attrgetter
from typing import Final

from shadowspec.errors import NoDataError, UsageError
from shadowspec.gate.verdict.current_decision import read_endpoint_decisions, require_promotable
from shadowspec.gate.verdict.current_verdict import has_labels, may_meet
from shadowspec.gate.verdict.slice_rules import bears_on_endpoint
from shadowspec.planning.demand import endpoint_loads, governing_shares, read_demand
from shadowspec.rollout.check.answer import Answer, CheckInput, EndpointTerms, Finding, Question, Role
from shadowspec.rollout.check.load_weights import Place, find
from shadowspec.rollout.check.outcome import Outcome
from shadowspec.rollout.check.upgrade import require_kind, upgrade_decisions, upgrade_remarks
from shadowspec.rollout.served_decision import ServedDecision, judge_decisions, read_fleet
from shadowspec.servers.engines import rule_differences
from shadowspec.store import Store
from shadowspec.text import distinct_slices, plain_text, plural, slice_title
from shadowspec.types import Decision, FingerprintedConfig, Override, Verdict, parse_slice_key
from shadowspec.types.server_facts import differing_facts

MAX_NAMED: Final = 20  # slices named in an error
_BEST_FIRST: Final = (Outcome.ENABLE, Outcome.HOLD, Outcome.UNUSABLE, Outcome.DISABLE)


def read_check_input(store: Store, endpoint: str, terms: EndpointTerms, now: datetime) -> CheckInput:
    """What the store says of an endpoint now."""
    return CheckInput(
        decisions=read_endpoint_decisions(store, endpoint, terms.policy, now),
        configs=store.fingerprints(),
        traffic=store.traffic(endpoint),
        terms=terms,
        rollouts=store.rollouts(endpoint),
        demand=read_demand(store, endpoint, now, terms.policy.mix_window_s),
        fleet=read_fleet(store, [terms.policy]),
    )


def asked(question: Question, inputs: CheckInput, now: datetime) -> Answer | None:
    """The answer, or None where `judge` refuses: for pages and metrics, which show an endpoint without one too."""
    try:
        return judge(question, inputs, now)
    except (NoDataError, UsageError):
        return None


def judge(question: Question, inputs: CheckInput, now: datetime) -> Answer:
    """The answer for the best of the endpoint's candidates: ENABLE first, then by speedup's lower bound.

    Raises:
        UsageError: there is no such load or label; the message names the existing ones.
        NoDataError: nothing was decided, or not on such slices or such a deployment, or only by a trial policy.
    """
    decisions = [latest.decision for latest in inputs.decisions.latest]
    if not decisions:
        raise NoDataError(f"endpoint {question.endpoint!r}: nothing has been decided yet; run `shadowspec gate`")
    require_promotable(question.endpoint, inputs.decisions)
    shares = _load_shares(question, decisions, inputs)
    slices = _slices(question, decisions)
    fingerprints = _find_expected(question, decisions, inputs)
    configs = [inputs.configs[fingerprint] for fingerprint in fingerprints.values() if fingerprint in inputs.configs]
    require_kind(question.endpoint, configs, is_upgrade=question.is_upgrade)
    served_decisions = _served(question, inputs, now)
    served = {
        (one.decision.slice_key, one.decision.concurrency, one.decision.fingerprint): one for one in served_decisions
    }
    answers = [_answer(question, *current, slices, shares, served, inputs, now) for current in fingerprints.items()]
    best = min(answers, key=_rank)
    return replace(
        best, others=tuple((str(answer.config_name), answer.outcome) for answer in answers if answer is not best)
    )


def _served(question: Question, inputs: CheckInput, now: datetime) -> list[ServedDecision]:
    """The decisions as production acts on them."""
    if question.is_upgrade:
        return upgrade_decisions(inputs.decisions.latest, inputs.terms.policy, now, question.max_age)
    return judge_decisions(
        inputs.decisions.latest,
        now=now,
        max_age=question.max_age,
        configs=inputs.configs,
        rollouts=inputs.rollouts,
        accepts_any_engine=question.is_for_in_process,
        fleet=inputs.fleet,
        policy=inputs.terms.policy,
    )


def _answer(
    question: Question,
    name: str,
    fingerprint: str,
    slices: Sequence[str],
    shares: Mapping[int, float],
    served: Mapping[Place, ServedDecision],
    inputs: CheckInput,
    now: datetime,
) -> Answer:
    weights: dict[str, float] = defaultdict(float)
    for row in inputs.traffic:
        if row.fingerprint == fingerprint and row.concurrency in shares and row.weight:  # 0: not seen lately
            weights[row.slice_key] += row.weight
    total = sum(weights.values())
    whole = () if question.slice_labels else ("",)
    findings = []
    for slice_key in (*whole, *sorted(slices, key=lambda key: (-weights[key], key))):
        share = None if not total else weights[slice_key] / total if slice_key else 1.0
        if question.slice_labels or not slice_key:
            role = Role.REQUIRED
        else:
            role = Role.WATCHED if bears_on_endpoint(share) else Role.SHOWN
        findings.append(find(slice_key, role, fingerprint, shares, share, served, inputs, question, now))
    distinct = distinct_slices(
        findings,
        attrgetter("slice_key"),
        lambda finding: finding.outcome is not findings[0].outcome or finding.traffic_share != 1.0,
    )
    orders = _order_findings(question, inputs.decisions.overrides, findings, weights, shares)
    config = inputs.configs.get(fingerprint)
    serving_engine = next((latest.decision.serving_engine for latest in inputs.decisions.latest), None)
    return Answer(
        question=question,
        checked_at=now,
        config_name=name,
        fingerprints=(fingerprint,),
        engines=() if config is None else (config.engine,),
        findings=(*distinct, *orders),
        serving_engine=serving_engine,
        remarks=() if config is None else _remarks(config, serving_engine),
        loads=endpoint_loads(inputs.decisions.current, inputs.demand, fingerprint=fingerprint),
    )


def _remarks(config: FingerprintedConfig, serving_engine: str | None) -> tuple[str, ...]:
    """Where the candidate was drafted by another rule than the serving engine's, or its servers differed in more."""
    if config.config.is_deployment:
        return upgrade_remarks(config)
    rules = [difference.text for difference in rule_differences(config.config, serving_engine)]
    facts = [difference.text for difference in differing_facts(config.details)]
    return (*rules, *([f"the measured servers differ in {', '.join(facts)}"] if facts else []))


def _load_shares(question: Question, decisions: Iterable[Decision], inputs: CheckInput) -> dict[int, float]:
    """The loads that the question is about, with shares that add up to 1."""
    decided = {decision.concurrency for decision in decisions}
    if question.concurrency is not None:
        if question.concurrency not in decided | set(inputs.terms.load_shares):
            known = ", ".join(map(str, sorted(decided | set(inputs.terms.load_shares))))
            raise UsageError(f"endpoint {question.endpoint!r} has no load {question.concurrency} (its loads: {known})")
        return {question.concurrency: 1.0}
    loads = sorted(inputs.terms.load_shares or decided)
    shares: dict[int, float] = {} if inputs.demand is None else governing_shares(inputs.demand, loads)
    shares = shares or dict(inputs.terms.load_shares)
    if not shares:
        shares = dict.fromkeys(decided, 0.0)
        for row in inputs.traffic:
            if row.concurrency in shares:
                shares[row.concurrency] += row.weight
        if not sum(shares.values()):
            shares = dict.fromkeys(decided, 1.0)
    total = sum(shares.values())
    return {concurrency: share / total for concurrency, share in shares.items() if share > 0.0}


def _slices(question: Question, decisions: Iterable[Decision]) -> list[str]:
    """The slices that were decided; with labels given, those that have them all."""
    known = sorted({decision.slice_key for decision in decisions if decision.slice_key})
    if not question.slice_labels:
        return known
    names = {name for key in known for name in parse_slice_key(key)}
    if unknown := sorted(set(question.slice_labels) - names):
        known_labels = ", ".join(sorted(names)) or "none"
        raise UsageError(
            f"endpoint {question.endpoint!r} is not sliced by {unknown[0]!r} (its labels: {plain_text(known_labels)})"
        )
    chosen = [key for key in known if question.slice_labels.items() <= parse_slice_key(key).items()]
    if not chosen:
        asked = ", ".join(f"{name}={value}" for name, value in question.slice_labels.items())
        more = f" and {plural(len(known) - MAX_NAMED, 'other')}" if len(known) > MAX_NAMED else ""
        raise NoDataError(
            f"endpoint {question.endpoint!r}: nothing has been decided on a slice with {plain_text(asked)} "
            f"(decided: {plain_text('; '.join(map(slice_title, known[:MAX_NAMED])))}{more})"
        )
    return chosen


def _find_expected(question: Question, decisions: Sequence[Decision], inputs: CheckInput) -> dict[str, str]:
    """The current fingerprint of each candidate that matches the question, by the candidate's name.

    Raises:
        NoDataError: none matches, or none was decided; the message names the difference of each.
    """
    decided = {decision.config.name for decision in decisions}
    names = decided.intersection(inputs.terms.candidates) if inputs.terms.candidates else decided
    if not names:
        wanted = ", ".join(inputs.terms.candidates)
        raise NoDataError(f"endpoint {question.endpoint!r}: no configured candidate has been decided yet ({wanted})")
    current = inputs.decisions.fingerprints
    kept, differences = {}, []
    for name in sorted(names):
        config = inputs.configs.get(current[name])
        engine = config.engine if config is not None else ""
        difference = question.expected.difference(current[name], engine, config)
        if difference is None:
            kept[name] = current[name]
        else:
            differences.append(f"{name}: {difference}")
    if not kept:
        raise NoDataError(
            f"endpoint {question.endpoint!r}: no measured config matches the expected one; {'; '.join(differences)}; "
            "measure the deployed model and engine, or correct the expectation"
        )
    return kept


def _rank(answer: Answer) -> tuple[int, float, str]:
    lowers = [finding.speedup.lower for finding in answer.findings if finding.role is Role.REQUIRED and finding.speedup]
    known = [lower for lower in lowers if lower is not None]
    return _BEST_FIRST.index(answer.outcome), -min(known, default=-math.inf), str(answer.config_name)


def _order_findings(
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
