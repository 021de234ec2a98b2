"""Expected counts in the database, apart from what the loop counted; written once, and added up by slice and config."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from operator import attrgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, Select, func, literal, select

from shadowspec.store import bulk
from shadowspec.store.columns import RECORD_KEY
from shadowspec.store.tables import replay_configs, replays, runs
from shadowspec.types import (
    AcceptanceSums,
    ExpectedCounts,
    FingerprintedConfig,
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


def read_replay_sums(connection: Connection, endpoint: str) -> list[AcceptanceSums]:
    """What the endpoint's replays add up to by slice and config, sorted; a unit is a session."""
    own = replays.c
    units = (
        select(
            own.slice_key,
            own.fingerprint,
            func.count().label("num_requests"),
            *_sums(own.num_drafts, own.num_draft_tokens, own.num_accepted_tokens, _first(own)),
            func.min(own.event_time).label("first_event"),
            func.max(own.event_time).label("last_event"),
        )
        .where(own.endpoint == endpoint)
        .group_by(own.slice_key, own.fingerprint, own.unit_key)
        .subquery()
    )
    return _added_up(connection, units)


def read_loop_sums(
    connection: Connection, endpoint: str, fingerprints: Collection[str], since: datetime, until: datetime
) -> list[AcceptanceSums]:
    """What the loop counted with these configs from `since` to `until`, likewise.

    A run is a unit: a session is timed once at an endpoint.
    """
    own = runs.c
    units = (
        select(
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
            own.endpoint == endpoint,
            own.event_time.between(since, until),
            own.fingerprint.in_(sorted(fingerprints)),
            own.failure.is_(None),
        )
        .subquery()
    )
    return _added_up(connection, units)


def _first(own: Any) -> ColumnElement[float]:
    """Accepted at the first position."""
    first: ColumnElement[float] = own.num_accepted_tokens_per_pos[0].as_float()
    return first


def _sums(*values: ColumnElement[Any]) -> list[ColumnElement[Any]]:
    names = ("drafts", "draft_tokens", "accepted", "first")
    return [func.sum(value).label(name) for name, value in zip(names, values, strict=True)]


def _added_up(connection: Connection, units: FromClause) -> list[AcceptanceSums]:
    """Units, one a row, added up by slice and config."""
    own = units.c
    key = (own.slice_key, own.fingerprint)
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
    found = [
        AcceptanceSums(
            **(dict(row) | {name: float(row[name]) for name in sums} | {"num_requests": int(row["num_requests"])})
        )
        for row in connection.execute(statement).mappings()
    ]
    return sorted(found, key=lambda sums: (sums.slice_key, sums.fingerprint))


def _config_tuple(own: FingerprintedConfig) -> tuple[Any, ...]:
    config = asdict(own.config) | {"verify_rule": own.config.verify_rule.value}
    return own.fingerprint, config, own.engine, own.device, own.dtype, dict(own.details)


def _replay_tuple(record: ReplayedRecord, config: FingerprintedConfig, counts: ExpectedCounts) -> tuple[Any, ...]:
    return (
        *record.key,
        *(config.fingerprint, record.endpoint, record.slice_key, record.unit_key, record.event_time),
        *(config.config.num_speculative_tokens, *_expected(counts)),
    )
