"""Betting sequences, capitals and detectors: mathematics without rows.

In: unit values and levels.
Out: capitals, bounds and alarms.
Imports: types, errors.
"""
