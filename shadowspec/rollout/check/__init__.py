"""The promotion check: the answer to "may this endpoint speculate?" for CI.

In: a question, current decisions, overrides, traffic and production's demand.
Out: an answer as text, JSON, JUnit XML and GitHub annotations.
Imports: planning, gate, servers, store, text, types, errors.
"""
