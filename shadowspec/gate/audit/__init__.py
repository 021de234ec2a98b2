"""Continuous audits: replay against the engine, and logged responses against the engine.

In: pairs of expected and measured counts.
Out: betting sequences and overrides that hold an endpoint.
Imports: metrics, text, types, errors.
"""
