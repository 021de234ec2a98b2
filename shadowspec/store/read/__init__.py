"""Reads of rows, decisions, rollups and pages.

In: a connection and the selection to read.
Out: values of `types`, sorted.
Imports: types, errors.
"""
