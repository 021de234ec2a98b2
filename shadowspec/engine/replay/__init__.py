"""Replay: the exact law of the step counts of speculation from logged responses, without decoding.

Given the response, every accept bit is independent and its probability is known, so that teacher-forced passes of
target and draft give the expected counters for every number of speculative tokens at once.
"""
