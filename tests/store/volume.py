"""Rows by the hundred thousand, made by the server itself."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from sqlalchemy import Engine, text

from shadowspec.store import session
from shadowspec.types.decision_documents import stored_details, stored_test_details
from tests.store import examples

_RECORDS = """
    INSERT INTO records (source, source_partition, source_offset, timestamp_ms, source_item, counter, endpoint,
                         slice_key, labels, event_time, session_hash, request_id_hash, unit_key,
                         session_position, sampling_rate)
    SELECT 'topic', n % 6, n / 6, :start_ms + n * CAST(:step_ms AS bigint), 0, 'measured', 'endpoint' || n % 20,
           'slice' || n % 5, '{}', to_timestamp((:start_ms + n * CAST(:step_ms AS bigint)) / 1000.0),
           md5((n / 3)::text), md5(n::text), 'session:' || md5((n / 3)::text), n % 3 + 1, 0.1
    FROM generate_series(0, :num_rows - 1) AS n
"""
_RUNS = """
    INSERT INTO runs (source, source_partition, source_offset, timestamp_ms, source_item, fingerprint, block_id,
                      endpoint, slice_key, concurrency, event_time, num_drafts, num_draft_tokens, num_accepted_tokens,
                      num_accepted_tokens_per_pos, acceptance_histogram, num_output_tokens, num_prompt_tokens,
                      has_parity, is_repetition_loop)
    SELECT 'topic', n % 6, n / 6, :start_ms + n * CAST(:step_ms AS bigint), 0, 'fp', md5((n / 4)::text),
           'endpoint' || n % 20, 'slice' || n % 5, 4, to_timestamp((:start_ms + n * CAST(:step_ms AS bigint)) / 1000.0),
           2, 8, 5, '[2,1,1,1]', '[0,1,0,0,1]', 8, 20, false, false
    FROM generate_series(0, :num_rows - 1) AS n
"""
_GROWING = (
    """
    INSERT INTO fingerprints (fingerprint, name, target, proposer, num_speculative_tokens, verify_rule, backend,
                              ngram_min, ngram_max, suffix_decoding_max_tree_depth, suffix_memory_tokens,
                              suffix_decoding_max_spec_factor, suffix_decoding_min_token_prob,
                              draft_confidence_threshold, ngram_occurrence, draft_sampling, drafts_within_limit,
                              engine, device, dtype, details)
    SELECT 'fp', 'n', 't', 'ngram', 4, 'greedy', 'torch', 2, 4, 24, 100000, 1, 0.1, 0, 'latest', 'request', false,
           'e', 'cpu', 'f', '{}'
    """,
    """
    INSERT INTO ledger (consumer, source, source_partition, next_offset, num_messages, num_records, watermark,
                        is_behind, is_ended, first_offset)
    SELECT 'group', 'topic' || coalesce(nullif(n / 6, 0)::text, ''), n % 6, 1, 1, 1, now(), false, false, 0
    FROM generate_series(0, 3000) AS n
    """,
    """
    INSERT INTO funnel_counts
    SELECT 'group', 'topic' || coalesce(nullif(n / 6, 0)::text, ''), n % 6, 'endpoint' || n % 500, counter, '', 1
    FROM generate_series(0, 3000) AS n, unnest(ARRAY['measured', 'shed', 'failed', 'expired']) AS counter
    """,
    """
    INSERT INTO decisions (endpoint, slice_key, concurrency, fingerprint, verdict, reason_code, reason, num_clusters,
                           num_blocks, decided_at, document)
    SELECT 'endpoint' || n % 20, 'slice' || n % 5, 4, 'fp', 'HOLD', 'too_few_units', '', 1, 1,
           now() - (20000 - n) * interval '1 minute', CAST(:decision_document AS json)
    FROM generate_series(1, 20000) AS n
    """,
    """
    INSERT INTO test_snapshots (decision_id, position, name, outcome, alpha, unit, num_units, min_units, document)
    SELECT decision_id, position, 'speedup', 'open', 0.05, 'block', 1, 1, CAST(:test_document AS json)
    FROM decisions, generate_series(0, 3) AS position
    """,
)


def fill(engine: Engine, *, num_rows: int, start: datetime, days: int) -> None:
    """Fill the tables that grow, over so many days."""
    step = timedelta(days=days) / num_rows
    values = {
        "num_rows": num_rows,
        "start_ms": int(start.timestamp() * 1000),
        "step_ms": int(step.total_seconds() * 1000),
    }
    decision = examples.decision()
    documents = {
        "decision_document": json.dumps(stored_details(decision)),
        "test_document": json.dumps(stored_test_details(decision.tests[0])),
    }
    with session.write(engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
        for statement in (_RECORDS, _RUNS):
            connection.execute(text(statement), values)
        for statement in _GROWING:
            connection.execute(text(statement), documents)
        _fill_rollups(engine, start, days)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("ANALYZE"))


def _fill_rollups(engine: Engine, start: datetime, days: int) -> None:
    """Twenty endpoints, an hour apiece, forty bins each."""
    with session.write(engine, timeout_s=session.LONG_TIMEOUT_S) as connection:
        columns = connection.scalars(
            text(
                "SELECT column_name FROM information_schema.columns WHERE table_name = 'rollups' "
                "AND column_name NOT IN ('rollup_id', 'endpoint', 'slice_key', 'fingerprint', 'concurrency', 'hour')"
            )
        ).all()
        connection.execute(
            text(
                f"INSERT INTO rollups (endpoint, slice_key, fingerprint, concurrency, hour, {', '.join(columns)}) "
                f"SELECT 'endpoint' || e, '', 'fp', 4, CAST(:start AS timestamptz) + h * interval '1 hour', "
                f"{', '.join('1' for _ in columns)} FROM generate_series(0, 19) AS e, generate_series(0, :hours) AS h"
            ),
            {"start": start, "hours": days * 24},
        )
        connection.execute(
            text(
                "INSERT INTO rollup_bins SELECT rollup_id, metric, bin, 1, 1 FROM rollups, "
                "unnest(ARRAY['speedup', 'baseline_prefill_ms']) AS metric, generate_series(0, 3) AS bin"
            )
        )
        connection.execute(
            text("INSERT INTO rollup_positions SELECT rollup_id, p, 1, 1 FROM rollups, generate_series(0, 4) AS p")
        )
