"""The promotion check: the answer to "may this endpoint speculate?" for CI.

In: a question, current decisions, overrides and traffic.
Out: an answer as text, JSON, JUnit XML and GitHub annotations.
Imports: gate, store, text, types, errors.
"""
