"""Blocks of content as HTML, Markdown and terminal tables, and charts as SVG; each renderer shows every text.

In: `shadowspec.reports.content`.
Out: text that loads nothing, with every value escaped.
Imports: text, types.
"""
