"""Consequences of a verdict: gate runs with their rollout steps, stages, overrides, promotion checks and exports.

In: current decisions, overrides and rollout policies.
Out: stages, check answers and serving configuration.
Imports: planning, gate, servers, store, metrics, text, types, errors.
"""
