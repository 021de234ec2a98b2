"""A trial of a model on a recording, without a configuration file: what `shadowspec try` does.

In: model folders and a file of traffic.
Out: a configuration, rows in the store beside it, a report, and the verdicts of a trial policy.
Imports: config, worker, reports, rollout, planning, gate, engine, servers, tap, store, metrics, text, model_folder,
    child_processes, types, errors.
"""
