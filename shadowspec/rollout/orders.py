"""Setting and clearing overrides: the rules of valid orders, and what an order covers.

The command line and the dashboard set and clear orders only through `set_override` and `clear_override`, so that both
refuse the same orders and leave the same trace.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from shadowspec.errors import UsageError
from shadowspec.gate.verdict.current_decision import read_endpoint_decisions
from shadowspec.gate.verdict.current_verdict import covering, weakens
from shadowspec.store import Store
from shadowspec.text import parse_labels, plain_text, slice_title, suggestion
from shadowspec.types import AUDITOR, GUARD, Clearing, Decision, Override, OverrideRecord, parse_slice_key

MAX_SEEN = 20  # slices named in an error
MAX_TEXT = 1_000  # characters of a reason: a sentence or a link, no log file


@dataclass(frozen=True, slots=True)
class Ordered:
    """A stored order, and how many of the current decisions it covers."""

    record: OverrideRecord
    num_decisions_covered: int


def set_override(
    store: Store,
    override: Override,
    slice_by: Mapping[str, Collection[str]],
    loads: Mapping[str, Collection[int]],
    *,
    allow_unseen: bool = False,
) -> Ordered:
    """Store an override of an endpoint that is configured or was seen.

    Args:
        slice_by: of every configured endpoint the labels that its slices have.
        loads: of every configured endpoint its concurrencies.
        allow_unseen: also of a slice or load that no measured record has had.

    Raises:
        UsageError: there is no such endpoint, or none of its slices has such a label or value, or it would weaken a
            DISABLE. Of a seen endpoint without configuration and decisions, no label is known to be wrong.
    """
    known = sorted({*slice_by, *store.endpoints()})
    if override.endpoint not in known:
        raise unknown_endpoint(override.endpoint, known)
    decisions = store.latest_decisions(override.endpoint)
    labels = {name for decision in decisions for name in parse_slice_key(decision.slice_key)}
    labels.update(slice_by.get(override.endpoint, ()))
    is_known = override.endpoint in slice_by or bool(decisions)
    if is_known and (unknown := sorted(set(parse_slice_key(override.slice_key)) - labels)):
        known_labels = plain_text(", ".join(sorted(labels)) or "none")
        raise UsageError(f"endpoint {override.endpoint!r} is not sliced by {unknown[0]!r} (its labels: {known_labels})")
    traffic = store.traffic(override.endpoint)
    asked = parse_slice_key(override.slice_key).items()
    seen = {hypothesis.slice_key for hypothesis in traffic} | {hypothesis.slice_key for hypothesis in decisions}
    seen.discard("")
    if asked and not allow_unseen and not any(asked <= parse_slice_key(key).items() for key in seen):
        wanted, known_slices = slice_title(override.slice_key), "; ".join(map(slice_title, sorted(seen)[:MAX_SEEN]))
        raise UsageError(
            f"no measured record of endpoint {override.endpoint!r} has {plain_text(wanted)} (seen: "
            f"{plain_text(known_slices or 'none')}); correct it, or give --allow-unseen to cover future records"
        )
    known_loads = {hypothesis.concurrency for hypothesis in traffic} | {
        hypothesis.concurrency for hypothesis in decisions
    }
    known_loads.update(loads.get(override.endpoint, ()))
    if override.concurrency is not None and not allow_unseen and override.concurrency not in known_loads:
        shown = ", ".join(map(str, sorted(known_loads))) or "none"
        raise UsageError(
            f"endpoint {override.endpoint!r} has no load {override.concurrency} (its loads: {shown}); correct it, or "
            "give --allow-unseen to cover future records"
        )
    _require_no_weakening(store, override)
    return Ordered(_find_stored(store, store.add_override(override)), num_covered(override, decisions))


def _require_no_weakening(store: Store, override: Override) -> None:
    """
    Raises:
        UsageError: the order covers a current DISABLE, which it would leave as it is.
    """
    for latest in read_endpoint_decisions(store, override.endpoint, None, override.created_at).latest:
        measured = latest.current.measured
        if latest.is_current and weakens(override, measured) and num_covered(override, [latest.decision]):
            decision = latest.decision
            raise UsageError(
                f"{decision.endpoint}, {plain_text(slice_title(decision.slice_key))}, load {decision.concurrency} is "
                f"DISABLE by decision {decision.decision_id}. An override makes a verdict only safer, and "
                f"{override.verdict} is weaker: give DISABLE, or cover other slices or loads"
            )


def unknown_endpoint(name: str, known: Collection[str]) -> UsageError:
    """An endpoint that neither the configuration nor the database knows."""
    return UsageError(f"there is no endpoint {name!r}{suggestion(name, known)} (known: {', '.join(known) or 'none'})")


def clear_override(store: Store, clearing: Clearing) -> OverrideRecord:
    """Store the end of an override; the whole of its history.

    Raises:
        UsageError: there is no such override, or it was cleared before.
    """
    store.clear_override(clearing)
    return _find_stored(store, clearing.override_id)


def num_covered(override: Override, decisions: Iterable[Decision]) -> int:
    """The number of these decisions that the override covers."""
    return sum(
        covering([override], decision.endpoint, decision.slice_key, decision.concurrency, override.created_at)
        is not None
        for decision in decisions
    )


def ordered_slice(pairs: Iterable[str]) -> str:
    """The key of the slices that have every one of these labels, each LABEL=VALUE.

    Raises:
        UsageError: one is not of that form, or a label comes twice.
    """
    return ",".join(f"{name}={value}" for name, value in sorted(parse_labels(pairs).items()))


def ordered_text(text: str, what: str) -> str:
    """A reason or a name, which is stored permanently: one line.  `what` names the input in errors.

    Raises:
        UsageError: it is empty, too long, or more than a line.
    """
    stripped = text.strip()
    if not stripped or len(stripped) > MAX_TEXT or not stripped.isprintable():
        raise UsageError(f"{what} must be one line of 1 to {MAX_TEXT:,} characters")
    return stripped


def ordered_author(text: str, what: str) -> str:
    """A person's name, as of `ordered_text`.

    Raises:
        UsageError: as `ordered_text`, or ShadowSpec signs its own orders so.
    """
    name = ordered_text(text, what)
    if " ".join(unicodedata.normalize("NFKC", name).casefold().split()) in (GUARD, AUDITOR):
        raise UsageError(
            f"{what} {name!r} is reserved for orders that ShadowSpec sets; give the name of a person or team"
        )
    return name


def scope_words(override: Override) -> str:
    """The override's scope as text."""
    slices = f", {slice_title(override.slice_key)}" if override.slice_key else ""
    return f"{override.endpoint}{slices}" + (f", load {override.concurrency}" if override.concurrency else "")


def state_words(record: OverrideRecord, now: datetime) -> str:
    """The override's state as text."""
    if record.clearing is not None:
        return f"cleared by {record.clearing.author}: {record.clearing.reason}"
    shown = "".join(f"; {effect.reason}" for effect in record.effects[-1:])
    if record.override.expires_at is None:
        return f"in force{shown}"
    in_force = "in force until" if record.is_active(now) else "expired"
    return f"{in_force} {record.override.expires_at:%Y-%m-%d %H:%M}{shown}"


def _find_stored(store: Store, override_id: int) -> OverrideRecord:
    return next(record for record in store.overrides() if record.override.override_id == override_id)
