"""Expected counts in the database, apart from what the loop counted; written once, and added up by slice and config.

Many endpoints are added up by one statement, in which each has its own part: a limit is of one endpoint, and its newest
rows are found through the index of endpoints and times.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, literal, select, union_all

from shadowspec.store import bulk
from shadowspec.store.columns import RECORD_KEY
from shadowspec.store.tables import replay_configs, replays, runs
from shadowspec.types import (
    AcceptanceSums,
    ExpectedCounts,
    FingerprintedConfig,
    LoopSpan,
    ReplayedRecord,
    SpeculationConfig,
    VerifyRule,
)

EXPECTED = tuple(field.name for field in fields(ExpectedCounts))
REPLAY_NAMES = (
    *(*RECORD_KEY, "fingerprint", "endpoint", "slice_key", "unit_key", "event_time"),
    *("num_speculative_tokens", *EXPECTED),
)
CONFIG_NAMES = ("fingerprint", "config", "engine", "device", "dtype", "details")

# Rows of an endpoint added up at a read, the newest: 12,500 responses at 16 configs and K, a second or two.
MAX_REPLAYS = 200_000
MAX_RUNS = 50_000  # likewise

_expected = attrgetter(*EXPECTED)


def insert_replays(connection: Connection, replayed: Sequence[ReplayedRecord]) -> int:
    """Insert what is new of replayed records, and the configs that are; how many rows of expected counts.

    A record that was replayed before with the same config stays as it is.
    """
    configs = {config.fingerprint: config for record in replayed for config, _ in record.counts}
    bulk.insert_new(
        connection, replay_configs, CONFIG_NAMES, [_config_tuple(configs[name]) for name in sorted(configs)]
    )
    by_key = {
        (*record.key, config.fingerprint): _replay_tuple(record, config, counts)
        for record in reversed(replayed)
        for config, counts in record.counts
    }
    return len(bulk.insert_new(connection, replays, REPLAY_NAMES, [by_key[key] for key in sorted(by_key)]))


def read_replay_configs(connection: Connection) -> dict[str, FingerprintedConfig]:
    """Every config that responses were replayed with, by fingerprint."""
    return {
        row["fingerprint"]: FingerprintedConfig(
            config=SpeculationConfig(**(row["config"] | {"verify_rule": VerifyRule(row["config"]["verify_rule"])})),
            **{name: row[name] for name in CONFIG_NAMES if name != "config"},
        )
        for row in connection.execute(select(replay_configs)).mappings()
    }


def read_replay_sums(connection: Connection, endpoints: Collection[str]) -> dict[str, list[AcceptanceSums]]:
    """What each endpoint's newest MAX_REPLAYS rows add up to by slice and config, sorted; a unit is a session."""
    row = replays.c
    newest = [
        select(*_summed(row.slice_key))
        .where(row.endpoint == endpoint)
        .order_by(row.event_time.desc())
        .limit(MAX_REPLAYS)
        for endpoint in endpoints
    ]
    if not newest:
        return {}
    return _by_session(connection, _together(newest), endpoints)


def read_source_sums(
    connection: Connection, sources: Collection[str], fingerprints: Collection[str], endpoints: Collection[str]
) -> dict[str, list[AcceptanceSums]]:
    """What all rows of these sources and configs add up to: of the whole endpoint (""), then by slice."""
    row = replays.c
    of_them = (
        row.source.in_(sorted(sources)),
        row.fingerprint.in_(sorted(fingerprints)),
        row.endpoint.in_(sorted(endpoints)),  # others may share a config
    )
    whole, slices = (
        _by_session(connection, select(*_summed(slice_key)).where(*of_them).subquery().c, endpoints)
        for slice_key in (literal("").label("slice_key"), row.slice_key)
    )
    return {endpoint: whole[endpoint] + slices[endpoint] for endpoint in endpoints}


def read_loop_sums(connection: Connection, spans: Collection[LoopSpan]) -> dict[str, list[AcceptanceSums]]:
    """What the loop counted in these spans, each of another endpoint; likewise, of the newest MAX_RUNS of each.

    A run is a unit: a session is timed once at an endpoint.
    """
    own = runs.c
    newest = [
        select(
            own.endpoint,
            own.slice_key,
            own.fingerprint,
            literal(1).label("num_requests"),
            own.num_drafts.label("drafts"),
            own.num_draft_tokens.label("draft_tokens"),
            own.num_accepted_tokens.label("accepted"),
            _first(own).label("first"),
            own.event_time.label("first_event"),
            own.event_time.label("last_event"),
        )
        .where(
            own.endpoint == span.endpoint,
            own.event_time.between(span.since, span.until),
            own.fingerprint.in_(sorted(span.fingerprints)),
            own.failure.is_(None),
        )
        .order_by(own.event_time.desc())
        .limit(MAX_RUNS)
        for span in spans
    ]
    return _added_up(connection, _together(newest), [span.endpoint for span in spans]) if newest else {}


