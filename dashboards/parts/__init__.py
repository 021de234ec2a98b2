"""What pages share: formats, tables, charts and the cached source.

In: stored values and what the viewer chose.
Out: HTML, charts and tables.
Imports: config, reports, rollout, planning, gate, store, metrics, text, types, errors.
"""
