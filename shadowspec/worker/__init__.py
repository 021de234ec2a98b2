"""The service that measures a stream of mirrored records.

In: messages of the mirror, and the results of an engine process.
Out: rows and ledger positions in one transaction, then committed offsets.
Imports: gate, tap, store, metrics, gc_control, child_processes, types, errors.
"""
