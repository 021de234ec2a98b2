"""Serving configuration from current decisions: the schedules behind it, and formats that are of no engine.

In: current decisions, overrides and rollouts.
Out: files for serving engines, planners, flag systems and gateways.
Imports: gate, servers, metrics, types, errors.
"""
