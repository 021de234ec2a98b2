"""What a report says, written once: sections of notes, tables, facts and charts, with every figure as text.

In: the report's values.
Out: frozen blocks, which `shadowspec.reports.render` and the dashboard show without deciding anything.
Imports: rollout, planning, gate, servers, store, metrics, text, types.
"""
