"""Figures that the report, the dashboard's pages and spans of time share: values, formed of sums over runs.

In: sums of rollups, runs, cost surfaces and audits.
Out: pooled figures of slices and cells, and what is predicted beside them.
Imports: planning, gate, servers, tap, store, metrics, text, types, errors.
"""
