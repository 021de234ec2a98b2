"""Which decisions a question is about, and the answer that they give."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from shadowspec.engine_names import is_measured_on
from shadowspec.errors import NoDataError, UsageError
from shadowspec.gate.endpoint import bears_on_endpoint
from shadowspec.gate.restarts import is_superseded
from shadowspec.promote.answer import Answer, Role
from shadowspec.promote.loads import find
from shadowspec.promote.orders import order_findings
from shadowspec.promote.outcome import Outcome
from shadowspec.promote.question import Question, Standing
from shadowspec.types import Decision, FingerprintedConfig, parse_slice_key
from shadowspec.words import plain_text, plural

MIN_PREFIX: Final = 8  # characters of a digest by which it may be named
MAX_NAMED: Final = 20  # slices named in an error
_BEST_FIRST: Final = (Outcome.ENABLE, Outcome.HOLD, Outcome.UNUSABLE, Outcome.DISABLE)


def judge(question: Question, standing: Standing, now: datetime) -> Answer:
    """The answer for the best of the endpoint's candidates: ENABLE first, then by speedup's lower bound.

    Raises:
        UsageError: there is no such load or label; the message names those that there are.
        NoDataError: nothing was decided, or nothing on such slices or of what is expected.
    """
    own = [decision for decision in standing.decisions if decision.endpoint == question.endpoint]
    if not own:
        raise NoDataError(f"endpoint {question.endpoint!r}: nothing has been decided yet; run `shadowspec gate`")
    shares = _load_shares(question, own, standing)
    slices = _slices(question, own)
    configs = _expected(question, _current(question, own, standing), standing.configs)
    answers = [_answer(question, name, configs[name], slices, shares, standing, now) for name in sorted(configs)]
    best = min(answers, key=_rank)
    return replace(best, others=tuple((str(each.config_name), each.outcome) for each in answers if each is not best))


def _answer(
    question: Question,
    name: str,
    fingerprints: Collection[str],
    slices: Sequence[str],
    shares: Mapping[int, float],
    standing: Standing,
    now: datetime,
) -> Answer:
    weights: dict[str, float] = defaultdict(float)
    for row in standing.traffic:
        if row.fingerprint in fingerprints and row.concurrency in shares:
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
        findings.append(find(slice_key, role, fingerprints, shares, share, standing, question, now))
    findings += order_findings(question, standing.orders, findings, weights, shares)
    known = [standing.configs[fingerprint] for fingerprint in fingerprints if fingerprint in standing.configs]
    return Answer(
        question=question,
        checked_at=now,
        config_name=name,
        fingerprints=tuple(sorted(fingerprints)),
        engines=tuple(sorted({config.engine for config in known})),
        findings=tuple(findings),
    )


def _load_shares(question: Question, decisions: Iterable[Decision], standing: Standing) -> dict[int, float]:
    """The loads that the question is about, with shares that add up to 1."""
    decided = {decision.concurrency for decision in decisions}
    if question.concurrency is not None:
        if question.concurrency not in decided | set(standing.load_shares):
            known = ", ".join(map(str, sorted(decided | set(standing.load_shares))))
            raise UsageError(f"endpoint {question.endpoint!r} has no load {question.concurrency} (its loads: {known})")
        return {question.concurrency: 1.0}
    shares: dict[int, float] = dict(standing.load_shares)
    if not shares:
        shares = dict.fromkeys(decided, 0.0)
        for row in standing.traffic:
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
        told = ", ".join(sorted(names)) or "none"
        raise UsageError(
            f"endpoint {question.endpoint!r} is not sliced by {unknown[0]!r} (its labels: {plain_text(told)})"
        )
    found = [key for key in known if question.slice_labels.items() <= parse_slice_key(key).items()]
    if not found:
        asked = ",".join(f"{name}={value}" for name, value in question.slice_labels.items())
        more = f" and {plural(len(known) - MAX_NAMED, 'other')}" if len(known) > MAX_NAMED else ""
        raise NoDataError(
            f"endpoint {question.endpoint!r}: nothing has been decided on a slice with {plain_text(asked)} "
            f"(decided: {plain_text('; '.join(known[:MAX_NAMED]))}{more})"
        )
    return found


def _current(question: Question, decisions: Sequence[Decision], standing: Standing) -> dict[str, set[str]]:
    """Fingerprints of each candidate that are measured now, by the candidate's name.

    Those that the gate has not superseded and whose newest evidence is of the same hour as the candidate's newest:
    where one takes over from another, both count until the gate has seen it or the hour is over.
    """
    newest: dict[str, datetime] = {}
    for row in standing.traffic:
        newest[row.fingerprint] = max(newest.get(row.fingerprint, row.newest_hour), row.newest_hour)
    by_name: dict[str, set[str]] = defaultdict(set)
    for decision in decisions:
        if not standing.candidates or decision.config.name in standing.candidates:
            by_name[decision.config.name].add(decision.fingerprint)
    if not by_name:
        wanted = ", ".join(standing.candidates)
        raise NoDataError(f"endpoint {question.endpoint!r}: no configured candidate has been decided yet ({wanted})")
    replaced = {decision.fingerprint for decision in decisions if is_superseded(decision)}
    current = {}
    for name, every in by_name.items():
        fingerprints = every - replaced or every
        hours = [newest[fingerprint] for fingerprint in fingerprints if fingerprint in newest]
        current[name] = {each for each in fingerprints if not hours or newest.get(each) == max(hours)}
    return current


def _expected(
    question: Question, current: Mapping[str, set[str]], configs: Mapping[str, FingerprintedConfig]
) -> dict[str, set[str]]:
    """Those that are what the question expects.

    Raises:
        NoDataError: none is; the message says in what each differs.
    """
    kept: dict[str, set[str]] = {}
    differences = []
    for name, fingerprints in sorted(current.items()):
        for fingerprint in sorted(fingerprints):
            difference = _difference(question, fingerprint, configs.get(fingerprint))
            if difference is None:
                kept.setdefault(name, set()).add(fingerprint)
            else:
                differences.append(f"{name}: {difference}")
    if not kept:
        raise NoDataError(
            f"endpoint {question.endpoint!r}: what is measured is not what is expected; {'; '.join(differences)}"
        )
    return kept


def _difference(question: Question, fingerprint: str, config: FingerprintedConfig | None) -> str | None:
    """In what a config differs from the expected one; None if in nothing."""
    wanted = question.expected_fingerprint
    if wanted is not None and not _names(wanted, fingerprint):
        return f"its fingerprint is {fingerprint}, not {wanted}"
    details = config.details if config else {}
    revisions = [each for each in (details.get("target_revision"), details.get("target_weights")) if each]
    if (revision := question.model_revision) is not None and not any(_names(revision, each) for each in revisions):
        return f"its target's revision is {' or '.join(revisions) or 'unknown'}, not {revision}"
    engine = config.engine if config else ""
    if (expected := question.expected_engine) is not None and not is_measured_on(expected, engine):
        return f"its engine is {engine or 'unknown'}, not {expected}"
    return None


def _names(given: str, digest: str) -> bool:
    return given == digest or (len(given) >= MIN_PREFIX and digest.startswith(given))


def _rank(answer: Answer) -> tuple[int, float, str]:
    lowers = [finding.speedup.lower for finding in answer.findings if finding.role is Role.REQUIRED and finding.speedup]
    known = [lower for lower in lowers if lower is not None]
    return _BEST_FIRST.index(answer.outcome), -min(known, default=-math.inf), str(answer.config_name)
