"""Use cases that several commands share: measuring files, replaying logged responses, backfills, trials,
the worker process.

In: a configuration and an open store.
Out: rows in the store, progress, and the values that commands print.
Imports: config, worker, scheduler, simulate, backfill, reports, rollout, live, planning, gate, engine, servers, tap,
    store, quality, metrics, text, model_folder, gc_control, child_processes, types, errors.
"""
