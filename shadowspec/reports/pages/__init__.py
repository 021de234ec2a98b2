"""The values of the dashboard's pages.

In: rollups, decisions and curves.
Out: what each page shows, without markup.
Imports: rollout, planning, gate, servers, tap, store, metrics, text, types, errors.
"""
