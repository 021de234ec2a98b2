-- One row per request i: its place, its block i / 4 and the slice of it.  Every statement below reads it.
SELECT i, (i % :partitions)::bigint AS partition, (i / :partitions)::bigint AS place,
       md5(:endpoint || i / 4) || md5(:endpoint || i / 4) AS block_id,
       'prompt_class=s' || lpad(((i / 4) % :slices)::text, greatest(3, length(((i / 4) % :slices)::text)), '0')
           AS slice_key,
       timestamptz '2026-01-01 00:00:00+00' + i * (:step_us * interval '1 microsecond') AS at,
       sin(i * 12.9898) * 43758.5453 - floor(sin(i * 12.9898) * 43758.5453) AS u,
       sin(i * 78.233) * 12543.123 - floor(sin(i * 78.233) * 12543.123) AS v
FROM generate_series(cast(:first AS bigint), cast(:last AS bigint)) AS i
;

INSERT INTO records (source, source_partition, source_offset, timestamp_ms, source_item, counter, endpoint,
    slice_key, labels, event_time, session_hash, unit_key, session_position, sampling_rate, num_prompt_tokens)
SELECT :source, partition, place, (1000 * extract(epoch FROM at))::bigint, 0, 'measured', :endpoint, slice_key,
    '{"sampling_regime":"greedy"}', at, md5(i::text), 'session:' || md5(i::text), 1, 0.1, 200
FROM requests
;

INSERT INTO blocks (block_id, sequence, endpoint, slice_key, concurrency, n_max, first_arm, started_at,
    num_out_of_memory, num_runs)
SELECT block_id, i / 4, :endpoint, slice_key, 4, 4, 'baseline', at, 0, 4 FROM requests WHERE i % 4 = 3
;

INSERT INTO block_memory (block_id, fingerprint, baseline_peak_bytes, speculative_peak_bytes, kv_bytes_per_token,
    draft_weight_bytes, draft_kv_bytes_per_token, source)
SELECT block_id, :fingerprint, 1000000000, 1100000000, 100000, 100000000, 10000, 'accounted'
FROM requests WHERE i % 4 = 3
;

INSERT INTO runs (source, source_partition, source_offset, timestamp_ms, source_item, fingerprint, block_id,
    endpoint, slice_key, concurrency, event_time, sampling_rate, num_drafts, num_draft_tokens, num_accepted_tokens,
    num_accepted_tokens_per_pos, acceptance_histogram, num_output_tokens, num_prompt_tokens, num_plain_steps,
    num_cut_steps, num_cut_draft_tokens, num_cut_accepted_tokens,
    baseline_queue_ms, baseline_prefill_ms, baseline_decode_ms, baseline_draft_ms, baseline_verify_ms,
    baseline_other_ms, baseline_num_output_tokens,
    speculative_queue_ms, speculative_prefill_ms, speculative_decode_ms, speculative_draft_ms,
    speculative_verify_ms, speculative_other_ms, speculative_num_output_tokens,
    has_parity, is_repetition_loop, finish_reason)
SELECT :source, partition, place, (1000 * extract(epoch FROM at))::bigint, 0, :fingerprint, block_id, :endpoint,
    slice_key, 4, at, 0.1, 30, 30, 10 + (20 * u)::bigint,
    json_build_array(10 + (20 * u)::bigint), json_build_array(20 - (20 * u)::bigint, 10 + (20 * u)::bigint),
    41 + (20 * u)::bigint, 200, 0, 0, 0, 0,
    1.5, 50, 950, 0, 0, 0, 60,
    1.5, 50, 950 * (0.65 + 0.3 * v), 100, 500, 50, 60,
    true, false, 'stop'
FROM requests
