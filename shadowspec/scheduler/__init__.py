"""Runs gates, live guards and reports when they are due; one leader at a time.

In: a schedule, a store and receivers.
Out: decisions, reports by mail, webhook and folder, and a row for each delivery.
Imports: reports, rollout, live, gate, store, text, types, errors.
"""
