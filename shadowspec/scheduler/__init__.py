"""Runs gates, live guards, reports and exports when they are due; one leader at a time.

In: a schedule, a store, receivers and targets.
Out: decisions, reports by mail, webhook and folder, exports in their targets, and a row for each delivery.
Imports: reports, rollout, live, gate, servers, store, text, types, errors.
"""
