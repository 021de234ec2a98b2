"""Reads of rows, decisions, rollups and pages.

In: a connection and what is asked for.
Out: values of `types`, sorted.
Imports: types, errors.
"""
