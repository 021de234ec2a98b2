"""The command line: thin commands, each of which parses options and prints the result of a use case.

In: arguments, environment variables and the configuration file.
Out: results on stdout, progress on stderr, exit codes.
Imports: app, config, worker, scheduler, simulate, demo, backfill, capture, reports, rollout, live, planning,
    gate, engine, servers, tap, store, metrics, text, gc_control, types, errors.
"""

from shadowspec.cli.main import main

__all__ = ["main"]
