"""Use cases that several commands share: measuring files, replaying logged responses, backfills, distilling, the worker
process.

In: a configuration and an open store.
Out: rows in the store, progress, and the values that commands print.
Imports: config, worker, distill, backfill, planning, engine, servers, tap, store, quality, text, gc_control, types,
    errors.
"""