def _by_session(connection: Connection, own: Any, endpoints: Collection[str]) -> dict[str, list[AcceptanceSums]]:
    """Rows of expected counts added up by slice and config; a unit is a session."""
    units = (
        select(
            own.endpoint,
            own.slice_key,
            own.fingerprint,
            func.count().label("num_requests"),
            *_sums(own.num_drafts, own.num_draft_tokens, own.num_accepted_tokens, own.first),
            func.min(own.event_time).label("first_event"),
            func.max(own.event_time).label("last_event"),
        )
        .group_by(own.endpoint, own.slice_key, own.fingerprint, own.unit_key)
        .subquery()
    )
    return _added_up(connection, units.c, endpoints)


def _together(each: Collection[Select[Any]]) -> Any:
    """The columns of all of these rows; each select keeps its own order and limit."""
    own = [newest.subquery() for newest in each]  # SQLite takes a limit within a union in this form alone
    return union_all(*(select(*newest.c) for newest in own)).subquery().c


def _summed(slice_key: ColumnElement[str]) -> list[ColumnElement[Any]]:
    """What of a row is added up, and by what."""
    row = replays.c
    counts = (row.num_drafts, row.num_draft_tokens, row.num_accepted_tokens)
    return [
        *(row.endpoint, slice_key, row.fingerprint, row.unit_key, row.event_time),
        *(*counts, _first(row).label("first")),
    ]


def _first(own: Any) -> ColumnElement[float]:
    """Accepted at the first position."""
    first: ColumnElement[float] = own.num_accepted_tokens_per_pos[0].as_float()
    return first


def _sums(*values: ColumnElement[Any]) -> list[ColumnElement[Any]]:
    names = ("drafts", "draft_tokens", "accepted", "first")
    return [func.sum(value).label(name) for name, value in zip(names, values, strict=True)]


def _added_up(connection: Connection, own: Any, endpoints: Collection[str]) -> dict[str, list[AcceptanceSums]]:
    """Units with these columns, one a row, added up by slice and config; of each of the endpoints."""
    key = (own.endpoint, own.slice_key, own.fingerprint)
    sums = {
        "num_drafts": own.drafts,
        "num_draft_tokens": own.draft_tokens,
        "num_accepted_tokens": own.accepted,
        "num_first_accepted_tokens": own.first,
        "drafts_squares": own.drafts * own.drafts,
        "accepted_drafts": own.accepted * own.drafts,
        "accepted_squares": own.accepted * own.accepted,
    }
    statement: Select[Any] = select(
        *key,
        func.sum(own.num_requests).label("num_requests"),
        func.count().label("num_units"),
        *(func.sum(value).label(name) for name, value in sums.items()),
        func.min(own.first_event).label("first_event"),
        func.max(own.last_event).label("last_event"),
    ).group_by(*key)
    found: dict[str, list[AcceptanceSums]] = {endpoint: [] for endpoint in endpoints}
    for row in connection.execute(statement).mappings():
        values = {name: value for name, value in row.items() if name != "endpoint"}
        values |= {name: float(row[name]) for name in sums} | {"num_requests": int(row["num_requests"])}
        found[row["endpoint"]].append(AcceptanceSums(**values))
    return {
        endpoint: sorted(each, key=lambda sums: (sums.slice_key, sums.fingerprint)) for endpoint, each in found.items()
    }


def _config_tuple(own: FingerprintedConfig) -> tuple[Any, ...]:
    config = asdict(own.config) | {"verify_rule": own.config.verify_rule.value}
    return own.fingerprint, config, own.engine, own.device, own.dtype, dict(own.details)


def _replay_tuple(record: ReplayedRecord, config: FingerprintedConfig, counts: ExpectedCounts) -> tuple[Any, ...]:
    return (
        *record.key,
        *(config.fingerprint, record.endpoint, record.slice_key, record.unit_key, record.event_time),
        *(config.config.num_speculative_tokens, *_expected(counts)),
    )
