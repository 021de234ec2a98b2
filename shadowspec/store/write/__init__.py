"""Writes: batches of rows with their ledger positions, and rows that are only appended.

In: a connection and values of `types`.
Out: rows that were new.
Imports: types, errors.
"""
