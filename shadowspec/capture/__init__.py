"""Copies of calls from gateways and servers to the mirror's topic: an outlet that never waits, and an adapter for each.

It runs inside other programs, so it needs no torch and little else, and whatever goes wrong in it costs a copy, never
an answer.  A copy that is dropped is counted, and no log line holds a part of one.

In: calls as an adapter sees them, or the lines of a growing log.
Out: messages in a format that the tap reads.
Imports: tap, child_processes, types, errors.
"""
