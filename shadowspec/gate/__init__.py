"""The gate: from stored rows to verdicts.

In: committed rows of an endpoint, its policy and its earlier decisions.
Out: evidence and decisions, and explanations of past ones.
Imports: metrics, text, gc_control, types, errors.
"""
