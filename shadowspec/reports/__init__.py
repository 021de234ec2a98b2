"""Reports and the contents of dashboard pages: values first, then HTML, Markdown, JSON or terminal tables.

In: stored rows and decisions.
Out: documents, charts and the values that pages show.
Imports: rollout, planning, gate, servers, tap, store, metrics, text, types, errors.
"""
