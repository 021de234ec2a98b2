"""Forecasts, sizing and costs: the time and evidence that a verdict needs, and where speculation pays.

In: evidence, decisions and measured cost surfaces.
Out: expected times to a verdict, engine counts, predicted speedups.
Imports: gate, store, metrics, text, types, errors.
"""
