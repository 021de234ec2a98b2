"""Replay: the exact law of the step counts from logged responses, without decoding.

In: prompts with logged responses.
Out: expected counts for every K.
Imports: metrics, types, errors, shadowspec_kernels.

Given the response, every accept bit is independent and its probability is known, so that teacher-forced passes of
target and draft give the expected counters for every number of speculative tokens at once.
"""
