"""The report on a span of time: what changed, the state at its end, and what is still open.

In: decisions, rollups and deliveries of a span.
Out: the report as HTML, Markdown and JSON.
Imports: planning, gate, store, metrics, text, types, errors.
"""
